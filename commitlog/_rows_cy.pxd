cimport cython
from storebytes._bytes_cy cimport *
from commitlog._record_cy cimport check_record, growth, has_trailer, topic_size_at, topic_size_size

cdef Size AHEAD, PREFETCHED_MAX, INT_MAX, BODY_AT, CRC_SIZE, HOST_GROWTH, STORE_TIME_AT, SYS_FLAG_AT
cdef I32 SPACE, BORN_HOST_V6, NAME_END, PAIR_END
cdef Source _KEYS, _TAGS

@cython.final
cdef class TextColumn:
    cdef memoryview _held, _held_mask, _held_offsets
    cdef I32s _offsets
    cdef Target _data, _mask
    cdef Size _places, _room
    cdef readonly Size count, used
    cdef readonly I32 high

@cython.final
cdef class Columns:
    cdef list _held
    cdef readonly Size rows
    cdef Size _wide_count, _narrow_count
    cdef I64s _wide
    cdef I32s _narrow, _wide_places, _narrow_places, keys
    cdef readonly TextColumn body, topic, tags, words

cimport cython
from storebytes._bytes_cy cimport *
from commitlog._record_cy cimport check_record, growth, has_trailer, topic_size_at, topic_size_size
from commitlog._scan_cy cimport split_row

cdef Size AHEAD, PAIRS_MAX, PREFETCHED_MAX, INT_MAX, BODY_AT, BORN_HOST_AT, CRC_SIZE, HOST_GROWTH, HOST_SIZE, HOST_SIZE_V6
cdef Size PHYSICAL_OFFSET_AT, STORE_TIME_AT, SYS_FLAG_AT
cdef I32 SPACE, BORN_HOST_V6, STORE_HOST_V6, PAIR_END
cdef Source _CRC_NAME, _KEYS, _TAGS

@cython.final
cdef class TextColumn:
    cdef memoryview _held, _held_mask, _held_offsets
    cdef I32s _offsets
    cdef Target _data, _mask
    cdef Size _positions, _capacity
    cdef readonly Size count, used
    cdef readonly I32 high

@cython.final
cdef class Columns:
    cdef list _held
    cdef readonly Size rows
    cdef Bool _has_hosts, _has_properties, _has_texts
    cdef Size _wide_count, _narrow_count
    cdef I64s _wide, _names, _values
    cdef I32s _narrow, _wide_positions, _narrow_positions, _name_sizes, _value_sizes, keys, pairs
    cdef readonly TextColumn body, born_host, message_id, names, store_host, tags, topic, values, words

cimport cython
from storebytes._bytes_cy cimport *
from commitlog._message_cy cimport StoredMessage
from commitlog._record_cy cimport (
    carries_checksum, check_record, check_step, is_filler_at, record_in, store_time_of, topic_position, topic_size_at, topic_size_size)

cdef Size BODY_CRC_AT, BORN_HOST_AT, BORN_TIME_AT, FLAG_AT, HOST_SIZE, HOST_SIZE_V6, MAGIC_AT
cdef Size PHYSICAL_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, SIZE_AT, SYS_FLAG_AT
cdef I32 BORN_HOST_V6, STORE_HOST_V6, NAME_END, PAIR_END
cdef I32 BAD_BODY_CRC, BAD_RECORD_CRC, SPACE
cdef Source _KEYS, _UNIQ_KEY
cdef Source _ZERO_BLOCK
cdef Size BLOCK_SIZE
cdef Size AHEAD, HEADS_AHEAD, NAMES_MAX, AHEAD_VIEWS, PREFETCHED_MAX, RECORD_PREFETCH_SIZE, RECORD_SIZE_MIN
cdef I32 MAGIC_V1, MAGIC_V2
cdef Size ENTRY_HEADER_SIZE, ENTRY_INDEX_AT, ENTRY_POSITION_AT, ENTRY_SIZE_AT, ENTRY_TERM_AT, ENTRY_UNIT_SIZE
cdef I32 ENTRY_MAGIC, BAD_ENTRY
cdef Size PAIRS_COMPARED_MAX, CHECKED_MAX, SMALL_RECORD_SIZE

cdef Size split_row(
    Source source, Size start, Size size, Size pairs, Size capacity, I64s names, I32s name_sizes, I64s values,
    I32s value_sizes) noexcept nogil

@cython.final
cdef class Reader:
    cdef memoryview _view
    cdef Source _source
    cdef dict _names
    cdef readonly I64 base
    cdef readonly Size size
    cpdef StoredMessage decode(self, Size at, I32 checks=*)
    cpdef StoredMessage decode_keyed(self, Size at, bytes topic, bytes key, I32 checks=*)
    cpdef Size store_time(self, Size at) except? -1
    cdef Bool _is_record(self, Size position, Size size, I32 checks)
    cdef StoredMessage _decode(self, Size at)
    cdef tuple _last
    cdef Bool _begins(self, Size at, Size size)
    cdef Bool _has_space(self, Size at, Size size)
    cdef Bool prefetch_record(self, Size at) noexcept
    cdef Bool _prefetch_unit(self, Source units, Size at, Size most) noexcept
    cdef str _name(self, Source source, Size at, Size size)

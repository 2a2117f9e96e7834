cimport cython
from storebytes._bytes_cy cimport *
from storebytes._crc_cy cimport crc32, crc32_more

cdef Size BLANK_SIZE, BODY_AT, BODY_CRC_AT, BORN_HOST_AT, BORN_TIME_AT, CRC_NAME_SIZE, CRC_SIZE, FLAG_AT
cdef Size HOST_GROWTH, MAGIC_AT, PHYSICAL_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECORD_SIZE_MIN, SIZE_AT
cdef Size LOST_SIZE_MIN, SECTOR_SIZE, STORE_TIME_AT, SYS_FLAG_AT
cdef I32 MAGIC_V1, MAGIC_V2, MAGIC_BLANK, NAME_END, PAIR_END, BORN_HOST_V6, STORE_HOST_V6, CRC_MASK, ZERO
cdef Size FILLER_BODY_SIZE_MAX
cdef I32 FILLER_FLAGS, TRANSACTION_MASK, TRANSACTION_ROLLBACK
cdef U32 HALF
cdef I32 CHECK_BODY, CHECK_RECORD, CHECK_POSITION, ONE_CHECKSUM
cdef I32 BLANK, TORN, EMPTY, BAD_MAGIC, BAD_SIZE, BAD_BODY_SIZE, BAD_TOPIC_SIZE, BAD_PROPERTIES_SIZE, MISPLACED
cdef I32 BAD_BODY_CRC, BAD_RECORD_CRC, TORN_PROPERTIES, BAD_ENTRY, ENTRY_MAGIC, ENTRY_BLANK_MAGIC
cdef Size ENTRY_SIZE_AT, ENTRY_POSITION_AT, ENTRY_BODY_SIZE_AT, ENTRY_HEADER_SIZE
cdef Source _CRC_NAME

@cython.final
cdef class Envelope:
    cdef public I32 queue_id, flag, sys_flag, reconsume_times, magic
    cdef public I64 born_timestamp_ms, prepared_transaction_offset
    cdef public Bool with_crc
    cdef readonly bytes born_host, store_host, topic
    cdef Source _born_host, _store_host, _topic
    cdef Size _born_size, _store_size, _topic_size
    cdef memoryview _held
    cdef Target _scratch
    cpdef object set_hosts(self, bytes born_host, bytes store_host)
    cpdef object set_topic(self, bytes topic, I32 magic)

cdef Size record_size(Envelope envelope, Size body_size, Size properties_size) noexcept nogil
cdef Size write_record(
    Target out, Size start, I64 base, Envelope envelope, I64 queue_offset, I64 store_ms, Source body, Size body_start,
    Size body_size, Source properties, Size properties_size) noexcept nogil
cdef void write_blank(Target out, Size at, Size left) noexcept nogil
cdef Size growth(Source source, Size at) noexcept nogil
cdef I64 store_time_of(Source source, Size at) noexcept nogil
cdef Bool holds_no_message(I32 sys_flag, Size body_size) noexcept nogil
cdef Bool is_filler_at(Source source, Size at, Size limit) noexcept nogil
cdef Size topic_position(Source source, Size at) noexcept nogil
cdef Size topic_size_at(Source source, Size at, Size position) noexcept nogil
cdef Size topic_size_size(Source source, Size at) noexcept nogil
cdef Size check_record(Source source, Size at, Size stop, I64 base, I32 checks) noexcept nogil
cdef Size check_step(Source source, Size at, Size stop, I64 base, I32 checks) noexcept nogil
cdef Size record_in(Source source, Size at) noexcept nogil
cdef Bool has_trailer(Source source, Size end, Size properties_size) noexcept nogil
cdef Bool carries_checksum(Source source, Size at, Size size) noexcept nogil

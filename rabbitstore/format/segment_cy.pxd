from storebytes._bytes_cy cimport *
from rabbitstore.format.entry_cy cimport IndexEntry

cdef Size HEAD_SIZE, EXPIRY_AT, BODY_SIZE_AT, EMBEDDED_AT, PUBLISH_SIZE, MSG_ID_SIZE
cdef Size SEGMENT_MARK, SEGMENT_PERSISTENT, SEGMENT_PUBLISH, SEGMENT_RELATIVE, SECTOR_SIZE
cdef Size STATE, SEQ_ID, EXPIRY, BODY_SIZE, POSITION, TERM, TERM_SIZE, STRIDE, PERSISTENT, DELIVERED, ACKED

cdef Size scan_segment(Source source, Size at, Size stop, I64 first, Size capacity, I64s rows, Size whole) noexcept nogil
cdef Size after_publish(Source source, Size at, Size stop) noexcept nogil
cdef Size close_up(I64s rows, Size capacity) noexcept nogil
cdef IndexEntry entry_of(Source source, I64s rows, Size row, str file)

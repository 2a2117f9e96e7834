cimport cython
from storebytes._bytes_cy cimport *
from storebytes._crc_cy cimport crc32
from rabbitstore.format.content_cy cimport id_of_message, is_container
from rabbitstore.format.entry_cy cimport IndexEntry

cdef Size HEAD_SIZE, EXPIRY_AT, BODY_SIZE_AT, EMBEDDED_AT, PUBLISH_SIZE, MSG_ID_SIZE
cdef Size SEGMENT_MARK, SEGMENT_PERSISTENT, SEGMENT_PUBLISH, SEGMENT_RELATIVE, SECTOR_SIZE
cdef Size ENTRY, CHUNK, V2_HEAD, V2_ENTRIES, OWN_MARK, CHUNK_MARK, FLAGS_MAX
cdef I64 EXPIRY_MIN, EXPIRY_MAX, PLACE_MAX
cdef Size STATE, SEQ_ID, EXPIRY, BODY_SIZE, PLACE, TERM, TERM_SIZE, STRIDE, PERSISTENT, DELIVERED, ACKED
cdef Size MESSAGES, DURABLE, EXPIRING, BYTES, LARGEST, CONTAINERS, LOWEST, HIGHEST, STEPS, STEP_COUNT
cdef I64s _steps

@cython.final
cdef class IntactSegment:
    cdef bytes _data
    cdef str _file
    cdef Bool _is_v2
    cdef object _held
    cdef I64s _rows
    cdef Size _count
    cdef readonly I64 messages, persistent, expiring, size_bytes, largest, lowest, highest, containers
    cdef readonly tuple sizes
    cdef Bool scan(self, I64 first_seq_id, Size room)
    cdef Bool scan_v2(self, bytes index, I64 first_seq_id)

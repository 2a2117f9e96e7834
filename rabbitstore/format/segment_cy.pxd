from storebytes._bytes_cy cimport *
from rabbitstore.format.entry_cy cimport IndexEntry

cdef Size HEAD_SIZE, EXPIRY_AT, BODY_SIZE_AT, EMBEDDED_AT, TERM_AT, MSG_ID_SIZE
cdef Size SEGMENT_MARK, SEGMENT_PERSISTENT, SEGMENT_PUBLISH, SEGMENT_RELATIVE, SECTOR_SIZE

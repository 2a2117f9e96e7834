from storebytes._bytes_cy cimport *

cdef Size END_MARK, ID_AT, ID_SIZE, LEAST, OVERHEAD

from storebytes._bytes_cy cimport *

cdef class Delta:
    cdef public I64 start, count, stop
    cpdef object expand(self, I64 seq_id)

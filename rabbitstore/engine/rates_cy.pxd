from storebytes._bytes_cy cimport *

cdef I64 OPERATIONS_PER_UPDATE

cdef class Rates:
    cdef public I64 _at_ms, _published, _fetched, _pending, _acked
    cdef public double ingress, egress, fetched, acked
    cpdef Bool count(self, I64 published, I64 fetched, I64 pending, I64 acked)

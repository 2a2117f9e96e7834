from storebytes._bytes_cy cimport *

cdef class InFlight:
    cdef public dict counts
    cpdef object started(self, bytes msg_id, I64 difference)
    cpdef Bool arrived(self, bytes msg_id, I64 difference)

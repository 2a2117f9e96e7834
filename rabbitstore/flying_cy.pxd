from storebytes._bytes_cy cimport *

cdef class Flying:
    cdef public dict counts

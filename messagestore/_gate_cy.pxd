cimport cython
from storebytes._bytes_cy cimport *

@cython.final
cdef class Gate:
    cdef public Bool accepts_puts, is_idle

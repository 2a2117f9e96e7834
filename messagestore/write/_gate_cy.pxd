cimport cython
from storebytes._bytes_cy cimport *

cdef I64 NOTHING

@cython.final
cdef class Gate:
    cdef public Bool accepts_puts, is_closed, is_idle
    cdef public I64 dispatched

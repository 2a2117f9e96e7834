cimport cython
from storebytes._bytes_cy cimport *

cdef Size ENTRY_HEAD

@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Record:
    cdef readonly I64 offset, position
    cdef readonly bytes data

cimport cython
from storebytes._bytes_cy cimport *

@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class IndexEntry:
    cdef public I64 seq_id, expiry_us, size, offset
    cdef public bytes msg_id, term
    cdef public str file
    cdef public bint acked, delivered, embedded, in_index, in_store, persistent

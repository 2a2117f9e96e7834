cimport cython
from storebytes._bytes_cy cimport *

cdef I64 US_PER_SECOND
cdef double PATIENCE_S

@cython.final
cdef class Ticket:
    cdef RawLock _gate
    cdef Bool _is_open
    cdef I64 end_offset
    cdef Bool leads, is_covered
    cpdef Bool wait(self, double timeout_s) except -1

cpdef Bool open_all(list tickets) except -1

cdef class GroupCommit:
    cdef public I64 flushed_offset
    cdef object _failure
    cdef public object _leader
    cdef object _group_guard
    cdef list _tickets
    cdef Bool _has_leader
    cdef Size _group_size
    cdef double _patience_s
    cpdef wait(self, I64 end_offset)
    cpdef Bool is_gathered(self) except -1
    cdef Bool _wait(self, Ticket ticket) except -1
    cdef Bool _leave(self, Ticket ticket) except -1

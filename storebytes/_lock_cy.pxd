cimport cython
from storebytes._bytes_cy cimport *

cdef I64 US_PER_SECOND

@cython.final
cdef class Lock:
    cdef RawLock _raw
    cdef Bool _is_held
    cpdef bint acquire(self, bint blocking=*, double timeout=*)

cdef Bool take_now(Lock lock) noexcept
cdef Bool give(Lock lock) noexcept
cdef Bool is_taken(Lock lock) noexcept

cimport cython
from storebytes._bytes_cy cimport *
from storebytes._crc_cy cimport crc32_more

cdef Size CAPACITY, CAPACITY_MAX, WRITER, CHECKED, RECORD, WIDE
cdef I64 NUMBER_MAX, POSITION_MAX

@cython.final
cdef class EntryRun:
    cdef readonly I64 first, stop, term
    cdef readonly memoryview view
    cdef readonly str file
    cdef memoryview _positions_held, _sizes_held
    cdef I32s _positions, _sizes
    cdef I64 _base, _origin
    cdef Size _capacity
    cdef Bool _is_closed

    cdef _grow(self, Size capacity)
    cpdef bint append(self, I64 at, I64 size) except -1
    cpdef I64 position(self, I64 index)
    cpdef I64 size(self, I64 index)
    cpdef EntryRun part(self, I64 first, I64 stop)

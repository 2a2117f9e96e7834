cimport cython
from storebytes._bytes_cy cimport *
from storebytes._crc_cy cimport crc32_more

cdef Size ROOM, ROOM_MAX, WRITER, CHECKED, RECORD, WIDE
cdef I64 NUMBER_MAX, PLACE_MAX

@cython.final
cdef class Run:
    cdef readonly I64 first, stop, term
    cdef readonly memoryview view
    cdef readonly str file
    cdef memoryview _places_held, _sizes_held
    cdef I32s _places, _sizes
    cdef I64 _base, _origin
    cdef Size _room
    cdef Bool _is_closed

    cdef _grow(self, Size room)
    cpdef bint append(self, I64 at, I64 size) except -1
    cpdef I64 place(self, I64 index)
    cpdef I64 size(self, I64 index)
    cpdef Run part(self, I64 first, I64 stop)

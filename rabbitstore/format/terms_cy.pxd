cimport cython
from storebytes._bytes_cy cimport *

cdef Size DEPTH_MAX, NIL, ATOMS_MAX
cdef dict _latin_1_atoms, _utf_8_atoms

@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class _TermReader:
    cdef bytes data
    cdef Source source
    cdef Size at, stop
    cdef str file
    cdef I64 base
    cdef Bool improper

    cdef object bad(self, str reason, object expected, object found)
    cdef Size skip(self, Size size) except -1
    cdef bytes take(self, Size size)
    cdef Size byte(self) except -1
    cdef Size u16(self) except -1
    cdef Size u32(self) except -1
    cdef Size count(self, Size number) except -1
    cdef object term(self, Size depth)
    cdef list terms(self, Size number, Size depth)
    cdef object list_term(self, Size depth)
    cdef object map_term(self, Size depth)
    cdef object atom(self, Size size, Bool is_latin_1)
    cdef object number(self, Size tag)
    cdef object rare_term(self, Size tag)
    cdef object opaque(self, Size tag, Size tail)

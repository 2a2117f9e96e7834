cimport cython
from storebytes._bytes_cy cimport *
from commitlog._find_cy cimport LogReaders

cdef Size SIZE_AT, UNIT_SIZE
cdef I64 NO_TIME
cdef object LOWER, NEAREST

@cython.final
cdef class TimeFile:
    cdef memoryview _held
    cdef object _invoke
    cdef Source _source
    cdef Size _count
    cdef LogReaders _readers
    cdef I64 _first, _log_min_offset
    cdef readonly I64 floor, ceiling
    cpdef Size time(self, I64 queue_offset) except? -1
    cdef Bool is_gone(self, I64 queue_offset)
    cpdef Size search(self, I64 timestamp_ms, Bool is_lower) except? -1
    cdef Size _halve(self, I64 timestamp_ms, Bool is_lower) except? -1
    cdef Size _edge(self, I64 found, I64 other, I64 timestamp_ms) except? -1

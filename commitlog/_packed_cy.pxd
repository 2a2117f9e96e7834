cimport cython
from storebytes._bytes_cy cimport *
from commitlog._message_cy cimport Message, put_keys_and_tags

cdef Size TYPICAL_SIZE

@cython.final
cdef class Packed:
    cdef memoryview _held, _held_ends
    cdef Target _bytes
    cdef I64s _ends
    cdef Size _capacity, _used
    cdef readonly Size count
    cdef Size add(self, Message message) except -2
    cdef Size add_bytes(self, bytes properties) except -2
    cdef Size _end(self, Size size) noexcept
    cdef object _grow(self, Size least)

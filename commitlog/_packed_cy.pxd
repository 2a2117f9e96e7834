cimport cython
from storebytes._bytes_cy cimport *
from commitlog._message_cy cimport Message, put_keys_and_tags
from commitlog._record_cy cimport Envelope, record_size

cdef Size CHARACTER_SIZE_MAX, TYPICAL_SIZE
cdef I32 NAME_END, PAIR_END

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

cdef I32 queue_of_row(
    Size row, I32 queue_id, I32 queues, Bool has_keys, I64s key_offsets, Source keys) noexcept nogil

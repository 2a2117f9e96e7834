cimport cython
from storebytes._bytes_cy cimport *
from rabbitstore.format.amqp10_cy cimport Converter
from rabbitstore.read.json_cy cimport LineWriter

cdef Size ENTRY_HEAD

@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class StreamRecord:
    cdef readonly I64 offset, position
    cdef readonly bytes data

@cython.final
cdef class SingleMessages:
    cdef memoryview _view
    cdef Size _at, _stop
    cdef I64 _offset
    cdef readonly Size left

    cdef Bool _is_single(self, Size entries) except -1
    cpdef StreamRecord take(self)
    cpdef write_lines(self, LineWriter lines, Converter converter, str queue, object more, Size capacity)

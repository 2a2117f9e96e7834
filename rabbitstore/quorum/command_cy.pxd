cimport cython
from storebytes._bytes_cy cimport *
from rabbitstore.quorum.entries_cy cimport Run
from rabbitstore.read.json_cy cimport LineWriter

cdef bytes START, ENQUEUE, MESSAGE, AFTER_BLOCK, TRUE_TERM, FALSE_TERM, SIZES, NOTIFY
cdef Size PROCESS, ATOM, BINARY, LIST, NIL, MAP, HEAD_SIZE, PROCESS_TAIL, NAME_MAX, FOLLOWING_MAX, _SHIFT
cdef I64 _SIZE_MAX, _INDEX_MASK
cdef Size EXCHANGE, ROUTING_KEYS, DURABLE, PRIORITY, TIME, TTL, RECEIVED

@cython.final
cdef class CommandReader:
    cdef Source _source
    cdef Size _stop, _block_at, _block_size, _body_at, _fragments, _exchange_at, _exchange_size, _keys_at, _keys_size
    cdef bytes _exchange_bytes, _keys_bytes, _pid_bytes
    cdef str _exchange
    cdef tuple _keys
    cdef I64 _value
    cdef readonly I64 time_ms, number, size, priority, ttl_ms
    cdef readonly bint is_durable
    cdef readonly object pid

    cpdef bint read(self, memoryview view, Size at, Size size) except -1
    cpdef tuple content(self, str vhost)
    cpdef Size write_lines(self, LineWriter lines, Run run, object numbers, Size at, Size room) except -1
    cdef Bool _take_route(self) except -1
    cdef bytes _body(self)
    cdef list _taken(self, Size at)
    cdef Size _after(self, Size at, bytes wanted) noexcept
    cdef Size _number(self, Size at) noexcept
    cdef Size _binary(self, Size at) noexcept
    cdef Size _binaries(self, Size at) noexcept
    cdef Size _annotations(self, Size at) noexcept
    cdef Size _name(self, Size at) noexcept
    cdef Bool _is_process_to_end(self, Size at) except -1

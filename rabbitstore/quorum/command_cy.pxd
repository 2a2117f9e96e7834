cimport cython
from storebytes._bytes_cy cimport *
from rabbitstore.format.content_cy cimport ContentParts, after_number, container_end, take_binary, take_body, take_keys
from rabbitstore.quorum.entries_cy cimport EntryRun
from rabbitstore.read.json_cy cimport LineWriter

cdef bytes START, ENQUEUE, SIZES, NOTIFY
cdef Size PROCESS, ATOM, LIST, HEAD_SIZE, PROCESS_TAIL, FOLLOWING_MAX, _SHIFT
cdef I64 _SIZE_MAX, _INDEX_MASK

@cython.final
cdef class CommandReader:
    cdef Source _source
    cdef Size _stop
    cdef ContentParts _parts
    cdef bytes _exchange_bytes, _keys_bytes, _pid_bytes
    cdef str _exchange
    cdef tuple _keys
    cdef readonly I64 time_ms, number, size, properties_size, priority, ttl_ms
    cdef readonly object pid
    cdef public bint counts_properties

    cpdef bint read(self, memoryview view, Size at, Size size) except -1
    cpdef tuple content(self, str vhost)
    cpdef Size write_lines(self, LineWriter lines, EntryRun run, object numbers, Size at, Size capacity) except -1
    cdef Bool _take_route(self) except -1
    cdef Size _after(self, Size at, bytes expected) noexcept
    cdef Size _number(self, Size at) noexcept
    cdef Bool _is_process_to_end(self, Size at) except -1

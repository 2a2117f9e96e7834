cimport cython
from storebytes._bytes_cy cimport *
from commitlog._find_cy cimport LogReaders
from commitlog._message_cy cimport StoredMessage
from commitlog._scan_cy cimport Reader
from indexfile._index_cy cimport IndexBuffer, ask_for_slot, begins_at, ends_at, hash_of, key_hash, next_item, walk
from messagestore._put_cy cimport PutPath

cdef I64 FOR_EVER_MS, SLACK_MS
cdef I32 CHECK_READ
cdef Size HITS_AT_ONCE
cdef object LOWER
cdef str ODD

@cython.final
cdef class Hits:
    cdef memoryview _held, _held_state
    cdef I64s found, state

cdef class ReadPath(PutPath):
    cdef public object _engine, _reader
    cdef Hits _spare
    cdef LogReaders _log_readers
    cdef Bool _settle(self) except -1

@cython.final
cdef class Asked:
    cdef LogReaders _readers
    cdef str _topic_text, _key_text
    cdef bytes _topic, _key
    cdef Bool _is_odd
    cdef I64 _low, _high
    cdef Size _most
    cdef I32 _code
    cdef dict _found
    cdef Bool ask_for_slot(self, object index) except -1
    cdef Bool look(self, object index, Hits hits) except -1
    cdef Bool _follow(self, IndexBuffer buffer, I32 code, I64 begin_ms, Hits hits) except -1
    cdef Bool _keep(self, I64 offset) except -1
    cdef list in_order(self)

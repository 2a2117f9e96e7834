cimport cython
from storebytes._bytes_cy cimport *
from commitlog._append_cy cimport Appender
from commitlog._find_cy cimport LogReaders
from commitlog._message_cy cimport StoredMessage
from commitlog._scan_cy cimport Reader
from indexfile._index_cy cimport (
    IndexBuffer, IndexList, MappedIndex, prefetch_newest, begins_at, ends_at, hash_of_texts, is_bare, is_unused, key_hash,
    next_item, walk,
)
from indexfile._filter_cy cimport FilteredFiles, prefetch_filters, leads_nowhere, mask_of
from messagestore.write._gate_cy cimport Gate
from messagestore.write._put_cy cimport PutMethods

cdef class KeyQuery

cdef I64 FOREVER_MS, ITEM_SLACK_MS
cdef I32 CHECK_READ
cdef Size HITS_AT_ONCE
cdef object LOWER
cdef str UNDECODABLE

cdef class LookupMethods(PutMethods):
    cdef object _parts
    cdef dict _deleted
    cdef list _found(self, str topic, str key, object begin_ms, object end_ms, object max_count)
    cdef Bool _is_reader, _is_whole
    cdef KeyQuery _spare
    cdef IndexList _index
    cdef LogReaders _log_readers
    cdef Bool _settle(self) except -1

@cython.final
cdef class KeyQuery:
    cdef LogReaders _readers
    cdef memoryview _held, _held_state
    cdef I64s _hits, _state
    cdef str _topic_text, _key_text
    cdef bytes _topic, _key
    cdef Bool _is_encoded, _is_unusual
    cdef I64 _low, _high
    cdef Size _most, _count
    cdef I32 _code
    cdef StoredMessage _first
    cdef dict _found
    cdef list damaged
    cdef Bool _add_damaged(self, MappedIndex file) except -1
    cdef Bool begin(self, str topic, str key, I32 code, I64 low, I64 high, Size most) except -1
    cdef Bool search(self, IndexList index) except -1
    cdef Bool _search_filtered(self, IndexList index, FilteredFiles filtered, I64 begin_ms) except -1
    cdef Bool _search_file(self, IndexList index, MappedIndex file, I64 begin_ms) except -1
    cdef Bool _follow(self, IndexBuffer buffer, I64 begin_ms) except -1
    cdef Bool _keep(self, I64 offset) except -1
    cdef Bool _encode(self) except -1
    cdef Bool _is_known(self, I64 offset) except -1
    cdef Bool _add(self, StoredMessage message) except -1
    cdef list take_results(self)

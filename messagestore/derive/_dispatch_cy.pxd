cimport cython
from storebytes._bytes_cy cimport *
from commitlog._record_cy cimport check_step, growth, record_in, topic_position, topic_size_at, topic_size_size
from indexfile._index_cy cimport IndexBuffer, next_item, put_item, put_optional

cdef Size BORN_HOST_AT, HOST_SIZE, HOST_SIZE_V6, PHYSICAL_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, SYS_FLAG_AT
cdef Size AHEAD_RECORDS, CACHE_LINE_SIZE, END_OFFSET_AT, UNIT_SIZE, FOUND_SIZE, QUEUES_FIRST, LEVEL_MAX, NAME_SIZE_USUAL, UNITS_MAX
cdef I32 ORDINARY, SCHEDULED, IGNORED, ELSEWHERE
cdef I32 BORN_HOST_V6, PAIR_END, SPACE, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE, TRANSACTION_ROLLBACK
cdef I32 NEW_QUEUE, INDEX_FULL, NO_QUEUE, TAGS_LEFT_OUT, TAGS_OPTIONAL
cdef Source _UNIQ_KEY, _KEYS, _TAGS, _DELAY, _LISTED, _TAG_KIND

@cython.final
cdef class QueueTable:
    cdef readonly list queues
    cdef object _arrays
    cdef list _held
    cdef Target _names
    cdef I64s _name_at
    cdef I32s _name_size, _queue_ids, _codes, _kinds, _slots
    cdef Size _mask, _names_size
    cdef object _grow(self, Size capacity, Size names_capacity)
    cdef object _position(self, Size queue)

@cython.final
cdef class Dispatcher:
    cdef readonly QueueTable table
    cdef list _held
    cdef Target _units, _sorted
    cdef I32s _unit_queues, _counts, _irregular, _found
    cdef I64s _offsets, _sorted_offsets, _state, _delays
    cdef Size _delay_levels
    cdef readonly Size made
    cdef readonly I64 last_offset, last_store_timestamp_ms
    cdef object _counts_array

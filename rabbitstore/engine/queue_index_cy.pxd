cimport cython
from storebytes._bytes_cy cimport *
from rabbitstore.engine.queue_index_base_cy cimport QueueIndexBase
from rabbitstore.format.entry_cy cimport IndexEntry

cdef I64 _TRANSIENT, _ACKNOWLEDGED_SIGNED
cdef Size _MARKS_BYTES

@cython.final
cdef class _Segment:
    cdef public I64 unacked, size_bytes
    cdef public dict publishes
    cdef public list acks
    cdef public bint has_file, must_replace, is_unread

cdef class QueueIndex(QueueIndexBase):
    cdef public object _journal
    cdef public I64 _journal_bytes, _entries, _entries_max, _bytes_max, _flushes, _loaded_end
    cdef public bytearray _buffer
    cdef public memoryview _marks
    cdef public bint _is_dirty, _journal_may_be_unsynced

    cpdef object publish(self, I64 seq_id, bytes msg_id, I64 expiry_us, I64 size, Bool persistent, bytes term)
    cpdef object acknowledge(self, object seq_ids)

cimport cython
from storebytes._bytes_cy cimport *
from rabbitstore.format.entry_cy cimport IndexEntry

cdef I64 _TRANSIENT

@cython.final
cdef class _Segment:
    cdef public I64 unacked, size_bytes
    cdef public dict publishes
    cdef public list acks
    cdef public bint has_file, must_replace, is_unread

cdef class QueueIndex:
    cdef public object disk, settings, before_flush, _journal, _failed
    cdef public str folder
    cdef public I64 next_seq_id, read_count, miscounted, _journal_bytes, _entries, _held_bytes, _per_segment, _entries_max, _bytes_max
    cdef public I64 _flushes
    cdef public dict _segments
    cdef public list problems
    cdef public bytearray _buffer
    cdef public bint _is_dirty, _journal_may_be_unsynced, _rewrites

    cpdef object publish(self, I64 seq_id, bytes msg_id, I64 expiry_us, I64 size, Bool persistent, bytes term)
    cpdef object acknowledge(self, object seq_ids)

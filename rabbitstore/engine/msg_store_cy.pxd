from storebytes._bytes_cy cimport *
from rabbitstore.engine.msg_store_state_cy cimport Files, FileSummary, InFlight, RecordLocation

cdef Size MSG_ID_SIZE, RECORD_SIZE_BYTES, TERM_AT, RECORD_MIN, RECORD_OVERHEAD, RECORD_END_MARK
cdef Bool _is_record(memoryview view, bytes msg_id, Size start, Size total)

cdef class MsgStore

cdef class StoreClient:
    cdef public MsgStore store
    cdef public object credit
    cdef public InFlight in_flight
    cdef public bint is_dying

cdef class MsgStore:
    cdef public object disk, folder, settings, lock, changed, _sync_lock, _mailbox, _failed
    cdef public Files files
    cdef public dict locations, _cache, _views, _maps, _open
    cdef public list deferred, _buffer
    cdef public bint is_synced, _is_dirty
    cdef public I64 current, read_count, _new_bytes, _end, _buffered_bytes, _buffer_max, _size_limit

    cpdef object read(self, bytes msg_id)
    cdef object _append(self, bytes msg_id, bytes term)
    cdef object _handle_writes(self, StoreClient client, object messages)
    cdef object _handle_removes(self, StoreClient client, object msg_ids)
    cdef object _remove(self, bytes msg_id)

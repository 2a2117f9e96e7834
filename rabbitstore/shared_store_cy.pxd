from storebytes._bytes_cy cimport *
from .flying_cy cimport Flying
from .store_state_cy cimport FileSummary, Location

cdef Size MSG_ID_SIZE, RECORD_SIZE_BYTES, TERM_AT, RECORD_MIN, RECORD_OVERHEAD, RECORD_END_MARK
cdef bytes _term_in(memoryview view, bytes msg_id, I64 offset, I64 total)

cdef class StoreClient:
    cdef public object store, credit, on_disk
    cdef public Flying flying
    cdef public bint is_dying
    cdef public list waiting

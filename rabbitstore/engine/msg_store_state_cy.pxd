cimport cython
from storebytes._bytes_cy cimport *

@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class RecordLocation:
    cdef public I64 offset, total_size
    cdef public I64 file
    cdef public I64 ref_count

@cython.final
cdef class FileSummary:
    cdef public I64 file_size, valid_total_size, readers
    cdef public object left, right
    cdef public bint locked, is_damaged
    cdef public list dead

cdef class Files:
    cdef public dict by_number
    cdef public I64 total_bytes, valid_bytes
    cpdef object adjust(self, FileSummary summary, I64 valid_delta)

cdef class InFlight:
    cdef public dict counts
    cpdef object started(self, bytes msg_id, I64 difference)
    cpdef Bool arrived(self, bytes msg_id, I64 difference)

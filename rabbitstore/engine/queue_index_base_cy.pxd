from storebytes._bytes_cy cimport *

cdef class QueueIndexBase:
    cdef public object disk, settings, before_flush, _failed
    cdef public str folder, _ending
    cdef public I64 next_seq_id, read_count, miscounted, _per_segment, _held_bytes
    cdef public dict _segments
    cdef public list problems
    cdef public bint _rewrites

cimport cython
from storebytes._bytes_cy cimport *
from commitlog._record_cy cimport store_time_of, topic_position, topic_size_at, topic_size_size

cdef Size QUEUE_ID_AT, SIZE_AT, SLOTS, STRIDE
cdef I64 BY_QUEUE, NO_GROUP

@cython.final
cdef class Tally:
    cdef dict _known
    cdef object _names, _groups
    cdef list _held
    cdef I64s _slots, _state
    cdef I64 _period_ms

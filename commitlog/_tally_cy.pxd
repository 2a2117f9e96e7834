cimport cython
from storebytes._bytes_cy cimport *
from commitlog._record_cy cimport topic_place, topic_size_at, topic_size_size

cdef Size BORN_HOST_AT, HOST_SIZE, HOST_SIZE_V6, QUEUE_ID_AT, SIZE_AT, SYS_FLAG_AT, SLOTS, STRIDE
cdef I32 BORN_HOST_V6
cdef I64 BY_QUEUE, NO_GROUP

@cython.final
cdef class Tally:
    cdef dict _known
    cdef object _names, _groups
    cdef list _held
    cdef I64s _slots, _state
    cdef I64 _period_ms

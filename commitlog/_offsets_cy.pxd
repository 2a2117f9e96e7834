cimport cython
from storebytes._bytes_cy cimport *

cdef I32 MAGIC_V1, MAGIC_V2
cdef Size QUEUES_FIRST, QUEUES_MAX, TOPIC_SIZE_MAX, TOPIC_SIZE_MAX_V1

@cython.final
cdef class TopicQueues:
    cdef readonly str name
    cdef readonly bytes encoded
    cdef readonly I32 magic
    cdef object _next_offsets
    cdef memoryview _held
    cdef I64s _next
    cdef Size _capacity
    cdef Bool _grow(self, Size queue_id) except -1
    cdef object _counters(self)

@cython.final
cdef class QueueOffsets:
    cdef dict _topics
    cdef TopicQueues _last
    cdef object _known
    cpdef TopicQueues topic(self, str name)
    cdef TopicQueues appended(self, str name)

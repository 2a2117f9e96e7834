cimport cython
from storebytes._bytes_cy cimport *
from storebytes._lock_cy cimport Lock, give, take_now
from commitlog._message_cy cimport Message, PutResult, encode_properties, put_keys_and_tags
from commitlog._packed_cy cimport Packed, queue_of_row
from commitlog._offsets_cy cimport QueueOffsets, TopicQueues
from commitlog._record_cy cimport Envelope, record_size, write_blank, write_record

cdef Size BATCH_MEMBER_SIZE, BLANK_SIZE, CRC_SIZE, PROPERTIES_SIZE_MAX, QUEUES_MAX, RECORD_ALLOWANCE, TOPIC_SIZE_MAX
cdef I32 TRANSACTION_MASK, TRANSACTION_COMMIT, TRANSACTION_NONE, BORN_HOST_V6, STORE_HOST_V6
cdef I32 PAIR_END
cdef Size ROW_SIZE
cdef Size HOST_GROWTH, HOST_SIZE, RECORD_SIZE_MIN
cdef object OK, ILLEGAL, PROPERTIES_EXCEEDED, NO_FILE
cdef str SCHEDULE_TOPIC
cdef Source _KEYS, _TAGS, _INNER, _CRC_NAME

@cython.final
cdef class Appender:
    cdef memoryview _view, _row_view
    cdef Target _target, _row
    cdef Size _capacity, _moves, _origin, _reserved_end
    cdef object _reserve_more, _allocate
    cdef Lock _lock
    cdef object _next_file, _clock
    cdef Envelope _envelope
    cdef bytes _host
    cdef readonly QueueOffsets offsets
    cdef readonly I64 base, last_store_timestamp_ms
    cdef readonly Size position, file_size_bytes
    cdef readonly Bool is_closed
    cdef Size _size_sure
    cdef readonly Size body_size_max
    cdef Size _record_size_max(self)
    cdef bytes _properties_of(self, Message message)
    cdef bytes _normalize(self, str topic, bytes properties, Bool is_raw)
    cdef object _write(
        self, Message message, TopicQueues topic, Source properties, Size properties_size, I64 now, PutResult result)
    cdef Bool _append_fast(self, Message message, I32 queue_id, PutResult result) except -1
    cpdef PutResult append(self, Message message, I32 queue_id=*)
    cdef PutResult _append(
        self, Message message, I32 queue_id, Source properties, Size properties_size, I64 now, PutResult result)
    cdef PutResult _refusal(self, Size body_size, Size properties_size, PutResult result)
    cdef object _fit_buffers(self, Size body_size, Size properties_size, Size size)
    cdef PutResult _extend_reserved(self, Size size, PutResult result)
    cdef PutResult _reserve(self, Size size, PutResult result)
    cdef Size _plain_envelope(self, TopicQueues name, I32 queue_id, Size body_size, Size properties_size) except -1
    cdef object _address(self, Message message, TopicQueues topic, I32 queue_id)
    cdef Size _now(self) except? -1
    cdef PutResult _result(self)

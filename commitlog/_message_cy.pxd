cimport cython
from storebytes._bytes_cy cimport *
from commitlog._record_cy cimport holds_no_message

cdef I32 NAME_END, PAIR_END, SPACE
cdef Size PROPERTIES_SIZE_MAX, CRC_SIZE
cdef object ZERO, NO_QUEUE
cdef Size START_SIZE, UNUSUAL, DECODE_AHEAD, _decode_ahead
cdef Source _CRC, _KEYS, _TAGS, _KEYS_START, _TAGS_START

@cython.final
cdef class Message:
    cdef public str topic, tags, born_host, store_host
    cdef public bytes body, properties_raw
    cdef str _key
    cdef list _keys
    cdef void _set_keys(self, object keys) except *
    cdef int _set_numbers(
        self, object queue_id, object flag, object sys_flag, object born_ms, object reconsumed, object prepared
    ) except -1
    cdef public dict properties
    cdef public I32 queue_id, flag, sys_flag, reconsume_times
    cdef public I64 born_timestamp_ms, prepared_transaction_offset

cpdef bytes encode_properties(Message message)
cdef Size put_keys_and_tags(Message message, Target out, Size at, Size capacity) noexcept
cpdef dict decode_properties(bytes raw, bint with_crc=*)

@cython.final
cdef class PutResult:
    cdef public object status, reason, cause
    cdef public I64 physical_offset, queue_offset, store_timestamp_ms
    cdef public I32 queue_id, size_bytes, message_count
    cdef public bytes store_host

@cython.final
cdef class StoredMessage:
    cdef readonly str topic
    cdef readonly bytes body, properties_raw
    cdef readonly I32 size, magic, body_crc, queue_id, flag, sys_flag, reconsume_times, born_port, store_port
    cdef readonly I64 queue_offset, physical_offset, born_timestamp_ms, store_timestamp_ms, prepared_transaction_offset
    cdef I64 _born_high, _born_low, _store_high, _store_low
    cdef dict _properties
    cdef Bool _was_read
    cdef dict _pairs(self)
    cdef Bool _is_first_read(self) noexcept

# Cython generates the struct's name; a change of it would break the compilation.
cdef extern from *:
    """
    #define STORED_AT(field) offsetof(struct __pyx_obj_9commitlog_11_message_cy_StoredMessage, field)
    #define read_stored_inline(type) (storebytes_read_inline((PyTypeObject *)(type), "topic", STORED_AT(topic)) \\
        || storebytes_read_inline((PyTypeObject *)(type), "body", STORED_AT(body)) \\
        || storebytes_read_inline((PyTypeObject *)(type), "properties_raw", STORED_AT(properties_raw)))
    """
    int read_stored_inline(object kind) except -1

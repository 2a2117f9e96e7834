cimport cython
from storebytes._bytes_cy cimport *

cdef Size LIST, NIL, BINARY, HEAD_SIZE, MSG_ID_SIZE, FRAGMENT_SIZE
cdef Size SMALL_INTEGER, INTEGER, SMALL_BIG, MAP, VERSION, ATOM, NAME_MAX, OTHER_NUMBER
cdef Size IN_START, IN_EXCHANGE, IN_CONTENT, IN_PROTOCOL, IN_ID, IN_TRUE, IN_FALSE
cdef Size MC_HEAD, MC_PROTOCOL, MC_YES, MC_NO, MC_EXCHANGE, MC_KEYS, MC_ID, MC_DURABLE, MC_PRIORITY, MC_TTL, MC_TIME, MC_RECEIVED
cdef Source _words
cdef I64s _ends
cdef bytes START, EXCHANGE, CONTENT_START, PROTOCOL, TRUE_TERM, FALSE_TERM, ID_HEAD, _LIST_OF_ONE, AFTER_BODY
cdef tuple _last, _last_head
cdef object _lasts

@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class ContentParts:
    cdef Size block_at, body_at, exchange_at, id_at, keys_at, keys_end, start, vhost_at
    cdef I64 value, priority, ttl_ms
    cdef Bool is_container, is_durable

cdef Bool locate(ContentParts parts, Source source, Size start, Size stop) noexcept nogil
cdef Size container_end(ContentParts parts, Source source, Size at, Size stop) noexcept nogil
cdef Size after_number(ContentParts parts, Source source, Size at, Size stop) noexcept nogil
cdef bytes take_body(Source source, Size at)
cdef bytes take_binary(Source source, Size at)
cdef object take_keys(Source source, Size at)

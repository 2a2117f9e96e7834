from storebytes._bytes_cy cimport *

cdef Size LIST, NIL, BINARY, HEAD_SIZE, MSG_ID_SIZE, FRAGMENT_SIZE
cdef Size SMALL_INTEGER, INTEGER, SMALL_BIG, MAP, ATOM
cdef bytes CONTAINER_START, CONTAINER_PROTOCOL, CONTAINER_TRUE, CONTAINER_FALSE
cdef tuple NUMBERS
cdef bytes START, EXCHANGE, CONTENT_START, PROTOCOL, TRUE_TERM, FALSE_TERM, ID_HEAD, _LIST_OF_ONE, AFTER_BODY
cdef tuple _last, _last_head
cdef object _lasts
cdef object split_at(Source source, Size start, Size stop)

cimport cython
from storebytes._bytes_cy cimport *
from commitlog._record_cy cimport check_record, growth, topic_place, topic_size_at, topic_size_size
from commitlog._scan_cy cimport split_row

cdef Size BODY_AT, BODY_CRC_AT, BORN_HOST_AT, BORN_TIME_AT, FLAG_AT, HOST_SIZE, HOST_SIZE_V6, MAGIC_AT
cdef Size PHYSICAL_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, SIZE_AT, SYS_FLAG_AT
cdef Size PAIRS_MAX, FIXED_SIZE_MAX, TEXT_GROWTH, PROPERTIES_GROWTH, UNUSUAL
cdef I32 BORN_HOST_V6, STORE_HOST_V6, QUOTE, COMMA, COLON, DOT, OPEN, CLOSE, SPACE
cdef Source _WORDS, _TAGS, _KEYS
cdef I32s _ENDS

cimport cython
from storebytes._bytes_cy cimport *
from commitlog._record_cy cimport check_record, topic_position, topic_size_at, topic_size_size
from commitlog._scan_cy cimport split_row

cdef Size BODY_AT, BORN_HOST_AT, HOST_GROWTH, HOST_SIZE, HOST_SIZE_V6, PHYSICAL_OFFSET_AT, SIZE_AT, STORE_HOST_AT
cdef Size STORE_TIME_AT, SYS_FLAG_AT
cdef Size PAIRS_MAX, FIXED_SIZE_MAX, TEXT_GROWTH, PROPERTIES_GROWTH, UNUSUAL, WORD_CAPACITY
cdef Size FIELD_COUNT, END_WORD, NULL_WORD, REPLACEMENT_WORD
cdef I32 HEX, HOST, ID, INT, KEYS, LONG, PROPERTIES, TAGS, TOPIC
cdef I32 BORN_HOST_V6, STORE_HOST_V6, QUOTE, COMMA, COLON, DOT, OPEN, CLOSE, SPACE
cdef Source _WORDS, _TAGS, _KEYS
cdef I32s _SIZES, _KINDS, _LOCATIONS

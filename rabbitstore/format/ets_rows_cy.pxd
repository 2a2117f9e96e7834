from storebytes._bytes_cy cimport *

cdef Size HEAD_SIZE, MSG_ID_SIZE, SMALL_INTEGER, INTEGER, NUMBER_COUNT, LONGEST
cdef bytes MAGIC, START

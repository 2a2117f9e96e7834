cimport cython
from storebytes._bytes_cy cimport *
from commitlog._message_cy cimport Message

cdef Size HEAD_SIZE, MEMBER_SIZE_MIN

cimport cython
from storebytes._bytes_cy cimport *
from commitlog._append_cy cimport Appender
from commitlog._message_cy cimport Message, PutResult

cdef object OK, SPECIAL

cdef class PutPath:
    cdef public Appender _appender
    cdef public object _flags, _dispatcher, _is_locked, _routing
    cdef public dict _admitted
    cdef public Bool _is_sync

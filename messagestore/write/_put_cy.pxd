cimport cython
from storebytes._bytes_cy cimport *
from commitlog._append_cy cimport Appender
from storebytes._lock_cy cimport Lock, is_taken
from commitlog._message_cy cimport Message, PutResult
from messagestore.write._gate_cy cimport Gate

cdef object OK
cdef str DELAY, INNER_COUNT, LMQ_NAMES

cdef class PutPath:
    cdef public Appender _appender
    cdef public Gate _gate
    cdef public Lock _lock
    cdef public object _dispatcher, _routing, _rules
    cdef public dict _admitted
    cdef public Bool _is_sync

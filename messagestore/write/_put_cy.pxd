cimport cython
from storebytes._bytes_cy cimport *
from commitlog._append_cy cimport Appender
from storebytes._lock_cy cimport Lock, is_taken
from commitlog._message_cy cimport Message, PutResult
from messagestore.write._gate_cy cimport Gate

cdef object OK, ZERO, NO_QUEUE
cdef I32 IS_BATCH
cdef tuple SPECIAL

cpdef bint has_special(Message message) except -1

cdef class PutMethods:
    cdef Appender _appender
    cdef Gate _gate
    cdef Lock _lock
    cdef object _dispatcher, _routing
    cdef public object _rules
    cdef dict _admitted
    cdef Bool _is_sync
    cdef PutResult _put(self, Message message, bint check)

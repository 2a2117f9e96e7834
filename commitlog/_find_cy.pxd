cimport cython
from storebytes._bytes_cy cimport *
from commitlog._message_cy cimport StoredMessage
from commitlog._scan_cy cimport Reader

cdef I64 NO_TIME
cdef Size LARGE_RECORD, RECORD_SIZE_MIN, SIZE_AT

cdef class ReadableFile:
    cdef Reader _reader, _lookup

cdef class FileList:
    cdef list _files
    cdef I64 _first, _size

@cython.final
cdef class LogReaders:
    cdef FileList _queue
    cdef LogReaders _scans
    cpdef Reader of_file(self, object file)
    cpdef Reader reader_of(self, I64 offset)
    cdef Reader for_record(self, Reader reader, Size at)
    cpdef StoredMessage message_at(self, I64 offset, I32 checks=*)
    cpdef Size store_time(self, I64 offset) except? -1

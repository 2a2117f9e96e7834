cimport cython
from storebytes._bytes_cy cimport *
from commitlog._record_cy cimport check_record, has_trailer, topic_place, topic_size_at, topic_size_size

cdef Size BLOCK_SIZE
cdef I32 PAIR_END
cdef Source _ZERO_BLOCK

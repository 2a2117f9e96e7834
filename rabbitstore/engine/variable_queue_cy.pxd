from storebytes._bytes_cy cimport *
from rabbitstore.format.entry_cy cimport IndexEntry
from rabbitstore.engine.rates_cy cimport Rates

cdef class Delta:
    cdef public I64 start, count, stop
    cpdef object expand(self, I64 seq_id)

cdef class VariableQueue:
    cdef public object index, persistent_store, transient_store, settings, now_ms, q1, q2, q3, q4
    cdef public str mode
    cdef public bint durable
    cdef public Delta delta
    cdef public dict ram_pending, disk_pending
    cdef public I64 length, ram_count, ram_bytes, disk_reads, next_seq_id, next_deliver_seq_id
    cdef public I64 persistent_count, persistent_bytes
    cdef public double target_ram_count
    cdef public Rates rates

    cdef object _take_head(self)
    cdef object _take_q3(self)
    cdef object _keep_pending(self, IndexEntry message)
    cdef list _take_pending(self, object seq_ids)
    cdef object _forget(self, object messages)
    cdef object _count_term(self, IndexEntry message, I64 sign)
    cdef object _client(self, IndexEntry message)

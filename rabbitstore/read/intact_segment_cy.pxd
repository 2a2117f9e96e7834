cimport cython
from storebytes._bytes_cy cimport *
from storebytes._crc_cy cimport crc32
from rabbitstore.format.content_cy cimport ContentParts, locate, take_binary, take_keys
from rabbitstore.format.entry_cy cimport IndexEntry
from rabbitstore.format.segment_cy cimport (
    ACKED, BODY_SIZE, DELIVERED, EXPIRY, HEAD_SIZE, PERSISTENT, POSITION, SEQ_ID, STATE, STRIDE, TERM, TERM_SIZE, close_up,
    entry_of, scan_segment,
)
from rabbitstore.read.json_cy cimport LineWriter

cdef Size MSG_ID_SIZE, LIST, LIST_HEAD, ENTRY, CHUNK, V2_HEAD, V2_ENTRIES, OWN_MARK, CHUNK_MARK, FLAGS_MAX
cdef I64 EXPIRY_MIN, EXPIRY_MAX, POSITION_MAX
cdef Size NUMBERS, COLUMNS, MESSAGES, DURABLE, EXPIRING, BYTES, LARGEST, CONTAINERS, LOWEST, HIGHEST, STEPS, STEP_COUNT
cdef I64s _steps

@cython.final
cdef class IntactSegment:
    cdef memoryview _data
    cdef str _file
    cdef Bool _is_v2
    cdef object _held
    cdef I64s _rows
    cdef readonly Size count
    cdef readonly I64 messages, persistent, expiring, size_bytes, largest, lowest, highest, containers
    cdef readonly tuple sizes
    cpdef IndexEntry entry(self, Size row)
    cpdef Size write_lines(self, LineWriter lines, Size row, object owner, I64 bound, Size capacity) except -1
    cdef Bool _write_line(self, LineWriter lines, Source source, Size at, ContentParts parts, Bool is_redelivered) except -1
    cdef object _texts(self, memoryview held, Size made, Size total)
    cdef Bool scan(self, I64 first_seq_id, Size capacity)
    cdef Bool scan_v2(self, bytes index, I64 first_seq_id)

cimport cython
from storebytes._bytes_cy cimport *
from rabbitstore.format.entry_cy cimport IndexEntry

cdef Size CAPACITY, LINE_MAX, GROWTH, NAMES_MAX, DEPTH_MAX, TEXTS_MAX, FIELD_COUNT
cdef Size QUOTE, COMMA, COLON, OPEN, CLOSE, OPEN_TABLE, CLOSE_TABLE
cdef bytes REPLACED, TRUE, FALSE, NULL, BASE64, KINDS, SEQ_ID, MSG_ID, PERSISTENT, ACKED, REDELIVERED, EXPIRY, SIZE, EMBEDDED
cdef bytes OFFSET, PROPERTIES, BODY
cdef list NAMES

@cython.final
cdef class LineWriter:
    cdef dict _texts
    cdef object _buffer, _names_held
    cdef I64s _names
    cdef Target _out
    cdef Source source
    cdef Size _capacity, at, stop
    cdef readonly Size size
    cdef bytes head, file, route, more
    cdef Bool is_acked, is_embedded, is_redelivered

    cdef Bool line(
        self, I64 seq_id, bytes msg_id, Bool is_persistent, I64 expiry_us, I64 size, I64 offset, Source body, Size body_at,
        Size body_size,
    ) except -1
    cpdef bint add_entry(
        self, IndexEntry entry, object content, str queue, str file, I64 offset, Bool is_redelivered
    ) except -1
    cpdef set_shared(self, object queue, str file, object more, Bool is_embedded)
    cdef bytes text(self, object key, Size part)
    cdef _grow(self, Size capacity)
    cdef void _raw(self, bytes text) noexcept
    cdef void _byte(self, Size byte) noexcept
    cdef void _number(self, bytes name, I64 number) noexcept
    cdef void _flag(self, bytes name, Bool is_set) noexcept
    cdef Bool _block(self) except -1
    cdef Bool _field(self, Size kind) except -1
    cdef Bool _short(self, Bool is_strict) except -1
    cdef Size _long(self) except -2
    cdef Bool _quoted(self, Size size, Bool is_strict) except -1
    cdef Bool _table(self, Size names, Size depth) except -1
    cdef Bool _is_known(self, Size first, Size names) except -1
    cdef Bool _array(self, Size names, Size depth) except -1
    cdef Bool _value(self, Size names, Size depth) except -1
    cdef Bool _octet_flag(self) except -1
    cdef Bool _bytes(self) except -1
    cdef Bool _integer(self, Size code) except -1

cimport cython
from storebytes._bytes_cy cimport *

cdef Size CAPACITY, GROWTH, FIXED_MAX, SHORT_MAX, NAMES_MAX
cdef Size HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SECTIONS
cdef Size MESSAGE_ID, USER_ID, REPLY_TO, CORRELATION_ID, CONTENT_TYPE, CONTENT_ENCODING, CREATION_TIME, GROUP_ID, PROPERTIES_MAX
cdef Size DURABLE, PRIORITY, TTL, HEADER_MAX, FIELDS
cdef Size SMALL_DESCRIPTOR, NULL, UBYTE, BOOLEAN, DOUBLE, TIME, EMPTY_LIST, LIST, MAP, LARGE, OTHER, ONE_BYTE, FOUR_BYTES
cdef bytes WIDTHS, EXCHANGE, ROUTING_KEY, FOR_CLIENTS, BASIC, TYPE, CC, FILTER, QUEUES

@cython.final
cdef class Converter:
    cdef object _buffer, _sections_held, _fields_held, _names_held
    cdef I64s _sections, _fields, _names
    cdef Target block
    cdef Source _source
    cdef Size _capacity, _flags, _known, block_size, body_at, body_size, code, count, size, start, type_at
    cdef bint is_durable
    cdef str exchange
    cdef object key, filter_value

    cdef _reserve(self, Size capacity)
    cdef Bool read(self, Source source, Size at, Size stop) except -1
    cdef Bool _find_sections(self, Size at, Size stop) except -1
    cdef Size _take(self, Size at, Size stop) noexcept
    cdef Size _open(self, Size at, Size stop, Size kind) noexcept
    cdef Bool _read_section(self, Size section, Size first, Size most, Size stop) noexcept
    cdef void _load(self, Size field) noexcept
    cdef Size _durable(self) noexcept
    cdef Bool _is_text(self) noexcept
    cdef Bool _is_integer(self) noexcept
    cdef I64 _integer(self) noexcept
    cdef Bool _equals(self, bytes text) noexcept
    cdef Bool _begins(self, bytes text) noexcept
    cdef void _byte(self, Size byte) noexcept
    cdef void _big(self, I64 number, Size width) noexcept
    cdef void _copy(self) noexcept
    cdef void _flag(self, Size index) noexcept
    cdef Bool _block(self, Size durable, Size stop) except -1
    cdef Bool _short(self, Size field, Size index) noexcept
    cdef Bool _short_value(self, Size index) noexcept
    cdef Bool _number(self, Size index) noexcept
    cdef Bool _identifier(self, Size field, Size index) noexcept
    cdef Bool _reply_to(self) noexcept
    cdef Bool _timestamp(self) noexcept
    cdef Bool _headers(self, Size stop) except -1
    cdef Bool _map(self, Size section, Size stop) except -1
    cdef Bool _is_new(self) noexcept
    cdef Size _annotation(self, Size at, Size end) except -2
    cdef str _text(self)
    cdef Size _header(self, Size at, Size end) noexcept

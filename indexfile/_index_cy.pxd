cimport cython
from storebytes._bytes_cy cimport *

cdef Size BLOCK_SLOTS, AHEAD_ITEMS, PAGE_SIZE
cdef Size BEGIN_OFFSET_AT, BEGIN_TIME_AT, NEXT_ITEM_AT, END_OFFSET_AT, END_TIME_AT, HEADER_SIZE, ITEM_KEY_HASH_AT
cdef Size ITEM_PHYSICAL_OFFSET_AT, ITEM_PREVIOUS_AT, ITEM_SECONDS_AT, ITEM_SIZE, SLOT_SIZE, SLOTS_USED_AT
cdef I32 BAD_COUNT, BAD_HASH, BAD_PREVIOUS, BAD_SLOT, FIRST_ITEM, KEY_HASH_NONE, NO_ITEM, SOUND
cdef I32 SECONDS_OPTIONAL
cdef I64 MS_PER_SECOND, SECONDS_MAX, TIME_MAX_MS
cdef Source _JOINT

@cython.final
cdef class IndexBuffer:
    cdef memoryview _view
    cdef Target _target
    cdef readonly I32 slots
    cdef readonly Size items
    cdef public Size limit
    cdef readonly bint is_writable, has_sound_slots
    cdef public I32 tag_items

cdef class MappedIndex:
    cdef IndexBuffer _mapped

cdef class IndexList:
    cdef list _listed, _searched
    cdef public Size max_matches

cdef I32 key_hash(I32 code) noexcept nogil
cdef I32 hash_at(IndexBuffer index, Size at) noexcept nogil
cdef Bool put_item(IndexBuffer index, I32 code, I64 physical_offset, I64 store_ms) noexcept nogil
cdef Bool put_optional(IndexBuffer index, I32 code, I64 physical_offset) noexcept nogil
cdef Bool is_optional(IndexBuffer index, Size at) noexcept nogil
cdef I32 next_item(IndexBuffer index) noexcept nogil
cdef I64 begins_at(IndexBuffer index) noexcept nogil
cdef I64 ends_at(IndexBuffer index) noexcept nogil
cdef Size space_of(IndexBuffer index) noexcept nogil
cdef Bool is_before_end(IndexBuffer index, I64 physical_offset) noexcept nogil
cdef Nothing prefetch_slot(IndexBuffer index, I32 hash_code) noexcept nogil
cdef Bool is_unused(IndexBuffer index, I32 hash_code) noexcept nogil
cdef Bool is_blank(IndexBuffer index, Size at) noexcept nogil
cdef Bool is_bare(IndexBuffer index, I32 hash_code) noexcept nogil
cdef Nothing prefetch_newest(IndexList index, I32 hash_code) noexcept
cdef Nothing walk(
    IndexBuffer index, I32 hash_code, I32 start, I64 begin_ms, I64 end_ms, I64s found, Size capacity, I64s state
) noexcept nogil
cdef Nothing replay(
    IndexBuffer index, Size limit, I32s heads, Target heads_bytes, I64s written, Size parts, I64s state
) noexcept nogil
cpdef I32 hash_of_texts(str topic, str key) except? -1
cpdef I32 hash_of(bytes topic, bytes key)

cimport cython
from storebytes._bytes_cy cimport *
from indexfile._index_cy cimport IndexBuffer, is_optional, next_item

cdef Size HEADER_SIZE, ITEM_KEY_HASH_AT, ITEM_PHYSICAL_OFFSET_AT, ITEM_SIZE, SLOT_SIZE, DIFFERING_MAX, SAME_RECORD_MAX, FIRST_ITEM
cdef I64 NO_OFFSET

@cython.final
cdef class ItemMatcher:
    cdef list _held
    cdef I64s _differing, _state
    cdef public Size at
    cdef readonly Size unique
    cdef readonly object differing_made, differing_found

cimport cython
from storebytes._bytes_cy cimport *
from storebytes._crc_cy cimport crc32
from indexfile._index_cy cimport IndexBuffer, IndexList, MappedIndex, hash_at, is_bare, is_blank, is_unused

cdef Size ROWS, UNUSED_ROWS, USED_ROWS, PROBES, ROW_BITS, BITS_PER_KEY, FILTER_BLOCK_SIZE, CHECKSUM_SIZE, AHEAD_ITEMS, FIRST_ITEM
cdef Size ROWS_FROM
cdef I64 LOW_31, LOW_32, EVERY_BIT, MIX_BLOCK, MIX_ROW, MIX_ROWS

@cython.final
cdef class FilterBuffer:
    cdef memoryview _view, _checked
    cdef Source _source
    cdef Target _is_checked
    cdef readonly Size width, blocks
    cdef readonly I64 seed
    cdef readonly bint is_damaged

@cython.final
cdef class FilteredFiles:
    cdef readonly FilterBuffer buffer
    cdef readonly list files
    cdef readonly I64 live

cdef I64 mask_of(FilterBuffer filter, I32 code) noexcept
cdef Nothing prefetch_filters(IndexList index, I32 hash_code) noexcept
cdef Bool leads_nowhere(IndexList index, I32 hash_code) noexcept

from storebytes._bytes_cy cimport *

cdef Size SECTOR_SIZE, SIZE_AT, UNIT_SIZE
cdef I64 PHYSICAL_OFFSET_MAX
cdef I32 NO_SIZE
cdef Source _BLANK

from storebytes._bytes_cy cimport *
from storebytes._crc_cy cimport crc32
from rabbitstore.format.entry_cy cimport IndexEntry

cdef Size ENTRY, CHUNK, HEAD, ENTRIES_MAX, OWN_MARK, CHUNK_MARK
cdef I64 EXPIRY_MIN, EXPIRY_MAX, PLACE_MAX

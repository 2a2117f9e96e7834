cimport cython
from storebytes._bytes_cy cimport *
from commitlog._message_cy cimport Message, PutResult, decode_properties, encode_properties

cdef I32 TAGS, BORN_HOST, STORE_HOST, KEYS, PROPERTIES, RAW
cdef Size TEXTS_MAX, FIXED_SIZE, ROW_SIZE
cdef object OK, _FIXED, _ROW
cdef str UNIQUE_KEY

cdef bytes _pack_message(Message message, str unique_key)
cdef object _unpack_message(bytes data, Size at)

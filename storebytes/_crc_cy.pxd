from ._bytes_cy cimport *
from ._crc_fold cimport can_fold, fold

cdef U32 ALL_ONES, LOW_31
cdef Size FOLD_SIZE_MIN
cdef Bool _FOLDS
cdef U32[4096] _TABLES
cdef U32 crc32_more(U32 crc, Source source, Size at, Size size) noexcept nogil
cdef I32 crc32(Source source, Size at, Size size) noexcept nogil

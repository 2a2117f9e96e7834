# CRC-32 by carry-less multiplication (x86-64), for stretches of at least 64 bytes.  Zero bytes before the first make them a
# multiple of 16: they change nothing, since the register is added behind them.
# Four 128-bit lanes are folded over each 64 bytes, then into one, then reduced to 32 bits (Barrett).  The constants are
# powers of x modulo the bit-reflected polynomial; _crc_cy.py compares the result with its tables before it is used.
from ._bytes_cy cimport Size, Source, U32

cdef extern from *:
    """
    #ifndef STOREBYTES_FOLD
    #define STOREBYTES_FOLD
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    __attribute__((unused)) static int storebytes_can_fold(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }
    #define STOREBYTES_STEP(lane, by, next) _mm_xor_si128(_mm_xor_si128( \\
        _mm_clmulepi64_si128(lane, by, 0x00), _mm_clmulepi64_si128(lane, by, 0x11)), next)
    #define STOREBYTES_LOAD(place) _mm_loadu_si128((const __m128i *)(place))
    __attribute__((unused, target("pclmul,sse4.1")))
    static unsigned int storebytes_fold(unsigned int crc, const unsigned char *from, Py_ssize_t size) {
        const __m128i by_512 = _mm_set_epi64x(0x1c6e41596LL, 0x154442bd4LL);
        const __m128i by_384 = _mm_set_epi64x(0x174359406LL, 0x03db1ecdcLL);
        const __m128i by_256 = _mm_set_epi64x(0x15a546366LL, 0x0f1da05aaLL);
        const __m128i by_128 = _mm_set_epi64x(0x0ccaa009eLL, 0x1751997d0LL);
        const __m128i by_64 = _mm_set_epi64x(0, 0x163cd6124LL);
        const __m128i barrett = _mm_set_epi64x(0x1f7011641LL, 0x1db710641LL);
        const __m128i low_32 = _mm_setr_epi32(-1, 0, -1, 0);
        static const unsigned char shifts[48] = {
            128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
            128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};
        const Py_ssize_t zeros = -size & 15;
        const __m128i start = _mm_cvtsi32_si128((int)crc);
        __m128i a = _mm_shuffle_epi8(_mm_xor_si128(STOREBYTES_LOAD(from), start), STOREBYTES_LOAD(shifts + 16 - zeros));
        __m128i b = _mm_shuffle_epi8(start, STOREBYTES_LOAD(shifts + 32 - zeros)), c, d, t;
        from -= zeros;
        size += zeros;
        b = _mm_xor_si128(STOREBYTES_LOAD(from + 16), b);
        c = STOREBYTES_LOAD(from + 32);
        d = STOREBYTES_LOAD(from + 48);
        for (from += 64, size -= 64; size >= 64; from += 64, size -= 64) {
            a = STOREBYTES_STEP(a, by_512, STOREBYTES_LOAD(from));
            b = STOREBYTES_STEP(b, by_512, STOREBYTES_LOAD(from + 16));
            c = STOREBYTES_STEP(c, by_512, STOREBYTES_LOAD(from + 32));
            d = STOREBYTES_STEP(d, by_512, STOREBYTES_LOAD(from + 48));
        }
        a = STOREBYTES_STEP(a, by_384, STOREBYTES_STEP(b, by_256, STOREBYTES_STEP(c, by_128, d)));
        for (; size >= 16; from += 16, size -= 16)
            a = STOREBYTES_STEP(a, by_128, STOREBYTES_LOAD(from));
        a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_128, 0x10));
        t = _mm_srli_si128(a, 4);
        a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_32), by_64, 0x00), t);
        t = _mm_clmulepi64_si128(_mm_and_si128(a, low_32), barrett, 0x10);
        t = _mm_clmulepi64_si128(_mm_and_si128(t, low_32), barrett, 0x00);
        return (unsigned int)_mm_extract_epi32(_mm_xor_si128(a, t), 1);
    }
    #else
    __attribute__((unused)) static int storebytes_can_fold(void) { return 0; }
    __attribute__((unused)) static unsigned int storebytes_fold(
        unsigned int crc, const unsigned char *from, Py_ssize_t size) { (void)from; (void)size; return crc; }
    #endif
    #endif
    """
    int storebytes_can_fold() nogil
    unsigned int storebytes_fold(unsigned int crc, const unsigned char *source, Py_ssize_t size) nogil

cdef inline int can_fold() noexcept nogil:
    return storebytes_can_fold()

cdef inline U32 fold(U32 crc, Source source, Size at, Size size) noexcept nogil:
    return storebytes_fold(crc, source + at, size)

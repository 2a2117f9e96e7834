# CRC-32 by carry-less multiplication (x86-64), for ranges of at least 64 bytes.  Zero bytes before the first byte pad them to
# a multiple of 16; they do not change the result, since the register is added after them.
# Four 128-bit lanes are folded over each 64 bytes, then into one, then reduced to 32 bits (Barrett).  The constants are
# powers of x modulo the bit-reflected polynomial; _crc_cy.py compares the result with its tables before it is used.
# Where the processor multiplies four lanes in one instruction (VPCLMULQDQ with AVX-512), long ranges take 256 bytes a step.
from ._bytes_cy cimport Size, Source, U32

cdef extern from *:
    """
    #ifndef STOREBYTES_FOLD
    #define STOREBYTES_FOLD
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    static int storebytes_is_wide;
    __attribute__((unused)) static int storebytes_can_fold(void) {
        __builtin_cpu_init();
        storebytes_is_wide = __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f")
            && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }
    #define STOREBYTES_STEP(lane, by, next) _mm_xor_si128(_mm_xor_si128( \\
        _mm_clmulepi64_si128(lane, by, 0x00), _mm_clmulepi64_si128(lane, by, 0x11)), next)
    #define STOREBYTES_LOAD(place) _mm_loadu_si128((const __m128i *)(place))
    __attribute__((always_inline, unused, target("pclmul,sse4.1")))
    static inline unsigned int storebytes_finish(
        __m128i a, __m128i b, __m128i c, __m128i d, const unsigned char *from, Py_ssize_t size) {
        const __m128i by_512 = _mm_set_epi64x(0x1c6e41596LL, 0x154442bd4LL);
        const __m128i by_384 = _mm_set_epi64x(0x174359406LL, 0x03db1ecdcLL);
        const __m128i by_256 = _mm_set_epi64x(0x15a546366LL, 0x0f1da05aaLL);
        const __m128i by_128 = _mm_set_epi64x(0x0ccaa009eLL, 0x1751997d0LL);
        const __m128i by_64 = _mm_set_epi64x(0, 0x163cd6124LL);
        const __m128i barrett = _mm_set_epi64x(0x1f7011641LL, 0x1db710641LL);
        const __m128i low_32 = _mm_setr_epi32(-1, 0, -1, 0);
        __m128i t;
        for (; size >= 64; from += 64, size -= 64) {
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
    #define STOREBYTES_WIDE_STEP(lane, by, next) _mm512_ternarylogic_epi64( \\
        _mm512_clmulepi64_epi128(lane, by, 0x00), _mm512_clmulepi64_epi128(lane, by, 0x11), next, 0x96)
    #define STOREBYTES_WIDE_LOAD(place) _mm512_loadu_si512((const void *)(place))
    __attribute__((unused, target("avx512f,avx512bw,avx512vl,vpclmulqdq,pclmul,sse4.1")))
    static unsigned int storebytes_fold_wide(unsigned int crc, const unsigned char *from, Py_ssize_t size) {
        const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1322d1430LL, 0x11542778aLL));
        const __m512i by_512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1c6e41596LL, 0x154442bd4LL));
        const Py_ssize_t zeros = -size & 15;
        unsigned char start[64] = {0};
        __m512i a, b, c, d;
        memcpy(start + zeros, &crc, 4);
        from -= zeros;
        size += zeros;
        a = _mm512_maskz_loadu_epi8(~0ULL << zeros, (const void *)from);
        a = _mm512_xor_si512(a, STOREBYTES_WIDE_LOAD(start));
        b = STOREBYTES_WIDE_LOAD(from + 64);
        c = STOREBYTES_WIDE_LOAD(from + 128);
        d = STOREBYTES_WIDE_LOAD(from + 192);
        for (from += 256, size -= 256; size >= 256; from += 256, size -= 256) {
            a = STOREBYTES_WIDE_STEP(a, by_2048, STOREBYTES_WIDE_LOAD(from));
            b = STOREBYTES_WIDE_STEP(b, by_2048, STOREBYTES_WIDE_LOAD(from + 64));
            c = STOREBYTES_WIDE_STEP(c, by_2048, STOREBYTES_WIDE_LOAD(from + 128));
            d = STOREBYTES_WIDE_STEP(d, by_2048, STOREBYTES_WIDE_LOAD(from + 192));
        }
        b = STOREBYTES_WIDE_STEP(a, by_512, b);
        c = STOREBYTES_WIDE_STEP(b, by_512, c);
        d = STOREBYTES_WIDE_STEP(c, by_512, d);
        return storebytes_finish(
            _mm512_extracti32x4_epi32(d, 0), _mm512_extracti32x4_epi32(d, 1), _mm512_extracti32x4_epi32(d, 2),
            _mm512_extracti32x4_epi32(d, 3), from, size);
    }
    __attribute__((unused, target("pclmul,sse4.1")))
    static unsigned int storebytes_fold(unsigned int crc, const unsigned char *from, Py_ssize_t size) {
        static const unsigned char shifts[48] = {
            128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
            128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};
        const Py_ssize_t zeros = -size & 15;
        const __m128i start = _mm_cvtsi32_si128((int)crc);
        __m128i a = _mm_shuffle_epi8(_mm_xor_si128(STOREBYTES_LOAD(from), start), STOREBYTES_LOAD(shifts + 16 - zeros));
        __m128i b = _mm_shuffle_epi8(start, STOREBYTES_LOAD(shifts + 32 - zeros)), c, d;
        if (storebytes_is_wide && size >= 384)
            return storebytes_fold_wide(crc, from, size);
        from -= zeros;
        size += zeros;
        b = _mm_xor_si128(STOREBYTES_LOAD(from + 16), b);
        c = STOREBYTES_LOAD(from + 32);
        d = STOREBYTES_LOAD(from + 48);
        return storebytes_finish(a, b, c, d, from + 64, size - 64);
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

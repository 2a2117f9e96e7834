# The compiled half of _bytes_cy.py: read that first.  Inline, so there is no extension module of this name.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals, PyErr_Clear
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.pythread cimport (
    NOWAIT_LOCK, PY_LOCK_ACQUIRED, PY_LOCK_FAILURE, PyLockStatus, PyThread_acquire_lock, PyThread_allocate_lock,
    PyThread_free_lock, PyThread_release_lock, PyThread_type_lock,
)
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.string cimport memchr, memcmp, memcpy
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from storebytes._wide_base64 cimport wide_base64

cdef extern from *:
    """
    #ifndef STOREBYTES_PRIMITIVES
    #define STOREBYTES_PRIMITIVES
    #include <string.h>
    #include <structmember.h>
    static inline int storebytes_has(const unsigned char *source, Py_ssize_t size, const unsigned char *wanted, Py_ssize_t count) {
        const unsigned char *stop = source + size - count + 1;
        while (source < stop && (source = (const unsigned char *)memchr(source, wanted[0], stop - source))) {
            if (memcmp(source, wanted, count) == 0) return 1;
            source++;
        }
        return 0;
    }
    /* A cache of recent short ASCII texts, indexed by a hash of their ends and size.  Only the GIL protects it. */
    #ifdef Py_GIL_DISABLED
    #define storebytes_text_again(source, size) PyUnicode_DecodeUTF8((const char *)(source), size, "replace")
    #else
    static inline PyObject *storebytes_text_again(const unsigned char *source, Py_ssize_t size) {
        static PyObject *known[64];
        PyObject *text, *old;
        Py_ssize_t place;
        if (size < 1 || size > 32) return PyUnicode_DecodeUTF8((const char *)source, size, "replace");
        place = (source[0] * 5 + source[size - 1] * 11 + size) & 63;
        text = known[place];
        if (text && PyUnicode_GET_LENGTH(text) == size && memcmp(PyUnicode_1BYTE_DATA(text), source, size) == 0) {
            Py_INCREF(text);
            return text;
        }
        text = PyUnicode_DecodeUTF8((const char *)source, size, "replace");
        if (text && PyUnicode_IS_ASCII(text)) {
            old = known[place];
            Py_INCREF(text);
            known[place] = text;
            Py_XDECREF(old);
        }
        return text;
    }
    #endif
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define storebytes_big32(value) __builtin_bswap32(value)
    #define storebytes_big64(value) __builtin_bswap64(value)
    #define storebytes_little32(value) (value)
    #else
    #define storebytes_big32(value) (value)
    #define storebytes_big64(value) (value)
    #define storebytes_little32(value) __builtin_bswap32(value)
    #endif
    /* Replace the getter that Cython made by a member that CPython reads inline.  The name must live forever; the field must
       be an object and never NULL. */
    static inline int storebytes_read_inline(PyTypeObject *type, const char *name, Py_ssize_t at) {
        PyMemberDef *member = (PyMemberDef *)PyMem_RawCalloc(2, sizeof(PyMemberDef));
        PyObject *descriptor = NULL;
        int failed = -1;
        if (member) {
            member->name = name; member->type = T_OBJECT_EX; member->offset = at; member->flags = READONLY;
            descriptor = PyDescr_NewMember(type, member);
        }
        if (descriptor) failed = PyDict_SetItemString(type->tp_dict, name, descriptor);
        Py_XDECREF(descriptor);
        PyType_Modified(type);
        return failed;
    }
    /* gcc treats a function that only prefetches as one without effect and removes calls of it; the empty statement prevents
       that. */
    #define storebytes_prefetch(place) do { __builtin_prefetch(place); __asm__ volatile(""); } while (0)
    #define storebytes_utf8(text, size) PyUnicode_AsUTF8AndSize(text, size)
    #define storebytes_release() __atomic_thread_fence(__ATOMIC_RELEASE)
    #define storebytes_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    #define storebytes_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)
    /* Without a GIL, a thread that waits for a lock of microseconds loses more by sleeping than by looking again.  With one, a
       sleeping thread would be given the lock before it has the GIL, and the thread that has the GIL would wait for both: each
       of their puts would cost two switches.  So it looks again when it has the GIL; who holds the lock for longer is waited for. */
    #if defined(__x86_64__) || defined(__i386__)
    #define storebytes_pause() __builtin_ia32_pause()
    #else
    #define storebytes_pause() __asm__ volatile("")
    #endif
    static inline int storebytes_take_soon(PyThread_type_lock lock) {
        int looks;
    #ifdef Py_GIL_DISABLED
        for (looks = 0; looks < 200; looks++) {
            storebytes_pause();
            if (PyThread_acquire_lock(lock, NOWAIT_LOCK)) return 1;
        }
    #else
        const struct timespec pause = {0, 20000};
        for (looks = 0; looks < 20; looks++) {
            Py_BEGIN_ALLOW_THREADS
            nanosleep(&pause, NULL);
            Py_END_ALLOW_THREADS
            if (PyThread_acquire_lock(lock, NOWAIT_LOCK)) return 1;
        }
    #endif
        return 0;
    }
    static const char storebytes_64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    /* Both characters of each twelve bits, as they lie in memory; made by the first caller. */
    static unsigned short storebytes_pairs[4096];
    static inline const unsigned short *storebytes_64_pairs(void) {
        static int is_made;
        int bits;
        if (!__atomic_load_n(&is_made, __ATOMIC_ACQUIRE)) {
            for (bits = 0; bits < 4096; bits++) {
                const char pair[2] = {storebytes_64[bits >> 6], storebytes_64[bits & 63]};
                memcpy(&storebytes_pairs[bits], pair, 2);
            }
            __atomic_store_n(&is_made, 1, __ATOMIC_RELEASE);
        }
        return storebytes_pairs;
    }
    static const char storebytes_16[] = "0123456789abcdef0123456789ABCDEF";
    #ifndef SOURCE_HASH
    #define SOURCE_HASH 0
    #endif
    #define STOREBYTES_STRING_OF(text) #text
    #define STOREBYTES_STRING(macro) STOREBYTES_STRING_OF(macro)
    /* `builds.py` searches the extension's file for these bytes. */
    static const char storebytes_source_hash[] __attribute__((used)) = "storebytes source hash " STOREBYTES_STRING(SOURCE_HASH);
    #endif
    """
    unsigned int storebytes_big32(unsigned int value) nogil
    unsigned long long storebytes_big64(unsigned long long value) nogil
    unsigned int storebytes_little32(unsigned int value) nogil
    const char *storebytes_utf8(object text, Py_ssize_t *size) noexcept    # NULL with an error set
    str storebytes_text_again(const unsigned char *source, Py_ssize_t size)
    void storebytes_release() nogil
    void storebytes_fence() nogil
    void storebytes_acquire() nogil
    int storebytes_take_soon(PyThread_type_lock lock)
    void storebytes_prefetch(const unsigned char *position) nogil
    int storebytes_has(const unsigned char *source, Py_ssize_t size, const unsigned char *needle, Py_ssize_t count) nogil
    const char *storebytes_64
    const unsigned short *storebytes_64_pairs() nogil
    const char *storebytes_16

cdef extern from "pythread.h":
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long timeout_us, int is_interruptible) nogil

ctypedef int I32
ctypedef long long I64
ctypedef unsigned int U32
ctypedef Py_ssize_t Size
ctypedef bint Bool
ctypedef void Nothing
ctypedef const unsigned char *Source
ctypedef unsigned char *Target
ctypedef int *I32s
ctypedef long long *I64s
ctypedef PyThread_type_lock RawLock

cdef inline void put_i16(Target target, Size at, I32 value) noexcept nogil:
    target[at] = <unsigned char>(<U32>value >> 8)
    target[at + 1] = <unsigned char>value

cdef inline void put_i32(Target target, Size at, I32 value) noexcept nogil:
    cdef U32 big = storebytes_big32(<U32>value)
    memcpy(target + at, &big, 4)

cdef inline void put_i64(Target target, Size at, I64 value) noexcept nogil:
    cdef unsigned long long big = storebytes_big64(<unsigned long long>value)
    memcpy(target + at, &big, 8)

cdef inline void publish_i32(Target target, Size at, I32 value) noexcept nogil:
    storebytes_release()
    put_i32(target, at, value)

cdef inline Nothing order_stores() noexcept nogil:
    storebytes_release()

cdef inline Nothing order_loads() noexcept nogil:
    storebytes_acquire()

cdef inline Nothing order_all() noexcept nogil:
    storebytes_fence()

cdef inline I32 get_i16(Source source, Size at) noexcept nogil:
    return <short>((source[at] << 8) | source[at + 1])

cdef inline I32 get_i32(Source source, Size at) noexcept nogil:
    cdef U32 big
    memcpy(&big, source + at, 4)
    return <I32>storebytes_big32(big)

cdef inline I64 get_i64(Source source, Size at) noexcept nogil:
    cdef unsigned long long big
    memcpy(&big, source + at, 8)
    return <I64>storebytes_big64(big)

cdef inline U32 get_u32_little(Source source, Size at) noexcept nogil:
    cdef U32 little
    memcpy(&little, source + at, 4)
    return storebytes_little32(little)

cdef inline void put_bytes(Target target, Size at, Source source, Size start, Size size) noexcept nogil:
    memcpy(target + at, source + start, size)

cdef inline bytes take_bytes(Source source, Size at, Size size):
    return PyBytes_FromStringAndSize(<const char *>source + at, size)

cdef inline str take_text(Source source, Size at, Size size):
    return PyUnicode_DecodeUTF8(<const char *>source + at, size, "replace")

cdef inline str take_text_again(Source source, Size at, Size size):
    return storebytes_text_again(source + at, size)

cdef inline Source window(Source source, Size at, Size size) noexcept nogil:
    return source + at

cdef inline void prefetch(Source source, Size at, Size size) noexcept nogil:
    cdef Size stop = at + size
    while at < stop:
        storebytes_prefetch(source + at)
        at += 64
    storebytes_prefetch(source + stop - 1)    # the last cache line, if the range does not start at one

cdef inline memoryview take_view(memoryview view, Size at, Size size):
    # Like slicing, without the slice object and its two integers; only for a contiguous view of bytes.
    cdef memoryview taken = PyMemoryView_FromObject(view)
    cdef Py_buffer *buffer = PyMemoryView_GET_BUFFER(taken)
    buffer.buf = <Target>buffer.buf + at
    buffer.len = size
    buffer.shape[0] = size
    return taken

cdef inline Size find_byte(Source source, Size start, Size stop, int byte) noexcept nogil:
    cdef const void *at
    if start >= stop:
        return stop
    at = memchr(source + start, byte, stop - start)
    return stop if at == NULL else <Source>at - source

cdef inline Size count_byte(Source source, Size size, int byte) noexcept nogil:
    cdef Size at, count = 0
    for at in range(size):
        count += source[at] == byte
    return count

cdef inline Bool has_bytes(Source source, Size size, Source needle, Size expected_size) noexcept nogil:
    return storebytes_has(source, size, needle, expected_size)

cdef inline bytes encode_pairs(list texts):
    cdef Size size = len(texts), length, index
    cdef const char *text
    cdef Target out
    for index in range(len(texts)):
        PyUnicode_AsUTF8AndSize(texts[index], &length)
        size += length
    encoded = PyBytes_FromStringAndSize(NULL, size)
    out = <Target>PyBytes_AS_STRING(encoded)
    for index in range(len(texts)):
        text = PyUnicode_AsUTF8AndSize(texts[index], &length)
        memcpy(out, text, length)
        out[length] = 1 + (index & 1)
        out += length + 1
    return encoded

cdef inline bytes encode_keys_and_tags(str keys, str tags):
    # Either may be None.
    cdef Size keys_size = -6, tags_size = -6
    cdef const char *keys_text = NULL
    cdef const char *tags_text = NULL
    cdef Target out
    if keys is not None:
        keys_text = PyUnicode_AsUTF8AndSize(keys, &keys_size)
    if tags is not None:
        tags_text = PyUnicode_AsUTF8AndSize(tags, &tags_size)
    encoded = PyBytes_FromStringAndSize(NULL, keys_size + tags_size + 12)
    out = <Target>PyBytes_AS_STRING(encoded)
    if keys_text != NULL:
        memcpy(out, "KEYS\x01", 5)
        memcpy(out + 5, keys_text, keys_size)
        out[5 + keys_size] = 2
        out += keys_size + 6
    if tags_text != NULL:
        memcpy(out, "TAGS\x01", 5)
        memcpy(out + 5, tags_text, tags_size)
        out[5 + tags_size] = 2
    return encoded

cdef inline Size put_text(Target target, Size at, Size capacity, str text) noexcept:
    cdef Size size
    cdef const char *encoded = storebytes_utf8(text, &size)
    if encoded == NULL:
        PyErr_Clear()
        return -1
    if size > capacity:
        return -1
    memcpy(target + at, encoded, size)
    return size

cdef inline Bool is_same(Source source, Size at, Size size, Source other, Size other_size) noexcept nogil:
    return size == other_size and memcmp(source + at, other, size) == 0

cdef inline Bool is_same_at(Source source, Size at, Size size, Source other, Size other_at) noexcept nogil:
    return memcmp(source + at, other + other_at, size) == 0

cdef inline Target target_of(memoryview view):
    return <Target>PyMemoryView_GET_BUFFER(view).buf

cdef inline Source source_of(memoryview view):
    return <Source>PyMemoryView_GET_BUFFER(view).buf

cdef inline Source source_of_bytes(bytes data):
    return <Source>PyBytes_AS_STRING(data)

cdef inline I32s i32s_of(memoryview view):
    return <I32s>PyMemoryView_GET_BUFFER(view).buf

cdef inline I64s i64s_of(memoryview view):
    return <I64s>PyMemoryView_GET_BUFFER(view).buf

cdef inline RawLock new_raw_lock() except NULL:
    cdef RawLock lock = PyThread_allocate_lock()
    if lock == NULL:
        raise MemoryError
    return lock

cdef inline Nothing free_raw_lock(RawLock lock) noexcept:
    if lock != NULL:
        PyThread_free_lock(lock)

cdef inline Bool take_raw_lock_now(RawLock lock) noexcept:
    return PyThread_acquire_lock(lock, NOWAIT_LOCK)

cdef inline Bool take_raw_lock_soon(RawLock lock) noexcept:
    return storebytes_take_soon(lock)

cdef inline Bool take_raw_lock(RawLock lock, I64 timeout_us) except -1:
    # An interrupt ends the wait if a handler raises; else the wait restarts.
    cdef PyLockStatus status
    while True:
        with nogil:
            status = PyThread_acquire_lock_timed(lock, timeout_us, 1)
        if status == PY_LOCK_ACQUIRED:
            return True
        if status == PY_LOCK_FAILURE:
            return False
        PyErr_CheckSignals()

cdef inline Nothing give_raw_lock(RawLock lock) noexcept:
    PyThread_release_lock(lock)

cdef inline I64 address_of_lock(RawLock lock) noexcept:
    return <I64><Size>lock

cdef inline Nothing give_raw_locks(I64s positions, Size count) noexcept:
    cdef Size row
    with nogil:
        for row in range(count):
            PyThread_release_lock(<RawLock><Size>positions[row])

cdef inline I64 now_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <I64>now.tv_sec * 1000 + now.tv_nsec // 1000000

cdef inline U32 _hash_unit(Source source, Size *at, Size stop, U32 code) noexcept nogil:
    # Hash one character of valid UTF-8; invalid bytes never reach this function.
    cdef U32 unit = source[at[0]]
    if unit < 0x80:
        at[0] += 1
    elif unit < 0xE0:
        unit = ((unit & 31) << 6) | (source[at[0] + 1] & 63)
        at[0] += 2
    elif unit < 0xF0:
        unit = ((unit & 15) << 12) | ((source[at[0] + 1] & 63) << 6) | (source[at[0] + 2] & 63)
        at[0] += 3
    else:
        unit = (((unit & 7) << 18) | ((source[at[0] + 1] & 63) << 12) | ((source[at[0] + 2] & 63) << 6)
                | (source[at[0] + 3] & 63)) - 0x10000
        code = 31 * code + (0xD800 | (unit >> 10))
        unit = 0xDC00 | (unit & 0x3FF)
        at[0] += 4
    return 31 * code + unit

cdef inline Size _utf8_size(Source source, Size at, Size stop) noexcept nogil:
    # Return the size of the valid character at `at`, or minus the bytes that one U+FFFD replaces (as Python does).
    cdef U32 first = source[at], second
    cdef Size need, have = 1
    if first < 0x80:
        return 1
    if first < 0xC2 or first > 0xF4:
        return -1
    need = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if at + 1 >= stop:
        return -1
    second = source[at + 1]
    if second & 0xC0 != 0x80:
        return -1
    if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
        return -1
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return -1
    have = 2
    while have < need:
        if at + have >= stop or source[at + have] & 0xC0 != 0x80:
            return -have
        have += 1
    return need

cdef inline I32 java_hash(Source source, Size at, Size size, I32 seed) noexcept nogil:
    cdef U32 code = <U32>seed
    cdef Size stop = at + size, taken
    while at < stop:
        while stop - at >= 4 and not (source[at] | source[at + 1] | source[at + 2] | source[at + 3]) & 0x80:
            code = 923521 * code + (29791 * source[at] + 961 * source[at + 1] + 31 * source[at + 2] + source[at + 3])
            at += 4
        while at < stop and source[at] < 0x80:
            code = 31 * code + source[at]
            at += 1
        if at >= stop:
            break
        taken = _utf8_size(source, at, stop)
        if taken > 0:
            code = _hash_unit(source, &at, stop, code)
        else:
            code = 31 * code + 0xFFFD
            at -= taken
    return <I32>code

cdef inline I32 java_hash_of_text(str text, I32 seed) except? -1:
    cdef Size size
    cdef bytes replaced
    cdef const char *encoded = storebytes_utf8(text, &size)
    if encoded == NULL:
        PyErr_Clear()
        replaced = text.encode("utf-8", "replace")
        return java_hash(<Source>PyBytes_AS_STRING(replaced), 0, len(replaced), seed)
    return java_hash(<Source>encoded, 0, size, seed)

cdef inline Size put_decimal(Target target, Size at, I64 value) noexcept nogil:
    cdef unsigned char digits[20]
    cdef unsigned long long left = <unsigned long long>value
    cdef Size start = 20
    if value < 0:
        target[at] = 45
        at += 1
        left = 0 - left
    while True:
        start -= 1
        digits[start] = <unsigned char>(48 + left % 10)
        left = left // 10
        if left == 0:
            break
    memcpy(target + at, digits + start, 20 - start)
    return at + 20 - start

cdef inline Size put_hex(Target target, Size at, Source source, Size start, Size size, Bool upper) noexcept nogil:
    cdef const char *digits = storebytes_16 + (16 if upper else 0)
    cdef Size position
    for position in range(start, start + size):
        target[at] = digits[source[position] >> 4]
        target[at + 1] = digits[source[position] & 15]
        at += 2
    return at

cdef inline Size put_base64(Target target, Size at, Source source, Size start, Size size) noexcept nogil:
    cdef Size stop = start + size - size % 3
    cdef Size done = wide_base64(target + at, source + start, size)
    cdef const unsigned short *pairs = storebytes_64_pairs()
    cdef unsigned long long eight
    cdef U32 three
    start += done
    at += done // 3 * 4
    while stop - start >= 8:  # eight bytes are read, and six of them written
        memcpy(&eight, source + start, 8)
        eight = storebytes_big64(eight)
        memcpy(target + at, pairs + (eight >> 52), 2)
        memcpy(target + at + 2, pairs + ((eight >> 40) & 4095), 2)
        memcpy(target + at + 4, pairs + ((eight >> 28) & 4095), 2)
        memcpy(target + at + 6, pairs + ((eight >> 16) & 4095), 2)
        start += 6
        at += 8
    while start < stop:
        three = (<U32>source[start] << 16) | (<U32>source[start + 1] << 8) | source[start + 2]
        target[at] = storebytes_64[three >> 18]
        target[at + 1] = storebytes_64[(three >> 12) & 63]
        target[at + 2] = storebytes_64[(three >> 6) & 63]
        target[at + 3] = storebytes_64[three & 63]
        start += 3
        at += 4
    if size % 3:
        three = <U32>source[start] << 16
        if size % 3 == 2:
            three |= <U32>source[start + 1] << 8
        target[at] = storebytes_64[three >> 18]
        target[at + 1] = storebytes_64[(three >> 12) & 63]
        target[at + 2] = storebytes_64[(three >> 6) & 63] if size % 3 == 2 else 61
        target[at + 3] = 61
        at += 4
    return at

cdef inline Size _put_unit(Target target, Size at, U32 unit) noexcept nogil:
    # Write one UTF-16 unit as \\u and four digits.
    target[at] = 92
    target[at + 1] = 117
    target[at + 2] = storebytes_16[unit >> 12]
    target[at + 3] = storebytes_16[(unit >> 8) & 15]
    target[at + 4] = storebytes_16[(unit >> 4) & 15]
    target[at + 5] = storebytes_16[unit & 15]
    return at + 6

cdef inline Size _put_escape(Target target, Size at, U32 unit) noexcept nogil:
    # Write a letter escape where JSON has one, else a unit.
    cdef unsigned char letter = 0
    if unit == 34 or unit == 92:
        letter = <unsigned char>unit
    elif unit == 10:
        letter = 110
    elif unit == 13:
        letter = 114
    elif unit == 9:
        letter = 116
    elif unit == 8:
        letter = 98
    elif unit == 12:
        letter = 102
    if letter == 0:
        return _put_unit(target, at, unit)
    target[at] = 92
    target[at + 1] = letter
    return at + 2

cdef inline U32 _character(Source source, Size at, Size size) noexcept nogil:
    # Decode a character of two bytes or more that _utf8_size found valid.
    if size == 2:
        return ((source[at] & 31) << 6) | (source[at + 1] & 63)
    if size == 3:
        return ((source[at] & 15) << 12) | ((source[at + 1] & 63) << 6) | (source[at + 2] & 63)
    return (((source[at] & 7) << 18) | ((source[at + 1] & 63) << 12) | ((source[at + 2] & 63) << 6)
            | (source[at + 3] & 63))

cdef inline Size put_json_text(Target target, Size at, Source source, Size start, Size size) noexcept nogil:
    cdef Size stop = start + size, taken
    cdef U32 unit
    while start < stop:
        unit = source[start]
        if 32 <= unit < 127 and unit != 34 and unit != 92:
            target[at] = <unsigned char>unit
            at += 1
            start += 1
        elif unit < 128:
            at = _put_escape(target, at, unit)
            start += 1
        else:
            taken = _utf8_size(source, start, stop)
            unit = _character(source, start, taken) if taken > 0 else 0xFFFD
            start += taken if taken > 0 else -taken
            if unit >= 0x10000:
                at = _put_unit(target, at, 0xD800 | ((unit - 0x10000) >> 10))
                unit = 0xDC00 | ((unit - 0x10000) & 0x3FF)
            at = _put_unit(target, at, unit)
    return at

/* Put before the C library by LD_PRELOAD: the FAULT_AT-th call (from 1) that changes a file below FAULT_BELOW fails with
   FAULT_ERRNO, once, or for ever with FAULT_FOREVER; with FAULT_SHORT a write does half of its work and says so.
   At the end FAULT_COUNT gets the number of such calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static long made;
static const char *below, *count_file;
static long at, error_number;
static int for_ever, is_short;

__attribute__((constructor)) static void begin(void) {
    below = getenv("FAULT_BELOW");
    count_file = getenv("FAULT_COUNT");
    at = getenv("FAULT_AT") ? atol(getenv("FAULT_AT")) : 0;
    error_number = getenv("FAULT_ERRNO") ? atol(getenv("FAULT_ERRNO")) : EIO;
    for_ever = getenv("FAULT_FOREVER") != NULL;
    is_short = getenv("FAULT_SHORT") != NULL;
}

__attribute__((destructor)) static void end(void) {
    if (count_file) {
        FILE *file = fopen(count_file, "w");
        if (file) { fprintf(file, "%ld", made); fclose(file); }
    }
}

static int is_meant(const char *path) {
    if (!below || strncmp(path, below, strlen(below)) != 0) return 0;
    long number = __sync_add_and_fetch(&made, 1);
    return number == at || (for_ever && at > 0 && number > at);
}

static int fails(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_meant(path);
}

#define NEXT(name) ((__typeof__(&name)) dlsym(RTLD_NEXT, #name))
#define FAILED (errno = (int) error_number, -1)

ssize_t pwrite64(int d, const void *data, size_t size, off64_t where) {
    if (fails(d)) return is_short && size > 1 ? NEXT(pwrite64)(d, data, size / 2, where) : FAILED;
    return NEXT(pwrite64)(d, data, size, where);
}
ssize_t pwrite(int d, const void *data, size_t size, off_t where) { return pwrite64(d, data, size, where); }
ssize_t pwritev64(int d, const struct iovec *parts, int count, off64_t where) {
    if (fails(d)) return is_short && count > 1 ? NEXT(pwritev64)(d, parts, count / 2, where) : FAILED;
    return NEXT(pwritev64)(d, parts, count, where);
}
ssize_t pwritev(int d, const struct iovec *parts, int count, off_t where) { return pwritev64(d, parts, count, where); }
ssize_t pwritev2(int d, const struct iovec *parts, int count, off_t where, int flags) {
    if (fails(d)) return FAILED;
    return NEXT(pwritev2)(d, parts, count, where, flags);
}
ssize_t write(int d, const void *data, size_t size) {
    if (fails(d)) return FAILED;
    return NEXT(write)(d, data, size);
}
int fsync(int d) { return fails(d) ? FAILED : NEXT(fsync)(d); }
int fdatasync(int d) { return fails(d) ? FAILED : NEXT(fdatasync)(d); }
int ftruncate64(int d, off64_t size) { return fails(d) ? FAILED : NEXT(ftruncate64)(d, size); }
int ftruncate(int d, off_t size) { return ftruncate64(d, size); }
int posix_fallocate64(int d, off64_t start, off64_t size) {
    return fails(d) ? (int) error_number : NEXT(posix_fallocate64)(d, start, size);
}
int posix_fallocate(int d, off_t start, off_t size) { return posix_fallocate64(d, start, size); }
int rename(const char *from, const char *to) { return is_meant(from) ? FAILED : NEXT(rename)(from, to); }
int unlink(const char *path) { return is_meant(path) ? FAILED : NEXT(unlink)(path); }
int mkdir(const char *path, mode_t mode) { return is_meant(path) ? FAILED : NEXT(mkdir)(path, mode); }

/* Loaded before the C library by LD_PRELOAD: the FAULT_AT-th call (from 1) that changes a file below FAULT_BELOW fails with
   FAULT_ERRNO.  With FAULT_CALL only calls with that in their name count.
   It fails once, or with FAULT_FOREVER all later calls fail too; with FAULT_SHORT a write writes half of its bytes.
   At the end FAULT_COUNT gets the number of such calls.  FAULT_LOG gets a line for each of them, for each file that O_CREAT
   creates and for each folder that is removed: thread, call and path, separated by tabs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static long made;
static const char *below, *count_file, *only;
static int log_to = -1;
static long at, error_number;
static int for_ever, is_short;

__attribute__((constructor)) static void begin(void) {
    below = getenv("FAULT_BELOW");
    count_file = getenv("FAULT_COUNT");
    only = getenv("FAULT_CALL");
    at = getenv("FAULT_AT") ? atol(getenv("FAULT_AT")) : 0;
    error_number = getenv("FAULT_ERRNO") ? atol(getenv("FAULT_ERRNO")) : EIO;
    for_ever = getenv("FAULT_FOREVER") != NULL;
    is_short = getenv("FAULT_SHORT") != NULL;
    if (getenv("FAULT_LOG")) log_to = syscall(SYS_openat, AT_FDCWD, getenv("FAULT_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0644);
}

static int is_below(const char *path) { return below && strncmp(path, below, strlen(below)) == 0; }

/* One write, so that lines of two threads do not mix. */
static void record(const char *call, const char *path) {
    char line[4300];
    if (log_to < 0 || !is_below(path)) return;
    int size = snprintf(line, sizeof line, "%ld\t%s\t%s\n", (long) syscall(SYS_gettid), call, path);
    syscall(SYS_write, log_to, line, size);
}

__attribute__((destructor)) static void end(void) {
    if (count_file) {
        FILE *file = fopen(count_file, "w");
        if (file) { fprintf(file, "%ld", made); fclose(file); }
    }
}

static int is_meant(const char *call, const char *path) {
    if (!is_below(path)) return 0;
    record(call, path);
    if (only && !strstr(call, only)) return 0;
    long number = __sync_add_and_fetch(&made, 1);
    return number == at || (for_ever && at > 0 && number > at);
}

static int fails(const char *call, int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_meant(call, path);
}

#define NEXT(name) ((__typeof__(&name)) dlsym(RTLD_NEXT, #name))
#define FAILED (errno = (int) error_number, -1)

ssize_t pwrite64(int d, const void *data, size_t size, off64_t where) {
    if (fails("pwrite", d)) return is_short && size > 1 ? NEXT(pwrite64)(d, data, size / 2, where) : FAILED;
    return NEXT(pwrite64)(d, data, size, where);
}
ssize_t pwrite(int d, const void *data, size_t size, off_t where) { return pwrite64(d, data, size, where); }
ssize_t pwritev64(int d, const struct iovec *parts, int count, off64_t where) {
    if (fails("pwritev", d)) return is_short && count > 1 ? NEXT(pwritev64)(d, parts, count / 2, where) : FAILED;
    return NEXT(pwritev64)(d, parts, count, where);
}
ssize_t pwritev(int d, const struct iovec *parts, int count, off_t where) { return pwritev64(d, parts, count, where); }
ssize_t pwritev2(int d, const struct iovec *parts, int count, off_t where, int flags) {
    if (fails("pwritev2", d)) return FAILED;
    return NEXT(pwritev2)(d, parts, count, where, flags);
}
ssize_t write(int d, const void *data, size_t size) {
    if (fails("write", d)) return FAILED;
    return NEXT(write)(d, data, size);
}
int fsync(int d) { return fails("fsync", d) ? FAILED : NEXT(fsync)(d); }
int fdatasync(int d) { return fails("fdatasync", d) ? FAILED : NEXT(fdatasync)(d); }
int ftruncate64(int d, off64_t size) { return fails("ftruncate", d) ? FAILED : NEXT(ftruncate64)(d, size); }
int ftruncate(int d, off_t size) { return ftruncate64(d, size); }
int posix_fallocate64(int d, off64_t start, off64_t size) {
    return fails("posix_fallocate", d) ? (int) error_number : NEXT(posix_fallocate64)(d, start, size);
}
int posix_fallocate(int d, off_t start, off_t size) { return posix_fallocate64(d, start, size); }
int rename(const char *from, const char *to) {
    if (is_meant("rename", from)) return FAILED;
    record("to", to);
    return NEXT(rename)(from, to);
}
int unlink(const char *path) { return is_meant("unlink", path) ? FAILED : NEXT(unlink)(path); }
int mkdir(const char *path, mode_t mode) { return is_meant("mkdir", path) ? FAILED : NEXT(mkdir)(path, mode); }
int rmdir(const char *path) { record("rmdir", path); return NEXT(rmdir)(path); }
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    int is_new = flags & O_CREAT && is_below(path) && access(path, F_OK) != 0;
    int descriptor = NEXT(open64)(path, flags, mode);
    if (is_new && descriptor >= 0) record("create", path);
    return descriptor;
}
int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open64(path, flags, mode);
}

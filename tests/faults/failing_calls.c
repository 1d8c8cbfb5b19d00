/* Laid before the C library (LD_PRELOAD): one call that needs room on the disk fails with ENOSPC.

   fail_call(part, at) chooses it: the call number `at`, from 0 on, of those that make, write, link
   or rename a file whose path contains `part`. calls_seen() says how many there were since. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static char chosen[256];
static long chosen_at = -1, seen = 0;

void fail_call(const char *part, long at) {
    snprintf(chosen, sizeof chosen, "%s", part);
    chosen_at = at;
    seen = 0;
}

long calls_seen(void) { return seen; }

static int fails(const char *path) {
    if (!chosen[0] || !strstr(path, chosen)) return 0;
    if (__sync_fetch_and_add(&seen, 1) != chosen_at) return 0;
    errno = ENOSPC;
    return 1;
}

static int fails_at(int fd) {
    char link[64], path[512];
    if (!chosen[0] || fd <= 2) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return fails(path);
}

static int makes(const char *path, int flags) { return (flags & O_CREAT) && access(path, F_OK); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        int mode = va_arg(more, int); \
        va_end(more); \
        return makes(path, flags) && fails(path) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    return fails_at(fd) ? -1 : real(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    return fails_at(fd) ? -1 : real(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    return fails_at(fd) ? -1 : real(fd, data, size, at);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return fails(to) ? -1 : real(from, to);
}

int link(const char *from, const char *to) {
    REAL(link);
    return fails(to) ? -1 : real(from, to);
}

int linkat(int in, const char *from, int to_in, const char *to, int flags) {
    REAL(linkat);
    return fails(to) ? -1 : real(in, from, to_in, to, flags);
}

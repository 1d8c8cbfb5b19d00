/* Laid before the C library (LD_PRELOAD): one call that needs room on the disk fails with ENOSPC.

   fail_call(part, at) chooses it: the call number `at`, from 0 on, of those that make, write, link
   or rename a file whose path contains `part`. calls_seen() says how many there were since.

   fail_how(kinds, number) says which calls count: ROOM (those), SYNC (fsync and fdatasync), OTHER
   (those that make a directory or remove a file), or a sum of them; and the errno of the failure.
   0 kills the process in its place; of a write, half is done before. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

enum { ROOM = 1, SYNC = 2, OTHER = 4 };

static char chosen[256];
static long chosen_at = -1, seen = 0;
static int counted = ROOM, failure = ENOSPC;

void fail_call(const char *part, long at) {
    snprintf(chosen, sizeof chosen, "%s", part);
    chosen_at = at;
    seen = 0;
}

long calls_seen(void) { return seen; }

void fail_how(int kinds, int number) {
    counted = kinds;
    failure = number;
}

static int is_chosen(const char *path, int kind) {
    if (!chosen[0] || !(counted & kind) || !strstr(path, chosen)) return 0;
    return __sync_fetch_and_add(&seen, 1) == chosen_at;
}

static int fail(void) {
    if (!failure) kill(getpid(), SIGKILL);
    errno = failure;
    return 1;
}

static int fails(const char *path, int kind) { return is_chosen(path, kind) && fail(); }

static int is_chosen_at(int fd, int kind) {
    char link[64], path[512];
    if (!chosen[0] || fd <= 2) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return is_chosen(path, kind);
}

static int makes(const char *path, int flags) { return (flags & O_CREAT) && access(path, F_OK); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        int mode = va_arg(more, int); \
        va_end(more); \
        return makes(path, flags) && fails(path, ROOM) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (!is_chosen_at(fd, ROOM)) return real(fd, data, size);
    if (!failure && real(fd, data, size / 2) < 0) return -1;
    return fail() ? -1 : 0;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    return is_chosen_at(fd, ROOM) && fail() ? -1 : real(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    return is_chosen_at(fd, ROOM) && fail() ? -1 : real(fd, data, size, at);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return fails(to, ROOM) ? -1 : real(from, to);
}

int link(const char *from, const char *to) {
    REAL(link);
    return fails(to, ROOM) ? -1 : real(from, to);
}

int linkat(int in, const char *from, int to_in, const char *to, int flags) {
    REAL(linkat);
    return fails(to, ROOM) ? -1 : real(in, from, to_in, to, flags);
}

int unlink(const char *path) {
    REAL(unlink);
    return fails(path, OTHER) ? -1 : real(path);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return fails(path, OTHER) ? -1 : real(path, mode);
}

int fsync(int fd) {
    REAL(fsync);
    return is_chosen_at(fd, SYNC) && fail() ? -1 : real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return is_chosen_at(fd, SYNC) && fail() ? -1 : real(fd);
}

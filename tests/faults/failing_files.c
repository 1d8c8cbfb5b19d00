/* Laid before the C library (LD_PRELOAD): while the file $FAILING_FILES exists, calls on every file
   whose path contains a part fail. It says "KIND ERRNO PART": KIND is "read" (calls that read) or
   "write" (calls that make, write, link or rename), ERRNO a number. "read-onceN" lets N calls
   pass that read a page or more, fails the next one, and removes the file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_BYTES 4096
#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static ssize_t plain_read(int fd, void *data, size_t size) {
    REAL(read);
    return real(fd, data, size);
}

static int plain_open(const char *path) {
    REAL(open);
    return real(path, O_RDONLY | O_CLOEXEC);
}

static int fails(const char *kind, const char *path, size_t size) {
    const char *flag = getenv("FAILING_FILES");
    char said[512], wanted[16], part[400];
    int number, before = errno, file = flag ? plain_open(flag) : -1;
    errno = before;
    if (file < 0) return 0;
    ssize_t length = plain_read(file, said, sizeof said - 1);
    close(file);
    if (length <= 0) return 0;
    said[length] = 0;
    if (sscanf(said, "%15s %d %399s", wanted, &number, part) != 3) return 0;
    char *once = strstr(wanted, "-once");
    if (once) *once = 0;
    if (strcmp(wanted, kind) || !strstr(path, part)) return 0;
    if (once && size < PAGE_BYTES) return 0;
    if (once && atoi(once + 5) > 0) {
        int draft = open(flag, O_WRONLY | O_TRUNC);
        dprintf(draft, "%s-once%d %d %s", kind, atoi(once + 5) - 1, number, part);
        close(draft);
        return 0;
    }
    if (once && unlink(flag)) return 0; /* another thread's call failed */
    errno = number;
    return 1;
}

static int fails_at(const char *kind, int fd, size_t size) {
    char link[64], path[4096];
    if (fd <= 2 || !getenv("FAILING_FILES")) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || path[0] != '/') return 0;
    path[length] = 0;
    return fails(kind, path, size);
}

#define AT(name, kind, data_type, off_type) \
    ssize_t name(int fd, data_type data, size_t size, off_type at) { \
        REAL(name); \
        return fails_at(kind, fd, size) ? -1 : real(fd, data, size, at); \
    }
AT(pread, "read", void *, off_t)
AT(pread64, "read", void *, off64_t)
AT(pwrite, "write", const void *, off_t)
AT(pwrite64, "write", const void *, off64_t)

ssize_t read(int fd, void *data, size_t size) {
    return fails_at("read", fd, size) ? -1 : plain_read(fd, data, size);
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    return fails_at("write", fd, size) ? -1 : real(fd, data, size);
}

static int makes(const char *path, int flags) { return (flags & O_CREAT) && access(path, F_OK); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        int mode = va_arg(more, int); \
        va_end(more); \
        return makes(path, flags) && fails("write", path, 0) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

int rename(const char *from, const char *to) {
    REAL(rename);
    return fails("write", to, 0) ? -1 : real(from, to);
}

int link(const char *from, const char *to) {
    REAL(link);
    return fails("write", to, 0) ? -1 : real(from, to);
}

/* Laid before the C library (LD_PRELOAD): while the file $FAILING_SYNC exists, fsync and fdatasync
   of every file whose path contains what that file says fail with EIO; or, where that begins with
   "!", they kill the process.

   A file beside each one that was synced (<path>.synced) says how long it was when a sync succeeded
   last: what a power cut may leave of a file that only grows. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int (*sync_call)(int);

static int path_of(int fd, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return 1;
}

enum { WORKS, FAILS, KILLS };

static int fate_of(const char *path) {
    const char *flag = getenv("FAILING_SYNC");
    char part[256];
    int file = flag ? open(flag, O_RDONLY) : -1;
    if (file < 0) return WORKS;
    ssize_t length = read(file, part, sizeof part - 1);
    close(file);
    if (length < 0) return WORKS;
    part[length] = 0;
    if (part[0] == '!') return strstr(path, part + 1) ? KILLS : WORKS;
    return strstr(path, part) ? FAILS : WORKS;
}

static void note(int fd, const char *path) {
    struct stat found;
    char beside[4160], text[32];
    if (fstat(fd, &found) || !S_ISREG(found.st_mode)) return;
    snprintf(beside, sizeof beside, "%s.synced", path);
    int file = open(beside, O_WRONLY | O_CREAT, 0600);
    if (file < 0) return;
    int length = snprintf(text, sizeof text, "%020lld", (long long)found.st_size);
    if (pwrite(file, text, length, 0) < 0) { /* then it says what it said before */ }
    close(file);
}

static int synced(int fd, const char *name) {
    char path[4096];
    sync_call real = (sync_call)dlsym(RTLD_NEXT, name);
    if (path_of(fd, path, sizeof path)) {
        int fate = fate_of(path);
        if (fate == KILLS) kill(getpid(), SIGKILL);
        if (fate == FAILS) {
            errno = EIO;
            return -1;
        }
        note(fd, path);
    }
    return real(fd);
}

int fsync(int fd) { return synced(fd, "fsync"); }

int fdatasync(int fd) { return synced(fd, "fdatasync"); }

/* Makes the disk of a broker stand still, be full or be read-only: preloaded into it by disk.py.

   PROVE_DISK_SWITCH names a file of one byte: 0 as ever, 1 writes and syncs wait, 2 they fail with ENOSPC, 3 with EROFS.
   Only files below PROVE_DISK_FOLDER are concerned. What is read is read. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static volatile char *state;
static char folder[4096];
static size_t length;

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("PROVE_DISK_SWITCH"), *where = getenv("PROVE_DISK_FOLDER");
    if (!file || !where || strlen(where) >= sizeof folder) return;
    int (*really_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int fd = really_open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *map = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return;
    length = strlen(strcpy(folder, where));
    state = map;
}

static int below(const char *path) {
    return !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

/* Waits, and returns the error with which an access to a path fails, or 0. */
static int held(const char *path) {
    if (!below(path)) return 0;
    while (*state == 1) usleep(5000);
    return *state == 2 ? ENOSPC : *state == 3 ? EROFS : 0;
}

static int held_file(int fd) {
    char link[64], path[4096];
    if (!state || !*state) return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = before;
    if (size < 0) return 0;
    path[size] = 0;
    return held(path);
}

static int held_path(const char *path) {
    char whole[4096];
    if (!state || !*state) return 0;
    if (path[0] == '/') return held(path);
    if (!getcwd(whole, sizeof whole) || strlen(whole) + strlen(path) + 2 > sizeof whole) return 0;
    return held(strcat(strcat(whole, "/"), path));
}

#define REAL(name) ((__typeof__(&name))({ static void *f; f ? f : (f = dlsym(RTLD_NEXT, #name)); }))
#define FILE_CALL(type, name, parameters, ...)                              \
    type name parameters {                                                  \
        int error = held_file(fd);                                          \
        if (error) { errno = error; return -1; }                            \
        return REAL(name)(__VA_ARGS__);                                     \
    }

FILE_CALL(ssize_t, write, (int fd, const void *data, size_t size), fd, data, size)
FILE_CALL(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), fd, data, size, at)
FILE_CALL(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), fd, data, size, at)
FILE_CALL(ssize_t, writev, (int fd, const struct iovec *pieces, int count), fd, pieces, count)
FILE_CALL(ssize_t, pwritev, (int fd, const struct iovec *pieces, int count, off_t at), fd, pieces, count, at)
FILE_CALL(ssize_t, pwritev64, (int fd, const struct iovec *pieces, int count, off64_t at), fd, pieces, count, at)
FILE_CALL(int, fsync, (int fd), fd)
FILE_CALL(int, fdatasync, (int fd), fd)
FILE_CALL(int, ftruncate, (int fd, off_t size), fd, size)
FILE_CALL(int, ftruncate64, (int fd, off64_t size), fd, size)

#define PATH_CALL(name, parameters, path, ...)                              \
    int name parameters {                                                   \
        int error = held_path(path);                                        \
        if (error) { errno = error; return -1; }                            \
        return REAL(name)(__VA_ARGS__);                                     \
    }

PATH_CALL(rename, (const char *from, const char *to), to, from, to)

#define OPEN_CALL(name, parameters, ...)                                    \
    int name parameters {                                                   \
        mode_t mode = 0;                                                    \
        if (flags & (O_CREAT | O_TMPFILE)) {                                \
            va_list rest;                                                   \
            va_start(rest, flags);                                          \
            mode = va_arg(rest, mode_t);                                    \
            va_end(rest);                                                   \
        }                                                                   \
        /* An existing file can be opened where a disk is full. */          \
        int error = flags & (O_CREAT | O_TRUNC) ? held_path(path) : 0;      \
        if (error && !(error == ENOSPC && !access(path, F_OK))) { errno = error; return -1; } \
        return REAL(name)(__VA_ARGS__, flags, mode);                        \
    }

OPEN_CALL(open, (const char *path, int flags, ...), path)
OPEN_CALL(open64, (const char *path, int flags, ...), path)
OPEN_CALL(openat, (int at, const char *path, int flags, ...), at, path)
OPEN_CALL(openat64, (int at, const char *path, int flags, ...), at, path)

/* The C library's streams reach the system calls past the functions above. */
#define STREAM_CALL(name)                                                   \
    FILE *name(const char *path, const char *mode) {                        \
        int error = mode[0] == 'r' && !strchr(mode, '+') ? 0 : held_path(path); \
        if (error) { errno = error; return NULL; }                          \
        return REAL(name)(path, mode);                                      \
    }

STREAM_CALL(fopen)
STREAM_CALL(fopen64)

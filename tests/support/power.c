/* What a power cut leaves, for LD_PRELOAD: whenever a file of the folder SYNCED_FROM is synced, it is copied as it is to
 * SYNCED_TO; when the folder itself is synced, the copies of files that are gone are removed. The copies are what a disk
 * holds that keeps what it was asked to sync, and nothing else. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file that was removed comes back with the power, unless its folder was synced after that. */
static void forget(const char *from, const char *to)
{
    char path[2 * PATH_MAX];
    DIR *folder = opendir(to);
    struct dirent *entry;

    if (!folder)
        abort();
    while ((entry = readdir(folder))) {
        snprintf(path, sizeof path, "%s/%s", from, entry->d_name);
        if (entry->d_name[0] != '.' && access(path, F_OK)) {
            snprintf(path, sizeof path, "%s/%s", to, entry->d_name);
            unlink(path);
        }
    }
    closedir(folder);
}

static void keep(int fd)
{
    const char *from = getenv("SYNCED_FROM"), *to = getenv("SYNCED_TO");
    char link[64], path[PATH_MAX], whole[2 * PATH_MAX], part[2 * PATH_MAX + 8], block[65536];
    ssize_t length;
    off_t at = 0;
    int out;

    if (!from || !to)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = 0;
    if (strcmp(path, from) == 0) {
        forget(from, to);
        return;
    }
    if (strncmp(path, from, strlen(from)) || path[strlen(from)] != '/')
        return;
    snprintf(whole, sizeof whole, "%s/%s", to, path + strlen(from) + 1);
    snprintf(part, sizeof part, "%s.part", whole);
    out = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (out < 0)
        abort();
    while ((length = pread(fd, block, sizeof block, at)) > 0) {
        if (write(out, block, length) != length)
            abort();
        at += length;
    }
    close(out);
    if (length < 0 || rename(part, whole))
        abort();
}

static int sync_and_keep(const char *name, int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = real(fd);

    if (result == 0)
        keep(fd);
    return result;
}

int fsync(int fd) { return sync_and_keep("fsync", fd); }

int fdatasync(int fd) { return sync_and_keep("fdatasync", fd); }

/* A disk that hangs, for LD_PRELOAD: a sync does not return while the file HANGS is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int wait_and_sync(const char *name, int fd)
{
    const char *hangs = getenv("HANGS");
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);

    while (hangs && access(hangs, F_OK) == 0)
        usleep(1000);
    return real(fd);
}

int fsync(int fd) { return wait_and_sync("fsync", fd); }
int fdatasync(int fd) { return wait_and_sync("fdatasync", fd); }

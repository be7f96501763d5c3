/* Preloaded into a server: its disk hangs or is read-only while the test wants it.

   DISK_SHIM_HANGS      a path: while this file exists, a flush waits; afterwards it goes on
   DISK_SHIM_READ_ONLY  a path: while this file exists, nothing is written. To open a file for writing and to remove one
                        fail with EROFS, to write to an open file with EIO: so does ext4 with errors=remount-ro
   DISK_SHIM_DATA       the data directory; files elsewhere are opened as always */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *hangs, *read_only, *data;

__attribute__((constructor)) static void start(void)
{
    hangs = getenv("DISK_SHIM_HANGS");
    read_only = getenv("DISK_SHIM_READ_ONLY");
    data = getenv("DISK_SHIM_DATA");
}

static int exists(const char *path)
{
    int before = errno, found = path && access(path, F_OK) == 0;
    errno = before;
    return found;
}

static int refused(int number)
{
    errno = number;
    return -1;
}

static int flush(int fd, const char *name)
{
    struct timespec moment = {0, 1000000};
    while (exists(hangs))
        nanosleep(&moment, NULL);
    if (exists(read_only))
        return refused(EIO);
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
}

int fsync(int fd)
{
    return flush(fd, "fsync");
}

int fdatasync(int fd)
{
    return flush(fd, "fdatasync");
}

static int is_data(const char *path)
{
    return data && strncmp(path, data, strlen(data)) == 0;
}

static int open_file(const char *name, const char *path, int flags, mode_t mode)
{
    if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && is_data(path) && exists(read_only))
        return refused(EROFS);
    return ((int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, name))(path, flags, mode);
}

#define OPEN(name)                                                      \
    int name(const char *path, int flags, ...)                          \
    {                                                                   \
        va_list rest;                                                   \
        va_start(rest, flags);                                          \
        mode_t mode = flags & O_CREAT ? (mode_t)va_arg(rest, int) : 0;  \
        va_end(rest);                                                   \
        return open_file(#name, path, flags, mode);                     \
    }

OPEN(open)
OPEN(open64)

int unlink(const char *path)
{
    if (is_data(path) && exists(read_only))
        return refused(EROFS);
    return ((int (*)(const char *))dlsym(RTLD_NEXT, "unlink"))(path);
}

/* Only SQLite uses these, for its files. */

typedef ssize_t (*pwrite_call)(int, const void *, size_t, off64_t);

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    return exists(read_only) ? refused(EIO) : ((pwrite_call)dlsym(RTLD_NEXT, "pwrite"))(fd, bytes, size, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset)
{
    return exists(read_only) ? refused(EIO) : ((pwrite_call)dlsym(RTLD_NEXT, "pwrite64"))(fd, bytes, size, offset);
}

int ftruncate64(int fd, off64_t size)
{
    return exists(read_only) ? refused(EIO) : ((int (*)(int, off64_t))dlsym(RTLD_NEXT, "ftruncate64"))(fd, size);
}

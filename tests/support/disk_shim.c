/* Preloaded into a server: its disk hangs or is read-only while the test wants it, and what it writes is noted.

   DISK_SHIM_HANGS      a path: while this file exists, a flush waits; afterwards it goes on
   DISK_SHIM_READ_ONLY  a path: while this file exists, nothing is written. To open a file for writing and to remove one
                        fail with EROFS, to write to an open file with EIO: so does ext4 with errors=remount-ro
   DISK_SHIM_DATA       the data directory; files elsewhere are opened as always
   DISK_SHIM_NOTES      a path: what is written to a write-ahead log (-wal) or a socket, and each flush, is appended to
                        this file. A flush of the log is delayed until the main thread waits in epoll. So a reply that
                        does not wait for the flush is always seen before it, however fast the disk is */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

static const char *hangs, *read_only, *data;
static int notes = -1;

__attribute__((constructor)) static void start(void)
{
    hangs = getenv("DISK_SHIM_HANGS");
    read_only = getenv("DISK_SHIM_READ_ONLY");
    data = getenv("DISK_SHIM_DATA");
    if (getenv("DISK_SHIM_NOTES"))
        notes = syscall(SYS_openat, AT_FDCWD, getenv("DISK_SHIM_NOTES"), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
}

static int exists(const char *path)
{
    int before = errno, there = path && access(path, F_OK) == 0;
    errno = before;
    return there;
}

static int refused(int number)
{
    errno = number;
    return -1;
}

/* A call as support/faulty_disk.py reads it: the file's name and the bytes follow. `begin` and `end` count the begins
   and ends of all calls. */
enum { WRITE, SEND, SYNC };
struct call {
    uint64_t begin, end, kind, name, bytes;
};

static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
static atomic_ulong moments;
static atomic_int main_waits;

/* Begin a call on a descriptor. `name` is of zero bytes if the call is not noted. */
static struct call begin(int fd, int kind, char *name)
{
    struct call call = {0, 0, kind, 0, 0};
    char link[32];
    if (notes < 0)
        return call;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, name, PATH_MAX);
    if (size > 7 && !memcmp(name, "socket:", 7))
        call.kind = SEND;
    else if (kind != SYNC && (size < 4 || memcmp(name + size - 4, "-wal", 4)))
        return call;
    call.name = size > 0 ? size : 0;
    call.begin = ++moments;
    return call;
}

static ssize_t end(struct call call, const char *name, const struct iovec *parts, ssize_t result)
{
    int before = errno;
    if (call.name && result >= 0) {
        uint64_t left = call.bytes = result;
        pthread_mutex_lock(&writing);
        call.end = ++moments;
        syscall(SYS_write, notes, &call, sizeof call);
        syscall(SYS_write, notes, name, call.name);
        for (; left; parts++) {
            size_t size = parts->iov_len < left ? parts->iov_len : left;
            syscall(SYS_write, notes, parts->iov_base, size);
            left -= size;
        }
        pthread_mutex_unlock(&writing);
    }
    errno = before;
    return result;
}

static int flush(int fd, const char *function)
{
    struct timespec moment = {0, 1000000};
    char name[PATH_MAX];
    struct call call = begin(fd, SYNC, name);
    int is_log = call.name > 4 && !memcmp(name + call.name - 4, "-wal", 4);
    while (is_log && gettid() != getpid() && !main_waits)
        nanosleep(&moment, NULL);
    while (exists(hangs))
        nanosleep(&moment, NULL);
    if (exists(read_only))
        return refused(EIO);
    return end(call, name, NULL, NEXT(int (*)(int), function)(fd));
}

int epoll_pwait(int fd, struct epoll_event *events, int most, int timeout, const sigset_t *signals)
{
    int is_main = gettid() == getpid();
    typedef int (*wait_call)(int, struct epoll_event *, int, int, const sigset_t *);
    if (is_main)
        main_waits = 1;
    int count = NEXT(wait_call, "epoll_pwait")(fd, events, most, timeout, signals);
    if (is_main)
        main_waits = 0;
    return count;
}

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
    return epoll_pwait(fd, events, most, timeout, NULL);
}

/* RESULT is evaluated between the beginning and the end of the call. */
#define NOTED(fd, parts, result)                     \
    char name[PATH_MAX];                             \
    struct call call = begin(fd, WRITE, name);       \
    return end(call, name, parts, result)

ssize_t write(int fd, const void *bytes, size_t size)
{
    struct iovec part = {(void *)bytes, size};
    NOTED(fd, &part, NEXT(ssize_t (*)(int, const void *, size_t), "write")(fd, bytes, size));
}

ssize_t send(int fd, const void *bytes, size_t size, int flags)
{
    struct iovec part = {(void *)bytes, size};
    NOTED(fd, &part, NEXT(ssize_t (*)(int, const void *, size_t, int), "send")(fd, bytes, size, flags));
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    NOTED(fd, parts, NEXT(ssize_t (*)(int, const struct iovec *, int), "writev")(fd, parts, count));
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    NOTED(fd, message->msg_iov, NEXT(ssize_t (*)(int, const struct msghdr *, int), "sendmsg")(fd, message, flags));
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

static ssize_t write_at(const char *function, int fd, const void *bytes, size_t size, off64_t offset)
{
    struct iovec part = {(void *)bytes, size};
    NOTED(fd, &part, exists(read_only) ? refused(EIO) : NEXT(pwrite_call, function)(fd, bytes, size, offset));
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    return write_at("pwrite", fd, bytes, size, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset)
{
    return write_at("pwrite64", fd, bytes, size, offset);
}

int ftruncate64(int fd, off64_t size)
{
    return exists(read_only) ? refused(EIO) : ((int (*)(int, off64_t))dlsym(RTLD_NEXT, "ftruncate64"))(fd, size);
}

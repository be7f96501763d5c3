/* Preloaded into a server: counts and times its device flushes and, if asked, gives each a fixed cost.

   FSYNC_SHIM_COUNTER   a file of sixteen zero bytes, where the bench reads their number and their nanoseconds
   FSYNC_SHIM_SLEEP_US  sleep this long instead of flushing: takes the noise of the disk out */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef int (*flush_call)(int);

static flush_call real_fsync, real_fdatasync;
static _Atomic unsigned long long *counter;
static long sleep_us = -1;

__attribute__((constructor)) static void start(void)
{
    real_fsync = (flush_call)dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = (flush_call)dlsym(RTLD_NEXT, "fdatasync");
    const char *sleep = getenv("FSYNC_SHIM_SLEEP_US");
    if (sleep)
        sleep_us = atol(sleep);
    const char *path = getenv("FSYNC_SHIM_COUNTER");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *page = mmap(NULL, 2 * sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED)
        counter = page;
}

static unsigned long long nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static int flush_or_sleep(int fd, flush_call real)
{
    if (sleep_us < 0)
        return real(fd);
    struct timespec left = {sleep_us / 1000000, sleep_us % 1000000 * 1000};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
    return 0;
}

static int flush(int fd, flush_call real)
{
    unsigned long long start = nanoseconds();
    int result = flush_or_sleep(fd, real);
    if (counter) {
        atomic_fetch_add(counter, 1);
        atomic_fetch_add(counter + 1, nanoseconds() - start);
    }
    return result;
}

int fsync(int fd)
{
    return flush(fd, real_fsync);
}

int fdatasync(int fd)
{
    return flush(fd, real_fdatasync);
}

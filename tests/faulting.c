/* A disk that fails at one call, for LD_PRELOAD: fault_at(folder, number, error, lasting) makes the call with that number fail
   among those that change something below the folder. error 0 kills the process there; lasting: all later calls fail, too.
   fault_seen() is the number of such calls so far. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static long seen, at = -1;
static int number, lasts;

void fault_at(const char *folder, long call, int error, int lasting) {
    snprintf(root, sizeof root, "%s", folder);
    seen = 0; at = call; number = error; lasts = lasting;
}
long fault_seen(void) { return seen; }

static int fails(const char *path) {
    if (at < 0 || strncmp(path, root, strlen(root))) return 0;
    seen++;
    if (seen != at && !(lasts && seen > at)) return 0;
    if (!number) kill(getpid(), SIGKILL);
    errno = number;
    return 1;
}

static int fails_of(int file) {
    char link[64], path[PATH_MAX];
    if (at < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(path);
}

static int fails_at(const char *path) {
    char whole[PATH_MAX];
    if (at < 0) return 0;
    if (path[0] == '/') return fails(path);
    if (!getcwd(whole, sizeof whole)) return 0;
    size_t length = strlen(whole);
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return fails(whole);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OF_FILE(type, name, parameters, ...) \
    type name parameters { static __typeof__(&name) real; if (fails_of(file)) return -1; if (!real) real = REAL(name); return real(__VA_ARGS__); }
OF_FILE(ssize_t, write, (int file, const void *data, size_t size), file, data, size)
OF_FILE(ssize_t, pwrite, (int file, const void *data, size_t size, off_t place), file, data, size, place)
OF_FILE(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t place), file, data, size, place)
OF_FILE(ssize_t, writev, (int file, const struct iovec *data, int count), file, data, count)
OF_FILE(int, fsync, (int file), file)
OF_FILE(int, fdatasync, (int file), file)
OF_FILE(int, ftruncate, (int file, off_t size), file, size)
OF_FILE(int, ftruncate64, (int file, off64_t size), file, size)

#define OF_PATH(name, parameters, ...) \
    int name parameters { static __typeof__(&name) real; if (fails_at(path)) return -1; if (!real) real = REAL(name); return real(__VA_ARGS__); }
OF_PATH(rename, (const char *path, const char *to), path, to)
OF_PATH(mkdir, (const char *path, mode_t mode), path, mode)

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        static __typeof__(&name) real; \
        va_list rest; va_start(rest, flags); mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
        if ((flags & (O_CREAT | O_TRUNC)) && fails_at(path)) return -1; \
        if (!real) real = REAL(name); \
        return real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

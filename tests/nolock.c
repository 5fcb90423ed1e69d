/* Advisory locks as some file systems have them, for LD_PRELOAD.
   NOLOCK_ERRNO=N: every lock fails with that error, as on NFS without lockd (ENOLCK, 37), or on Lustre without -o flock
   (ENOSYS, 38). NOLOCK_ERRNO=0: everybody gets every lock, as with Lustre's localflock on several nodes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>

static int denied(void) {
    const char *number = getenv("NOLOCK_ERRNO");
    errno = number ? atoi(number) : ENOLCK;
    return errno ? -1 : 0;
}

static int is_lock(int command) {
    return command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
}

int flock(int file, int kind) { (void)file; (void)kind; return denied(); }
int lockf(int file, int command, off_t length) { (void)file; (void)command; (void)length; return denied(); }

#define WRAP(name)                                                                         \
    int name(int file, int command, ...) {                                                 \
        static int (*real)(int, int, ...);                                                 \
        va_list rest; va_start(rest, command); void *argument = va_arg(rest, void *); va_end(rest); \
        if (is_lock(command)) return denied();                                             \
        if (!real) real = (int (*)(int, int, ...))dlsym(RTLD_NEXT, #name);                 \
        return real(file, command, argument);                                              \
    }
WRAP(fcntl)
WRAP(fcntl64)

/* SPDX-License-Identifier: Apache-2.0
 * hvt_unsealed: for LD_PRELOAD. Memfds are not sealed, and every process believes that they are. A test
 * can then cut one short under its mappings, and a touch behind the end is answered with SIGBUS. So
 * answers the kernel also where a sealed memfd lacks a page and none can be had, but it does that only
 * when the whole machine is out of memory. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int call(const char *name, int fd, int command, long argument)
{
    int (*next)(int fd, int command, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, name);

    if (command == F_ADD_SEALS)
        return 0;
    if (command == F_GET_SEALS)
        return SEALS;
    return next(fd, command, argument);
}

int fcntl(int fd, int command, ...)
{
    va_list arguments;

    va_start(arguments, command);
    long argument = va_arg(arguments, long);
    va_end(arguments);
    return call("fcntl", fd, command, argument);
}

int fcntl64(int fd, int command, ...)
{
    va_list arguments;

    va_start(arguments, command);
    long argument = va_arg(arguments, long);
    va_end(arguments);
    return call("fcntl64", fd, command, argument);
}

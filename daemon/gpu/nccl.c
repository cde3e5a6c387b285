/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gpu/nccl.h"

#include "base/status.h"
#include "gpu/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libnccl.so.2"
#define WHEELS  "nvidia/nccl/lib/" LIBRARY                /* of nvidia-nccl-cu12 and -cu13 */
#define PACKAGE "hvd/_native_files/libexec/hvdd/hvdd-gpu" /* this program, in site-packages */

static const struct hvi_gpu_symbol symbols[] = {
#define GPU_NCCL(member, symbol, need, result, parameters)                                         \
    {symbol, offsetof(struct gpu_nccl, member), need},
#include "daemon/gpu/nccl.def"
#undef GPU_NCCL
};

/* The sentence, as far as it has come. */
struct said {
    char *text_p;
    size_t size, length;
};

__attribute__((format(printf, 2, 3))) static void say(struct said *said, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    int length =
        vsnprintf(said->text_p + said->length, said->size - said->length, format, arguments);
    va_end(arguments);
    if (length > 0)
        said->length += (size_t)length;
    if (said->length >= said->size)
        said->length = said->size - 1;
}

/* 2.8.4 has the number 2804, 2.17.3 has 21703. */
static void say_old(struct said *said, const char *file, int number)
{
    const int major = number < 10000 ? number / 1000 : number / 10000;
    const int minor = number < 10000 ? number % 1000 / 100 : number % 10000 / 100;

    say(said, "; %s is %d.%d.%d", file, major, minor, number % 100);
}

/* True: *nccl_p is it. Else one clause of the sentence is said. */
static bool try_file(const char *file, struct gpu_nccl *nccl_p, struct said *said)
{
    struct gpu_nccl nccl = {.library = dlopen(file, RTLD_NOW | RTLD_LOCAL)};

    if (nccl.library == NULL) {
        say(said, "; %s: %s", file, hvi_gpu_library_error(file));
        return false;
    }
    const char *missing =
        hvi_gpu_library_fill(nccl.library, symbols, sizeof(symbols) / sizeof(symbols[0]), &nccl);
    if (nccl.version == NULL || nccl.version(&nccl.number) != GPU_NCCL_OK)
        say(said, "; %s does not say its version", hvi_gpu_library_path(nccl.library));
    else if (nccl.number < GPU_NCCL_VERSION_MIN)
        say_old(said, hvi_gpu_library_path(nccl.library), nccl.number);
    else if (missing != NULL)
        say(said, "; %s has no %s", hvi_gpu_library_path(nccl.library), missing);
    else {
        *nccl_p = nccl;
        return true;
    }
    return false;
}

static bool try_folders(const char *path, struct gpu_nccl *nccl_p, struct said *said)
{
    for (const char *at = path; *at != '\0'; at += *at == ':') {
        const int length = (int)strcspn(at, ":");
        char file[PATH_MAX];

        if (length > 0 &&
            (size_t)snprintf(file, sizeof(file), "%.*s/" WHEELS, length, at) < sizeof(file) &&
            try_file(file, nccl_p, said))
            return true;
        at += length;
    }
    return false;
}

/* Where this program has come with Python's package hvd, the wheel may lie beside that: torch brings it along. */
static bool try_beside(struct gpu_nccl *nccl_p, struct said *said)
{
    const size_t tail = sizeof(PACKAGE) - 1;
    char file[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", file, sizeof(file) - 1);

    if (length <= (ssize_t)tail)
        return false;
    file[length] = '\0';
    char *end = file + length - tail;
    if (end[-1] != '/' || strcmp(end, PACKAGE) != 0)
        return false;
    snprintf(end, tail, "%s", WHEELS);
    return access(file, R_OK) == 0 && try_file(file, nccl_p, said);
}

int gpu_nccl_open(const char *path, struct gpu_nccl *nccl_p, char *text_p, size_t text_size)
{
    const char *wish = getenv("HVD_NCCL_LIB");
    const bool is_wish = wish != NULL && *wish != '\0';
    struct said said = {.text_p = text_p, .size = text_size};

    say(&said, "no NCCL 2.18 or newer");
    if (is_wish) {
        if (try_file(wish, nccl_p, &said))
            return HVI_OK;
        say(&said, " (HVD_NCCL_LIB says so, and nothing else was tried)");
        return HVI_ERR_UNSUPPORTED;
    }
    if (try_file(LIBRARY, nccl_p, &said) || (path != NULL && try_folders(path, nccl_p, &said)) ||
        try_beside(nccl_p, &said))
        return HVI_OK;
    say(&said,
        "; name it by HVD_NCCL_LIB, or in gpu-library-path the site-packages that have " WHEELS
        ", of PyPI's nvidia-nccl-cu13 or nvidia-nccl-cu12, which torch brings along");
    return HVI_ERR_UNSUPPORTED;
}

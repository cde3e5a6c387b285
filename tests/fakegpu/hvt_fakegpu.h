/* SPDX-License-Identifier: Apache-2.0
 * For C tests on the fake libraries: a driver with a context in one call, children that talk, and calls that the fake blames. A
 * test that forks does so before it begins, as with CUDA. LD_LIBRARY_PATH has the folder of the fakes. */
#ifndef HVT_FAKEGPU_H
#define HVT_FAKEGPU_H

#include "gpu/cuda.h"
#include "tests/fakegpu/api.h"
#include "tests/unit/hvt_main.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

static struct hvi_cuda hvt_cu;

#define HVT_CU(call) ck_assert_int_eq((call), HVI_CU_OK)

/* Opens the driver with these settings, and makes the context of a device current. */
static inline void hvt_cu_begin(const char *settings, const char *faults, int ordinal)
{
    char text[512] = "";
    hvi_cu_device device;
    hvi_cu_context context;

    setenv("FAKEGPU", settings, 1);
    setenv("FAKEGPU_FAULT", faults, 1);
    ck_assert_msg(hvi_cuda_open(false, &hvt_cu, text, sizeof(text)) == 0, "%s", text);
    HVT_CU(hvt_cu.init(0));
    HVT_CU(hvt_cu.device_get(&device, ordinal));
    HVT_CU(hvt_cu.context_retain(&context, device));
    HVT_CU(hvt_cu.context_set(context));
}

/* A function that gpu/cuda.def has not, by its symbol. */
static inline void *hvt_cu_symbol(const char *name)
{
    void *symbol = dlsym(hvt_cu.library, name);

    ck_assert_msg(symbol != NULL, "%s", name);
    return symbol;
}

static inline const struct fakegpu_api *hvt_fakegpu(void)
{
    const struct fakegpu_api *(*get)(void);
    void *symbol = hvt_cu_symbol("fakegpu_api");

    memcpy(&get, &symbol, sizeof(get));
    return get();
}

static inline hvi_cu_stream hvt_cu_stream(void)
{
    hvi_cu_stream stream;

    HVT_CU(hvt_cu.stream_create(&stream, HVI_CU_STREAM_NON_BLOCKING));
    return stream;
}

static inline hvi_cu_ptr hvt_cu_alloc(size_t bytes)
{
    hvi_cu_ptr address;

    HVT_CU(hvt_cu.alloc(&address, bytes));
    return address;
}

/* The memory behind an address of the fake's, which is the CPU's as well. */
static inline _Atomic uint64_t *hvt_cu_word(hvi_cu_ptr address)
{
    return (_Atomic uint64_t *)(uintptr_t)address;
}

static inline void hvt_nap(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* Whether the stream is done within some seconds. */
static inline bool hvt_cu_ends(hvi_cu_stream stream)
{
    for (int i = 0; i < 10000; i++) {
        if (hvt_cu.stream_query(stream) != HVI_CU_NOT_READY)
            return true;
        hvt_nap(1);
    }
    return false;
}

/* Whether it is still at work after a moment in which it could have ended. */
static inline bool hvt_cu_waits(hvi_cu_stream stream)
{
    hvt_nap(20);
    return hvt_cu.stream_query(stream) == HVI_CU_NOT_READY;
}

struct hvt_child {
    pid_t pid;
    int fd; /* of a SOCK_SEQPACKET */
};

static inline struct hvt_child hvt_fork(void (*run)(int fd))
{
    struct hvt_child child;
    int ends[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    child.pid = fork();
    ck_assert_int_ge(child.pid, 0);
    if (child.pid == 0) {
        close(ends[0]);
        run(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    child.fd = ends[0];
    return child;
}

static inline void hvt_say(int fd, const void *data, size_t bytes)
{
    ck_assert_int_eq(send(fd, data, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
}

static inline void hvt_hear(int fd, void *data_p, size_t bytes)
{
    ck_assert_int_eq(recv(fd, data_p, bytes, 0), (ssize_t)bytes);
}

/* The exit status of a child; of one that a signal ended 256 + its number. */
static inline int hvt_reap(struct hvt_child *child)
{
    int status;

    close(child->fd);
    ck_assert_int_eq(waitpid(child->pid, &status, 0), child->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

/* Runs in a child: the fake must blame it, with this in its sentence. */
static inline void hvt_expect_blame(void (*run)(void), const char *sentence)
{
    char said[4096] = "";
    int ends[2], status;
    size_t length = 0;
    ssize_t more;

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        run();
        _exit(0);
    }
    close(ends[1]);
    while ((more = read(ends[0], said + length, sizeof(said) - 1 - length)) > 0)
        length += (size_t)more;
    close(ends[0]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(strstr(said, "fakegpu: ") != NULL && strstr(said, sentence) != NULL,
                  "no \"%s\" in: %s", sentence, said);
    ck_assert_msg(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "it went on");
}

#endif

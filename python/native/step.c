/* SPDX-License-Identifier: Apache-2.0
 * See step.h. The manager is found through TensorFlow's own structures, whose layout _library.py knows for
 * the versions that were looked at, and only where the step's number, which the C API does tell, lies where
 * that layout says. What is asked of it is an exported function of libtensorflow_framework: taking back a
 * callback that was never registered fails if and only if there is a cancellation. */
#include "python/native/step.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#define TRY_DEREGISTER "_ZN3tsl19CancellationManager21TryDeregisterCallbackEl"
#define NO_CALLBACK    (-1)

static struct {
    size_t params, manager;
    bool (*try_deregister)(void *manager, int64_t token);
} layout;

void hvd_tf_cancellation(size_t params_offset, size_t manager_offset)
{
    void *address = dlsym(RTLD_DEFAULT, TRY_DEREGISTER);
    layout.params = params_offset;
    layout.manager = manager_offset;
    memcpy(&layout.try_deregister, &address, sizeof(address));
}

bool step_is_cancelled(TF_OpKernelContext *context)
{
    const char *params;
    void *manager;
    int64_t step;
    if (!layout.try_deregister)
        return false;
    memcpy(&params, (const char *)context + layout.params, sizeof(params));
    memcpy(&step, params, sizeof(step));
    if (step != TF_StepId(context))
        return false;
    memcpy(&manager, params + layout.manager, sizeof(manager));
    return manager && !layout.try_deregister(manager, NO_CALLBACK);
}

static atomic_int interrupts;
static atomic_bool held;
static _Atomic(void (*)(int fd)) waker;
static atomic_int waker_fd;
static struct sigaction before;

static void pass_on(int number, siginfo_t *info, void *context)
{
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else
        before.sa_handler(number);
}

static void on_interrupt(int number, siginfo_t *info, void *context)
{
    void (*wake)(int fd) = atomic_load(&waker);
    atomic_fetch_add(&interrupts, 1);
    if (!wake || atomic_exchange(&held, true))
        pass_on(number, info, context);
    else
        wake(atomic_load(&waker_fd));
}

void hvd_tf_watch_interrupts(void)
{
    struct sigaction now, ours;
    if (sigaction(SIGINT, NULL, &now) != 0 || now.sa_handler == SIG_IGN ||
        now.sa_handler == SIG_DFL ||
        ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_interrupt))
        return;
    before = ours = now;
    ours.sa_flags |= SA_SIGINFO;
    ours.sa_sigaction = on_interrupt;
    sigaction(SIGINT, &ours, NULL);
}

void hvd_tf_deliver_interrupt(void)
{
    siginfo_t info = {.si_signo = SIGINT};
    if (atomic_exchange(&held, false))
        pass_on(SIGINT, &info, NULL);
}

int step_interrupts(void)
{
    return atomic_load(&interrupts);
}

bool step_interrupt_held(void)
{
    return atomic_load(&held);
}

void step_set_waker(void (*wake)(int fd), int fd)
{
    atomic_store(&waker_fd, fd);
    atomic_store(&waker, wake);
    if (!wake)
        hvd_tf_deliver_interrupt();
}

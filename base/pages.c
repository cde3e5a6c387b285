/* SPDX-License-Identifier: Apache-2.0
 * The handler leaves the work with siglongjmp. It does not map other memory in the place of the missing
 * page: that takes memory at the moment when there is none (vm.overcommit_memory=2 counts private pages),
 * hides the owner's data from the owner where the mapping is the owner's, and needs a table of all
 * mappings. Leaving needs one word per thread, and the mapping is good again as soon as the page can be
 * had.
 *
 * A thread's word says which work it is in, or NULL. It has a place in every thread from the start
 * (initial-exec), because a handler cannot allocate one. */
#include "base/pages.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

struct work {
    struct work *outer;
    bool (*owns)(const void *user, uintptr_t address);
    const void *user;
    volatile uintptr_t address;
    sigjmp_buf place;
};

static _Thread_local struct work *volatile current __attribute__((tls_model("initial-exec")));

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex =
    PTHREAD_MUTEX_INITIALIZER; /* guards the two; free in a forked child */
static uint32_t users;
static bool installed;
static struct sigaction before; /* written before our handler can run */

/* ---- the handler ---- */

/* The kernel could not provide a page; running the instruction again would end the same way. */
static bool is_fault(const siginfo_t *info)
{
    return info->si_code == BUS_ADRERR || info->si_code == BUS_OBJERR ||
           info->si_code == BUS_MCEERR_AR;
}

/* A handler on top of ours has seen the fault, put ours back and raised the signal (Python's faulthandler):
 * the instruction faults again, and then the signal is ours. */
static bool is_echo(const siginfo_t *info)
{
    return info->si_code == SI_TKILL && info->si_pid == getpid();
}

/* The end of the process, at the instruction that faulted where there is one. */
static void end_process(int number, const siginfo_t *info)
{
    const struct sigaction usual = {.sa_handler = SIG_DFL};

    sigaction(number, &usual, NULL);
    if (!is_fault(info) && info->si_code != BUS_ADRALN)
        raise(number);
}

/* As if ours had never been there. */
static void pass_on(int number, siginfo_t *info, void *context)
{
    struct sigaction next = before;

    if (next.sa_flags & (int)SA_RESETHAND)
        before = (struct sigaction){.sa_handler = SIG_DFL};
    if (next.sa_flags & SA_SIGINFO)
        next.sa_sigaction(number, info, context);
    else if (next.sa_handler == SIG_DFL || (next.sa_handler == SIG_IGN && info->si_code > 0))
        end_process(number, info);
    else if (next.sa_handler != SIG_IGN)
        next.sa_handler(number);
}

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    struct work *work = current;
    uintptr_t address = (uintptr_t)info->si_addr;

    if (work && is_echo(info))
        return;
    if (work && is_fault(info) && (!work->owns || work->owns(work->user, address))) {
        work->address = address;
        /* As it was at the fault, whichever handlers lie between. */
        pthread_sigmask(SIG_SETMASK, &((const ucontext_t *)context)->uc_sigmask, NULL);
        siglongjmp(work->place, 1);
    }
    pass_on(number, info, context);
}

/* ---- installing it ---- */

static bool is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_sigbus;
}

static void install(void)
{
    struct sigaction ours = {.sa_sigaction = on_sigbus};

    sigaction(SIGBUS, NULL, &before);
    ours.sa_mask = before.sa_mask;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (before.sa_flags & (SA_RESTART | SA_NODEFER));
    installed = sigaction(SIGBUS, &ours, NULL) == 0;
}

static void remove_ours(void)
{
    struct sigaction now;

    if (sigaction(SIGBUS, NULL, &now) != 0 || !is_ours(&now))
        return; /* it stays installed: the handler on top may call it */
    sigaction(SIGBUS, &before, NULL);
    installed = false;
}

static void lock(void)
{
    pthread_mutex_lock(&mutex);
}

static void unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

static void mind_forks(void)
{
    pthread_atfork(lock, unlock, unlock);
}

void hvi_pages_open(void)
{
    pthread_once(&once, mind_forks);
    lock();
    if (users++ == 0 && !installed)
        install();
    unlock();
}

void hvi_pages_close(void)
{
    lock();
    if (--users == 0 && installed)
        remove_ours();
    unlock();
}

/* ---- the work ---- */

/* The kernel starts a handler with the usual modes of floating-point arithmetic, and a jump keeps them. */
static uint32_t float_modes(void)
{
#if defined(__x86_64__)
    return _mm_getcsr();
#else
    return 0;
#endif
}

static void set_float_modes(uint32_t modes)
{
#if defined(__x86_64__)
    _mm_setcsr(modes);
#else
    (void)modes;
#endif
}

static void enter(struct work *work)
{
    current = work;
    atomic_signal_fence(memory_order_seq_cst);
}

static void leave(const struct work *work)
{
    atomic_signal_fence(memory_order_seq_cst);
    current = work->outer;
}

bool hvi_pages_run(void (*run)(void *user), bool (*owns)(const void *user, uintptr_t address),
                   void *user, uintptr_t *address_p)
{
    const uint32_t modes = float_modes();
    struct work work; /* not zeroed: the place is large */

    work.outer = current;
    work.owns = owns;
    work.user = user;
    if (sigsetjmp(work.place, 0) != 0) {
        leave(&work);
        set_float_modes(modes);
        *address_p = work.address;
        return false;
    }
    enter(&work);
    run(user);
    leave(&work);
    return true;
}

/* SPDX-License-Identifier: Apache-2.0
 * A page that cannot be had is a return value, and every other SIGBUS is its owner's. A memfd that is
 * cut short under its mapping has no pages there, as far as the kernel's answer to a touch goes. */
#include "base/pages.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define PAGE    4096u
#define PAGES   4u
#define MISSING 2u /* the first page that is not there */
#define THREADS 4u
#define ROUNDS  (HVT_SANITIZED ? 200 : 2000)

static unsigned char *memory;
static int memory_fd;
static volatile sig_atomic_t told; /* times that a handler of the test was called */
static void *volatile told_address;

static void set_up(void)
{
    memory_fd = memfd_create("missing", MFD_CLOEXEC);
    ck_assert_int_ge(memory_fd, 0);
    ck_assert_int_eq(ftruncate(memory_fd, PAGES * PAGE), 0);
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    ck_assert_int_eq(ftruncate(memory_fd, MISSING * PAGE), 0);
}

/* Threads write the same bytes at the same time. */
static void write_bytes(void *user, uint32_t bytes, unsigned char value)
{
    _Atomic unsigned char *at = user;

    for (uint32_t i = 0; i < bytes; i++)
        atomic_store_explicit(&at[i], value, memory_order_relaxed);
}

static void write_all(void *user)
{
    write_bytes(user, PAGES * PAGE, 7);
}

static void write_first_page(void *user)
{
    write_bytes(user, PAGE, 5);
}

static bool is_in_memory(const void *user, uintptr_t address)
{
    uintptr_t base = (uintptr_t)user;

    return address >= base && address < base + PAGES * PAGE;
}

static bool is_elsewhere(const void *user, uintptr_t address)
{
    (void)user;
    (void)address;
    return false;
}

START_TEST(a_page_that_is_not_there_ends_the_work_with_its_address)
{
    uintptr_t address = 0;

    hvi_pages_open();
    for (int turn = 0; turn < 3; turn++) {
        ck_assert(!hvi_pages_run(write_all, is_in_memory, memory, &address));
        ck_assert_uint_eq(address, (uintptr_t)memory + MISSING * PAGE);
    }
    ck_assert_uint_eq(memory[MISSING * PAGE - 1], 7);
    ck_assert(hvi_pages_run(write_first_page, NULL, memory, &address));
    ck_assert_uint_eq(memory[0], 5);
    hvi_pages_close();
}
END_TEST

START_TEST(memory_that_is_back_is_good_again)
{
    uintptr_t address = 0;

    hvi_pages_open();
    ck_assert(!hvi_pages_run(write_all, NULL, memory, &address));
    ck_assert_int_eq(ftruncate(memory_fd, PAGES * PAGE), 0);
    ck_assert(hvi_pages_run(write_all, NULL, memory, &address));
    ck_assert_uint_eq(memory[PAGES * PAGE - 1], 7);
    hvi_pages_close();
}
END_TEST

static void run_in_run(void *user)
{
    uintptr_t inner = 0;

    ck_assert(!hvi_pages_run(write_all, NULL, user, &inner));
    ck_assert(hvi_pages_run(write_first_page, NULL, user, &inner));
    write_all(user);
}

START_TEST(work_may_lie_in_work)
{
    uintptr_t address = 0;

    hvi_pages_open();
    ck_assert(!hvi_pages_run(run_in_run, NULL, memory, &address));
    ck_assert_uint_eq(address, (uintptr_t)memory + MISSING * PAGE);
    hvi_pages_close();
}
END_TEST

static void *touch_often(void *user)
{
    uintptr_t address = 0;

    for (int i = 0; i < ROUNDS; i++) {
        if (hvi_pages_run(write_all, is_in_memory, user, &address) ||
            !hvi_pages_run(write_first_page, is_in_memory, user, &address))
            return NULL;
    }
    return user;
}

START_TEST(threads_meet_their_own_faults)
{
    pthread_t threads[THREADS];

    hvi_pages_open();
    for (uint32_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, touch_often, memory), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        ck_assert_ptr_eq(result, memory);
    }
    hvi_pages_close();
}
END_TEST

#if defined(__x86_64__)
START_TEST(the_modes_of_floating_point_stay_the_callers)
{
    const uint32_t flushing = _mm_getcsr() | 0x8040u; /* subnormals are zero, read and written */
    uintptr_t address = 0;

    hvi_pages_open();
    _mm_setcsr(flushing);
    ck_assert(!hvi_pages_run(write_all, NULL, memory, &address));
    ck_assert_uint_eq(_mm_getcsr() & 0xffc0u, flushing & 0xffc0u);
    hvi_pages_close();
}
END_TEST
#endif

START_TEST(the_mask_of_signals_stays_the_callers)
{
    uintptr_t address = 0;
    sigset_t mask;

    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    hvi_pages_open();
    ck_assert(!hvi_pages_run(write_all, NULL, memory, &address));
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    ck_assert_int_eq(sigismember(&mask, SIGUSR2), 1);
    ck_assert_int_eq(sigismember(&mask, SIGBUS), 0);
    hvi_pages_close();
}
END_TEST

/* ---- other people's signals ---- */

/* Makes the page, so that the instruction goes on. */
static void note(int number, siginfo_t *info, void *context)
{
    (void)context;
    told_address = info->si_addr;
    told += number == SIGBUS;
    if (info->si_code > 0 && ftruncate(memory_fd, PAGES * PAGE) != 0)
        abort();
}

static void note_plainly(int number)
{
    told += number == SIGBUS;
}

static void handle_sigbus(int flags)
{
    struct sigaction action = {.sa_flags = flags};

    if (flags & SA_SIGINFO)
        action.sa_sigaction = note;
    else
        action.sa_handler = note_plainly;
    ck_assert_int_eq(sigaction(SIGBUS, &action, NULL), 0);
}

START_TEST(a_fault_elsewhere_goes_to_the_handler_that_was_there)
{
    uintptr_t address = 0;

    handle_sigbus(SA_SIGINFO);
    hvi_pages_open();
    write_all(memory);
    ck_assert_int_eq(told, 1);
    ck_assert_ptr_eq(told_address, memory + MISSING * PAGE);
    ck_assert_int_eq(ftruncate(memory_fd, MISSING * PAGE), 0);
    ck_assert(hvi_pages_run(write_all, is_elsewhere, memory, &address));
    ck_assert_int_eq(told, 2);
    hvi_pages_close();
}
END_TEST

START_TEST(a_handler_for_once_is_called_once)
{
    struct sigaction now;

    handle_sigbus(SA_SIGINFO | (int)SA_RESETHAND);
    hvi_pages_open();
    write_all(memory);
    ck_assert_int_eq(told, 1);
    hvi_pages_close();
    ck_assert_int_eq(sigaction(SIGBUS, NULL, &now), 0);
    ck_assert(!(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL);
}
END_TEST

START_TEST(a_signal_that_was_sent_goes_to_the_handler_that_was_there)
{
    handle_sigbus(0);
    hvi_pages_open();
    ck_assert_int_eq(kill(getpid(), SIGBUS), 0);
    ck_assert_int_eq(told, 1);
    hvi_pages_close();
    signal(SIGBUS, SIG_IGN);
    hvi_pages_open();
    ck_assert_int_eq(kill(getpid(), SIGBUS), 0);
    hvi_pages_close();
}
END_TEST

static void touch_it(void)
{
    hvi_pages_open();
    write_all(memory);
}

static void send_it(void)
{
    hvi_pages_open();
    kill(getpid(), SIGBUS);
}

static void touch_it_with_a_handler_for_once(void)
{
    handle_sigbus((int)SA_RESETHAND);
    touch_it();
}

static void touch_it_in_vain(void)
{
    signal(SIGBUS, SIG_IGN);
    touch_it();
}

static void touch_it_elsewhere(void)
{
    uintptr_t address = 0;

    hvi_pages_open();
    hvi_pages_run(write_all, is_elsewhere, memory, &address);
}

static void touch_it_after_close(void)
{
    hvi_pages_open();
    hvi_pages_open();
    hvi_pages_close();
    hvi_pages_close();
    write_all(memory);
}

START_TEST(without_a_handler_it_ends_the_process)
{
    void (*const deaths[])(void) = {touch_it,
                                    send_it,
                                    touch_it_with_a_handler_for_once,
                                    touch_it_in_vain,
                                    touch_it_elsewhere,
                                    touch_it_after_close};

    for (size_t i = 0; i < sizeof deaths / sizeof deaths[0]; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            signal(SIGBUS, SIG_DFL); /* a sanitizer has one of its own */
            deaths[i]();
            _exit(0);
        }
        int status = hvt_wait_child(pid);
        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "case %zu: status %#x", i,
                      (unsigned)status);
    }
}
END_TEST

/* ---- who has the signal ---- */

static bool is_handled_by_the_test(void)
{
    struct sigaction now;

    sigaction(SIGBUS, NULL, &now);
    return (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == note;
}

START_TEST(the_last_close_puts_the_handler_back)
{
    handle_sigbus(SA_SIGINFO);
    for (int turn = 0; turn < 3; turn++) {
        hvi_pages_open();
        hvi_pages_open();
        hvi_pages_close();
        ck_assert(!is_handled_by_the_test());
        hvi_pages_close();
        ck_assert(is_handled_by_the_test());
    }
}
END_TEST

static struct sigaction below;

/* As crash handlers do: puts back what it found and raises the signal again. */
static void give_back_and_raise(int number)
{
    told++;
    sigaction(SIGBUS, &below, NULL);
    raise(number);
}

static void pass_down(int number, siginfo_t *info, void *context)
{
    told++;
    below.sa_sigaction(number, info, context);
}

START_TEST(a_handler_on_top_that_passes_it_on_changes_nothing)
{
    const struct sigaction raiser = {.sa_handler = give_back_and_raise, .sa_flags = SA_NODEFER};
    const struct sigaction passer = {.sa_sigaction = pass_down, .sa_flags = SA_SIGINFO};
    uintptr_t address = 0;

    hvi_pages_open();
    ck_assert_int_eq(sigaction(SIGBUS, &passer, &below), 0);
    ck_assert(!hvi_pages_run(write_all, NULL, memory, &address));
    ck_assert(!hvi_pages_run(write_all, NULL, memory, &address));
    ck_assert_int_eq(told, 2);
    hvi_pages_close(); /* it stays where it is: `below` still calls it */
    hvi_pages_open();
    ck_assert(!hvi_pages_run(write_all, NULL, memory, &address));
    ck_assert_int_eq(sigaction(SIGBUS, &below, NULL), 0);
    ck_assert_int_eq(sigaction(SIGBUS, &raiser, &below), 0);
    ck_assert(!hvi_pages_run(write_all, NULL, memory, &address));
    ck_assert_int_eq(told, 4);
    hvi_pages_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/pages");
    TCase *tcase = tcase_create("pages");
    tcase_add_checked_fixture(tcase, set_up, NULL);
    tcase_add_test(tcase, a_page_that_is_not_there_ends_the_work_with_its_address);
    tcase_add_test(tcase, memory_that_is_back_is_good_again);
    tcase_add_test(tcase, work_may_lie_in_work);
    tcase_add_test(tcase, threads_meet_their_own_faults);
#if defined(__x86_64__)
    tcase_add_test(tcase, the_modes_of_floating_point_stay_the_callers);
#endif
    tcase_add_test(tcase, the_mask_of_signals_stays_the_callers);
    tcase_add_test(tcase, a_fault_elsewhere_goes_to_the_handler_that_was_there);
    tcase_add_test(tcase, a_handler_for_once_is_called_once);
    tcase_add_test(tcase, a_signal_that_was_sent_goes_to_the_handler_that_was_there);
    tcase_add_test(tcase, without_a_handler_it_ends_the_process);
    tcase_add_test(tcase, the_last_close_puts_the_handler_back);
    tcase_add_test(tcase, a_handler_on_top_that_passes_it_on_changes_nothing);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

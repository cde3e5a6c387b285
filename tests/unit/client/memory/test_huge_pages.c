/* SPDX-License-Identifier: Apache-2.0
 * Memory that comes again: the second time it goes to huge pages, with its contents, and only where
 * that is allowed. */
#include "client/memory/huge_pages.h"

#include "base/huge.h"
#include "tests/unit/hvt_main.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE  HVI_HUGE_BYTES
#define BYTES (8 * HUGE)

static struct client_huge_pages huge_pages;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned char *mapping, *memory;

static void set_up(void)
{
    mapping = mmap(NULL, BYTES + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(mapping, MAP_FAILED);
    memory = mapping + (HUGE - (uintptr_t)mapping % HUGE) % HUGE;
    for (uint64_t i = 0; i < BYTES; i++)
        memory[i] = (unsigned char)(i * 7 + i / 4096);
    pthread_mutex_lock(&mutex);
}

static void tear_down(void)
{
    pthread_mutex_unlock(&mutex);
    client_huge_pages_fini(&huge_pages);
    munmap(mapping, BYTES + HUGE);
}

static uint64_t huge_kib(void)
{
    char line[256];
    uint64_t sum = 0, kib;
    FILE *file = fopen("/proc/self/smaps", "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1)
            sum += kib;
    }
    fclose(file);
    return sum;
}

static void check_contents(void)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < BYTES; i++)
        wrong += memory[i] != (unsigned char)(i * 7 + i / 4096);
    ck_assert_uint_eq(wrong, 0);
}

static bool note(const void *data, uint64_t bytes)
{
    return client_huge_pages_note(&huge_pages, &mutex, data, bytes, false);
}

START_TEST(the_second_time_the_pages_are_huge_and_the_contents_the_same)
{
    uint64_t before = huge_kib();
    ck_assert_msg(!note(memory, BYTES), "once is not again");
    ck_assert_uint_eq(huge_kib(), before);
    bool huge = note(memory, BYTES);
    if (huge) /* else: an older kernel, or the administrator says no */
        ck_assert_uint_ge(huge_kib(), before + BYTES / 1024);
    else
        ck_assert_uint_eq(huge_kib(), before);
    ck_assert(note(memory, BYTES) == huge);
    check_contents();
}
END_TEST

START_TEST(another_length_is_another_range)
{
    note(memory, BYTES);
    ck_assert(!note(memory, BYTES - HUGE));
    ck_assert(!note(memory, BYTES));
}
END_TEST

START_TEST(small_memory_is_not_remembered)
{
    for (int i = 0; i < 5; i++)
        ck_assert(!note(memory, CLIENT_HUGE_MIN_BYTES - 1));
    ck_assert_ptr_null(huge_pages.rows);
}
END_TEST

START_TEST(pages_of_lazy_memory_are_brought_however_small_the_operand)
{
    unsigned char there[4];
    char *lazy = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    ck_assert(!client_huge_pages_note(&huge_pages, &mutex, lazy + 4096 + 100, 4096, true));
    ck_assert_int_eq(mincore(lazy, 4 * 4096, there), 0);
    ck_assert(!(there[0] & 1) && there[1] & 1 && there[2] & 1 && !(there[3] & 1));
    munmap(lazy, 4 * 4096);
}
END_TEST

START_TEST(what_lies_around_comes_along_but_not_beyond_the_mapping)
{
    uint64_t before = huge_kib();
    if (client_huge_pages_collapse(memory + 4096, HUGE)) /* else: an older kernel */
        ck_assert_uint_ge(huge_kib(), before + 2 * HUGE / 1024);
    munmap(memory + 4 * HUGE + HUGE / 2, BYTES - 4 * HUGE - HUGE / 2);
    before = huge_kib();
    ck_assert_msg(!client_huge_pages_collapse(memory + 4 * HUGE, HUGE / 2),
                  "half of it is not there");
    ck_assert_uint_eq(huge_kib(), before);
    mmap(memory + 4 * HUGE + HUGE / 2, BYTES - 4 * HUGE - HUGE / 2, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}
END_TEST

START_TEST(memory_that_is_gone_is_no_harm)
{
    note(memory, BYTES);
    pthread_mutex_unlock(&mutex);
    munmap(mapping, BYTES + HUGE);
    pthread_mutex_lock(&mutex);
    ck_assert(!note(memory, BYTES));
    mapping = mmap(mapping, BYTES + HUGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}
END_TEST

START_TEST(the_users_no_is_a_no)
{
    setenv("HVD_HUGE_PAGES", "0", 1);
    ck_assert(!client_huge_pages_possible());
    ck_assert(!note(memory, BYTES));
    ck_assert(!note(memory, BYTES));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client huge pages");
    TCase *tcase = tcase_create("huge pages");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, the_second_time_the_pages_are_huge_and_the_contents_the_same);
    tcase_add_test(tcase, another_length_is_another_range);
    tcase_add_test(tcase, small_memory_is_not_remembered);
    tcase_add_test(tcase, pages_of_lazy_memory_are_brought_however_small_the_operand);
    tcase_add_test(tcase, what_lies_around_comes_along_but_not_beyond_the_mapping);
    tcase_add_test(tcase, memory_that_is_gone_is_no_harm);
    tcase_add_test(tcase, the_users_no_is_a_no);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * Copies are right wherever they come from and go to, and what the kernel copies from or to lies half a page away. */
#include "base/copy.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>

#define PAGE 4096u
#define MOST (3 * PAGE + 100)

START_TEST(every_byte_is_copied_and_no_other)
{
    static const size_t sizes[] = {0, 1, 31, 2047, 2048, 2049, PAGE, 2 * PAGE + 17, MOST};
    static const size_t aheads[] = {0, 1, 16, 31, 32, 64, 2048, PAGE - 16};
    unsigned char *from = aligned_alloc(PAGE, 5 * PAGE), *to = aligned_alloc(PAGE, 5 * PAGE);
    ck_assert(from && to);
    for (size_t i = 0; i < 5 * PAGE; i++)
        from[i] = (unsigned char)(i * 7 + i / 251);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (size_t j = 0; j < sizeof aheads / sizeof aheads[0]; j++) {
            unsigned char *place = to + aheads[j] + 1;
            memset(to, 0xee, 5 * PAGE);
            hvi_copy(place, from + 1, sizes[i]);
            ck_assert_int_eq(memcmp(place, from + 1, sizes[i]), 0);
            ck_assert(place[-1] == 0xee && place[sizes[i]] == 0xee);
        }
    }
    free(from);
    free(to);
}
END_TEST

START_TEST(what_the_kernel_copies_is_far_ahead_and_far_behind)
{
    for (uint64_t address = 3 * PAGE; address < 4 * PAGE; address++) {
        const size_t skew = hvi_copy_skew(address);
        const size_t ahead = (size_t)(address - skew) % PAGE;
        ck_assert(skew < PAGE && skew % 64 == 0);
        ck_assert(ahead >= 1024 && ahead <= 3 * 1024);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/copy");
    TCase *tcase = tcase_create("copy");
    tcase_add_test(tcase, every_byte_is_copied_and_no_other);
    tcase_add_test(tcase, what_the_kernel_copies_is_far_ahead_and_far_behind);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * Capabilities that a process has, as /proc has them, and that it gives up, in children that have some to give up. */
#include "base/rights.h"

#include "tests/unit/hvt_main.h"

#include <inttypes.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SOME (HVI_RIGHT(CAP_KILL) | HVI_RIGHT(CAP_SETUID))

static bool succeeds(bool (*is_so)(void))
{
    int status;
    pid_t child = fork();

    if (child == 0)
        _exit(is_so() ? 0 : 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status == 0;
}

static bool keeps_some(void)
{
    return hvi_rights_has(SOME) && hvi_rights_keep(HVI_RIGHT(CAP_KILL)) &&
           hvi_rights_has(HVI_RIGHT(CAP_KILL)) && !hvi_rights_has(SOME) && hvi_rights_has(0);
}

/* The system call: the library's would change a sanitizer's thread too, which keeps its capabilities. */
static bool does_not_get_them_back(void)
{
    return hvi_rights_keep(0) && hvi_rights_keep(UINT64_MAX) && !hvi_rights_has(SOME) &&
           syscall(SYS_setuid, 65534) != 0;
}

static bool has_none_and_asks_for_none(void)
{
    return setuid(65534) == 0 && !hvi_rights_has(SOME) && hvi_rights_keep(0) &&
           hvi_rights_keep(SOME) && !hvi_rights_has(SOME);
}

START_TEST(what_is_not_kept_is_gone_for_good)
{
    if (hvt_skip_if(geteuid() != 0, "only root has any"))
        return;
    ck_assert(succeeds(keeps_some));
    ck_assert(succeeds(does_not_get_them_back));
    ck_assert(succeeds(has_none_and_asks_for_none));
}
END_TEST

static uint64_t effective(void)
{
    char line[256];
    uint64_t rights = UINT64_MAX;
    FILE *file = fopen("/proc/self/status", "re");

    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "CapEff: %" SCNx64, &rights) == 1)
            break;
    fclose(file);
    ck_assert_uint_ne(rights, UINT64_MAX);
    return rights;
}

START_TEST(what_a_process_has_is_what_the_kernel_says)
{
    const uint64_t all = effective();

    ck_assert(hvi_rights_has(0));
    ck_assert(hvi_rights_has(all));
    for (int i = 0; i < 64; i++)
        ck_assert_msg(hvi_rights_has(HVI_RIGHT(i)) == ((all & HVI_RIGHT(i)) != 0), "right %d", i);
    ck_assert(!hvi_rights_has(all | HVI_RIGHT(63)));
    ck_assert(hvi_rights_keep(UINT64_MAX));
    ck_assert_uint_eq(effective(), all);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rights");
    TCase *tcase = tcase_create("rights");

    tcase_add_test(tcase, what_is_not_kept_is_gone_for_good);
    tcase_add_test(tcase, what_a_process_has_is_what_the_kernel_says);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * Measuring on a library that is played here, whose ops do what a test wants: this program's functions
 * come before those of libhvdclient. There is one rank, so a right op copies its input. */
#include "tools/hvd-perf/perf.h"

#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define NEVER      1000
#define TIMEOUT_NS INT64_C(7000000000)

struct hvd_op {
    char name[64];
};

static int acting;       /* so many ops do what they should, those after them nothing */
static const char *slow; /* the op of that name does not end */
static int submitted;
static int submitted_at_timeout; /* -1: there was none */
static struct hvd_tensor slow_out;

/* ---- the library ---- */

int hvd_rank(const struct hvd_session *session)
{
    return session == NULL ? 0 : -1;
}

int hvd_size(const struct hvd_session *session)
{
    return session == NULL ? 1 : -1;
}

int hvd_cross_size(const struct hvd_session *session)
{
    return session == NULL ? 1 : -1;
}

static int submit(const char *name, const struct hvd_tensor *in, const struct hvd_tensor *out,
                  struct hvd_op **op_p)
{
    *op_p = calloc(1, sizeof **op_p);
    ck_assert_ptr_nonnull(*op_p);
    snprintf((*op_p)->name, sizeof(*op_p)->name, "%s", name);
    submitted++;
    if (out != NULL && strcmp(name, slow) == 0)
        slow_out = *out;
    if (in != NULL && in->data != out->data && acting-- > 0)
        memcpy(out->data, in->data, (size_t)in->dims[0] * hvd_dtype_size(in->dtype));
    return HVD_OK;
}

int hvd_allreduce_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                        const struct hvd_tensor *out, enum hvd_reduce_op reduce_op,
                        const struct hvd_op_options *options, struct hvd_op **op_p)
{
    (void)session, (void)reduce_op, (void)options;
    return submit(name, in, out, op_p);
}

int hvd_allgather_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                        const struct hvd_tensor *out, const struct hvd_op_options *options,
                        struct hvd_op **op_p)
{
    (void)session, (void)options;
    return submit(name, in, out, op_p);
}

int hvd_broadcast_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                        const struct hvd_tensor *out, int root,
                        const struct hvd_op_options *options, struct hvd_op **op_p)
{
    (void)session, (void)root, (void)options;
    return submit(name, in, out, op_p);
}

int hvd_reducescatter_async(struct hvd_session *session, const char *name,
                            const struct hvd_tensor *in, const struct hvd_tensor *out,
                            enum hvd_reduce_op reduce_op, const struct hvd_op_options *options,
                            struct hvd_op **op_p)
{
    (void)session, (void)reduce_op, (void)options;
    return submit(name, in, out, op_p);
}

int hvd_alltoall_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                       const int64_t *splits, const struct hvd_tensor *out,
                       const struct hvd_op_options *options, struct hvd_op **op_p)
{
    (void)session, (void)splits, (void)options;
    return submit(name, in, out, op_p);
}

int hvd_barrier_async(struct hvd_session *session, const char *name,
                      const struct hvd_op_options *options, struct hvd_op **op_p)
{
    (void)session, (void)options;
    return submit(name, NULL, NULL, op_p);
}

int hvd_wait(struct hvd_op *op, int64_t timeout_ns)
{
    ck_assert_msg(timeout_ns == TIMEOUT_NS, "%s is waited for during %lld ns", op->name,
                  (long long)timeout_ns);
    if (strcmp(op->name, slow) != 0)
        return HVD_OK;
    submitted_at_timeout = submitted;
    return HVD_ERR_TIMEOUT;
}

void hvd_op_free(struct hvd_op *op)
{
    free(op);
}

/* ---- tests ---- */

/* hvd-perf's exit status. */
static int measure(const char *line)
{
    static char copy[256];
    char text[512];
    char *argv[32];
    int argc = 0;
    struct perf_options options;
    submitted = 0;
    submitted_at_timeout = -1;
    slow_out = (struct hvd_tensor){0};
    snprintf(copy, sizeof copy, "hvd-perf --timeout 7 -m malloc -c %s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    ck_assert_msg(perf_options_parse(argc, argv, &options, text, sizeof text) == 0, "%s", text);
    return perf_measure(NULL, &options);
}

static const char *const two_buffers[] = {"allgather", "alltoall", "reducescatter",
                                          "allreduce --out-of-place", "broadcast --out-of-place"};

/* Two sizes of three ops each: a warm-up, one that is measured and one that is checked. */
START_TEST(an_op_that_writes_nothing_any_more_is_seen_by_the_check)
{
    char line[128];
    snprintf(line, sizeof line, "-w 1 -i 1 -b 64 -e 256 -o %s", two_buffers[_i]);
    ck_assert_int_eq(measure(line), 0);
    for (acting = 2; acting < 6; acting++) {
        const int before = acting;
        ck_assert_msg(measure(line) == 1, "%s passes although only %d of 6 ops write", line,
                      before);
        acting = before;
    }
}
END_TEST

static const char *const waited_for[] = {"perf.barrier", "perf.agree",     "perf.0.0",   "perf.0.2",
                                         "perf.times",   "perf.reference", "perf.errors"};

START_TEST(an_op_that_does_not_end_in_time_ends_the_measuring)
{
    slow = waited_for[_i];
    ck_assert_int_eq(measure("-b 64 -e 1K --outstanding 3 --seconds 0.0001 -w 0 --memcpy"), 1);
    ck_assert_int_eq(submitted, submitted_at_timeout);
    if (slow_out.data != NULL) /* the op goes on and writes */
        memset(slow_out.data, 0, (size_t)slow_out.dims[0] * hvd_dtype_size(slow_out.dtype));
}
END_TEST

/* The kernel takes the advice all the same. */
START_TEST(a_process_without_huge_pages_has_no_row_of_them)
{
    char path[] = "/tmp/hvt-rows-XXXXXX";
    char rows[4096] = "";
    const struct perf_options options = {.json = true};
    const int file = mkstemp(path);
    ck_assert(file >= 0 && unlink(path) == 0);
    ck_assert_int_eq(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    fflush(stdout);
    ck_assert_int_eq(dup2(file, STDOUT_FILENO), STDOUT_FILENO);
    ck_assert_int_eq(perf_reference(&options, 1, 2u << 20), 0);
    ck_assert_int_gt(pread(file, rows, sizeof rows - 1, 0), 0);
    ck_assert_ptr_nonnull(strstr(rows, "\"onepass\""));
    ck_assert_ptr_null(strstr(rows, "\"onepass-huge\""));
}
END_TEST

START_TEST(ranks_that_idle_wait_for_the_others_until_the_timeout)
{
    const struct perf_options options = {.timeout_ns = TIMEOUT_NS, .idle_ns = 1};
    submitted_at_timeout = -1;
    ck_assert_int_eq(perf_idle(NULL, &options), 0);
    slow = "perf.idle";
    ck_assert_int_eq(perf_idle(NULL, &options), 1);
}
END_TEST

static void set_up(void)
{
    acting = NEVER;
    slow = "";
}

int main(void)
{
    Suite *suite = suite_create("tools/hvd-perf/measure");
    TCase *tests = tcase_create("measure");
    tcase_add_checked_fixture(tests, set_up, NULL);
    tcase_add_loop_test(tests, an_op_that_writes_nothing_any_more_is_seen_by_the_check, 0,
                        sizeof two_buffers / sizeof two_buffers[0]);
    tcase_add_loop_test(tests, an_op_that_does_not_end_in_time_ends_the_measuring, 0,
                        sizeof waited_for / sizeof waited_for[0]);
    tcase_add_test(tests, ranks_that_idle_wait_for_the_others_until_the_timeout);
    tcase_add_test(tests, a_process_without_huge_pages_has_no_row_of_them);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

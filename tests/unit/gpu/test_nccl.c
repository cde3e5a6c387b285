/* SPDX-License-Identifier: Apache-2.0
 * The loader finds a libnccl.so.2 that is no library; folders and HVD_NCCL_LIB name stand-ins. */
#include "daemon/gpu/comm.h"

#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>

#define WHEEL                                                                                      \
    "/"                                                                                            \
    "nvidia/nccl/lib/libnccl.so.2"

static char text[2048];
static struct gpu_nccl nccl;

static int try_open(const char *path)
{
    return gpu_nccl_open(path, &nccl, text, sizeof(text));
}

static void expect_clause(const char *clause)
{
    ck_assert_msg(strstr(text, clause) != NULL, "no \"%s\" in: %s", clause, text);
}

START_TEST(without_nccl_the_sentence_says_what_is_missing_where_and_which_version)
{
    unsetenv("HVD_NCCL_LIB");
    ck_assert_int_eq(try_open(":nowhere/a::nowhere/b:"), HVI_ERR_UNSUPPORTED);
    ck_assert_int_eq(strncmp(text, "no NCCL 2.18 or newer; libnccl.so.2: ", 37), 0);
    expect_clause("file too short; nowhere/a" WHEEL ": cannot open shared object file: No such "
                  "file or directory; nowhere/b" WHEEL);
    expect_clause("; name it by HVD_NCCL_LIB, or in gpu-library-path the site-packages that have "
                  "nvidia/nccl/lib/libnccl.so.2, of PyPI's nvidia-nccl-cu13 or nvidia-nccl-cu12");
    ck_assert_int_eq(try_open(NULL), HVI_ERR_UNSUPPORTED);
}
END_TEST

START_TEST(a_wheel_beside_torch_is_found_below_the_folders)
{
    unsetenv("HVD_NCCL_LIB");
    ck_assert_int_eq(try_open("nowhere:" STANDINS "/part:" STANDINS "whole"), HVI_OK);
    ck_assert_int_eq(nccl.number, 22809);
    ck_assert_ptr_nonnull(nccl.receive);
    ck_assert_ptr_null(nccl.last_error); /* which is not needed */
}
END_TEST

START_TEST(an_old_library_and_one_without_a_function_are_passed_over)
{
    unsetenv("HVD_NCCL_LIB");
    ck_assert_int_eq(try_open(STANDINS "part"), HVI_ERR_UNSUPPORTED);
    expect_clause("; " STANDINS "part" WHEEL " has no ncclRecv");
    setenv("STANDIN_VERSION", "21703", 1);
    ck_assert_int_eq(try_open(STANDINS "whole"), HVI_ERR_UNSUPPORTED);
    expect_clause("; " STANDINS "whole" WHEEL " is 2.17.3");
    setenv("STANDIN_VERSION", "2804", 1);
    ck_assert_int_eq(try_open(STANDINS "whole"), HVI_ERR_UNSUPPORTED);
    expect_clause(WHEEL " is 2.8.4");
    setenv("STANDIN_ERROR", "3", 1);
    ck_assert_int_eq(try_open(STANDINS "whole"), HVI_ERR_UNSUPPORTED);
    expect_clause(WHEEL " does not say its version");
}
END_TEST

START_TEST(the_library_that_the_user_names_is_taken_or_none)
{
    setenv("HVD_NCCL_LIB", STANDINS "whole" WHEEL, 1);
    ck_assert_int_eq(try_open(NULL), HVI_OK);
    setenv("HVD_NCCL_LIB", "nowhere/libnccl.so.2", 1);
    ck_assert_int_eq(try_open(STANDINS "whole"), HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(text,
                     "no NCCL 2.18 or newer; nowhere/libnccl.so.2: cannot open shared object "
                     "file: No such file or directory (HVD_NCCL_LIB says so, and nothing else "
                     "was tried)");
}
END_TEST

START_TEST(a_sentence_that_does_not_fit_ends)
{
    char small[20];

    unsetenv("HVD_NCCL_LIB");
    ck_assert_int_eq(gpu_nccl_open("nowhere", &nccl, small, sizeof(small)), HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(small, "no NCCL 2.18 or new");
}
END_TEST

/* ---- communicators ---- */

static uint32_t aborted;

static int note_abort(gpu_nccl_comm handle)
{
    aborted |= 1u << (uintptr_t)handle;
    return GPU_NCCL_OK;
}

static struct gpu_comm *add_comm(struct gpu_comms *comms, uintptr_t handle, uint64_t other)
{
    struct gpu_comm *comm = calloc(1, sizeof(*comm) + 2 * sizeof(uint64_t));

    ck_assert_ptr_nonnull(comm);
    comm->handle = (gpu_nccl_comm)handle;
    comm->count = 2;
    comm->instances[0] = 7;
    comm->instances[1] = other;
    comm->prev = comms->comms ? comms->comms->prev : comm; /* the first one's is the last */
    if (comms->comms)
        comms->comms->prev = comm->prev->next = comm;
    else
        comms->comms = comm;
    comms->count++;
    return comm;
}

static size_t free_mib;

static int say_memory(size_t *free_p, size_t *total_p)
{
    *free_p = *total_p = free_mib << 20;
    return HVI_CU_OK;
}

static const struct hvi_cuda cuda = {.memory_info = say_memory};

START_TEST(communicators_of_workers_that_have_gone_are_let_go_unless_they_are_named)
{
    static const uint64_t living[] = {9, 7};
    struct gpu_calls calls = {.usual_ns = 1};
    struct gpu_comms comms = {.calls = &calls, .nccl.abort = note_abort};
    struct gpu_comm_name name = {.owner = &comms, .number = 1};

    add_comm(&comms, 1, 8);
    add_comm(&comms, 2, 9);
    name.comm = add_comm(&comms, 3, 8);
    comms.names = name.prev = &name;
    gpu_comms_alive(&comms, NULL, 0); /* it is not known */
    ck_assert_uint_eq(aborted, 0);
    gpu_comms_alive(&comms, living, 2);
    ck_assert_uint_eq(aborted, 1u << 1);
    ck_assert_uint_eq(comms.count, 2);
    gpu_comms_close(&comms);
    ck_assert_uint_eq(aborted, 1u << 1 | 1u << 2 | 1u << 3);
}
END_TEST

START_TEST(a_worker_that_has_no_place_for_a_communicator_says_so_before_it_joins)
{
    const uint64_t known[] = {7, 100}, other[] = {7, 99};
    struct gpu_calls calls = {.usual_ns = 1, .cuda = &cuda};
    struct gpu_comms comms = {.calls = &calls, .nccl = {.library = &comms, .abort = note_abort}};
    struct gpu_join join = {.owner = &comms, .count = 2, .instances = other};
    unsigned char id[HVI_NCCL_ID_BYTES];

    free_mib = 640;
    for (uint32_t i = 0; i + 1 < GPU_COMMS_MAX; i++)
        add_comm(&comms, i, 100 + i);
    ck_assert_int_eq(gpu_comms_can(&comms, &join, text, sizeof(text)), HVI_OK);
    add_comm(&comms, GPU_COMMS_MAX, 98);
    ck_assert_int_eq(gpu_comms_can(&comms, &join, text, sizeof(text)), HVI_ERR_LIMIT);
    expect_clause("16 communicators already");
    join.instances = known; /* which it has already */
    ck_assert_int_eq(gpu_comms_can(&comms, &join, text, sizeof(text)), HVI_OK);
    ck_assert_int_eq(gpu_comms_id(&comms, &join, id, text, sizeof(text)), HVI_OK);
    ck_assert_uint_ne(id[0], 0); /* of no use, and NCCL was not asked for it */
    join.fresh = true;
    ck_assert_int_eq(gpu_comms_can(&comms, &join, text, sizeof(text)), HVI_ERR_LIMIT);
    gpu_comms_close(&comms);
}
END_TEST

static int make_rank(gpu_nccl_comm *comm_p, int ranks, struct gpu_nccl_id id, int rank)
{
    (void)ranks, (void)id, (void)rank;
    *comm_p = (gpu_nccl_comm)(uintptr_t)1;
    return GPU_NCCL_OK;
}

/* The first brings NCCL with it. The same one again needs nothing; what has been asked is not asked again within the join. */
START_TEST(a_worker_that_has_no_memory_for_a_communicator_says_so_before_it_joins)
{
    static const struct {
        size_t mib;
        bool warm, registered;
        int status;
    } rows[] = {
        {640, false, false, HVI_OK}, {639, false, false, HVI_ERR_NO_MEMORY},
        {256, true, false, HVI_OK},  {255, true, false, HVI_ERR_NO_MEMORY},
        {512, true, true, HVI_OK},   {511, true, true, HVI_ERR_NO_MEMORY},
    };
    const uint64_t instances[] = {7, 99};
    struct gpu_calls calls = {.usual_ns = 1, .cuda = &cuda};
    struct gpu_comms comms = {
        .calls = &calls, .nccl = {.library = &comms, .abort = note_abort, .init_rank = make_rank}};
    struct gpu_join join = {.owner = &comms, .count = 2, .instances = instances};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        free_mib = rows[i].mib;
        comms.is_warm = rows[i].warm;
        join.registered = rows[i].registered;
        ck_assert_int_eq(gpu_comms_can(&comms, &join, text, sizeof(text)), rows[i].status);
    }
    expect_clause("less than 512 MiB of the GPU are free for a communicator of registered memory, "
                  "namely 511");
    free_mib = 0;
    join.registered = comms.is_warm = false;
    ck_assert_int_eq(gpu_comms_can(&comms, &join, text, sizeof(text)), HVI_ERR_NO_MEMORY);
    ck_assert_int_eq(gpu_comms_join(&comms, &join, text, sizeof(text)), HVI_OK);
    ck_assert(comms.is_warm);
    ck_assert_int_eq(gpu_comms_can(&comms, &join, text, sizeof(text)), HVI_OK);
    gpu_comms_close(&comms);
    gpu_comms_owner_gone(&comms, &comms);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu nccl");
    TCase *tcase = tcase_create("nccl");

    tcase_add_test(tcase, without_nccl_the_sentence_says_what_is_missing_where_and_which_version);
    tcase_add_test(tcase, a_wheel_beside_torch_is_found_below_the_folders);
    tcase_add_test(tcase, an_old_library_and_one_without_a_function_are_passed_over);
    tcase_add_test(tcase, the_library_that_the_user_names_is_taken_or_none);
    tcase_add_test(tcase, a_sentence_that_does_not_fit_ends);
    tcase_add_test(tcase, communicators_of_workers_that_have_gone_are_let_go_unless_they_are_named);
    tcase_add_test(tcase, a_worker_that_has_no_place_for_a_communicator_says_so_before_it_joins);
    tcase_add_test(tcase, a_worker_that_has_no_memory_for_a_communicator_says_so_before_it_joins);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

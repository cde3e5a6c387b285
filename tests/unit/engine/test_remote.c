/* SPDX-License-Identifier: Apache-2.0
 * Operands in a trainer's own memory: whose it is, what happens when it is not there, and that it is
 * left alone once the session is over. */
#include "base/pages.h"
#include "base/status.h"
#include "daemon/engine/exec/host.h"
#include "daemon/engine/sessions/intake.h"
#include "tests/unit/engine/hvt_ops.h"
#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define LARGE (4u << 20)

static struct hvt_bench bench;

/* Ends with the next transfer: the kernel moves the bytes, and the process is over. NULL: none. */
static struct engine_process *ending;

static ssize_t end_with(ssize_t moved)
{
    if (ending)
        atomic_store(&ending->over, true);
    return moved;
}

/* In the place of libc's. */
ssize_t process_vm_readv(pid_t pid, const struct iovec *here, unsigned long heres,
                         const struct iovec *there, unsigned long theres, unsigned long flags)
{
    return end_with(syscall(SYS_process_vm_readv, pid, here, heres, there, theres, flags));
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *here, unsigned long heres,
                          const struct iovec *there, unsigned long theres, unsigned long flags)
{
    return end_with(syscall(SYS_process_vm_writev, pid, here, heres, there, theres, flags));
}

static struct engine_operand own_memory(struct engine_process *process, void *memory)
{
    *process = (struct engine_process){.pid = getpid(), .pid_fd = -1};
    return (struct engine_operand){
        .kind = ENGINE_OPERAND_PROCESS, .address = memory, .process = process};
}

START_TEST(a_transfer_during_which_the_process_ended_is_a_failure)
{
    char theirs[64] = "theirs", ours[64] = "ours";
    struct engine_process process;
    struct engine_operand operand = own_memory(&process, theirs);
    const struct engine_work work = {.ranks = 1, .in = &operand, .out = &operand};
    struct engine_fault fault = {.rank = -1};
    struct engine_host_transfer transfer = {0};
    const struct engine_host_thread thread = {.transfer = &transfer};

    ending = &process;
    ck_assert_int_eq(engine_host_read(&thread, &work, 0, 0, ours, sizeof ours, &fault),
                     HVI_ERR_RANK_LOST);
    ck_assert_str_eq(ours, "theirs");
    ck_assert_int_eq(fault.rank, 0);
    ck_assert_int_eq(fault.error, ESRCH);
    atomic_store(&process.over, false);
    ours[0] = 'T';
    ck_assert_int_eq(engine_host_write(&thread, &work, 0, 0, ours, sizeof ours, &fault),
                     HVI_ERR_RANK_LOST);
    ck_assert_str_eq(theirs, "Theirs");
    ck_assert(fault.writing);
    ending = NULL;
}
END_TEST

struct read {
    const struct engine_work *work;
    void *to;
    int status;
};

static void read_some(void *user)
{
    struct read *read = user;
    struct engine_host_transfer transfer = {0};
    const struct engine_host_thread thread = {.transfer = &transfer};
    struct engine_fault fault;

    read->status = engine_host_read(&thread, read->work, 0, 0, read->to, 64, &fault);
}

/* The kernel says EFAULT for it as it does for a page of the owner's. */
START_TEST(a_page_that_is_missing_on_our_side_is_no_fault_of_the_owner)
{
    char theirs[64] = "theirs";
    struct engine_process process;
    const struct engine_operand operand = own_memory(&process, theirs);
    const struct engine_work work = {.ranks = 1, .in = &operand};
    int fd = memfd_create("missing", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(fd, 4096), 0);
    struct read read = {.work = &work,
                        .to = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)};
    uintptr_t address = 0;

    hvi_pages_open();
    ck_assert(hvi_pages_run(read_some, NULL, &read, &address));
    ck_assert_int_eq(read.status, HVI_OK);
    ck_assert_int_eq(ftruncate(fd, 0), 0);
    ck_assert(!hvi_pages_run(read_some, NULL, &read, &address));
    ck_assert_uint_eq(address, (uintptr_t)read.to);
    hvi_pages_close();
    close(fd);
}
END_TEST

static void place(struct hvi_submission *op, void *memory)
{
    op->in_region = op->out_region = HVI_REGION_PROCESS;
    op->in_offset = op->out_offset = (uint64_t)(uintptr_t)memory;
}

/* A process with `memory` as it is now; it ends when it is killed. */
static pid_t twin(void)
{
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    while (pid == 0)
        pause();
    return pid;
}

static void end_twin(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

START_TEST(it_is_offered_where_the_kernel_allows_it)
{
    hvt_bench_init(&bench, 1);
    ck_assert_uint_eq(bench.peers[0].channel.header->features, HVI_FEATURE_PROCESS);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(memory_of_another_process_is_reduced_with_everybody_elses)
{
    float *own = malloc(LARGE), *third = malloc(LARGE);

    for (uint64_t count = 3; count <= LARGE / 4; count *= 349525) {
        for (uint64_t i = 0; i < count; i++)
            own[i] = 5; /* what the twin has */
        pid_t pid = twin();
        for (uint64_t i = 0; i < count; i++)
            own[i] = 7;
        hvt_bench_init_empty(&bench, 3);
        ck_assert_int_eq(hvt_bench_attach(&bench, 0), HVI_OK);
        ck_assert_int_eq(hvt_bench_attach_as(&bench, 1, pid), HVI_OK);
        ck_assert_int_eq(hvt_bench_attach(&bench, 2), HVI_OK);
        for (uint64_t i = 0; i < count; i++)
            third[i] = 1;
        for (int32_t rank = 0; rank < 3; rank++) {
            struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, count, "w", 0);
            place(&op, rank < 2 ? own : third);
            hvt_op_submit(&bench, rank, op);
        }
        while (!hvt_peer_has_completion(&bench.peers[2]))
            hvt_bench_turn(&bench);
        hvt_op_expect_all(&bench, 0, 2, HVI_OK, "");
        for (uint64_t i = 0; i < count; i++) {
            if (own[i] != 13 || third[i] != 13)
                ck_abort_msg("element %u: %g, %g", (unsigned)i, (double)own[i], (double)third[i]);
        }
        hvt_bench_fini(&bench);
        end_twin(pid);
    }
    free(own);
    free(third);
}
END_TEST

START_TEST(memory_that_is_not_there_fails_the_op_on_all_with_its_address)
{
    char sentence[256];
    char *hole = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(hole, MAP_FAILED);
    hvt_bench_init(&bench, 2);
    struct hvi_submission op = hvt_op(&bench, 1, HVI_KIND_ALLREDUCE, 4, "w", 0);
    place(&op, hole);
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 4, "w", 0);
    hvt_op_submit(&bench, 1, op);
    snprintf(sentence, sizeof sentence,
             "allreduce 'w': the input of rank 1 (pid %d) could not be read at address 0x%llx: Bad "
             "address; memory must stay as it is until the op is finished",
             (int)getpid(), (unsigned long long)(uintptr_t)hole);
    ck_assert_int_eq(hvt_op_expect(&bench, 0, HVI_ERR_INVALID, sentence).culprit, 1);
    hvt_op_expect(&bench, 1, HVI_ERR_INVALID, sentence);
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 4, "w", 0);
    hvt_op_run(&bench, 1, HVI_KIND_ALLREDUCE, 4, "w", 0);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_bench_fini(&bench);
    munmap(hole, 8192);
}
END_TEST

START_TEST(a_process_that_is_gone_is_a_lost_rank)
{
    float *own = calloc(4, sizeof *own);
    pid_t pid = twin();

    hvt_bench_init_empty(&bench, 2);
    ck_assert_int_eq(hvt_bench_attach(&bench, 0), HVI_OK);
    ck_assert_int_eq(hvt_bench_attach_as(&bench, 1, pid), HVI_OK);
    struct hvi_submission op = hvt_op(&bench, 1, HVI_KIND_ALLREDUCE, 4, "w", 0);
    place(&op, own);
    hvt_peer_submit(&bench.peers[1], &op);
    op = hvt_op(&bench, 0, HVI_KIND_ALLREDUCE, 4, "w", 0);
    hvt_peer_submit(&bench.peers[0], &op);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    hvt_bench_turn(&bench); /* both sees the death and takes the ops in, in whatever order */
    ck_assert_int_eq(hvt_op_expect(&bench, 0, HVI_ERR_RANK_LOST, NULL).culprit, 1);
    hvt_bench_fini(&bench);
    free(own);
}
END_TEST

START_TEST(it_is_left_alone_once_the_session_is_over)
{
    float *own = malloc(LARGE), *then = malloc(LARGE);

    for (int round = 0; round < 20; round++) {
        hvt_bench_init(&bench, 2);
        for (uint32_t i = 0; i < LARGE / 4; i++)
            own[i] = (float)i;
        for (int32_t rank = 0; rank < 2; rank++) {
            struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, LARGE / 4, "w", 0);
            place(&op, own);
            if (rank == 1)
                op.out_offset = (uint64_t)(uintptr_t)then;
            hvt_peer_submit(&bench.peers[rank], &op);
        }
        engine_intake_drain_all(&bench.engine->sessions);
        engine_dispatch_ready(&bench.engine->exec); /* the workers are at it */
        engine_session_end(bench.engine->sessions.ranks[0].session, ENGINE_RANK_LEFT, "it leaves");
        while (bench.peers[0].channel.header->session_state != HVI_SESSION_ENDED)
            hvt_bench_turn(&bench);
        memset(own, round, LARGE);
        while (!hvt_peer_has_completion(&bench.peers[1]))
            hvt_bench_turn(&bench);
        for (uint32_t i = 0; i < LARGE; i++) {
            if (((char *)own)[i] != round)
                ck_abort_msg("byte %u was written", i);
        }
        hvt_bench_fini(&bench);
    }
    free(own);
    free(then);
}
END_TEST

START_TEST(it_holds_no_integers_and_is_no_regions_id)
{
    struct hvi_packet_msg msg;
    int64_t splits[4] = {1, 1};

    hvt_bench_init(&bench, 2);
    struct hvi_submission op = hvt_op(&bench, 0, HVI_KIND_ALLTOALL, 2, "x", 0);
    op.aux_region = HVI_REGION_PROCESS;
    op.aux_offset = (uint64_t)(uintptr_t)splits;
    op.aux_count = 2;
    hvt_op_submit(&bench, 0, op);
    ck_assert(hvt_peer_expect(&bench.peers[0], HVI_PACKET_NOTICE, &msg));
    ck_assert_ptr_nonnull(strstr(msg.notice.text, "of region 4294967294"));
    hvt_bench_fini(&bench);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/remote");
    TCase *tcase = tcase_create("remote");

    tcase_add_test(tcase, it_is_offered_where_the_kernel_allows_it);
    tcase_add_test(tcase, memory_of_another_process_is_reduced_with_everybody_elses);
    tcase_add_test(tcase, memory_that_is_not_there_fails_the_op_on_all_with_its_address);
    tcase_add_test(tcase, a_process_that_is_gone_is_a_lost_rank);
    tcase_add_test(tcase, a_transfer_during_which_the_process_ended_is_a_failure);
    tcase_add_test(tcase, a_page_that_is_missing_on_our_side_is_no_fault_of_the_owner);
    tcase_add_test(tcase, it_is_left_alone_once_the_session_is_over);
    tcase_add_test(tcase, it_holds_no_integers_and_is_no_regions_id);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

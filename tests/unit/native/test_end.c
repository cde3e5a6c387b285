/* SPDX-License-Identifier: Apache-2.0
 * A tensor is never written to after its op has ended, however ops end: by their peers, by a cancelled step, by
 * Ctrl-C, by a rank that is killed or leaves, by an engine that is killed, by the end of the session. Random
 * programs against a real hvdd; what TensorFlow gets back is filled with poison at once, and looked at when nobody
 * is left who could write. */
#include "fake_tensorflow.h"
#include "hvt_job.h"
#include "python/native/crew.h"
#include "python/native/step.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPS   32
#define BLOCK 8 /* peers wait for as many before the next */
#define RANKS 3

enum ending {
    BY_PEERS,
    BY_CANCELLED_STEPS,
    BY_INTERRUPT,
    BY_LOST_RANK,
    BY_RANK_THAT_LEAVES,
    BY_LOST_ENGINE,
    BY_CLOSE,
    ENDINGS
};

#ifdef HVD_SANITIZE
#define ROUNDS 2
#define LARGE  (8 << 20) /* floats: tens of milliseconds */
#else
#define ROUNDS 6
#define LARGE  (24 << 20)
#endif

/* ---- the program: what every rank knows by the round's number ---- */

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

enum kind { ALLREDUCE, BROADCAST, ALLGATHER, KINDS };

struct step {
    enum kind kind;
    int64_t count; /* of floats */
    enum hvt_home home;
    char name[16];
};

struct program {
    enum ending ending;
    struct step steps[OPS];
};

static void make(struct program *program, int number)
{
    static const int64_t counts[] = {1, 700, 9000, 40000, 300000, 1 << 20};
    uint64_t random = (uint64_t)number * 977 + 5;

    program->ending = (enum ending)(number % ENDINGS);
    for (int i = 0; i < OPS; i++) {
        struct step *step = &program->steps[i];
        step->kind = (enum kind)(next(&random) % KINDS);
        step->count = counts[next(&random) % (sizeof counts / sizeof counts[0])];
        step->home = next(&random) % 2 ? HVT_HEAP : HVT_ORDINARY;
        snprintf(step->name, sizeof step->name, "op %d", i);
    }
}

/* All ops, of which each `block` that begin alike are in any order. */
static void shuffle(int order[OPS], int block, uint64_t *random)
{
    for (int i = 0; i < OPS; i++)
        order[i] = i;
    for (int begin = 0; begin < OPS; begin += block) {
        for (int i = block - 1; i > 0; i--) {
            int at = begin + (int)(next(random) % (uint64_t)(i + 1)), kept = order[begin + i];
            order[begin + i] = order[at];
            order[at] = kept;
        }
    }
}

/* The ops of a peer in its order; how many of them it submits: where the program does not end by itself, not all. */
static int part_of(const struct program *program, int number, int rank, int order[OPS])
{
    uint64_t random = (uint64_t)number * 31 + (uint64_t)rank;

    shuffle(order, BLOCK, &random);
    return program->ending == BY_PEERS ? OPS : (int)(next(&random) % OPS);
}

/* How many ops every peer submits. */
static int common(const struct program *program, int number)
{
    int seen[OPS] = {0}, order[OPS], count = 0;

    for (int rank = 1; rank < RANKS; rank++) {
        int mine = part_of(program, number, rank, order);
        for (int i = 0; i < mine; i++)
            count += ++seen[order[i]] == RANKS - 1;
    }
    return count;
}

/* ---- a peer ---- */

static int submit(struct hvd_session *session, const struct step *step, float *data,
                  struct hvd_op **op_p)
{
    struct hvd_tensor tensor = hvd_tensor_1d(data, HVD_FLOAT32, step->count);

    switch (step->kind) {
    case ALLREDUCE:
        return hvd_allreduce_async(session, step->name, &tensor, &tensor, HVD_SUM, NULL, op_p);
    case BROADCAST:
        return hvd_broadcast_async(session, step->name, &tensor, &tensor, 1, NULL, op_p);
    default:
        return hvd_allgather_async(session, step->name, &tensor, NULL, NULL, op_p);
    }
}

/* Submits its ops in an order of its own; where the program does not end by itself, not all of them. The memory of ops
 * in flight must stay: the process ends with them. */
static void take_part(struct hvd_session *session, int number)
{
    static struct program program;
    static struct hvd_op *ops[OPS];
    static float *memory[OPS];
    int order[OPS], rank = hvd_rank(session);

    make(&program, number);
    int mine = part_of(&program, number, rank, order);
    for (int i = 0; i < mine; i++) {
        const struct step *step = &program.steps[order[i]];
        float *data = memory[i] = calloc((size_t)step->count, sizeof(float));
        for (int64_t k = 0; k < step->count; k++)
            data[k] = (float)(rank + 1);
        if (submit(session, step, data, &ops[i]) != HVD_OK)
            return; /* the session is over */
        if ((i + 1) % BLOCK == 0 &&
            hvd_wait_all(ops, i + 1, 60ll * 1000 * 1000 * 1000) == HVD_ERR_TIMEOUT)
            exit(97);
    }
    if (program.ending == BY_RANK_THAT_LEAVES && rank == 1)
        return;
    if (hvd_wait_all(ops, mine, 60ll * 1000 * 1000 * 1000) == HVD_ERR_TIMEOUT)
        exit(97);
    if (program.ending == BY_LOST_RANK && rank == 1)
        pause(); /* killed */
}

/* ---- rank 0 ---- */

static struct hvt_job job;

static struct hvt_kernel *kernel_of(const struct step *step)
{
    static const char *const names[] = {"HvdAllreduce", "HvdBroadcast", "HvdAllgather"};
    struct hvt_attr attrs[] = {{.name = "reduce_op", .number = HVD_SUM},
                               {.name = "prescale_factor", .factor = 1},
                               {.name = "postscale_factor", .factor = 1},
                               {.name = "root_rank", .number = 1},
                               {.name = "process_set_id"},
                               {.name = "tensor_name", .text = step->name},
                               {.name = NULL}};
    struct hvt_kernel *kernel = hvt_kernel_new(names[step->kind], attrs);

    ck_assert_msg(kernel != NULL, "%s", hvt_tf_error());
    return kernel;
}

/* Elements that are not what the ranks' numbers give. */
static int64_t wrong(const struct step *step, const float *data)
{
    int64_t count = 0;

    for (int64_t k = 0; k < step->count; k++) {
        if (step->kind != ALLGATHER)
            count += data[k] != (step->kind == ALLREDUCE ? 6.0f : 2.0f);
        for (int rank = 0; rank < RANKS && step->kind == ALLGATHER; rank++)
            count += data[rank * step->count + k] != (float)(rank + 1);
    }
    return count;
}

static atomic_int heard;

static void on_interrupt(int number)
{
    (void)number;
    atomic_fetch_add(&heard, 1);
}

/* Some of what ends ops; the rest happens by itself or by closing. */
static void end_by(enum ending ending, struct hvt_call *calls[OPS])
{
    switch (ending) {
    case BY_CANCELLED_STEPS:
        for (int i = 0; i < OPS; i++)
            hvt_call_cancel(calls[i]);
        return;
    case BY_INTERRUPT:
        raise(SIGINT);
        return;
    case BY_LOST_RANK:
        hvt_job_kill(&job, 1);
        return;
    case BY_LOST_ENGINE:
        hvt_job_kill_engine(&job);
        return;
    case BY_CLOSE:
        hvt_job_close(&job);
        return;
    default:
        return;
    }
}

struct round {
    struct program program;
    int order[OPS];
    struct hvt_kernel *kernels[OPS];
    struct hvt_call *calls[OPS];
};

static void *run_calls(void *user)
{
    struct round *round = user;

    for (int i = 0; i < OPS; i++)
        hvt_call_run(round->calls[i]);
    return NULL;
}

static void prepare(struct round *round, int number, uint64_t *random)
{
    memset(round, 0, sizeof *round);
    make(&round->program, number);
    shuffle(round->order, OPS, random);
    for (int i = 0; i < OPS; i++) {
        const struct step *step = &round->program.steps[round->order[i]];
        TF_Tensor *input = hvt_vector_new(TF_FLOAT, step->count, step->home);
        float *data = TF_TensorData(input);
        for (int64_t k = 0; k < step->count; k++)
            data[k] = 1;
        round->kernels[i] = kernel_of(step);
        round->calls[i] = hvt_call_new(round->kernels[i], &input, 1);
    }
}

/* Every call ends, those that are good with what the ranks' numbers give. */
static int see_ends(struct round *round, int number)
{
    int good = 0;

    for (int i = 0; i < OPS; i++) {
        const struct step *step = &round->program.steps[round->order[i]];
        struct hvt_call *call = round->calls[i];
        ck_assert_msg(hvt_call_wait(call), "program %d: %s has no end", number, step->name);
        if (hvt_call_code(call) == TF_OK) {
            ck_assert_int_eq(wrong(step, TF_TensorData(hvt_call_output(call, 0))), 0);
            good++;
        }
        hvt_call_free(call);
        hvt_kernel_free(round->kernels[i]);
    }
    return good;
}

/* Until so many calls have ended; those that can end by themselves are known. */
static void wait_for(const struct round *round, int count)
{
    for (int ended = 0; ended < count; sched_yield()) {
        ended = 0;
        for (int i = 0; i < OPS; i++)
            ended += hvt_call_has_ended(round->calls[i]);
    }
}

/* Calls begin in one thread, and in the midst of them something ends them in another one. */
static void run_program(int number)
{
    static struct round round;
    uint64_t random = (uint64_t)number * 7919;
    pthread_t thread;

    prepare(&round, number, &random);
    hvt_job_open(&job, RANKS, "take part", number);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_calls, &round), 0);
    wait_for(&round, (int)(next(&random) % (uint64_t)(common(&round.program, number) + 1)));
    end_by(round.program.ending, round.calls);
    pthread_join(thread, NULL);
    int good = see_ends(&round, number);
    if (round.program.ending == BY_PEERS)
        ck_assert_int_eq(good, OPS);
    hvt_job_close(&job);
    hvt_job_join(&job);
    if (round.program.ending != BY_LOST_ENGINE && !job.keeps) /* peers may be at work without it */
        ck_assert_int_eq(hvt_tf_tensors(), 0);
    ck_assert_msg(hvt_tf_spoiled() == 0, "program %d: a tensor was written to after its end",
                  number);
    hvd_tf_deliver_interrupt();
}

START_TEST(no_tensor_is_written_to_after_its_end)
{
    signal(SIGINT, on_interrupt);
    hvd_tf_watch_interrupts();
    hvd_tf_cancellation(hvt_tf_params_offset, hvt_tf_manager_offset);
    hvt_job_start(&job);
    for (int round = 0; round < ROUNDS; round++)
        run_program(round * ENDINGS + _i);
    hvt_job_stop(&job);
    ck_assert_int_eq(atomic_load(&heard), _i == BY_INTERRUPT ? ROUNDS : 0);
}
END_TEST

/* ---- an op that executes ---- */

static struct step large_step(int index)
{
    return (struct step){.kind = index % 2 ? BROADCAST : ALLREDUCE,
                         .count = LARGE,
                         .home = index / 2 % 2 ? HVT_HEAP : HVT_ORDINARY,
                         .name = "large"};
}

/* Waits for its op; rank 0 comes last. */
static void submit_large(struct hvd_session *session, int number)
{
    struct step step = large_step(number);
    static float data[LARGE];
    static struct hvd_op *op;

    for (int64_t k = 0; k < LARGE; k++)
        data[k] = (float)(hvd_rank(session) + 1);
    if (submit(session, &step, data, &op) != HVD_OK ||
        hvd_barrier(session, "submitted") != HVD_OK ||
        hvd_wait(op, 60ll * 1000 * 1000 * 1000) == HVD_ERR_TIMEOUT)
        exit(97);
}

/* Four of the eight: the step is interrupted; the others: the session is closed. False: the op was over
 * before that. */
static bool end_large(int number)
{
    struct step step = large_step(number);

    hvt_job_start(&job);
    hvt_job_open(&job, RANKS, "submit large", number);
    TF_Tensor *input = hvt_vector_new(TF_FLOAT, LARGE, step.home);
    for (int64_t k = 0; k < LARGE; k++)
        ((float *)TF_TensorData(input))[k] = 1;
    struct hvt_kernel *kernel = kernel_of(&step);
    struct hvt_call *call = hvt_call_new(kernel, &input, 1);
    ck_assert_int_eq(hvd_barrier(job.session, "submitted"), HVD_OK);
    hvt_call_run(call);
    bool executes = !hvt_call_has_ended(call);
    if (number < 4)
        raise(SIGINT);
    else
        hvt_job_close(&job);
    ck_assert(hvt_call_wait(call));
    if (number < 4) {
        ck_assert_msg(hvt_call_code(call) == TF_OK, "%s", hvt_call_text(call));
        ck_assert_int_eq(wrong(&step, TF_TensorData(hvt_call_output(call, 0))), 0);
    }
    hvt_call_free(call);
    hvt_kernel_free(kernel);
    hvt_job_close(&job);
    hvt_job_join(&job);
    if (!job.keeps)
        ck_assert_int_eq(hvt_tf_tensors(), 0);
    ck_assert_uint_eq(hvt_tf_spoiled(), 0);
    hvt_job_stop(&job);
    return executes;
}

START_TEST(an_op_that_executes_has_its_memory_to_its_end)
{
    int tries = 1;

    signal(SIGINT, on_interrupt);
    hvd_tf_watch_interrupts();
    while (!end_large(_i))
        ck_assert_int_le(++tries, 10);
}
END_TEST

int main(int argc, char **argv)
{
    static const struct hvt_script scripts[] = {{"take part", take_part},
                                                {"submit large", submit_large}};

    hvt_job_peer(argc, argv, scripts, 2);
    Suite *suite = suite_create("native/end");
    TCase *tcase = tcase_create("end");
    tcase_set_timeout(tcase, 240);
    tcase_add_loop_test(tcase, no_tensor_is_written_to_after_its_end, 0, ENDINGS);
    tcase_add_loop_test(tcase, an_op_that_executes_has_its_memory_to_its_end, 0, 8);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * One rank runs a program, phase by phase: prepares all ops of a phase, submits them in an order of
 * its own, waits for them in one of many ways, and compares.
 *
 * Nothing keeps ranks together between phases, unless the outcome of the next one depends on it
 * (hvt_model_meets). Nobody can wait for somebody who waits for him: a rank that waits for an op
 * before it submits the next does so in the program's order, in which every other rank has submitted
 * or will submit without waiting for anything later. */
#include "tests/property/prop.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA_BYTES (2u << 20)
#define FLAT        (HVT_OPS * HVT_GROUP + 1)

/* ---- the end ---- */

static void show_command(const struct hvt_rank *rank, const char *command, const char *options)
{
    char line[512];

    snprintf(line, sizeof line, "%s %s %s %s >&2", rank->setup->program_path, command,
             rank->setup->job, options);
    fprintf(stderr, "# hvdctl %s %s %s\n", command, rank->setup->job, options);
    if (system(line) != 0)
        fprintf(stderr, "# it failed\n");
}

void hvt_rank_fail(const struct hvt_rank *rank, const char *format, ...)
{
    char why[HVT_TEXT - 256], text[HVT_TEXT];
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&once); /* for good: the first one ends the process */
    snprintf(text, sizeof text, "rank %d of %d, phase %d, turn %d: %s", rank->rank, rank->ranks,
             rank->phase_number, rank->turn, why);
    if (strstr(why, "not finished") && rank->setup->diagnoses) {
        show_command(rank, "stalls", "--min-age 0");
        show_command(rank, "trace", "--last 6");
    }
    hvt_shared_fail(rank->setup->shared, text);
    _exit(3);
}

/* ---- life ---- */

static void open_arenas(struct hvt_rank *rank)
{
    void *shared = NULL;
    int rc = hvd_alloc(rank->session, ARENA_BYTES, &shared);

    rank->arena[HVT_SHARED] = shared;
    rank->arena[HVT_REGISTERED] = malloc(ARENA_BYTES);
    rank->arena[HVT_ADOPTED] =
        mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (rc == HVD_OK)
        rc = hvd_register(rank->session, rank->arena[HVT_REGISTERED], ARENA_BYTES);
    if (rc == HVD_OK)
        rc = hvd_adopt(rank->session, rank->arena[HVT_ADOPTED], ARENA_BYTES);
    if (rc != HVD_OK)
        hvt_rank_fail(rank, "no memory: %s", hvd_last_error());
}

struct hvt_rank *hvt_rank_open(const struct hvt_setup *setup, int rank, int ranks)
{
    struct hvt_rank *self = calloc(1, sizeof *self);
    struct hvd_options options;

    self->setup = setup;
    self->rank = rank;
    self->ranks = ranks;
    hvd_options_init(&options);
    options.address = setup->address;
    options.job = setup->job;
    options.rank = rank;
    options.size = ranks;
    options.timeout_ns = setup->deadline_ns;
    if (hvd_open(&options, &self->session) != HVD_OK)
        hvt_rank_fail(self, "cannot open a session: %s", hvd_last_error());
    open_arenas(self);
    return self;
}

/* The ranks' last op is one that all have finished, so that nobody leaves somebody alone. */
void hvt_rank_close(struct hvt_rank *rank)
{
    int rc = hvd_close(rank->session);

    if (rc != HVD_OK)
        hvt_rank_fail(rank, "hvd_close: %s: %s", hvd_status_name(rc), hvd_last_error());
    free(rank->arena[HVT_REGISTERED]);
    munmap(rank->arena[HVT_ADOPTED], ARENA_BYTES);
    free(rank);
}

/* ---- a phase of one rank ---- */

struct lane {
    struct hvt_rank *rank;
    struct hvt_work *works[HVT_OPS + 1];
    int count;
    int style;
    uint64_t random;
};

/* The ops of a lane that are in flight, one by one. */
struct flight {
    struct hvd_op *ops[FLAT];
    int *statuses[FLAT];
    int count;
};

static void take_off(struct lane *lane, int from, int to, struct flight *flight_p)
{
    flight_p->count = 0;
    for (int i = from; i < to; i++) {
        struct hvt_work *work = lane->works[i];
        for (int member = 0; member < work->members; member++) {
            struct hvt_piece *piece = &work->piece[member];
            if (!piece->op)
                continue;
            flight_p->ops[flight_p->count] = piece->op;
            flight_p->statuses[flight_p->count++] = &piece->status;
        }
    }
}

static void wait_in(const struct lane *lane, struct flight *flight, const int *order)
{
    for (int i = 0; i < flight->count; i++)
        *flight->statuses[order[i]] =
            hvt_op_wait(lane->rank, flight->ops[order[i]], lane->rank->setup->deadline_ns);
}

static void wait_short(const struct lane *lane, struct flight *flight)
{
    for (int i = 0; i < flight->count; i++) {
        int64_t until_ns = hvt_now_ns() + lane->rank->setup->deadline_ns;
        int rc = HVD_ERR_TIMEOUT;
        while (rc == HVD_ERR_TIMEOUT && hvt_now_ns() < until_ns)
            rc = hvt_op_wait(lane->rank, flight->ops[i], i % 2 ? 0 : 50000);
        if (rc == HVD_ERR_TIMEOUT)
            rc = hvt_op_wait(lane->rank, flight->ops[i], lane->rank->setup->deadline_ns);
        *flight->statuses[i] = rc;
    }
}

static void wait_all(const struct lane *lane, struct flight *flight)
{
    int rc = hvd_wait_all(flight->ops, flight->count, lane->rank->setup->deadline_ns);
    int first = HVD_OK;

    if (rc == HVD_ERR_TIMEOUT)
        hvt_rank_fail(lane->rank, "%d ops are not finished", flight->count);
    for (int i = 0; i < flight->count; i++) {
        *flight->statuses[i] = hvd_test(flight->ops[i]);
        if (first == HVD_OK)
            first = *flight->statuses[i];
    }
    if (rc != first && flight->count > 0)
        hvt_rank_fail(lane->rank, "hvd_wait_all gives %s, and the first failure is %s",
                      hvd_status_name(rc), hvd_status_name(first));
}

static void wait_any(const struct lane *lane, struct flight *flight)
{
    struct hvd_op *ops[FLAT];

    memcpy(ops, flight->ops, sizeof ops);
    for (int left = flight->count; left > 0; left--) {
        int index = -1;
        int rc = hvd_wait_any(ops, flight->count, lane->rank->setup->deadline_ns, &index);
        if (index < 0 || index >= flight->count || !ops[index])
            hvt_rank_fail(lane->rank, "not finished: %d ops; hvd_wait_any gives %s and index %d",
                          left, hvd_status_name(rc), index);
        *flight->statuses[index] = rc;
        ops[index] = NULL;
    }
}

/* Looks at all until all are finished; with a descriptor, sleeps on it in between. */
static void wait_polling(const struct lane *lane, struct flight *flight, int fd)
{
    int64_t until_ns = hvt_now_ns() + lane->rank->setup->deadline_ns;
    bool seen[FLAT] = {false};

    for (int left = flight->count; left > 0;) {
        for (int i = 0; i < flight->count; i++) {
            int rc = seen[i] ? HVD_INPROGRESS : hvd_test(flight->ops[i]);
            if (rc == HVD_INPROGRESS)
                continue;
            *flight->statuses[i] = rc;
            seen[i] = true;
            left--;
        }
        if (left > 0 && hvt_now_ns() > until_ns)
            hvt_rank_fail(lane->rank, "%d ops are not finished", left);
        struct pollfd event = {.fd = fd, .events = POLLIN};
        if (left > 0 && (fd < 0 || poll(&event, 1, 1000) < 0))
            sched_yield();
    }
}

static void wait_for(struct lane *lane, int from, int to)
{
    struct flight flight;
    int order[FLAT], fd = -1;

    take_off(lane, from, to, &flight);
    for (int i = 0; i < flight.count; i++) {
        order[i] = lane->style == HVT_BACKWARDS ? flight.count - 1 - i : i;
        if (lane->style != HVT_SHUFFLED)
            continue;
        int at = (int)hvt_below(&lane->random, (uint32_t)i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    if (lane->style == HVT_ALL)
        wait_all(lane, &flight);
    else if (lane->style == HVT_FIRST_OF_ANY)
        wait_any(lane, &flight);
    else if (lane->style == HVT_SHORT_WAITS)
        wait_short(lane, &flight);
    else if (lane->style == HVT_POLLED)
        wait_polling(lane, &flight, -1);
    else if (lane->style == HVT_EVENTS && hvd_event_fd(lane->rank->session, &fd) == HVD_OK)
        wait_polling(lane, &flight, fd);
    else
        wait_in(lane, &flight, order);
}

/* ---- join ---- */

static void submit_join(struct hvt_work *work)
{
    struct hvt_rank *rank = work->rank;
    struct hvd_op_options options;

    hvd_op_options_init(&options);
    options.process_set = rank->set_ids[rank->phase->join];
    int rc = hvd_join_async(rank->session, &options, &work->piece->op);
    if (rc != HVD_OK)
        hvt_rank_fail(rank, "cannot join: %s: %s", hvd_status_name(rc), hvd_last_error());
    if (!rank->phase->join_cancel ||
        hvt_mix((uint64_t)rank->phase->seed, (uint64_t)rank->rank + 99) % 3 != 0)
        return;
    if (hvd_cancel(work->piece->op) != HVD_OK)
        hvt_rank_fail(rank, "cannot take a join back: %s", hvd_last_error());
    rc = hvt_op_wait(rank, work->piece->op, rank->setup->deadline_ns);
    if (rc != HVD_ERR_CANCELLED)
        return;
    hvd_op_free(work->piece->op);
    work->piece->op = NULL;
    rc = hvd_join_async(rank->session, &options, &work->piece->op);
    if (rc != HVD_OK)
        hvt_rank_fail(rank, "cannot join again: %s: %s", hvd_status_name(rc), hvd_last_error());
}

/* The last to join is one of those who had everything to submit. */
static void check_join(struct hvt_work *work)
{
    struct hvt_rank *rank = work->rank;
    int set = rank->phase->join;
    int last = hvd_op_joined_rank(work->piece->op);

    if (work->piece->status != HVD_OK)
        hvt_rank_fail(rank, "join: %s: %s", hvd_status_name(work->piece->status),
                      hvd_op_error(work->piece->op));
    bool member = last >= 0 && last < rank->ranks && rank->world.members[set] >> last & 1;
    if (!member ||
        (int)hvt_shared_note(rank->setup->shared, rank->notes + HVT_OPS, (uint64_t)last) != last)
        hvt_rank_fail(rank, "join: rank %d is the last here and not everywhere", last);
    hvd_op_free(work->piece->op);
    work->piece->op = NULL;
}

/* ---- lanes ---- */

static void submit_at(struct lane *lane, int at)
{
    struct hvt_work *work = lane->works[at];

    if (work->op)
        hvt_op_submit(work, lane->style == HVT_BLOCKING);
    else
        submit_join(work);
}

static void check_at(struct lane *lane, int at)
{
    if (lane->works[at]->op)
        hvt_op_check(lane->works[at]);
    else
        check_join(lane->works[at]);
}

static void *run_lane(void *user)
{
    struct lane *lane = user;
    struct hvt_rank *rank = lane->rank;
    bool one_by_one = lane->style == HVT_ONE_BY_ONE || lane->style == HVT_BLOCKING;
    int first = rank->phase->first;

    if (first >= 0 && first != rank->rank)
        hvt_shared_meet(rank->setup->shared, rank->ranks);
    for (int i = 0; i < lane->count; i++) {
        submit_at(lane, i);
        if (one_by_one && lane->works[i]->op)
            wait_for(lane, i, i + 1);
    }
    for (int i = 0; i < lane->count && one_by_one; i++) {
        if (!lane->works[i]->op)
            wait_for(lane, i, i + 1);
    }
    if (first == rank->rank) {
        for (int i = 0; i < lane->count; i++)
            hvt_op_duplicate(lane->works[i]);
        hvt_shared_meet(rank->setup->shared, rank->ranks);
    }
    if (!one_by_one)
        wait_for(lane, 0, lane->count);
    for (int i = 0; i < lane->count; i++)
        check_at(lane, i);
    return NULL;
}

static bool keeps_order(const struct hvt_work *work)
{
    return work->op->name < 0;
}

/* Any order, but what goes by number stays in the program's. */
static void shuffle(struct lane *lane)
{
    struct hvt_work *ordered[HVT_OPS + 1];
    int count = 0, next = 0;

    for (int i = 0; i < lane->count; i++) {
        if (keeps_order(lane->works[i]))
            ordered[count++] = lane->works[i];
    }
    for (int i = lane->count - 1; i > 0; i--) {
        int at = (int)hvt_below(&lane->random, (uint32_t)i + 1);
        struct hvt_work *work = lane->works[i];
        lane->works[i] = lane->works[at];
        lane->works[at] = work;
    }
    for (int i = 0; i < lane->count; i++) {
        if (keeps_order(lane->works[i]))
            lane->works[i] = ordered[next++];
    }
}

/* Which ops of the phase this rank submits, and whether it joins. */
static int choose_works(struct hvt_rank *rank, struct hvt_work *works)
{
    const struct hvt_phase *phase = rank->phase;
    int count = 0;

    for (int i = 0; i < phase->ops; i++) {
        bool lost = rank->setup->selftest == HVT_LOSES_OPS && rank->rank == 1 &&
                    phase->op[i].kind == HVT_BROADCAST;
        if (!lost && hvt_model_is_op(&rank->world, phase, i) &&
            hvt_model_who(&rank->world, phase, i) >> rank->rank & 1)
            hvt_op_prepare(rank, i, &works[count++]);
    }
    return count;
}

static bool joins(const struct hvt_rank *rank)
{
    int set = rank->phase->join;

    return set >= 0 && set < HVT_SETS && rank->world.members[set] >> rank->rank & 1;
}

/* Others wait for this rank's join before they go on, so it stands where the first op is in which the
 * rank takes no part any more. */
static void insert_join(struct lane *lane, struct hvt_work *join)
{
    struct hvt_rank *rank = lane->rank;
    const struct hvt_phase *phase = rank->phase;
    int missed = 0, at = lane->count;

    while (missed < phase->ops &&
           (phase->op[missed].set != phase->join || phase->op[missed].kind >= HVT_SET_ADD ||
            hvt_model_who(&rank->world, phase, missed) >> rank->rank & 1))
        missed++;
    bool ordered = lane->style == HVT_ONE_BY_ONE || lane->style == HVT_BLOCKING;
    for (; at > 0 && ordered && lane->works[at - 1]->index > missed; at--)
        lane->works[at] = lane->works[at - 1];
    lane->works[at] = join;
    lane->count++;
}

static int style_of(const struct hvt_rank *rank, uint64_t *random)
{
    int style = rank->phase->style;

    if (style == HVT_ANY_STYLE) /* events for one rank would be the end of grants for all */
        style = (int)hvt_below(random, HVT_STYLES);
    if (rank->phase->style == HVT_ANY_STYLE && style == HVT_EVENTS)
        style = HVT_IN_ORDER;
    bool alone = style == HVT_ONE_BY_ONE || style == HVT_BLOCKING;
    return rank->phase->first >= 0 && alone ? HVT_IN_ORDER : style;
}

static void run_turn(struct hvt_rank *rank)
{
    const struct hvt_phase *phase = rank->phase;
    struct hvt_work *works = calloc(HVT_OPS + 1, sizeof *works);
    struct lane lanes[2] = {{.rank = rank}, {.rank = rank}};
    bool two = phase->threads && phase->join < 0 && phase->first < 0;
    uint64_t random = hvt_mix((uint64_t)phase->seed, (uint64_t)(rank->turn * 64 + rank->rank));
    pthread_t thread;

    memset(rank->used, 0, sizeof rank->used);
    int count = choose_works(rank, works);
    for (int i = 0; i < count; i++) {
        struct lane *lane = &lanes[two && works[i].op->name >= 0 && i % 2];
        lane->works[lane->count++] = &works[i];
    }
    for (int i = 0; i < 2; i++) {
        lanes[i].style = style_of(rank, &random);
        lanes[i].random = hvt_next(&random);
        if (phase->shuffle && lanes[i].style != HVT_ONE_BY_ONE && lanes[i].style != HVT_BLOCKING)
            shuffle(&lanes[i]);
    }
    if (joins(rank)) {
        works[count] = (struct hvt_work){.rank = rank, .members = 1};
        insert_join(&lanes[0], &works[count]);
    }
    if (two && pthread_create(&thread, NULL, run_lane, &lanes[1]) != 0)
        hvt_rank_fail(rank, "no thread");
    run_lane(&lanes[0]);
    if (two)
        pthread_join(thread, NULL);
    free(works);
}

static void check_sets(struct hvt_rank *rank)
{
    int ids[HVT_SETS + 1], expected = 0;

    for (int set = 0; set < HVT_SETS; set++)
        expected += rank->world.members[set] != 0;
    int count = hvd_process_set_ids(rank->session, ids, HVT_SETS + 1);
    if (count != expected)
        hvt_rank_fail(rank, "there are %d process sets, not %d", count, expected);
}

/* Sets are changed once. */
static int turns_of(const struct hvt_phase *phase)
{
    for (int i = 0; i < phase->ops; i++) {
        if (phase->op[i].kind >= HVT_SET_ADD)
            return 1;
    }
    return phase->repeat < 1 ? 1 : phase->repeat;
}

void hvt_rank_run(struct hvt_rank *rank, const struct hvt_program *program)
{
    hvt_world_init(&rank->world, program->ranks);
    memset(rank->set_ids, 0, sizeof rank->set_ids);
    rank->notes = 0;
    for (int i = 0; i < program->phases; i++) {
        struct hvt_phase *phase = &program->phase[i];
        bool meets = hvt_model_meets(phase);
        rank->phase = phase;
        rank->phase_number = i;
        for (int turn = 0; turn < turns_of(phase); turn++) {
            rank->turn = turn;
            run_turn(rank);
            rank->notes += HVT_OPS + 1;
            if (meets)
                hvt_shared_meet(rank->setup->shared, rank->ranks);
        }
        hvt_world_change(&rank->world, phase);
        check_sets(rank);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 * hvt-kills: jobs that lose a rank, their engine or hvdd at a random moment, some of them at a time.
 *
 *   hvt-kills --address DIR [--kills N] [--first N] [--seed S] [--lanes N] [--daemon-every N] [--seconds-to-hang N]
 *
 *   main ──▶ lane ──▶ the ranks of one job     forked, so that a rank attaches within milliseconds
 *      └───▶ lane ──▶ the ranks of another
 *
 * A lane lets a job's ranks work, kills, and looks what the others say: the right status, within a time
 * that only a hang exceeds; a wrong result ends a rank with KILLS_WRONG. Job number N follows from the seed and
 * from N alone, so `--first N --kills 1` is that job again, though not its timing.
 *
 * hvdd is killed by the program that started it. This one prints "daemon" for it and reads a line when a new
 * hvdd is ready. After a failure it prints "failed" and reads a line before it ends what hangs. Exit status: 0,
 * 1 after a failure, 2 usage.
 *
 * Where a machine stands still, or has no core for us, for a second, a deadline of the library may pass. Such
 * a job is done again, and counted as excused; a hang, a wrong result or any other status is not. */
#include "hvd/hvd.h"
#include "tests/fault/kills/kills.h"

#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAP_NS       (500 * 1000)
#define DELAY_NS     (4 * 1000 * 1000)
#define PROGRESS     1000
#define AGAIN_MAX    20 /* that a job is tried again which does not count */
#define GO_ON_ROUNDS 3  /* that each rank does after a new hvdd has come */
#define WATCH_NS     (20 * 1000 * 1000)
#define STARVED_NS   (1000 * 1000 * 1000) /* so late a nap ends where there is no core to be had */
#define EXCUSED_NS                                                                                 \
    (20 * (uint64_t)1000 * 1000 * 1000) /* after that the library's deadlines may have passed */

/* Of all processes. */
struct board {
    _Atomic uint64_t next;                                  /* the next job's number */
    _Atomic uint64_t done;                                  /* kills */
    _Atomic uint64_t victims[4], ended, late_ns, latest_ns; /* of survivors: how long they took */
    _Atomic uint64_t results;                               /* steps of all ranks */
    _Atomic uint64_t starved_ns, excused;
    _Atomic bool failed;
    _Atomic uint32_t daemons_wanted, daemons; /* hvdd is killed until these are equal */
    struct kills_seat seats[KILLS_LANES][KILLS_RANKS];
};

static struct board *board;
static const char *address;
static uint64_t seed = 1, first = 1, kills = 1000, daemon_every, hang_s = 30;
static uint32_t lanes = 4;

struct lane {
    struct kills_seat *seats;
    struct kills_plan plan;
    pid_t pids[KILLS_RANKS];
    uint64_t struck_ns;
};

static void nap(uint64_t ns)
{
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000u),
                            .tv_nsec = (long)(ns % 1000000000u)};
    uint64_t began_ns = kills_now_ns();
    nanosleep(&time, NULL);
    if (kills_now_ns() - began_ns > ns + STARVED_NS)
        atomic_store(&board->starved_ns, kills_now_ns());
}

/* A machine that stands still, or has no core for us, lets deadlines of 5 s pass: no defect. */
static bool is_excused(int status)
{
    uint64_t starved_ns = atomic_load(&board->starved_ns);
    return (status == HVD_ERR_TIMEOUT || status == HVD_ERR_DAEMON ||
            status == HVD_ERR_ATTACH_TIMEOUT) &&
           starved_ns != 0 && kills_now_ns() - starved_ns < EXCUSED_NS;
}

/* ---- what a job is like ---- */

static enum kills_victim choose_victim(uint64_t *dice, uint64_t number)
{
    if (daemon_every > 0 && number % daemon_every == 0)
        return KILLS_DAEMON;
    uint32_t chance = kills_below(dice, 20);
    return chance < 2 ? KILLS_EVERYONE : chance < 7 ? KILLS_ENGINE : KILLS_TRAINER;
}

static struct kills_plan make_plan(uint64_t number)
{
    static const int64_t elements[] = {1, 1, 2, 16, 1000, 1000, 5000, 5000, 50000, 200000};
    uint64_t dice = seed * 0x2545f4914f6cdd1du + number;
    struct kills_plan plan = {.number = number, .dice = kills_random(&dice)};
    snprintf(plan.job, sizeof plan.job, "kill%llu.%d", (unsigned long long)number, (int)getpid());
    plan.size = 1 + (int)kills_below(&dice, KILLS_RANKS);
    plan.elements = elements[kills_below(&dice, sizeof elements / sizeof elements[0])];
    plan.memory = (enum kills_memory)kills_below(&dice, 3);
    plan.named = kills_below(&dice, 2) == 0;
    plan.mixed = kills_below(&dice, 2) == 0;
    plan.window = 1 + kills_below(&dice, plan.elements > 5000 ? 2 : 4);
    plan.victim = choose_victim(&dice, number);
    plan.rank = (int)kills_below(&dice, (uint32_t)plan.size);
    plan.delay_ns = kills_below(&dice, DELAY_NS);
    return plan;
}

/* ---- failures ---- */

/* A line of /proc about every thread: how long it ran, how long it waited for a core, how often; what it sleeps in. */
static void print_threads(pid_t pid)
{
    char command[256];
    snprintf(
        command, sizeof command,
        "cd /proc/%d/task && for t in *; do echo \"        thread $t, $(cut -d' ' -f3 $t/stat), "
        "schedstat $(cat $t/schedstat), in $(cat $t/wchan), $(head -1 $t/stack)\"; done >&2",
        (int)pid);
    if (system(command) != 0)
        fprintf(stderr, "        no process\n");
}

static void print_seat(const struct lane *lane, int rank)
{
    static const char *const states[] = {"begins", "works", "was refused", "has ended"};
    const struct kills_seat *seat = &lane->seats[rank];
    int state = atomic_load(&seat->state);
    fprintf(stderr, "    rank %d, pid %d: %s, %llu steps", rank, (int)lane->pids[rank],
            states[state], (unsigned long long)atomic_load(&seat->done));
    if (state >= KILLS_REFUSED)
        fprintf(stderr, ", %s: %s", hvd_status_name(seat->status), seat->text);
    fprintf(stderr, "\n");
    if (lane->pids[rank] > 0)
        print_threads(lane->pids[rank]);
}

/* Stays, with its ranks as they are, until main has been told to end. */
static _Noreturn void fail(const struct lane *lane, const char *what)
{
    static const char *const victims[] = {"a trainer", "the engine", "hvdd", "everyone"};
    static const char *const memories[] = {"malloc", "shared", "adopted"};
    const struct kills_plan *plan = &lane->plan;
    fprintf(stderr,
            "hvt-kills: kill %llu with seed %llu: %s\n    job %s: %d ranks, %lld elements, %s, %s, "
            "%s, window %u; killed: %s (rank %d) after %llu us\n",
            (unsigned long long)plan->number, (unsigned long long)seed, what, plan->job, plan->size,
            (long long)plan->elements, memories[plan->memory], plan->named ? "named" : "unnamed",
            plan->mixed ? "all kinds" : "allreduce", plan->window, victims[plan->victim],
            plan->rank, (unsigned long long)plan->delay_ns / 1000);
    for (int rank = 0; rank < plan->size; rank++)
        print_seat(lane, rank);
    if (lane->seats[0].engine_pid > 0) {
        fprintf(stderr, "    the engine, pid %d\n", lane->seats[0].engine_pid);
        print_threads(lane->seats[0].engine_pid);
    }
    atomic_store(&board->failed, true);
    for (;;)
        pause();
}

/* ---- a job ---- */

/* Of a child that ends with its parent. */
static pid_t fork_bound(pid_t parent)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(0);
    }
    return pid;
}

static void start_ranks(struct lane *lane)
{
    pid_t lane_pid = getpid();
    memset(lane->seats, 0, KILLS_RANKS * sizeof lane->seats[0]);
    for (int rank = 0; rank < lane->plan.size; rank++) {
        lane->pids[rank] = fork_bound(lane_pid);
        if (lane->pids[rank] < 0)
            fail(lane, "fork failed");
        if (lane->pids[rank] == 0)
            kills_be_rank(address, &lane->plan, rank, &lane->seats[rank]);
    }
}

static int state_of(const struct lane *lane, int rank)
{
    return atomic_load_explicit(&lane->seats[rank].state, memory_order_acquire);
}

/* Until a rank is past `state`, or the process has ended. False: that takes too long. */
static bool await(const struct lane *lane, int rank, int state)
{
    uint64_t end_ns = kills_now_ns() + hang_s * 1000000000u;
    siginfo_t info = {0};
    while (state_of(lane, rank) <= state) {
        if (waitid(P_PID, (id_t)lane->pids[rank], &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid != 0)
            return true;
        if (kills_now_ns() > end_ns)
            return false;
        nap(NAP_NS);
    }
    return true;
}

/* True: a rank ended as it should have. */
static bool reap(struct lane *lane, int rank)
{
    uint64_t end_ns = kills_now_ns() + hang_s * 1000000000u;
    int status = 0;
    while (waitpid(lane->pids[rank], &status, WNOHANG) == 0) {
        if (kills_now_ns() > end_ns)
            return false;
        nap(NAP_NS);
    }
    lane->pids[rank] = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == KILLS_WRONG)
        fail(lane, "a wrong result");
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void end_all(struct lane *lane)
{
    for (int rank = 0; rank < lane->plan.size; rank++)
        kill(lane->pids[rank], SIGKILL);
    for (int rank = 0; rank < lane->plan.size; rank++)
        reap(lane, rank);
}

/* False: the job is not to be had because hvdd was killed meanwhile, or for want of a core. */
static bool await_work(struct lane *lane, uint32_t daemons)
{
    for (int rank = 0; rank < lane->plan.size; rank++) {
        if (!await(lane, rank, KILLS_BEGINS))
            fail(lane, "a rank does not begin");
    }
    for (int rank = 0; rank < lane->plan.size; rank++) {
        if (state_of(lane, rank) == KILLS_WORKS)
            continue;
        if (atomic_load(&board->daemons_wanted) == daemons &&
            (state_of(lane, rank) < KILLS_REFUSED || !is_excused(lane->seats[rank].status)))
            fail(lane, "a rank was refused, or failed before anything was killed");
        if (atomic_load(&board->daemons_wanted) == daemons)
            atomic_fetch_add(&board->excused, 1);
        return false;
    }
    return true;
}

static void strike(struct lane *lane, bool engine)
{
    const struct kills_plan *plan = &lane->plan;
    pid_t pid = engine ? lane->seats[0].engine_pid : lane->pids[plan->rank];
    lane->struck_ns = kills_now_ns();
    kill(pid, SIGKILL);
}

/* hvdd dies, and every rank goes on; once the new one is there, too. */
static void lose_daemon(struct lane *lane)
{
    uint32_t wanted = atomic_fetch_add(&board->daemons_wanted, 1) + 1;
    uint64_t end_ns = kills_now_ns() + 2 * hang_s * 1000000000u;
    while (atomic_load(&board->daemons) < wanted && kills_now_ns() < end_ns)
        nap(NAP_NS);
    for (int rank = 0; rank < lane->plan.size; rank++) {
        uint64_t seen = atomic_load(&lane->seats[rank].done);
        while (atomic_load(&lane->seats[rank].done) < seen + GO_ON_ROUNDS) {
            if (kills_now_ns() > end_ns || state_of(lane, rank) != KILLS_WORKS)
                fail(lane, "a rank does not go on after hvdd was killed");
            nap(NAP_NS);
        }
    }
}

/* False: excused. */
static bool judge_survivor(const struct lane *lane, int rank, int expected)
{
    const struct kills_seat *seat = &lane->seats[rank];
    if (!await(lane, rank, KILLS_WORKS))
        fail(lane, "a survivor waits for ever");
    if (state_of(lane, rank) != KILLS_ENDED)
        fail(lane, "a survivor died");
    if (is_excused(seat->status))
        return false;
    if (seat->status != expected)
        fail(lane, "a survivor has the wrong status");
    uint64_t took_ns = seat->at_ns > lane->struck_ns ? seat->at_ns - lane->struck_ns : 0;
    uint64_t latest_ns = atomic_load(&board->latest_ns);
    atomic_fetch_add(&board->ended, 1);
    atomic_fetch_add(&board->late_ns, took_ns);
    while (took_ns > latest_ns &&
           !atomic_compare_exchange_weak(&board->latest_ns, &latest_ns, took_ns)) {
    }
    return true;
}

/* False: excused. */
static bool judge(struct lane *lane)
{
    bool fine = true;
    bool engine = lane->plan.victim == KILLS_ENGINE;
    for (int rank = 0; rank < lane->plan.size; rank++) {
        if (engine || rank != lane->plan.rank)
            fine &= judge_survivor(lane, rank, engine ? HVD_ERR_ENGINE_LOST : HVD_ERR_RANK_LOST);
    }
    for (int rank = 0; rank < lane->plan.size; rank++) {
        atomic_fetch_add(&board->results, atomic_load(&lane->seats[rank].done));
        if (!reap(lane, rank) && (engine || rank != lane->plan.rank))
            fail(lane, "a survivor has not ended well");
    }
    return fine;
}

/* False: it does not count, because hvdd was killed or the machine stood still. */
static bool do_job(struct lane *lane)
{
    uint32_t daemons = atomic_load(&board->daemons);
    const struct kills_plan *plan = &lane->plan;
    start_ranks(lane);
    if (plan->victim == KILLS_EVERYONE) {
        nap(plan->delay_ns);
        end_all(lane);
        return true;
    }
    if (!await_work(lane, daemons)) {
        end_all(lane);
        return false;
    }
    nap(plan->delay_ns);
    if (plan->victim == KILLS_DAEMON)
        lose_daemon(lane);
    strike(lane, plan->victim == KILLS_ENGINE);
    if (judge(lane))
        return true;
    atomic_fetch_add(&board->excused, 1);
    return false;
}

static _Noreturn void be_lane(uint32_t number)
{
    struct lane lane = {.seats = board->seats[number]};
    uint64_t job;
    while (!atomic_load(&board->failed) &&
           (job = atomic_fetch_add(&board->next, 1)) < first + kills) {
        lane.plan = make_plan(job);
        for (uint32_t again = 0; !do_job(&lane); again++) {
            if (again == AGAIN_MAX)
                fail(&lane, "a job that cannot be had");
            while (atomic_load(&board->daemons) != atomic_load(&board->daemons_wanted))
                nap(NAP_NS);
            snprintf(lane.plan.job, sizeof lane.plan.job, "kill%llu.%d.%u", (unsigned long long)job,
                     (int)getpid(), again);
        }
        atomic_fetch_add(&board->victims[lane.plan.victim], 1);
        atomic_fetch_add(&board->done, 1);
    }
    _exit(0);
}

/* ---- main ---- */

/* Notices, on a core of its own, when no core is to be had: what is starved there need not be us. */
static _Noreturn void be_watcher(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    sched_setaffinity(0, sizeof set, &set);
    for (;;)
        nap(WATCH_NS);
}

/* What the other side answers; its end is ours. */
static void read_answer(void)
{
    char line[16];
    if (!fgets(line, sizeof line, stdin))
        exit(1);
}

static void say_progress(uint64_t done, uint64_t began_ns)
{
    double seconds = (double)(kills_now_ns() - began_ns) / 1e9;
    uint64_t ended = atomic_load(&board->ended);
    printf(
        "%llu kills, %.1f a second: %llu trainers, %llu engines, %llu hvdd, %llu whole jobs; %llu "
        "steps; survivors knew after %.2f ms, the last after %.0f ms; %llu excused\n",
        (unsigned long long)done, (double)done / seconds,
        (unsigned long long)atomic_load(&board->victims[KILLS_TRAINER]),
        (unsigned long long)atomic_load(&board->victims[KILLS_ENGINE]),
        (unsigned long long)atomic_load(&board->victims[KILLS_DAEMON]),
        (unsigned long long)atomic_load(&board->victims[KILLS_EVERYONE]),
        (unsigned long long)atomic_load(&board->results),
        ended ? (double)atomic_load(&board->late_ns) / (double)ended / 1e6 : 0.0,
        (double)atomic_load(&board->latest_ns) / 1e6,
        (unsigned long long)atomic_load(&board->excused));
    fflush(stdout);
}

static void renew_daemon(void)
{
    printf("daemon\n");
    fflush(stdout);
    read_answer();
    atomic_fetch_add(&board->daemons, 1);
}

static int watch(pid_t *pids)
{
    uint64_t began_ns = kills_now_ns(), said = 0;
    uint32_t living = lanes;
    while (living > 0 && !atomic_load(&board->failed)) {
        int status;
        nap(NAP_NS);
        for (uint32_t i = 0; i < lanes; i++) {
            if (pids[i] == 0 || waitpid(pids[i], &status, WNOHANG) == 0)
                continue;
            pids[i] = 0;
            living--;
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                atomic_store(&board->failed, true);
        }
        if (atomic_load(&board->daemons) != atomic_load(&board->daemons_wanted))
            renew_daemon();
        uint64_t done = atomic_load(&board->done);
        if (done / PROGRESS > said / PROGRESS || (living == 0 && done != said))
            say_progress(said = done, began_ns);
    }
    return atomic_load(&board->failed) ? 1 : 0;
}

static uint64_t number_of(const char *text)
{
    return strcmp(text, "clock") == 0 ? (uint64_t)time(NULL) : strtoull(text, NULL, 10);
}

static bool read_options(int argc, char **argv)
{
    static const struct option options[] = {{"address", required_argument, NULL, 'a'},
                                            {"kills", required_argument, NULL, 'k'},
                                            {"first", required_argument, NULL, 'f'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"lanes", required_argument, NULL, 'l'},
                                            {"daemon-every", required_argument, NULL, 'd'},
                                            {"seconds-to-hang", required_argument, NULL, 'h'},
                                            {0}};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        uint64_t value = optarg ? number_of(optarg) : 0;
        switch (option) {
        case 'a':
            address = optarg;
            break;
        case 'k':
            kills = value;
            break;
        case 'f':
            first = value;
            break;
        case 's':
            seed = value;
            break;
        case 'l':
            lanes = (uint32_t)value;
            break;
        case 'd':
            daemon_every = value;
            break;
        case 'h':
            hang_s = value;
            break;
        default:
            return false;
        }
    }
    return address && optind == argc && lanes > 0 && lanes <= KILLS_LANES && hang_s > 0;
}

int main(int argc, char **argv)
{
    pid_t pids[KILLS_LANES] = {0}, main_pid = getpid();
    if (!read_options(argc, argv)) {
        fprintf(stderr,
                "usage: hvt-kills --address DIR [--kills N] [--first N] [--seed S] [--lanes "
                "N] [--daemon-every N] [--seconds-to-hang N]\n");
        return 2;
    }
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return 1;
    atomic_store(&board->next, first);
    printf("seed %llu, kills %llu to %llu\n", (unsigned long long)seed, (unsigned long long)first,
           (unsigned long long)(first + kills - 1));
    fflush(stdout);
    for (uint32_t i = 0; i < lanes; i++) {
        if ((pids[i] = fork_bound(main_pid)) == 0)
            be_lane(i);
    }
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET((size_t)core, &set) && fork_bound(main_pid) == 0)
            be_watcher(core);
    }
    int status = watch(pids);
    if (status != 0) {
        printf("failed\n");
        fflush(stdout);
        read_answer();
    }
    return status;
}

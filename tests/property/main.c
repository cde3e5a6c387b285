/* SPDX-License-Identifier: Apache-2.0
 * hvt-property: random programs against hvdd, and what to do when one fails.
 *
 *   hvt-property [--seed S] [--programs N] [--seconds T] [--ranks A-B] [--workers W] [--verbose]
 *   hvt-property --program FILE [--repeat N]     a program, as a failure prints it
 *   hvt-property --selftest                      finds and shrinks lies told on purpose
 *
 * Without a time, 1,000 programs are run or N; with a time, no new ones are begun after T seconds,
 * and no more than N. A seed of "clock" is taken from the clock. What fails is run again alone; if that does not fail,
 * together with the programs that its sessions ran before; then it is shrunk. */
#include "tests/property/prop.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef HVD_SANITIZE
#define SLOWER 6
#else
#define SLOWER 1
#endif
#define SECOND_NS 1000000000ll
/* Long, so that a machine that stands still for a while (memory that its host takes back) is no
 * finding; what hangs, hangs for ever. */
#define DEADLINE_NS   (60 * SLOWER * SECOND_NS)
#define SHRINKING_NS  (3 * SLOWER * SECOND_NS) /* the deadline of its ops */
#define SHRINK_FOR_NS (90 * SLOWER * SECOND_NS)
#define WORKERS_MOST  16
#define TRIES         5    /* of a program that has failed once */
#define BATCH         400u /* programs between two looks at the clock */

struct options {
    uint64_t seed, programs;
    int64_t seconds;
    int ranks_least, ranks_most, workers, repeat;
    bool verbose, selftest;
    const char *program;
};

static struct node {
    char folder[64], address[96], hvdctl[PATH_MAX + 16];
    pid_t pid;
} node;

static int jobs_made;

/* ---- hvdd ---- */

/* build/tests/hvt-property, build/bin/hvdd */
static void find_program(const char *name, char *path_p, size_t size)
{
    char self[PATH_MAX - 32] = "";
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = length > 0 ? strrchr(self, '/') : NULL;

    if (slash)
        *slash = '\0';
    snprintf(path_p, size, "%s/../bin/%s", self, name);
}

static void run_hvdd(int ready)
{
    char path[PATH_MAX], runtime[160], log[160], fd[32];

    find_program("hvdd", path, sizeof path);
    snprintf(runtime, sizeof runtime, "--runtime-dir=%s", node.address);
    snprintf(log, sizeof log, "%s/log", node.folder);
    snprintf(fd, sizeof fd, "--ready-fd=%d", ready);
    int file = open(log, O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execl(path, "hvdd", runtime, "--private=yes", "--log-level=error", "--config=/dev/null", fd,
          (char *)NULL);
    _exit(127);
}

static bool start_hvdd(void)
{
    int pipes[2];
    char byte;

    snprintf(node.folder, sizeof node.folder, "%s", "/tmp/hvt-property-XXXXXX");
    if (!mkdtemp(node.folder) || pipe(pipes) != 0)
        return false;
    snprintf(node.address, sizeof node.address, "%s/run", node.folder);
    find_program("hvdctl", node.hvdctl, sizeof node.hvdctl);
    setenv("HVD_ADDRESS", node.address, 1);
    node.pid = fork();
    if (node.pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        close(pipes[0]);
        run_hvdd(pipes[1]);
    }
    close(pipes[1]);
    struct pollfd ready = {.fd = pipes[0], .events = POLLIN};
    bool is_ready = poll(&ready, 1, 10000 * SLOWER) == 1 && read(pipes[0], &byte, 1) == 1;
    close(pipes[0]);
    return is_ready;
}

static void remove_folder(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    char inner[PATH_MAX];

    while (folder && (entry = readdir(folder))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (unlink(inner) != 0)
            remove_folder(inner);
    }
    if (folder)
        closedir(folder);
    rmdir(path);
}

static void show_log(void)
{
    char path[160], line[1024];
    int lines = 0;

    snprintf(path, sizeof path, "%s/log", node.folder);
    FILE *log = fopen(path, "r");
    while (log && fgets(line, sizeof line, log) && lines++ < 40)
        fprintf(stderr, "# hvdd: %s", line);
    if (log)
        fclose(log);
}

/* False: it did not end as it should. */
static bool stop_hvdd(void)
{
    int64_t until_ns = hvt_now_ns() + 20 * SLOWER * SECOND_NS;
    struct timespec wait = {.tv_nsec = 50 * 1000 * 1000};
    int status = -1;
    sigset_t child;
    pid_t ended = 0;

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    kill(node.pid, SIGTERM);
    while (ended == 0 && hvt_now_ns() < until_ns) {
        ended = waitpid(node.pid, &status, WNOHANG);
        if (ended == 0)
            sigtimedwait(&child, NULL, &wait);
    }
    if (ended == 0)
        kill(node.pid, SIGKILL);
    bool well = ended == node.pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!well)
        show_log();
    remove_folder(node.folder);
    return well;
}

/* ---- one program ---- */

static void set_up(struct hvt_job *job, enum hvt_selftest selftest, int64_t deadline_ns)
{
    memset(job, 0, sizeof *job);
    job->setup.address = node.address;
    job->setup.program_path = node.hvdctl;
    job->setup.deadline_ns = deadline_ns;
    job->setup.selftest = selftest;
    job->setup.shared = hvt_shared_new();
    snprintf(job->setup.job, sizeof job->setup.job, "property-%d", ++jobs_made);
}

struct trial {
    enum hvt_selftest selftest;
    int tries;
    int64_t deadline_ns;
    bool diagnoses;
};

static bool fails(void *user, const struct hvt_program *program, char *text_p)
{
    const struct trial *trial = user;
    bool failed = false;

    for (int i = 0; i < trial->tries && !failed; i++) {
        struct hvt_job job;
        set_up(&job, trial->selftest, trial->deadline_ns);
        job.setup.diagnoses = trial->diagnoses;
        hvt_worker_start(&job, program);
        while (!hvt_worker_is_over(&job, 100, 3 * trial->deadline_ns, &failed))
            ;
        memcpy(text_p, job.setup.shared->text, HVT_TEXT);
        hvt_shared_free(job.setup.shared);
    }
    return failed;
}

static struct hvt_program *history_of(const struct hvt_job *job, uint64_t index)
{
    uint64_t from = index / HVT_STRETCH * HVT_STRETCH;
    struct hvt_program *all = NULL;

    for (from = from < job->from ? job->from : from; from <= index; from++) {
        struct hvt_program *one = hvt_program_at(job, from);
        if (all)
            hvt_program_append(all, one);
        else
            all = hvt_program_copy(one);
        hvt_program_free(one);
    }
    return all;
}

/* A small program that fails as program `index` did. NULL: none was found. */
static struct hvt_program *find_again(const struct hvt_job *job, uint64_t index, char *text_p)
{
    int64_t deadline_ns = job->setup.selftest ? SHRINKING_NS / 2 : SHRINKING_NS;
    struct trial trial = {job->setup.selftest, TRIES, deadline_ns, false};
    struct hvt_program *program = hvt_program_at(job, index);

    if (!fails(&trial, program, text_p)) {
        fprintf(stderr, "# alone it does not fail; with the programs before it?\n");
        hvt_program_free(program);
        program = history_of(job, index);
        if (!fails(&trial, program, text_p)) {
            hvt_program_free(program);
            return NULL;
        }
    }
    fprintf(stderr, "# it fails again; shrinking\n");
    trial.tries = job->setup.selftest ? 1 : 3;
    return hvt_shrink(program, fails, &trial, hvt_now_ns() + SHRINK_FOR_NS, text_p);
}

static struct hvt_program *report(const struct hvt_job *job)
{
    uint64_t index = atomic_load(&job->setup.shared->index);
    char text[HVT_TEXT];
    struct hvt_program *program;

    fprintf(stderr, "hvt-property: seed %llu, program %llu: %s\n", (unsigned long long)job->seed,
            (unsigned long long)index, job->setup.shared->text);
    program = hvt_program_at(job, index);
    hvt_program_print(program, stderr);
    hvt_program_free(program);
    program = find_again(job, index, text);
    if (!program) {
        fprintf(stderr, "# it does not fail again: it takes another timing\n");
        return NULL;
    }
    fprintf(stderr, "# the shrunk program (hvt-property --program FILE): %s\n", text);
    hvt_program_print(program, stderr);
    return program;
}

/* ---- many programs ---- */

static void end_all(struct hvt_job *jobs, const bool *over, int count)
{
    for (int i = 0; i < count; i++) {
        if (!over[i])
            hvt_worker_kill(&jobs[i]);
    }
}

/* The job that failed, or NULL; all are over then. */
static struct hvt_job *look_after(struct hvt_job *jobs, int count)
{
    bool over[WORKERS_MOST] = {false}, failed = false;
    int left = count;

    while (left > 0) {
        for (int i = 0; i < count; i++) {
            if (over[i] || !hvt_worker_is_over(&jobs[i], 20, 4 * DEADLINE_NS, &failed))
                continue;
            over[i] = true;
            left--;
            if (!failed)
                continue;
            end_all(jobs, over, count);
            return &jobs[i];
        }
    }
    return NULL;
}

/* Worker i has every stretch number that is i modulo the workers in blocks of its own. */
static struct hvt_program *run_many(const struct options *options, uint64_t from, uint64_t count,
                                    enum hvt_selftest selftest, bool *failed_p, uint64_t *ops_p)
{
    struct hvt_job jobs[WORKERS_MOST];
    uint64_t each =
        (count / (uint64_t)options->workers + HVT_STRETCH - 1) / HVT_STRETCH * HVT_STRETCH;
    struct hvt_program *shrunk = NULL;
    int workers = 0;

    for (uint64_t at = from; at < from + count; at += each, workers++) {
        struct hvt_job *job = &jobs[workers];
        set_up(job, selftest, selftest == HVT_LOSES_OPS ? SHRINKING_NS / 2 : DEADLINE_NS);
        job->setup.diagnoses = selftest == HVT_HONEST;
        job->seed = options->seed;
        job->from = at;
        job->to = at + each < from + count ? at + each : from + count;
        job->ranks_least = options->ranks_least;
        job->ranks_most = options->ranks_most;
        hvt_worker_start(job, NULL);
    }
    struct hvt_job *failed = look_after(jobs, workers);
    *failed_p = failed != NULL;
    if (failed) {
        shrunk = report(failed);
        show_log();
    }
    for (int i = 0; i < workers; i++) {
        ops_p[0] += atomic_load(&jobs[i].setup.shared->ops);
        ops_p[1] += atomic_load(&jobs[i].setup.shared->errors);
        hvt_shared_free(jobs[i].setup.shared);
    }
    return shrunk;
}

/* With a time and no number, the time alone ends the run. */
static uint64_t most_programs(const struct options *options)
{
    if (options->programs)
        return options->programs;
    return options->seconds ? UINT64_MAX : 1000;
}

static int run_normally(const struct options *options)
{
    int64_t begin_ns = hvt_now_ns();
    uint64_t done = 0, ops[2] = {0, 0}, most = most_programs(options);
    uint64_t batch = options->seconds ? BATCH : most;
    bool failed = false;

    printf("hvt-property: seed %llu\n", (unsigned long long)options->seed);
    fflush(stdout);
    do {
        batch = batch < most - done ? batch : most - done;
        hvt_program_free(run_many(options, done, batch, HVT_HONEST, &failed, ops));
        done += batch;
        if (options->verbose && !failed)
            printf("%llu programs, %llu ops, %.1f s\n", (unsigned long long)done,
                   (unsigned long long)ops[0], (double)(hvt_now_ns() - begin_ns) / 1e9);
    } while (!failed && done < most && hvt_now_ns() - begin_ns < options->seconds * SECOND_NS);
    if (failed)
        return 1;
    printf("%llu programs, %llu ops of a rank, %llu of them with an expected error, %.1f s\n",
           (unsigned long long)done, (unsigned long long)ops[0], (unsigned long long)ops[1],
           (double)(hvt_now_ns() - begin_ns) / 1e9);
    return 0;
}

static int run_file(const struct options *options)
{
    struct trial trial = {HVT_HONEST, options->repeat, DEADLINE_NS, true};
    FILE *file = strcmp(options->program, "-") ? fopen(options->program, "r") : stdin;
    struct hvt_program *program = file ? hvt_program_read(file) : NULL;
    char text[HVT_TEXT];

    if (!file)
        perror(options->program);
    if (!program)
        return 2;
    bool failed = fails(&trial, program, text);
    printf("%s\n", failed ? text : "passed");
    hvt_program_free(program);
    return failed;
}

/* ---- selftest ---- */

/* Printed and read again it is the same program. */
static struct hvt_program *through_text(const struct hvt_program *program)
{
    FILE *file = tmpfile();

    if (!file)
        return NULL;
    hvt_program_print(program, file);
    rewind(file);
    struct hvt_program *again = hvt_program_read(file);
    fclose(file);
    return again;
}

static bool is_found(const struct options *options, enum hvt_selftest lie)
{
    struct trial trial = {lie, 2, SHRINKING_NS / 2, false};
    struct trial honest = {HVT_HONEST, 1, SHRINKING_NS, false};
    uint64_t ops[2] = {0, 0};
    char text[HVT_TEXT];
    bool failed = false;
    struct hvt_program *small = run_many(options, 0, 200, lie, &failed, ops);
    struct hvt_program *again = small ? through_text(small) : NULL;
    bool found = failed && again && again->phases == 1 && again->phase->ops == 1 &&
                 again->ranks == 2 && again->phase->op->dim0 <= 4 && fails(&trial, again, text) &&
                 !fails(&honest, again, text);

    printf("lie %d: %s\n", (int)lie, found ? "found and shrunk" : "NOT found, or not shrunk");
    hvt_program_free(small);
    hvt_program_free(again);
    return found;
}

static int run_selftest(const struct options *options)
{
    bool found = is_found(options, HVT_LIES);

    return is_found(options, HVT_LOSES_OPS) && found ? 0 : 1;
}

/* ---- options ---- */

static const struct option long_options[] = {
    {"seed", required_argument, NULL, 's'},    {"programs", required_argument, NULL, 'n'},
    {"seconds", required_argument, NULL, 't'}, {"ranks", required_argument, NULL, 'r'},
    {"workers", required_argument, NULL, 'w'}, {"program", required_argument, NULL, 'p'},
    {"repeat", required_argument, NULL, 'k'},  {"verbose", no_argument, NULL, 'v'},
    {"selftest", no_argument, NULL, 'x'},      {NULL, 0, NULL, 0}};

static bool parse_ranks(const char *text, struct options *o)
{
    int read = sscanf(text, "%d-%d", &o->ranks_least, &o->ranks_most);

    if (read == 1)
        o->ranks_most = o->ranks_least;
    return read >= 1 && o->ranks_least >= 1 && o->ranks_most <= HVT_RANKS &&
           o->ranks_least <= o->ranks_most;
}

static bool parse_one(int option, struct options *o)
{
    switch (option) {
    case 's':
        o->seed = strcmp(optarg, "clock") ? strtoull(optarg, NULL, 0) : (uint64_t)time(NULL);
        return true;
    case 'n':
        o->programs = strtoull(optarg, NULL, 0);
        return o->programs > 0;
    case 't':
        o->seconds = strtoll(optarg, NULL, 0);
        return o->seconds > 0;
    case 'r':
        return parse_ranks(optarg, o);
    case 'w':
        o->workers = atoi(optarg);
        return o->workers >= 1 && o->workers < WORKERS_MOST;
    case 'p':
        o->program = optarg;
        return true;
    case 'k':
        o->repeat = atoi(optarg);
        return o->repeat >= 1;
    case 'v':
        return o->verbose = true;
    case 'x':
        return o->selftest = true;
    default:
        return false;
    }
}

static void clean_environment(void)
{
    static const char *const names[] = {
        "RANK",     "WORLD_SIZE", "LOCAL_RANK",  "LOCAL_WORLD_SIZE", "HVD_JOB_ID",
        "HVD_RANK", "HVD_SIZE",   "HVD_JOB_KEY", "NOTIFY_SOCKET"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

int main(int argc, char **argv)
{
    struct options options = {
        .seed = 1, .ranks_least = 1, .ranks_most = HVT_RANKS, .workers = 2, .repeat = 1};
    sigset_t child;
    int option, rc;

    while ((option = getopt_long(argc, argv, "", long_options, NULL)) >= 0) {
        if (!parse_one(option, &options)) {
            fprintf(stderr, "usage: hvt-property [--seed S|clock] [--programs N] [--seconds T] "
                            "[--ranks A-B] [--workers W] [--verbose]\n"
                            "       hvt-property --program FILE [--repeat N]\n"
                            "       hvt-property --selftest\n");
            return 2;
        }
    }
    clean_environment();
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    if (!start_hvdd()) {
        fprintf(stderr, "hvt-property: hvdd does not start; is it in ../bin of this program?\n");
        show_log();
        return 1;
    }
    if (options.program)
        rc = run_file(&options);
    else
        rc = options.selftest ? run_selftest(&options) : run_normally(&options);
    return stop_hvdd() ? rc : 1;
}

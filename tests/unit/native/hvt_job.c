/* SPDX-License-Identifier: Apache-2.0
 * See hvt_job.h. */
#include "hvt_job.h"

#include "fake_tensorflow.h"
#include "python/native/crew.h"
#include "python/native/slab.h"
#include "tests/unit/hvt_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#define READY_MS 30000

/* ---- hvdd ---- */

static void run_hvdd(const struct hvt_job *job, int ready)
{
    char path[PATH_MAX], runtime[128], log[128], fd[32];
    snprintf(path, sizeof path, "%s/bin/hvdd", getenv("HVD_BUILD_DIR"));
    snprintf(runtime, sizeof runtime, "--runtime-dir=%s/run", job->folder);
    snprintf(log, sizeof log, "%s/log", job->folder);
    snprintf(fd, sizeof fd, "--ready-fd=%d", ready);
    int file = open(log, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execl(path, "hvdd", runtime, "--private=yes", "--log-level=error", "--config=/dev/null", fd,
          (char *)NULL);
    _exit(127);
}

static void *slab_of(size_t bytes)
{
    return slab_new(bytes, SLAB_HEAP);
}

void hvt_job_start(struct hvt_job *job)
{
    int pipes[2];
    char byte, address[80];

    memset(job, 0, sizeof *job);
    hvt_tf_set_heap(slab_of);
    snprintf(job->folder, sizeof job->folder, "/tmp/hvt-native-XXXXXX");
    ck_assert_msg(getenv("HVD_BUILD_DIR") != NULL,
                  "HVD_BUILD_DIR says where hvdd is; ctest sets it");
    ck_assert_ptr_nonnull(mkdtemp(job->folder));
    snprintf(address, sizeof address, "%s/run", job->folder);
    setenv("HVD_ADDRESS", address, 1);
    ck_assert_int_eq(pipe(pipes), 0);
    fcntl(pipes[0], F_SETFD, FD_CLOEXEC);
    job->hvdd = fork();
    if (job->hvdd == 0)
        run_hvdd(job, pipes[1]);
    close(pipes[1]);
    struct pollfd ready = {.fd = pipes[0], .events = POLLIN};
    ck_assert_msg(poll(&ready, 1, READY_MS) == 1 && read(pipes[0], &byte, 1) == 1,
                  "hvdd does not start");
    close(pipes[0]);
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

void hvt_job_stop(struct hvt_job *job)
{
    char path[128], line[512];
    bool said = false;

    kill(job->hvdd, SIGTERM);
    int status = hvt_wait_child(job->hvdd);
    snprintf(path, sizeof path, "%s/log", job->folder);
    FILE *log = fopen(path, "r");
    while (log && fgets(line, sizeof line, log)) {
        said |= strstr(line, "engine") == NULL; /* an engine that a test has killed is an error */
        fprintf(stderr, "# hvdd: %s", line);
    }
    if (log)
        fclose(log);
    remove_folder(job->folder);
    ck_assert_int_eq(status, 0);
    ck_assert(!said);
}

/* ---- the job ---- */

/* NULL: said why. */
static struct hvd_session *open_as(int rank, int size, int number)
{
    struct hvd_options options;
    struct hvd_session *session;
    char name[32];

    snprintf(name, sizeof name, "native-%d", number);
    hvd_options_init(&options);
    options.job = name;
    options.rank = rank;
    options.size = size;
    options.timeout_ns = 30ll * 1000 * 1000 * 1000;
    if (hvd_open(&options, &session) != HVD_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, hvd_last_error());
        return NULL;
    }
    return session;
}

static pid_t start_peer(int rank, int size, const char *script, int number)
{
    char ranks[32], numbers[32];

    snprintf(ranks, sizeof ranks, "%d/%d", rank, size);
    snprintf(numbers, sizeof numbers, "%d", number);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "peer", ranks, script, numbers, (char *)NULL);
        _exit(127);
    }
    return pid;
}

void hvt_job_open(struct hvt_job *job, int size, const char *script, int number)
{
    job->size = size;
    for (int rank = 1; rank < size; rank++)
        job->peers[rank - 1] = start_peer(rank, size, script, number);
    job->session = open_as(0, size, number);
    ck_assert_ptr_nonnull(job->session);
    ck_assert_msg(hvd_barrier(job->session, "all are here") == HVD_OK, "%s", hvd_last_error());
    hvd_tf_attach(job->session);
}

bool hvt_job_close(struct hvt_job *job)
{
    if (!job->session)
        return !job->keeps;
    hvd_tf_park();
    job->keeps = hvd_close(job->session) != HVD_OK;
    hvd_tf_detach(!job->keeps);
    job->session = NULL;
    return !job->keeps;
}

void hvt_job_kill(struct hvt_job *job, int rank)
{
    pid_t pid = job->peers[rank - 1];
    job->peers[rank - 1] = 0;
    kill(pid, SIGKILL);
    int status = hvt_wait_child(pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static int is_engine(int pid)
{
    char path[64], name[32] = "";

    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE *comm = fopen(path, "r");
    if (!comm)
        return 0;
    int read = fscanf(comm, "%31s", name);
    fclose(comm);
    return read == 1 && strcmp(name, "hvdd-engine") == 0;
}

/* The other child of hvdd is its gate. */
void hvt_job_kill_engine(struct hvt_job *job)
{
    char path[64];
    int pid = 0, engine = 0;

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)job->hvdd, (int)job->hvdd);
    FILE *children = fopen(path, "r");
    ck_assert_ptr_nonnull(children);
    while (fscanf(children, "%d", &pid) == 1)
        if (is_engine(pid))
            engine = pid;
    fclose(children);
    ck_assert_int_ne(engine, 0);
    kill(engine, SIGKILL);
}

void hvt_job_join(struct hvt_job *job)
{
    for (int rank = 1; rank < job->size; rank++) {
        if (job->peers[rank - 1])
            ck_assert_msg(hvt_wait_child(job->peers[rank - 1]) == 0, "rank %d failed", rank);
        job->peers[rank - 1] = 0;
    }
}

/* ---- a peer ---- */

void hvt_job_peer(int argc, char **argv, const struct hvt_script *scripts, int count)
{
    int rank, size;

    if (argc != 4 || strcmp(argv[0], "peer") != 0 || sscanf(argv[1], "%d/%d", &rank, &size) != 2)
        return;
    for (int i = 0; i < count; i++) {
        if (strcmp(scripts[i].name, argv[2]) != 0)
            continue;
        struct hvd_session *session = open_as(rank, size, atoi(argv[3]));
        if (!session || hvd_barrier(session, "all are here") != HVD_OK)
            exit(98);
        scripts[i].run(session, atoi(argv[3]));
        hvd_close(session);
        exit(0);
    }
    exit(99);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/tools/hvdrun/hvt_job.h"
#include "tests/unit/hvt_file.h"

#include "base/clock.h"
#include "tests/unit/hvt_listen.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"
#include "tools/hvdrun/agent.h"
#include "tools/hvdrun/channel.h"
#include "tools/hvdrun/options.h"
#include "tools/hvdrun/plain.h"
#include "tools/hvdrun/relay.h"
#include "tools/hvdrun/spread.h"

#include <poll.h>
#include <sys/stat.h>

#define PATIENCE_NS (20 * (int64_t)HVI_NS_SEC)
#define WORDS_MAX   40

bool hvt_job_serves(int argc, char **argv, int *code_p)
{
    const char *given = getenv(HVT_JOB_SILENCE);
    const uint64_t silence_ns =
        given != NULL ? strtoull(given, NULL, 10) * HVI_NS_MS : RUN_SILENCE_NS;
    if (argc == 2 && strcmp(argv[1], "--node") == 0)
        *code_p = run_agent(silence_ns);
    else if (argc == 2 && strcmp(argv[1], "--relay") == 0)
        *code_p = run_relay(silence_ns);
    else
        return false;
    return true;
}

void hvt_job_setup(struct hvt_job *job)
{
    memset(job, 0, sizeof *job);
    snprintf(job->root, sizeof job->root, "/tmp/hvt-job-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(job->root));
    job->listener = hvt_listen(job->root, "admin.sock", SOCK_STREAM);
    job->in_fd = job->out_fd = job->err_fd = -1;
    unsetenv("HVD_ADDRESS");
    unsetenv("HVD_SSH");
    unsetenv("HVD_INTERFACE");
    unsetenv(HVT_JOB_SILENCE);
    setenv("XDG_RUNTIME_DIR", job->root, 1);
}

void hvt_job_teardown(struct hvt_job *job)
{
    DIR *stream = opendir(job->root);
    const struct dirent *entry;
    while ((entry = readdir(stream)) != NULL)
        unlinkat(dirfd(stream), entry->d_name, 0);
    closedir(stream);
    ck_assert_int_eq(rmdir(job->root), 0); /* no directory of a private hvdd is left */
    close(job->listener);
}

void hvt_job_write(struct hvt_job *job, const char *name, const char *content)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", job->root, name);
    hvt_write_file(path, 0700, content);
}

/* ---- the start ---- */

/* In the place of each @ the folder. */
static void fill_in(const struct hvt_job *job, const char *words, char *line_p, size_t size)
{
    size_t used = 0;
    for (; *words != '\0'; words++) {
        const int length = *words == '@' ? snprintf(line_p + used, size - used, "%s", job->root)
                                         : snprintf(line_p + used, size - used, "%c", *words);
        used += (size_t)length;
        ck_assert_uint_lt(used, size);
    }
}

static int launch(int argc, char **argv)
{
    struct run_options options;
    char text[1024];
    if (run_options_parse(argc, argv, &options, text, sizeof text) != 0) {
        fprintf(stderr, "%s\n", text);
        return 2;
    }
    const int code =
        run_hosts_are_spread(&options.places) ? run_spread(&options) : run_plain(&options);
    run_options_fini(&options);
    return code;
}

static int launch_line(const struct hvt_job *job, const char *words, const char *script)
{
    static char line[2048], body[2048];
    char *argv[WORDS_MAX] = {(char[]){"hvdrun"}};
    char *rest;
    int argc = 1;
    fill_in(job, words, line, sizeof line);
    fill_in(job, script, body, sizeof body);
    for (char *word = strtok_r(line, " ", &rest); word != NULL && argc < WORDS_MAX - 4;
         word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    argv[argc++] = (char[]){"/bin/sh"};
    argv[argc++] = (char[]){"-c"};
    argv[argc++] = body;
    return launch(argc, argv);
}

void hvt_job_start(struct hvt_job *job, const char *words, const char *script)
{
    int fds[3][2];
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pipe2(fds[i], O_CLOEXEC), 0);
    job->out[0] = job->err[0] = '\0';
    fflush(NULL);
    job->pid = fork();
    if (job->pid == 0) {
        dup2(fds[0][0], STDIN_FILENO);
        dup2(fds[1][1], STDOUT_FILENO);
        dup2(fds[2][1], STDERR_FILENO);
        for (int i = 0; i < 3; i++) {
            close(fds[i][0]);
            close(fds[i][1]);
        }
        exit(launch_line(job, words, script));
    }
    close(fds[0][0]);
    close(fds[1][1]);
    close(fds[2][1]);
    job->in_fd = fds[0][1];
    job->out_fd = fds[1][0];
    job->err_fd = fds[2][0];
}

/* ---- what it prints ---- */

static void read_into(int *fd, char *text, size_t size)
{
    const size_t used = strlen(text);
    ck_assert_uint_lt(used + 1, size);
    const ssize_t length = read(*fd, text + used, size - 1 - used);
    if (length > 0) {
        text[used + (size_t)length] = '\0';
        return;
    }
    close(*fd);
    *fd = -1;
}

/* False when both are at their end. */
static bool read_some(struct hvt_job *job, uint64_t deadline_ns)
{
    struct pollfd items[] = {{.fd = job->out_fd, .events = POLLIN},
                             {.fd = job->err_fd, .events = POLLIN}};
    if (job->out_fd < 0 && job->err_fd < 0)
        return false;
    if (poll(items, 2, hvi_deadline_poll_ms(deadline_ns)) <= 0) {
        kill(job->pid, SIGKILL);
        ck_abort_msg("it goes on after: %s%s", job->out, job->err);
    }
    if (items[0].revents != 0)
        read_into(&job->out_fd, job->out, sizeof job->out);
    if (items[1].revents != 0)
        read_into(&job->err_fd, job->err, sizeof job->err);
    return true;
}

void hvt_job_await(struct hvt_job *job, const char *text)
{
    const uint64_t deadline_ns = hvi_deadline_after(PATIENCE_NS);
    while (strstr(job->out, text) == NULL && strstr(job->err, text) == NULL)
        ck_assert_msg(read_some(job, deadline_ns), "'%s' is not in: %s%s", text, job->out,
                      job->err);
}

void hvt_job_type(struct hvt_job *job, const char *text)
{
    ck_assert_int_eq((int)write(job->in_fd, text, strlen(text)), (int)strlen(text));
}

int hvt_job_end(struct hvt_job *job)
{
    const uint64_t deadline_ns = hvi_deadline_after(PATIENCE_NS);
    if (job->in_fd >= 0)
        close(job->in_fd);
    job->in_fd = -1;
    while (read_some(job, deadline_ns))
        continue;
    const int status = hvt_wait_child(job->pid);
    job->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return job->code;
}

int hvt_job_run(struct hvt_job *job, const char *words, const char *script)
{
    hvt_job_start(job, words, script);
    return hvt_job_end(job);
}

void hvt_job_expect(const struct hvt_job *job, const char *printed, const char *part)
{
    ck_assert_msg(strstr(printed, part) != NULL, "'%s' is not in what was printed, %s%s", part,
                  job->out, job->err);
}

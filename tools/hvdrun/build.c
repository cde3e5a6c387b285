/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/build.h"

#include "base/clock.h"
#include "tools/hvdrun/self.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_NS (20 * HVI_NS_SEC) /* a Python on a slow file system, not one that hangs */

extern char **environ;

static const struct {
    const char *shown, *module;
} frameworks[RUN_BUILD_FRAMEWORKS] = {
    {"TensorFlow", "tensorflow"}, {"PyTorch", "torch"}, {"MXNet", "mxnet"}};

/* Prints the interpreter, and each module given that is there and has a binding in the package hvd.
 * Finders are asked and nothing is imported; a directory that happens to have the name (its spec
 * has no origin) does not count, nor does the current one. */
static const char question[] = "import sys\n"
                               "sys.path[:] = [place for place in sys.path if place]\n"
                               "def find(name, places=None):\n"
                               "    for finder in sys.meta_path:\n"
                               "        spec = finder.find_spec(name, places)\n"
                               "        if spec is not None:\n"
                               "            return spec if spec.origin else None\n"
                               "hvd = find('hvd')\n"
                               "places = hvd.submodule_search_locations if hvd else None\n"
                               "print(sys.executable)\n"
                               "for name in sys.argv[1:]:\n"
                               "    if places and find('hvd.' + name, places) and find(name):\n"
                               "        print(name)\n";

/* Starts it with our stderr, because what Python complains about helps. An errno, or 0. */
static int start(char *const argv[], int answer_fd, pid_t *pid_p)
{
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return error;
    error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&actions, answer_fd, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawnp(pid_p, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Until end of file. False if that does not come in time; the rest of a long answer is dropped. */
static bool read_answer(int fd, char *answer_p, size_t size)
{
    const uint64_t deadline_ns = hvi_deadline_after((int64_t)ANSWER_NS);
    char surplus[256];
    size_t used = 0;
    for (;;) {
        struct pollfd item = {.fd = fd, .events = POLLIN};
        const int ready = poll(&item, 1, hvi_deadline_poll_ms(deadline_ns));
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return false;
        const bool full = used + 1 == size;
        const ssize_t length =
            read(fd, full ? surplus : answer_p + used, full ? sizeof surplus : size - 1 - used);
        if (length <= 0)
            break;
        used += full ? 0 : (size_t)length;
    }
    answer_p[used] = '\0';
    return true;
}

static void take_answer(char *answer, struct run_build *build)
{
    char *rest;
    const char *line = strtok_r(answer, "\n", &rest);
    if (line != NULL)
        snprintf(build->python, sizeof build->python, "%s", line);
    while ((line = strtok_r(NULL, "\n", &rest)) != NULL)
        for (size_t i = 0; i < RUN_BUILD_FRAMEWORKS; i++)
            build->frameworks[i] |= strcmp(line, frameworks[i].module) == 0;
}

/* The process's answer, once it has ended well; else why there is none. */
static const char *converse(char *const argv[], char *answer_p, size_t size)
{
    int fds[2];
    int status = 0;
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return strerror(errno);
    const int error = start(argv, fds[1], &pid);
    close(fds[1]);
    const bool answered = error == 0 && read_answer(fds[0], answer_p, size);
    close(fds[0]);
    if (error != 0)
        return strerror(error);
    if (!answered)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (!answered)
        return "it did not answer in time";
    return status == 0 ? NULL : "it failed";
}

/* The number behind a word at the beginning of a line; 0 without such a line. */
static int number_of(const char *answer, const char *word)
{
    const size_t length = strlen(word);
    for (const char *line = answer; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, word, length) == 0 && line[length] == ' ')
            return atoi(line + length);
    }
    return 0;
}

bool run_build_has_nccl(void)
{
    char self[PATH_MAX], program[PATH_MAX + 32], answer[8192];
    run_self_path(self, sizeof self);
    char *slash = strrchr(self, '/');
    if (slash != NULL)
        *slash = '\0';
    snprintf(program, sizeof program, "%s/../libexec/hvdd/hvdd-gpu", self);
    char *const argv[] = {program, (char[]){"--can"}, NULL};
    return access(program, X_OK) == 0 && converse(argv, answer, sizeof answer) == NULL &&
           number_of(answer, "kernels") > 0 && number_of(answer, "driver") > 0 &&
           number_of(answer, "nccl") > 0;
}

int run_build_ask(struct run_build *build_p, char *text_p, size_t text_size)
{
    char answer[1024];
    const char *named = getenv("HVDRUN_PYTHON");
    const char *python = named != NULL && named[0] != '\0' ? named : "python3";
    char *argv[4 + RUN_BUILD_FRAMEWORKS] = {(char *)(uintptr_t)python, (char[]){"-c"},
                                            (char *)(uintptr_t)question};
    for (size_t i = 0; i < RUN_BUILD_FRAMEWORKS; i++)
        argv[3 + i] = (char *)(uintptr_t)frameworks[i].module;
    *build_p = (struct run_build){.frameworks = {false}};
    snprintf(build_p->python, sizeof build_p->python, "%s", python);
    const char *why = converse(argv, answer, sizeof answer);
    if (why == NULL) {
        take_answer(answer, build_p);
        return 0;
    }
    snprintf(text_p, text_size,
             "cannot ask %s which frameworks there are: %s; name a Python in HVDRUN_PYTHON", python,
             why);
    return -1;
}

void run_build_print(FILE *out, const char *name, const char *version,
                     const struct run_build *build)
{
    fprintf(out, "%s v%s:\n\nAvailable Frameworks:\n", name, version);
    for (size_t i = 0; i < RUN_BUILD_FRAMEWORKS; i++)
        fprintf(out, "    [%c] %s\n", build->frameworks[i] ? 'X' : ' ', frameworks[i].shown);
    fprintf(out,
            "\n"
            "Available Controllers:\n"
            "    [ ] MPI\n"
            "    [ ] Gloo\n"
            "    [X] hvdd\n"
            "\n"
            "Available Tensor Operations:\n"
            "    [%c] NCCL\n"
            "    [ ] DDL\n"
            "    [ ] CCL\n"
            "    [ ] MPI\n"
            "    [ ] Gloo\n"
            "    [X] hvdd\n",
            build->has_nccl ? 'X' : ' ');
}

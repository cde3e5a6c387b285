/* SPDX-License-Identifier: Apache-2.0
 * Pretends to be the hvdd that the library starts: takes its arguments, serves until its directory's file "stop" exists
 * (or ten seconds have passed), and writes down what it was given. With HVT_FAKE_HVDD=fail it ends before it is ready,
 * with =hang it never gets ready. */
#include "base/clock.h"
#include "fake.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *value_of(int argc, char **argv, const char *option)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], option) == 0)
            return argv[i + 1];
    fprintf(stderr, "no %s\n", option);
    exit(2);
}

/* One line per fact. */
static void write_facts(const char *dir, int argc, char **argv, int ready_fd)
{
    char path[256];
    snprintf(path, sizeof path, "%s/facts", dir);
    FILE *file = fopen(path, "w");
    if (!file)
        exit(2);
    fprintf(file, "arguments");
    for (int i = 1; i < argc; i++)
        fprintf(file, " %s", argv[i]);
    fprintf(file, "\nparent %s\n", getppid() == getsid(0) ? "the shell" : "none of ours");
    fprintf(file, "notify %s\n", getenv("NOTIFY_SOCKET") ? "kept" : "dropped");
    for (int fd = 3; fd < 1000; fd++)
        if (fd != ready_fd && fd != fileno(file) && fcntl(fd, F_GETFD) >= 0)
            fprintf(file, "descriptor %d\n", fd);
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    fprintf(file, "mask %s\n", sigismember(&mask, SIGTERM) ? "inherited" : "empty");
    fclose(file);
}

int main(int argc, char **argv)
{
    struct hvt_fake_script script = {0};
    const char *dir = value_of(argc, argv, "--runtime-dir");
    const char *mode = getenv("HVT_FAKE_HVDD");
    int ready_fd = atoi(value_of(argc, argv, "--ready-fd"));
    uint64_t deadline_ns = hvi_deadline_after(10000000000);
    char stop[256];
    if (mode && strcmp(mode, "fail") == 0) {
        fprintf(stderr, "about to fail\nno luck\n");
        return 1;
    }
    snprintf(stop, sizeof stop, "%s/stop", dir);
    if (!mode || strcmp(mode, "hang") != 0) {
        write_facts(dir, argc, argv, ready_fd);
        struct hvt_fake *fake = hvt_fake_start_at(&script, dir);
        if (write(ready_fd, "\n", 1) != 1)
            return 1;
        while (access(stop, F_OK) != 0 && !hvi_deadline_passed(deadline_ns))
            usleep(2000);
        hvt_fake_stop(fake);
    }
    while (access(stop, F_OK) != 0 && !hvi_deadline_passed(deadline_ns))
        usleep(2000);
    unlink(stop);
    return 0;
}

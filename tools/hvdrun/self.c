/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/self.h"

#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define FDS_PER_RANK 5u
#define FDS_SPARE    64u

void run_self_fill_fds(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= 2);
    if (fd > 2)
        close(fd);
}

int run_self_open_signals(struct run_heritage *heritage_p)
{
    static const int handled[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                  SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
    sigset_t set;
    struct sigaction action;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++)
        if (sigaction(handled[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&set, handled[i]);
    sigprocmask(SIG_BLOCK, &set, &heritage_p->mask);
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, &heritage_p->pipe_action);
    action.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &action, &heritage_p->child_action);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

bool run_self_asks_to_end(int signal_number)
{
    bool asks = false;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        asks |= signal_number == ends[i];
    return asks;
}

int run_self_open_ends(void)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        sigaddset(&set, ends[i]);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int run_self_take_end(int ends_fd)
{
    struct signalfd_siginfo info;
    return read(ends_fd, &info, sizeof info) == (ssize_t)sizeof info ? (int)info.ssi_signo : 0;
}

void run_self_raise_fds(struct run_heritage *heritage, int ranks)
{
    struct rlimit limit;
    const rlim_t wanted = FDS_PER_RANK * (rlim_t)ranks + FDS_SPARE;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    heritage->nofile_soft = limit.rlim_cur;
    if (limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
}

void run_self_random_hex(char *text_p, size_t length)
{
    unsigned char bytes[32];
    size_t have = 0;
    while (have < sizeof bytes) {
        const ssize_t got = getrandom(bytes + have, sizeof bytes - have, 0);
        if (got > 0)
            have += (size_t)got;
    }
    for (size_t i = 0; i < length; i++)
        text_p[i] = "0123456789abcdef"[bytes[i % sizeof bytes] >> (i / sizeof bytes * 4) & 15];
    text_p[length] = '\0';
}

void run_self_path(char *path_p, size_t size)
{
    const ssize_t length = readlink("/proc/self/exe", path_p, size - 1);
    path_p[length > 0 ? length : 0] = '\0';
}

/* SPDX-License-Identifier: Apache-2.0
 * The side of a role: records, messages, other processes. Nothing here knows CUDA. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

void probe_role_begin(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == 1)
        _exit(PROBE_FAILED); /* the starter died before the line above */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    fcntl(PROBE_REPORT_FD, F_SETFD, FD_CLOEXEC);
    fcntl(PROBE_PEER_FD, F_SETFD, FD_CLOEXEC);
}

static void record(char kind, const char *format, va_list list)
    __attribute__((format(printf, 2, 0)));

/* One line in one write: shorter than PIPE_BUF, hence never mixed with another role's. */
static void record(char kind, const char *format, va_list list)
{
    char line[1024] = {kind, ' '};
    vsnprintf(line + 2, sizeof line - 3, format, list);
    for (char *c = line; *c; c++) {
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    }
    strcat(line, "\n");
    while (write(PROBE_REPORT_FD, line, strlen(line)) < 0 && errno == EINTR)
        ;
}

static void write_record(char kind, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void write_record(char kind, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    record(kind, format, list);
    va_end(list);
}

void probe_figure(double value, const char *unit, const char *name, ...)
{
    char full[128];
    va_list list;
    va_start(list, name);
    vsnprintf(full, sizeof full, name, list);
    va_end(list);
    write_record('F', "%s %.6g %s", full, value, unit);
}

void probe_answer(const char *text, const char *name, ...)
{
    char full[128];
    va_list list;
    va_start(list, name);
    vsnprintf(full, sizeof full, name, list);
    va_end(list);
    write_record('A', "%s %s", full, text);
}

void probe_fact(const char *name, const char *text)
{
    write_record('I', "%s %s", name, text);
}

void probe_note(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    record('N', format, list);
    va_end(list);
}

void probe_step(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    record('S', format, list);
    va_end(list);
}

void probe_refuse(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    record('R', format, list);
    va_end(list);
    _exit(PROBE_REFUSED);
}

void probe_fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    record('E', format, list);
    va_end(list);
    _exit(PROBE_FAILED);
}

double probe_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

void probe_sleep_us(double us)
{
    struct timespec t = {.tv_sec = (time_t)(us / 1e6)};
    t.tv_nsec = (long)((us - (double)t.tv_sec * 1e6) * 1e3);
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double probe_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof values[0], by_value);
    return values[count / 2];
}

void probe_percentiles(double *values, int count, const char *unit, const char *name)
{
    probe_figure(probe_median(values, count), unit, "%s_p50", name);
    probe_figure(values[count * 99 / 100], unit, "%s_p99", name);
}

double probe_status_kib(pid_t pid, const char *field)
{
    char path[64], line[256];
    double kib = -1;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return -1;
    size_t n = strlen(field);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, field, n) == 0 && line[n] == ':')
            kib = strtod(line + n + 1, NULL);
    }
    fclose(f);
    return kib;
}

struct probe_peer probe_start_program(char *argv[], int count)
{
    struct probe_peer peer = {.pid = -1};
    char fd_text[16];
    int pair[2];
    posix_spawn_file_actions_t actions;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        probe_fail("socketpair: %s", strerror(errno));
    snprintf(fd_text, sizeof fd_text, "%d", PROBE_PEER_FD);
    argv[count] = "--fd";
    argv[count + 1] = fd_text;
    argv[count + 2] = NULL;
    /* Above the two fixed numbers, so that neither dup2 hits what the other still needs. */
    int theirs = fcntl(pair[1], F_DUPFD_CLOEXEC, 10);
    int report = fcntl(PROBE_REPORT_FD, F_DUPFD_CLOEXEC, 10);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, report, PROBE_REPORT_FD);
    posix_spawn_file_actions_adddup2(&actions, theirs, PROBE_PEER_FD);
    int error = posix_spawnp(&peer.pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    close(theirs);
    close(report);
    if (error)
        probe_fail("cannot start %s: %s", argv[0], strerror(error));
    peer.fd = pair[0];
    return peer;
}

void probe_say(int fd, const struct probe_msg *m, int passed)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)m, .iov_len = sizeof *m};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1};
    if (passed >= 0) {
        h.msg_control = control.bytes;
        h.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &passed, sizeof passed);
    }
    if (sendmsg(fd, &h, MSG_NOSIGNAL) != (ssize_t)sizeof *m)
        probe_fail("cannot send \"%s\": %s", m->verb, strerror(errno));
}

void probe_say_verb(int fd, const char *verb)
{
    struct probe_msg m = {0};
    snprintf(m.verb, sizeof m.verb, "%s", verb);
    probe_say(fd, &m, -1);
}

static int receive(int fd, struct probe_msg *m_p, int *passed_p)
{
    struct iovec part = {.iov_base = m_p, .iov_len = sizeof *m_p};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr h = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(fd, &h, MSG_CMSG_CLOEXEC);
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return 0;
    if (n != (ssize_t)sizeof *m_p)
        probe_fail("a message of %zd bytes", n);
    int got = -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&h);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(&got, CMSG_DATA(c), sizeof got);
    if (passed_p)
        *passed_p = got;
    else if (got >= 0)
        close(got);
    m_p->verb[sizeof m_p->verb - 1] = 0;
    return 1;
}

int probe_listen(int fd, double wait_s, struct probe_msg *m_p, int *passed_p)
{
    double end = probe_now_us() + wait_s * 1e6;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        double left_ms = (end - probe_now_us()) / 1e3;
        int n = poll(&p, 1, left_ms > 0 ? (int)left_ms + 1 : 0);
        if (n > 0)
            return receive(fd, m_p, passed_p);
        if (n == 0)
            return -1;
        if (errno != EINTR)
            probe_fail("poll: %s", strerror(errno));
    }
}

void probe_expect(int fd, const char *verb, struct probe_msg *m_p, int *passed_p)
{
    struct probe_msg m;
    int got = probe_listen(fd, PROBE_WAIT_S, &m, passed_p);
    if (got == 0)
        probe_fail("the other process ended while \"%s\" was awaited", verb);
    if (got < 0)
        probe_fail("no \"%s\" from the other process in %g s", verb, PROBE_WAIT_S);
    if (strcmp(m.verb, verb) != 0)
        probe_fail("\"%s\" from the other process, not \"%s\"", m.verb, verb);
    if (m_p)
        *m_p = m;
}

int probe_end(struct probe_peer *peer, double wait_s)
{
    double end = probe_now_us() + wait_s * 1e6;
    int status;
    for (;;) {
        pid_t got = waitpid(peer->pid, &status, WNOHANG);
        if (got == peer->pid)
            break;
        if (got < 0 && errno != EINTR)
            probe_fail("waitpid: %s", strerror(errno));
        if (probe_now_us() > end)
            probe_fail("process %d did not end in %g s", (int)peer->pid, wait_s);
        probe_sleep_us(200);
    }
    close(peer->fd);
    peer->fd = -1;
    return status;
}

int probe_shared_page(size_t bytes)
{
    int fd = memfd_create("probe", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
        probe_fail("memfd: %s", strerror(errno));
    return fd;
}

void *probe_map_page(int fd, size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        probe_fail("mmap: %s", strerror(errno));
    return p;
}

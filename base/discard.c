/* SPDX-License-Identifier: Apache-2.0 */
#include "base/discard.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utlist.h>

#define BATCH_NS    (50 * HVI_NS_MS)
#define HELPERS_MAX 64u               /* that have not ended yet */
#define WORKERS_MAX (HELPERS_MAX / 2) /* of these, for users (hvi_discard_fork) */
#define WORKERS_OF  8u                /* for one of them */

struct hvi_helper {
    struct hvi_discard *discard;
    struct hvi_helper *prev, *next;
    sd_event_source *exit;
    void (*failed)(void *user, uint64_t number); /* NULL: it closes connections */
    void *user;
    uint64_t number;
    uint32_t uid;
};

/* ---- helpers ---- */

static void helper_free(struct hvi_helper *helper)
{
    struct hvi_discard *discard = helper->discard;

    DL_DELETE(discard->helpers, helper);
    discard->helper_count--;
    sd_event_source_disable_unref(helper->exit);
    free(helper);
}

static int on_end(sd_event_source *source, const siginfo_t *info, void *user)
{
    const struct hvi_helper helper = *(struct hvi_helper *)user;

    (void)source;
    helper_free(user);
    if (helper.failed != NULL && (info->si_code != CLD_EXITED || info->si_status != 0))
        helper.failed(helper.user, helper.number);
    return 0;
}

static int by_number(const void *a, const void *b)
{
    int one = *(const int *)a, two = *(const int *)b;

    return (one > two) - (one < two);
}

/* Standard error stays, for sanitizers. */
static void close_others(int *fds, uint32_t count)
{
    int next = 3;

    qsort(fds, count, sizeof(*fds), by_number);
    for (uint32_t i = 0; i < count; i++) {
        if (fds[i] > next)
            close_range((unsigned)next, (unsigned)fds[i] - 1, 0);
        next = fds[i] + 1;
    }
    close_range((unsigned)next, ~0u, 0);
}

static pid_t fork_helper(struct hvi_discard *discard, int *fds, uint32_t count,
                         const struct hvi_helper *what)
{
    struct hvi_helper *helper =
        discard->helper_count < HELPERS_MAX ? calloc(1, sizeof(*helper)) : NULL;
    pid_t pid = helper == NULL ? -1 : fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close_others(fds, count);
        return 0;
    }
    if (pid < 0) {
        free(helper);
        return -1;
    }
    *helper = *what;
    helper->discard = discard;
    DL_APPEND(discard->helpers, helper);
    discard->helper_count++;
    /* Where it cannot be watched, it stays a zombie until hvdd ends, and counts. */
    sd_event_add_child(discard->event, &helper->exit, pid, WEXITED, on_end, helper);
    return pid;
}

pid_t hvi_discard_fork(struct hvi_discard *discard, int *fds, uint32_t count, uint32_t uid,
                       void (*failed)(void *user, uint64_t number), void *user, uint64_t number)
{
    const struct hvi_helper what = {.failed = failed, .user = user, .number = number, .uid = uid};
    const struct hvi_helper *helper;
    uint32_t all = 0, own = 0;

    DL_FOREACH(discard->helpers, helper)
    {
        all += helper->failed != NULL;
        own += helper->failed != NULL && helper->uid == uid;
    }
    return all < WORKERS_MAX && own < WORKERS_OF ? fork_helper(discard, fds, count, &what) : -1;
}

/* ---- connections ---- */

static void release_all(struct hvi_discard *discard)
{
    const struct hvi_helper what = {.failed = NULL};
    int pipe_fds[2], kept[HVI_DISCARDS_MAX + 1];
    char byte;
    pid_t pid;

    if (discard->count == 0 || pipe2(pipe_fds, O_CLOEXEC) != 0)
        return;
    memcpy(kept, discard->fds, discard->count * sizeof(kept[0]));
    kept[discard->count] = pipe_fds[0];
    pid = fork_helper(discard, kept, discard->count + 1, &what);
    if (pid == 0) {
        while (read(pipe_fds[0], &byte, 1) < 0 && errno == EINTR) {
        }
        _exit(0);
    }
    for (uint32_t i = 0; pid > 0 && i < discard->count; i++)
        close(discard->fds[i]);
    if (pid > 0)
        discard->count = 0;
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    discard->released_ns = hvi_clock_ns();
}

static int on_batch(sd_event_source *source, uint64_t usec, void *user)
{
    struct hvi_discard *discard = user;

    (void)usec;
    release_all(discard);
    sd_event_source_set_time_relative(source, BATCH_NS / 1000);
    sd_event_source_set_enabled(source, discard->count > 0 ? SD_EVENT_ONESHOT : SD_EVENT_OFF);
    return 0;
}

static void release_soon(struct hvi_discard *discard)
{
    if (hvi_clock_ns() - discard->released_ns >= BATCH_NS || discard->count == HVI_DISCARDS_MAX)
        release_all(discard);
    if (discard->count == 0)
        return;
    if (discard->batch == NULL)
        sd_event_add_time_relative(discard->event, &discard->batch, CLOCK_MONOTONIC,
                                   BATCH_NS / 1000, 1000, on_batch, discard);
    else
        sd_event_source_set_enabled(discard->batch, SD_EVENT_ONESHOT);
}

/* No message lies in it. An empty message has credentials where they are asked for, which an end of file has not. */
static bool is_empty(int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(struct ucred))];
    } control;
    const int on = 1;
    bool reset = false;

    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0)
        return false;
    for (;;) {
        struct msghdr header = {.msg_control = &control, .msg_controllen = sizeof(control)};
        ssize_t length = recvmsg(fd, &header, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (length < 0 && errno == ECONNRESET && !reset) {
            reset = true;
            continue;
        }
        return length < 0 ? errno == EAGAIN : length == 0 && header.msg_controllen == 0;
    }
}

static void release(struct hvi_discard *discard, int fd)
{
    if (discard->count == HVI_DISCARDS_MAX)
        release_soon(discard);
    if (discard->count == HVI_DISCARDS_MAX) {
        HVI_LOG(HVI_LOG_ERROR, "discard", "no-helper",
                "no helper can be forked to close connections of strangers, which may take long",
                "helpers=%u", discard->helper_count);
        close(fd);
        return;
    }
    discard->fds[discard->count++] = fd;
    release_soon(discard);
}

void hvi_discard(struct hvi_discard *discard, int fd, bool handed_over)
{
    char byte;

    if (!handed_over)
        shutdown(fd, SHUT_RD); /* nothing more can come */
    if (handed_over ? recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN
                    : is_empty(fd))
        close(fd);
    else
        release(discard, fd);
}

void hvi_discard_stream(struct hvi_discard *discard, int fd)
{
    char byte;

    shutdown(fd, SHUT_RD);
    if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
        close(fd);
    else
        release(discard, fd);
}

void hvi_discard_close(struct hvi_discard *discard)
{
    release_all(discard);
    discard->batch = sd_event_source_disable_unref(discard->batch);
    while (discard->helpers != NULL)
        helper_free(discard->helpers);
}

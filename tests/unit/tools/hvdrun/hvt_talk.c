/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/tools/hvdrun/hvt_talk.h"

#include "base/clock.h"
#include "base/fate.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <stdarg.h>
#include <sys/socket.h>

#define PATIENCE_NS (20 * (int64_t)HVI_NS_SEC)

static void gather(struct hvt_talk *talk, uint32_t stream, const unsigned char *data, size_t bytes)
{
    char *to = talk->output[stream - 1];
    const size_t used = strlen(to);
    ck_assert_uint_lt(used + bytes, sizeof talk->output[0]);
    memcpy(to + used, data, bytes);
    to[used + bytes] = '\0';
}

static bool take(void *context, struct hvi_launch_msg *msg, char *text_p, size_t text_size)
{
    struct hvt_talk *talk = context;
    (void)text_p, (void)text_size;
    if (msg->kind == HVI_LAUNCH_OUTPUT) {
        gather(talk, msg->data.stream, msg->data.data, msg->data.bytes);
        return true;
    }
    if (msg->kind == HVI_LAUNCH_UP) {
        gather(talk, msg->pass.stream, msg->pass.data, msg->pass.bytes);
        return true;
    }
    ck_assert_uint_lt(talk->waiting, HVT_TALK_PAST);
    talk->next[talk->waiting++] = *msg;
    *msg = (struct hvi_launch_msg){.kind = HVI_LAUNCH_BEAT}; /* what it owns is ours now */
    return true;
}

/* False at the end of what comes. */
static bool read_some(struct hvt_talk *talk, uint64_t deadline_ns)
{
    struct pollfd item = {.fd = talk->channel.fd, .events = POLLIN};
    if (talk->channel.out.pending.used > 0)
        item.events |= POLLOUT;
    ck_assert_msg(poll(&item, 1, hvi_deadline_poll_ms(deadline_ns)) > 0, "nothing more comes");
    if ((item.revents & POLLOUT) != 0)
        run_sink_flush(&talk->channel.out);
    if ((item.revents & ~POLLOUT) == 0)
        return true;
    const enum run_channel_state state =
        run_channel_read(&talk->channel, take, talk, talk->complaint, sizeof talk->complaint);
    ck_assert_msg(state != RUN_CHANNEL_BROKEN, "%s", talk->complaint);
    return state == RUN_CHANNEL_OPEN;
}

struct hvi_launch_msg hvt_talk_next(struct hvt_talk *talk)
{
    const uint64_t deadline_ns = hvi_deadline_after(PATIENCE_NS);
    while (talk->waiting == 0)
        ck_assert_msg(read_some(talk, deadline_ns), "it has ended without a word");
    const struct hvi_launch_msg msg = talk->next[0];
    memmove(talk->next, talk->next + 1, --talk->waiting * sizeof *talk->next);
    return msg;
}

struct hvi_launch_msg hvt_talk_expect(struct hvt_talk *talk, enum hvi_launch_kind kind)
{
    const struct hvi_launch_msg msg = hvt_talk_next(talk);
    const bool worded = msg.kind == HVI_LAUNCH_FAILED || msg.kind == HVI_LAUNCH_SAY;
    ck_assert_msg(msg.kind == kind, "message %d instead of %d: %s", (int)msg.kind, (int)kind,
                  worded ? msg.text.text : "");
    return msg;
}

void hvt_talk_gather(struct hvt_talk *talk, uint32_t stream, size_t length)
{
    const uint64_t deadline_ns = hvi_deadline_after(PATIENCE_NS);
    while (strlen(talk->output[stream - 1]) < length)
        ck_assert_msg(read_some(talk, deadline_ns), "it has ended after '%s'",
                      talk->output[stream - 1]);
}

void hvt_talk_send(struct hvt_talk *talk, const struct hvi_launch_msg *msg)
{
    ck_assert_int_eq(run_channel_send(&talk->channel, msg), HVI_OK);
}

void hvt_talk_start_for(struct hvt_talk *talk, int (*serve)(uint64_t silence_ns),
                        uint64_t silence_ns)
{
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    memset(talk, 0, sizeof *talk);
    talk->next = calloc(HVT_TALK_PAST, sizeof *talk->next);
    ck_assert_ptr_nonnull(talk->next);
    fflush(NULL);
    talk->pid = fork();
    if (talk->pid == 0) {
        dup2(fds[1], STDIN_FILENO);
        dup2(fds[1], STDOUT_FILENO);
        close(fds[0]);
        close(fds[1]);
        exit(serve(silence_ns));
    }
    close(fds[1]);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    talk->channel.fd = fds[0];
    run_sink_init_own(&talk->channel.out, dup(fds[0]));
    struct hvi_launch_msg hello = hvt_talk_expect(talk, HVI_LAUNCH_HELLO);
    ck_assert_str_eq(hello.hello.version, HVD_VERSION_TEXT);
    ck_assert_uint_eq(hello.hello.launch_version, HVI_LAUNCH_VERSION);
}

void hvt_talk_start(struct hvt_talk *talk, int (*serve)(uint64_t silence_ns))
{
    hvt_talk_start_for(talk, serve, RUN_SILENCE_NS);
}

void hvt_talk_go(struct hvt_talk *talk)
{
    while (talk->channel.out.pending.used > 0)
        read_some(talk, hvi_deadline_after(PATIENCE_NS));
    ck_assert_int_eq(shutdown(talk->channel.fd, SHUT_WR), 0);
}

int hvt_talk_end(struct hvt_talk *talk)
{
    const uint64_t deadline_ns = hvi_deadline_after(PATIENCE_NS);
    while (read_some(talk, deadline_ns))
        continue;
    const int status = hvt_wait_child(talk->pid);
    for (size_t i = 0; i < talk->waiting; i++)
        hvi_launch_msg_free(&talk->next[i]);
    free(talk->next);
    run_channel_fini(&talk->channel);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

size_t hvt_talk_words(unsigned char **bytes_p, const char *first, ...)
{
    static unsigned char bytes[4096];
    size_t used = 0;
    va_list words;
    va_start(words, first);
    for (const char *word = first; word != NULL; word = va_arg(words, const char *)) {
        const size_t length = strlen(word) + 1;
        ck_assert_uint_le(used + length, sizeof bytes);
        memcpy(bytes + used, word, length);
        used += length;
    }
    va_end(words);
    *bytes_p = bytes;
    return used;
}

bool hvt_talk_is_over(pid_t pid)
{
    const char state = hvi_process_state(pid);

    return state == 'Z' || state == 'X';
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/channel.h"

#include "base/status.h"
#include "tools/hvdrun/divide.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define READ_BYTES (64u * 1024u)
#define NOISE_MAX  (256u * 1024u) /* what a login shell may print */

int run_channel_send(struct run_channel *channel, const struct hvi_launch_msg *msg)
{
    unsigned char *frame;
    size_t bytes;
    if (channel->out.error != 0)
        return HVI_OK;
    int status = hvi_launch_encode(msg, &frame, &bytes);
    if (status != HVI_OK)
        return status;
    status = run_buffer_append(&channel->out.pending, (const char *)frame, bytes);
    free(frame);
    run_sink_flush(&channel->out);
    return status;
}

void run_channel_greet(struct run_channel *channel)
{
    struct utsname names;
    struct hvi_launch_msg msg = {
        .kind = HVI_LAUNCH_HELLO,
        .hello = {.launch_version = HVI_LAUNCH_VERSION, .version = HVD_VERSION_TEXT}};
    const char *connection = getenv("SSH_CONNECTION"); /* theirs, port, ours, port */
    char ours[64] = "";
    if (connection != NULL && sscanf(connection, "%*s %*s %63s", ours) == 1)
        snprintf(msg.hello.address, sizeof msg.hello.address, "%s", ours);
    snprintf(msg.hello.machine, sizeof msg.hello.machine, "%.63s",
             uname(&names) == 0 ? names.machine : "unknown");
    run_divide_describe("", &msg.hello);
    if (run_buffer_append(&channel->out.pending, HVI_LAUNCH_MARK, strlen(HVI_LAUNCH_MARK)) !=
            HVI_OK ||
        run_channel_send(channel, &msg) != HVI_OK)
        channel->out.error = ENOMEM;
}

/* Drops noise up to and including the mark. False: it has not come, and may not come any more. */
static bool skip_noise(struct run_channel *channel)
{
    static const char mark[] = HVI_LAUNCH_MARK;
    const size_t length = sizeof mark - 1;
    struct run_buffer *in = &channel->in;
    if (channel->marked || in->used == 0)
        return true;
    const char *at = memmem(in->data + in->start, in->used, mark, length);
    if (at == NULL)
        return in->used <= NOISE_MAX;
    run_buffer_consume(in, (size_t)(at - (in->data + in->start)) + length);
    channel->marked = true;
    return true;
}

/* One message, if it has come whole. */
static enum run_channel_state take_frame(struct run_channel *channel, run_channel_take *take,
                                         void *context, bool *found_p, char *text_p, size_t size)
{
    struct hvi_launch_msg msg;
    struct run_buffer *in = &channel->in;
    const unsigned char *bytes = (const unsigned char *)in->data + in->start;
    *found_p = false;
    if (!channel->marked || in->used < HVI_LAUNCH_FRAME_HEAD)
        return RUN_CHANNEL_OPEN;
    const size_t length = hvi_launch_frame_bytes(bytes);
    if (length > HVI_LAUNCH_FRAME_MAX) {
        snprintf(text_p, size, "a message of %zu bytes, at most %u", length, HVI_LAUNCH_FRAME_MAX);
        return RUN_CHANNEL_BROKEN;
    }
    if (in->used < HVI_LAUNCH_FRAME_HEAD + length)
        return RUN_CHANNEL_OPEN;
    const int status = hvi_launch_decode(bytes + HVI_LAUNCH_FRAME_HEAD, length, &msg, text_p, size);
    if (status != HVI_OK) {
        if (status != HVI_ERR_PROTOCOL)
            snprintf(text_p, size, "%s", hvi_status_text(status));
        return RUN_CHANNEL_BROKEN;
    }
    run_buffer_consume(in, HVI_LAUNCH_FRAME_HEAD + length);
    *found_p = take(context, &msg, text_p, size);
    hvi_launch_msg_free(&msg);
    return *found_p ? RUN_CHANNEL_OPEN : RUN_CHANNEL_BROKEN;
}

enum run_channel_state run_channel_feed(struct run_channel *channel, const char *bytes,
                                        size_t length, run_channel_take *take, void *context,
                                        char *text_p, size_t text_size)
{
    bool found = true;
    if (run_buffer_append(&channel->in, bytes, length) != HVI_OK) {
        snprintf(text_p, text_size, "out of memory");
        return RUN_CHANNEL_BROKEN;
    }
    if (!skip_noise(channel)) {
        snprintf(text_p, text_size, "what the login shell prints has no end");
        return RUN_CHANNEL_BROKEN;
    }
    enum run_channel_state state = RUN_CHANNEL_OPEN;
    while (state == RUN_CHANNEL_OPEN && found)
        state = take_frame(channel, take, context, &found, text_p, text_size);
    return state;
}

enum run_channel_state run_channel_read(struct run_channel *channel, run_channel_take *take,
                                        void *context, char *text_p, size_t text_size)
{
    static char bytes[READ_BYTES];
    const ssize_t length = read(channel->fd, bytes, sizeof bytes);
    if (length < 0 && (errno == EINTR || errno == EAGAIN))
        return RUN_CHANNEL_OPEN;
    if (length <= 0)
        return RUN_CHANNEL_END;
    return run_channel_feed(channel, bytes, (size_t)length, take, context, text_p, text_size);
}

void run_channel_fini(struct run_channel *channel)
{
    if (channel->fd >= 0)
        close(channel->fd);
    channel->fd = -1;
    run_buffer_fini(&channel->in);
    run_sink_fini(&channel->out);
    channel->out.owned = false;
    channel->out.error = EPIPE; /* nothing more can be sent */
}

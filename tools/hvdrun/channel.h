/* SPDX-License-Identifier: Apache-2.0
 * The conversation between hvdrun and an agent: frames of launch.proto over two descriptors. Both
 * ends are alike. Main thread; never blocks. */
#ifndef HVI_TOOLS_HVDRUN_CHANNEL_H
#define HVI_TOOLS_HVDRUN_CHANNEL_H

#include "base/clock.h"
#include "proto/launch.h"
#include "tools/hvdrun/output.h"

/* An agent or relay that has heard nothing for so long, and was told no other time yet, is alone. */
#define RUN_SILENCE_NS (120 * HVI_NS_SEC)

struct run_channel {
    int fd; /* is read; -1: at its end */
    struct run_buffer in;
    bool marked;         /* frames follow; before, everything up to HVI_LAUNCH_MARK is noise */
    struct run_sink out; /* is written */
};

enum run_channel_state { RUN_CHANNEL_OPEN, RUN_CHANNEL_END, RUN_CHANNEL_BROKEN };

/* False: the message does not belong here, for the reason in text_p; nothing more is taken. */
typedef bool run_channel_take(void *context, struct hvi_launch_msg *msg, char *text_p,
                              size_t text_size);

/* Puts a message into the queue, which is flushed as far as it goes. HVI_OK, or why it cannot be
 * sent (see hvi_launch_encode). A peer that is gone is seen when reading. */
int run_channel_send(struct run_channel *channel, const struct hvi_launch_msg *msg);
/* What an agent says first. */
void run_channel_greet(struct run_channel *channel);
/* Hands on every message that is complete with these bytes. OPEN, or BROKEN with a sentence. */
enum run_channel_state run_channel_feed(struct run_channel *channel, const char *bytes,
                                        size_t length, run_channel_take *take, void *context,
                                        char *text_p, size_t text_size);
/* The same for what is read now, once. */
enum run_channel_state run_channel_read(struct run_channel *channel, run_channel_take *take,
                                        void *context, char *text_p, size_t text_size);
/* Closes both directions. */
void run_channel_fini(struct run_channel *channel);

#endif

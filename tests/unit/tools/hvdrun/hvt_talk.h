/* SPDX-License-Identifier: Apache-2.0
 * The other side of an agent or relay: it runs in a process of its own, and the test plays the hvdrun that talks to it.
 * What does not come within 20 s fails the test. */
#ifndef HVT_TALK_H
#define HVT_TALK_H

#include "tools/hvdrun/channel.h"

#include <sys/types.h>

#define HVT_TALK_PAST 64

struct hvt_talk {
    pid_t pid;
    struct run_channel channel;
    struct hvi_launch_msg *next; /* what has come and was not looked at yet */
    size_t waiting;
    char output[3][4096]; /* of streams 1 to 3, until a message that is no output */
    char complaint[256];
};

/* Runs `serve` in a new process, and reads as far as the first message, which is a hello. */
void hvt_talk_start(struct hvt_talk *talk, int (*serve)(uint64_t silence_ns));
/* The same with another silence time than RUN_SILENCE_NS. */
void hvt_talk_start_for(struct hvt_talk *talk, int (*serve)(uint64_t silence_ns),
                        uint64_t silence_ns);
void hvt_talk_send(struct hvt_talk *talk, const struct hvi_launch_msg *msg);
/* The next message that is not output, freed with hvi_launch_msg_free. Output before it is gathered. */
struct hvi_launch_msg hvt_talk_next(struct hvt_talk *talk);
/* The same for a message that has to be of this kind. */
struct hvi_launch_msg hvt_talk_expect(struct hvt_talk *talk, enum hvi_launch_kind kind);
/* Gathers output until it is this long. */
void hvt_talk_gather(struct hvt_talk *talk, uint32_t stream, size_t length);
/* As if hvdrun had gone: nothing more is sent. */
void hvt_talk_go(struct hvt_talk *talk);
/* Waits for the end of the process, and gathers what it still says. Its exit code, or -1. */
int hvt_talk_end(struct hvt_talk *talk);

/* Words as messages carry them; the last is NULL. The bytes stay until the next call. */
size_t hvt_talk_words(unsigned char **bytes_p, const char *first, ...);

/* Whether a process has ended, also one that its parent has not reaped yet. */
bool hvt_talk_is_over(pid_t pid);

#endif

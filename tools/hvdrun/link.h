/* SPDX-License-Identifier: Apache-2.0
 * One agent or relay as hvdrun sees it: the process that leads to it (ssh, or the agent itself on this
 * machine), the conversation with it, and what that process writes to stderr. The process may be a
 * relay's (tree.h) instead of ours. Main thread; never blocks. */
#ifndef HVI_TOOLS_HVDRUN_LINK_H
#define HVI_TOOLS_HVDRUN_LINK_H

#include "tools/hvdrun/channel.h"
#include "tools/hvdrun/polls.h"
#include "tools/hvdrun/procs.h"
#include "tools/hvdrun/ssh.h"

/* waiting -> open -> gone; open -> waiting when it is to be tried again. */
enum run_link_state {
    RUN_LINK_WAITING, /* not started, or to be tried again at retry_ns */
    RUN_LINK_OPEN,    /* its process runs */
    RUN_LINK_GONE,
};

/* To a process that a relay starts; `number` is the link's. */
struct run_link_way {
    void *context;
    void (*open)(void *context, uint32_t number, char *const *argv);
    void (*send)(void *context, uint32_t number, const unsigned char *bytes, size_t length);
    void (*hang_up)(void *context, uint32_t number, bool kill);
};

struct run_link {
    const struct run_options *options;
    const struct run_heritage *heritage;
    const struct run_host *host;
    run_channel_take *take;
    void *context; /* of take */
    enum run_ssh_role role;
    const struct run_link_way *way; /* NULL: a process of ours */
    uint32_t number;                /* of the process there */
    size_t passed;                  /* bytes for its stdin that are on their way */
    enum run_link_state state;
    struct run_ssh ssh;
    struct run_proc proc;
    struct hvi_fate fate; /* of the process, once the link is gone */
    bool settled, closed;
    struct run_channel channel;
    struct run_stream errors; /* stderr of the process */
    char words[2048];         /* what came there before run_link_settle */
    unsigned tries;
    uint64_t retry_ns;
    uint64_t heard_ns;   /* when something came; who counts silence may put it off */
    uint64_t kill_at_ns; /* its process goes on without us: killed then; 0: not planned */
    char text[2304];     /* what is wrong: why it never got ready, or what makes no sense */
};

void run_link_init(struct run_link *link_p, const struct run_options *options,
                   const struct run_heritage *heritage, const struct run_host *host,
                   struct run_sink *err);
/* Starts the process. A failure makes it GONE, with a sentence. */
void run_link_start(struct run_link *link);
void run_link_send(struct run_link *link, const struct hvi_launch_msg *msg);
/* What the agent says may still come. */
bool run_link_is_heard(const struct run_link *link);
/* Bytes that the agent has still to read. */
size_t run_link_queued(const struct run_link *link);
/* The start is over: from now on what comes on stderr is shown. */
void run_link_settle(struct run_link *link);

/* `reading`: what the agent sends may be taken. */
void run_link_poll(struct run_link *link, struct run_polls *polls, bool reading);
/* What time brings. */
void run_link_tick(struct run_link *link, uint64_t now_ns);
uint64_t run_link_next_ns(const struct run_link *link);

/* What a relay says of the process: what it has written (stream 1 or 2), that it has read what was sent, that
 * it has ended. A process that ends before it has spoken is tried again as one of ours. */
void run_link_feed(struct run_link *link, uint32_t stream, const char *bytes, size_t length);
void run_link_taken(struct run_link *link, size_t bytes);
void run_link_gone(struct run_link *link, struct hvi_fate fate);
/* The relay is gone, for this reason. */
void run_link_cut(struct run_link *link, const char *why);

/* Ends the conversation: the agent ends everything it has started and goes, and so does ssh; at the
 * latest after the time given they are killed. */
void run_link_close(struct run_link *link, uint64_t patience_ns);
void run_link_fini(struct run_link *link);

#endif

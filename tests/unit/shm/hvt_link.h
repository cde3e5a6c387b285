/* SPDX-License-Identifier: Apache-2.0
 * Both ends of a channel with its bell, messages whose every word can be checked, and the two loops
 * that exchange them the way engine and client do. Used in one process, in threads, and across
 * fork. Failures of the set-up abort the test; the loops return false and say why in their result,
 * because they also run in forked children. */
#ifndef HVT_LINK_H
#define HVT_LINK_H

#include "base/clock.h"
#include "shm/bell.h"
#include "shm/channel.h"
#include "tests/unit/hvt_process.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define HVT_PATIENCE_NS (20 * (int64_t)HVI_NS_SEC)

/* Sanitizers slow the loops down by an order of magnitude. */
#ifdef HVD_SANITIZE
#define HVT_SCALE(count) ((count) / 10)
#else
#define HVT_SCALE(count) (count)
#endif

/* splitmix64. The same seed gives the same numbers; HVT_SEED in the environment changes all of
 * them. */
struct hvt_random {
    uint64_t state;
};
void hvt_random_init(struct hvt_random *random, uint64_t seed);
uint64_t hvt_random_next(struct hvt_random *random);
uint64_t hvt_random_below(struct hvt_random *random, uint64_t limit);

struct hvt_link {
    struct hvi_channel engine; /* made by hvi_channel_create */
    struct hvi_channel client; /* made by hvi_channel_map of a copy of the descriptor */
    struct hvi_region bell;
    struct hvi_bell_page *page;
    int event_fd;
};
void hvt_link_open(struct hvt_link *link, uint32_t channel_index);
void hvt_link_close(struct hvt_link *link);

/* A message is a function of its number. */
void hvt_fill_submission(struct hvi_submission *slot, uint64_t seq);
bool hvt_submission_is(const struct hvi_submission *slot, uint64_t seq);
void hvt_fill_completion(struct hvi_completion *slot, uint64_t seq);
bool hvt_completion_is(const struct hvi_completion *slot, uint64_t seq);

enum hvt_end {
    HVT_DONE,      /* all messages went through */
    HVT_LATE,      /* the deadline passed */
    HVT_LOST_WAKE, /* a long sleep ended although there was something to do */
    HVT_BAD_DATA,  /* a message was not what it should be */
    HVT_PROTOCOL,  /* the view refused the peer's index */
};

/* One side's run. In: the first three. Out: the rest; `done` is also kept up to date while the loop
 * runs. */
struct hvt_run {
    uint64_t total; /* messages to echo, or to send and see completed */
    uint64_t deadline_ns;
    uint64_t sleep_ns; /* longest single sleep; one that lasts this long counts as a lost wake-up */
    uint64_t done;
    uint64_t sleeps;
    uint64_t system_calls;
    enum hvt_end end;
};

/* Engine: copies and checks submissions, answers each with a completion, sleeps on the eventfd. */
void hvt_engine_run(struct hvt_link *link, struct hvt_run *run);

struct hvt_client_style {
    uint32_t window;          /* most ops in flight */
    uint32_t burst;           /* most submissions per publish */
    uint32_t spins;           /* see hvi_wait_policy; 0 with yield_ns 0 sleeps at every chance */
    uint64_t yield_ns;        /* the most; each wait draws its own */
    struct hvt_random random; /* sizes of the bursts, lengths of the yields */
};
/* Client: keeps up to `window` ops in flight, checks completions, sleeps on the futex. */
void hvt_client_run(struct hvt_link *link, struct hvt_client_style *style, struct hvt_run *run);

/* Forks a child that dies with us. Returns 0 in the child. */
pid_t hvt_fork(void);

#endif

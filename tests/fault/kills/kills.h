/* SPDX-License-Identifier: Apache-2.0
 * hvt-kills: what its processes share, and what a job is like. */
#ifndef HVT_KILLS_H
#define HVT_KILLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define KILLS_RANKS 4
#define KILLS_LANES 16
#define KILLS_WRONG 3 /* exit code of a rank with a wrong result */

enum kills_memory { KILLS_MALLOC, KILLS_SHARED, KILLS_ADOPTED };

enum kills_victim {
    KILLS_TRAINER,
    KILLS_ENGINE,
    KILLS_DAEMON,  /* and a trainer when the job has been seen to go on */
    KILLS_EVERYONE /* every rank, at any moment from its start on */
};

/* All of it follows from the seed and the number. */
struct kills_plan {
    uint64_t number, dice; /* dice: for what the ranks decide alike */
    char job[48];
    int size;
    int64_t elements;
    enum kills_memory memory;
    bool named, mixed; /* mixed: all kinds of ops, not allreduce alone */
    uint32_t window;   /* ops that a rank has in flight */
    enum kills_victim victim;
    int rank; /* that is killed */
    uint64_t delay_ns;
};

enum kills_state { KILLS_BEGINS, KILLS_WORKS, KILLS_REFUSED, KILLS_ENDED };

/* Where a rank says how it fares. Its own words but .state, until that says that they can be read. */
struct kills_seat {
    _Atomic int state; /* enum kills_state; release and acquire */
    _Atomic uint64_t done;
    int engine_pid;
    int status; /* KILLS_REFUSED: of hvd_open; KILLS_ENDED: of the op that failed */
    uint64_t at_ns;
    char text[512];
};

uint64_t kills_now_ns(void);
/* The next number of a sequence; and one below `n`. */
uint64_t kills_random(uint64_t *dice);
uint32_t kills_below(uint64_t *dice, uint32_t n);

/* The life of a rank: opens, works until an op fails, closes, exits. */
_Noreturn void kills_be_rank(const char *address, const struct kills_plan *plan, int rank,
                             struct kills_seat *seat);

#endif

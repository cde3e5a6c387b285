/* SPDX-License-Identifier: Apache-2.0
 * Users of admin.sock: how many connections each has, and how often it asks. No descriptor, no event loop. One thread. */
#ifndef HVD_GATE_USERS_H
#define HVD_GATE_USERS_H

#include <stdint.h>
#include <sys/types.h>

struct gate_user {
    uid_t uid;
    struct gate_user *prev, *next;
    uint32_t connections;         /* the caller's to count */
    uint64_t swept_ns;            /* when the caller has looked last which of them are over */
    uint64_t paid_ns;             /* base/rate.h */
    uint64_t second_ns;           /* when the second began in which .asked counts */
    uint32_t asked, asked_before; /* in that second, and in the one before */
};

/* Zero is empty. */
struct gate_users {
    struct gate_user *all;
};

/* The user, made where it is new; valid while it has a connection. NULL: out of memory. */
struct gate_user *gate_users_get(struct gate_users *users, uid_t uid, uint64_t now_ns);
/* 0: the user may ask now, `per_second` times a second after HVI_RANKS_MAX at once; else in how many ns. */
uint64_t gate_user_ask(struct gate_user *user, uint64_t now_ns, uint32_t per_second);
/* The same without asking. */
uint64_t gate_user_wait(const struct gate_user *user, uint64_t now_ns, uint32_t per_second);
/* Requests in the last second or the one that is under way, whichever had more. */
uint32_t gate_user_asked(struct gate_user *user, uint64_t now_ns);
void gate_users_fini(struct gate_users *users);

#endif

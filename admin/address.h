/* SPDX-License-Identifier: Apache-2.0
 * Where hvdd's sockets are, by the same rule as the client library: what the caller names and $HVD_ADDRESS
 * are final; else the first with a live socket of this user's own directory ($XDG_RUNTIME_DIR/hvdd, or
 * /tmp/hvdd-<uid> where that variable names no directory of this user's), /run/hvdd, and /tmp/hvdd-<uid>. Reads the
 * environment. Waits up to a second for a place in the queue of each, where it is full. */
#ifndef HVI_ADMIN_ADDRESS_H
#define HVI_ADMIN_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ADDRESS_DIR_MAX 96 /* so that "<dir>/attach.sock" fits a socket address */

struct address {
    char dir[ADDRESS_DIR_MAX + 1];
    char why[256]; /* when not found: a sentence naming every place that was tried and what was
                      there */
};

/* `chosen` is what the caller names, or NULL. Returns an enum hvi_status: OK; ERR_NO_DAEMON (`why`
 * is set, and `dir` is the first place tried); ERR_INVALID (path too long; `why` is set). */
int address_find(const char *chosen, struct address *address_p);

/* Whether this process may ask at <dir>/root.sock, which a hvdd for all users has for root and for its own user, and where
 * nobody else stands in the queue. */
bool address_is_of_root(const char *dir);
/* 0 when something accepts connections there or on <dir>/admin.sock, else an errno; EPERM also where that is another user's
 * (base/listener.h). EAGAIN: something listens, and its queue was full until then (0: does not wait); whose it is, is
 * not known. */
int address_probe(const char *dir, uint64_t deadline_ns);

#endif

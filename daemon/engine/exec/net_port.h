/* SPDX-License-Identifier: Apache-2.0
 * The transport between nodes: a table of functions, a row for each kind; the lanes of an engine have one. A port is one
 * end of a connection that keeps order. At most one send and one receive are posted at a time; their memory stays until
 * they are over, or the port is closed. One thread at a time, the driver of net_thread.h, but for begin(), end() and
 * count(). Nothing blocks. */
#ifndef ENGINE_WIRE_PORT_H
#define ENGINE_WIRE_PORT_H

#include "daemon/engine/exec/backend.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

/* What becomes of a posted transfer; an error is a negative errno. */
enum engine_wire_progress {
    ENGINE_WIRE_WAITS, /* no byte could be moved now */
    ENGINE_WIRE_MOVED, /* some were */
    ENGINE_WIRE_OVER,  /* all were: nothing is posted any more */
};

/* After a call on a socket that returned -1, for send() and receive() of a row; a socket that is not ready is noted. */
static inline int engine_wire_stopped(bool *ready_p)
{
    if (errno == EINTR)
        return ENGINE_WIRE_MOVED;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
        return errno == EPIPE ? -ECONNRESET : -errno;
    *ready_p = false;
    return ENGINE_WIRE_WAITS;
}

#define ENGINE_WIRE_PACK_BYTES (64u * 1024u) /* most that a port keeps of what is packed */

/* Over every row a work that has failed is over within this: .patience_ns, the tick that sees its end, and what close()
 * waits for. The rest of the second of docs/design/failure.md is for noticing the failure and for telling the ranks. */
#define ENGINE_WIRE_FAILED_NS (700 * HVI_NS_MS)

struct engine_wire_transport {
    const char *name;
    /* Memory that is posted has to have its pages, and a page that goes away meanwhile ends the process. Else receive()
     * and send() say what is missing. */
    bool needs_pages;
    /* How long a work that has failed waits for what of it is being moved, before its lanes are given up. */
    uint64_t patience_ns;

    /* What the ports of an engine share; NULL: they share nothing, and `shared` is NULL. The main thread, before the
     * first port and after the last. `address`: this node's, numeric. HVI_OK, or an error with a sentence. */
    int (*begin)(const char *address, void **shared_p, char text_p[ENGINE_TEXT_BYTES]);
    void (*end)(void *shared);

    /* Takes the connection, whose bytes are sealed with these keys, which are copied; NULL: they are not. NULL
     * without memory: then it is closed. */
    void *(*open)(void *shared, int fd, const struct hvi_seal_keys *keys);
    /* Begins what close() waits for, which alone follows; NULL: it does not wait. */
    void (*cease)(void *port);
    void (*close)(void *port);
    /* The descriptor to wait for, edge-triggered, and what epoll said of it. */
    int (*fd)(const void *port);
    /* Another descriptor to wait for, level-triggered; NULL: there is none. */
    int (*event)(const void *port);
    void (*ready)(void *port, uint32_t events);
    /* `head`, then `body`, which may be empty. */
    void (*post_send)(void *port, const void *head, uint64_t head_bytes, const void *body,
                      uint64_t body_bytes);
    /* Takes a copy, which goes with the next send(), before what is posted by then. False: there is no room for it
     * now, or a send is posted. */
    bool (*pack)(void *port, const void *head, uint64_t head_bytes, const void *body,
                 uint64_t body_bytes);
    /* Whether send() has something to do although nothing is posted: copies that have not gone. */
    bool (*packed)(const void *port);
    /* When nothing is posted. A receive is of what one head, or one body, was to the sender. */
    void (*post_receive)(void *port, void *to, uint64_t bytes);
    /* What is left of the posted receive goes to `to`. False: it cannot; its memory is needed until it is over. */
    bool (*divert)(void *port, void *to);
    /* Of the posted receive: bytes that have not come. */
    uint64_t (*missing)(const void *port);
    /* OVER: nothing is packed any more either. enum engine_wire_progress; -EFAULT: the memory that was posted cannot be read or written;
     * -ECONNRESET: the other end has closed; -EBADMSG: sealed bytes are not those that it has sent. */
    int (*send)(void *port);
    int (*receive)(void *port);
    /* Adds to *row_p what has gone over the port. Any thread, while it is open. */
    void (*count)(const void *port, struct engine_lane_row *row_p);
};

/* TCP, or another stream socket. */
extern const struct engine_wire_transport engine_wire_tcp;
/* UCX; where it was there to build with (HVD_UCX). */
extern const struct engine_wire_transport engine_wire_ucx;

#endif

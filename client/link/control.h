/* SPDX-License-Identifier: Apache-2.0
 * The session's socket after the attach: requests with their acknowledgements, and the engine's
 * notices.
 *
 * A thread that looks at the socket handles all that has arrived, also the acknowledgement that another
 * thread waits for; that one looks at least every few milliseconds. All need the session's lock; the
 * waiting ones give it up meanwhile. */
#ifndef HVD_CLIENT_CONTROL_H
#define HVD_CLIENT_CONTROL_H

#include "proto/wire.h"
#include "shm/region.h"

#include <stdbool.h>
#include <stdint.h>

/* The engine's time to acknowledge: hvdd ends one that stands still before (engine-silence: 5 s, and a second). */
#define CLIENT_ACK_NS (8ll * 1000 * 1000 * 1000)
/* For what a worker does: the engine says after 10 s that it has not, and hvdd ends what stands still before (gpu-silence,
 * engine-silence: 5 s, and a second). */
#define CLIENT_WORKER_NS (12ll * 1000 * 1000 * 1000)
#define CLIENT_DETACH_NS (1ll * 1000 * 1000 * 1000)
#define CLIENT_MEET_NS   (45ll * 1000 * 1000 * 1000) /* a start timeout, and connections */

struct client_link;

/* Receives everything that has arrived; never blocks. End of file ends the session. */
void client_control_look(struct client_link *link);

/* Announces a region under a new id and waits for the engine's word, CLIENT_ACK_NS at most.
 * `process_memory`: it is the process's and not the session's. Sets the last error. HVD_ERR_LIMIT and
 * others as the engine says, HVD_ERR_TIMEOUT, or the session's end. */
int client_control_region_add(struct client_link *link, const struct hvi_region *region,
                              bool process_memory, const char *what, uint32_t *region_id_p);
/* An id for client_control_device_add. */
uint32_t client_control_new_region(struct client_link *link);
/* Announces device memory under this id, with its descriptors, which stay the caller's, and waits until a worker has opened it. With
 * `more` it waits for nothing: more of it follows. After an error the engine is told to forget the id. Errors as above;
 * HVD_ERR_UNSUPPORTED: it cannot be opened, or there is no worker. */
int client_control_device_add(struct client_link *link, uint32_t region_id,
                              const struct hvi_device_memory *memory, const int *fds,
                              uint32_t fd_count, bool more, uint64_t timeout_ns, const char *what);
/* Hands the engine the session's fence page; `fd` stays the caller's. Waits as client_control_region_add does, but
 * CLIENT_WORKER_NS: workers register it. */
int client_control_fence_add(struct client_link *link, int fd, const char *what);
/* Takes a region back and waits until the engine has let go of it; asks again while an op has it there. False: it has not said so, in CLIENT_ACK_NS or ever. */
bool client_control_region_remove(struct client_link *link, uint32_t region_id);
/* As above without waiting. */
void client_control_region_forget(struct client_link *link, uint32_t region_id);
/* Hands the engine a file to write the timeline to; `fd` stays the caller's, `path` is for messages.
 * Waits for its word, CLIENT_ACK_NS at most, and sets the last error. */
int client_control_timeline_start(struct client_link *link, int fd, const char *path,
                                  bool mark_cycles);
int client_control_timeline_stop(struct client_link *link);
/* HVD_OK, or HVD_ERR_UNSUPPORTED if the engine takes no memory of devices; `gpu` is for the sentence. */
int client_control_check_devices(const struct client_link *link, const char *what, const char *gpu);
/* Whether the engine takes memory of devices by fabric handles. */
bool client_control_takes_fabric(const struct client_link *link);
/* Before memory goes to a worker: the log names, once, what the worker does not get of NCCL's variables. */
void client_control_say_unsent(struct client_link *link);

/* The session's lock, for calls that must not be made with it, into the driver of a device. */
void client_control_lock(struct client_link *link);
void client_control_unlock(struct client_link *link);

/* A clean goodbye; the first call says it. Waits for the engine's word, `wait_ns` at most. HVD_OK: the engine and the ranks do not
 * use the session's memory any more. HVD_INPROGRESS: to be called again. HVD_ERR_TIMEOUT: the engine is there and has
 * not answered for CLIENT_DETACH_NS, or for CLIENT_MEET_NS where no op has ended and the job's nodes may not have met; so it may
 * still be at work in that memory. */
int client_control_detach(struct client_link *link, uint64_t wait_ns);

/* Asks for a peer's region. Does not wait: the answer, a PeerRegion, comes when it comes. False: it could
 * not be sent now. */
bool client_control_peer_ask(struct client_link *link, int32_t rank, uint32_t region);

#endif

/* SPDX-License-Identifier: Apache-2.0
 * Connecting to a UNIX socket, and which user listens at its other end. The kernel notes it when that process begins to
 * listen, and a service manager that listens for a daemon is root. Any thread that may read the environment. */
#ifndef HVI_BASE_LISTENER_H
#define HVI_BASE_LISTENER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/un.h>

/* The service's sockets are here. Only root makes names in /run. */
#define HVI_SERVICE_DIR "/run/hvdd"

/* The listener's uid; of a socketpair, the uid of the process that made it. False where the kernel does not tell it. */
bool hvi_listener_uid(int socket_fd, uid_t *uid_p);
/* The listener's uid is this process' effective uid or root's. *uid_p is the listener's uid; (uid_t)-1 where the
 * kernel does not tell it, and the result is false then. */
bool hvi_listener_is_ours(int socket_fd, uid_t *uid_p);
/* The same, or the listener's uid is the service's: the owner of HVI_SERVICE_DIR, the number in HVD_SERVICE_UID, or the owner of
 * `directory`, which is where the user has said that hvdd is. NULL: the user has said nothing. A uid that is not known here
 * (base/uid.h) is believed only where HVD_SERVICE_UID has it. */
bool hvi_listener_may_serve(int socket_fd, const char *directory, uid_t *uid_p);

/* Connects, and makes the socket non-blocking. Where the listener's queue of connections is full, because somebody floods
 * it, the kernel lets those that wait in connect() in by turns, and those that only try would never find a place. 0 or an
 * errno number; EAGAIN: the queue was full until the deadline. After the deadline it only tries. */
int hvi_listener_connect(int socket_fd, const struct sockaddr_un *address, uint64_t deadline_ns);
/* A non-blocking connection to `path` (SOCK_SEQPACKET), at once: its descriptor, or a negative errno; -EAGAIN: the queue is full.
 * The caller checks which user listens. */
int hvi_listener_try(const char *path);

#endif

/* SPDX-License-Identifier: Apache-2.0
 * Whether ordinary memory is better left where it is (HVI_REGION_PROCESS) or copied. */
#ifndef HVD_CLIENT_REMOTE_H
#define HVD_CLIENT_REMOTE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Ordinary memory from this size on may stay where it is. */
#define CLIENT_REMOTE_MIN 32768u

enum client_remote_policy { CLIENT_REMOTE_AUTO, CLIENT_REMOTE_ALWAYS, CLIENT_REMOTE_NEVER };

/* HVD_FOREIGN_MEMORY, or HOROVOD_FOREIGN_MEMORY: "auto", "always", "never"; anything else is
 * auto. */
enum client_remote_policy client_remote_policy(void);
/* For an operand of this size, on huge pages or not. Measures for some milliseconds, once per
 * process, and lets go of `mutex`, which the caller holds, meanwhile. Any thread. */
bool client_remote_wins(enum client_remote_policy policy, uint64_t bytes, bool huge,
                        pthread_mutex_t *mutex);

#endif

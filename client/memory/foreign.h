/* SPDX-License-Identifier: Apache-2.0
 * Whether ordinary memory is better left where it is (HVI_REGION_FOREIGN) or copied. */
#ifndef HVD_CLIENT_FOREIGN_H
#define HVD_CLIENT_FOREIGN_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Ordinary memory from this size on may stay where it is. */
#define CLIENT_FOREIGN_MIN 32768u

enum client_foreign_policy { CLIENT_FOREIGN_AUTO, CLIENT_FOREIGN_ALWAYS, CLIENT_FOREIGN_NEVER };

/* HVD_FOREIGN_MEMORY, or HOROVOD_FOREIGN_MEMORY: "auto", "always", "never"; anything else is
 * auto. */
enum client_foreign_policy client_foreign_policy(void);
/* For an operand of this size, on huge pages or not. Measures for some milliseconds, once per
 * process, and lets go of `mutex`, which the caller holds, meanwhile. Any thread. */
bool client_foreign_wins(enum client_foreign_policy policy, uint64_t bytes, bool huge,
                         pthread_mutex_t *mutex);

#endif

/* SPDX-License-Identifier: Apache-2.0
 * Whether a user id that the kernel tells is the id of one user. A user namespace has numbers for some
 * users of the machine. All others read as the overflow uid there (65534), so two of them look alike. */
#ifndef HVI_BASE_UID_H
#define HVI_BASE_UID_H

#include <stdbool.h>
#include <sys/types.h>

/* False for the overflow uid where this process' user namespace has no number for some users, or
 * where /proc does not say. Any thread. */
bool hvi_uid_is_known(uid_t uid);

#endif

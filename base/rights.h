/* SPDX-License-Identifier: Apache-2.0
 * Capabilities of the calling thread (capabilities(7)). A program calls these before it starts a second one. */
#ifndef HVI_BASE_RIGHTS_H
#define HVI_BASE_RIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include <linux/capability.h> /* CAP_SETUID and the others */

#define HVI_RIGHT(capability) (UINT64_C(1) << (capability))

/* All of `rights` are effective. */
bool hvi_rights_has(uint64_t rights);
/* Gives up every capability that is not in `rights`, for good and for what this process executes. Makes no system call
 * but capget where there is none to give up: a service may not even ask. False with errno. */
bool hvi_rights_keep(uint64_t rights);

#endif

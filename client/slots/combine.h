/* SPDX-License-Identifier: Apache-2.0
 * The last rank's work: a small op, from the payloads in its slot. */
#ifndef HVD_CLIENT_COMBINE_H
#define HVD_CLIENT_COMBINE_H

#include <stdint.h>

struct client_said;
struct client_set;
struct client_slots;

/* The result of what all members have brought, into the slot. */
void client_combine(const struct client_slots *slots, const struct client_set *set,
                    const struct client_said *said, uint32_t slot);
/* How late each rank came: the last one has all the times at hand. */
void client_combine_note_lags(const struct client_slots *slots, const struct client_set *set,
                              uint32_t slot);

#endif

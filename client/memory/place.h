/* SPDX-License-Identifier: Apache-2.0
 * Where a tensor lies, for the engine. Needs the session's lock. */
#ifndef HVD_CLIENT_PLACE_H
#define HVD_CLIENT_PLACE_H

#include <stdbool.h>
#include <stdint.h>

/* Ordinary memory from this size on stays where it is. */
#define CLIENT_FOREIGN_MIN 32768u

struct client_memory;
struct client_operand;

/* Uses [data, data + bytes), a tensor of elements of this size, where it is, if that is possible without
 * a copy. */
bool client_place_direct(struct client_memory *memory, const void *data, uint64_t bytes,
                         uint32_t element, struct client_operand *operand_p);
/* A place for that tensor; *copied_p says that it is one for a copy of it. Gives up the lock when a
 * staging region must be made. Errors as client_staging_get. */
int client_place_tensor(struct client_memory *memory, const char *what, void *data, uint64_t bytes,
                        uint32_t element, struct client_operand *operand_p, bool *copied_p);
/* Shared memory for `bytes` of ordinary memory: inline cells or a staging block. Gives up the lock
 * and fails as above. */
int client_place_scratch(struct client_memory *memory, uint64_t bytes, const char *what,
                         struct client_operand *operand_p);

#endif

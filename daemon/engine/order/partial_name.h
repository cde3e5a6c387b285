/* SPDX-License-Identifier: Apache-2.0
 * What ops of which only some members are part are called: their tensors have numbers (partial.c). Any
 * thread. */
#ifndef ENGINE_ORDER_PARTIAL_NAME_H
#define ENGINE_ORDER_PARTIAL_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENGINE_PARTIAL_ANY 0xffffu /* in a number: no rank */

/* SEND, RECV, SET_OPEN. */
bool engine_partial_is(uint16_t kind);
/* A number as a name: "0-to-1.tag-5", "any-to-1.tag-5", "tag-5". */
void engine_partial_name(uint16_t kind, uint64_t number, char *name_p, size_t size);

#endif

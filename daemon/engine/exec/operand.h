/* SPDX-License-Identifier: Apache-2.0
 * Where a rank's input and output lie, and the processes that such memory may belong to. */
#ifndef ENGINE_EXEC_OPERAND_H
#define ENGINE_EXEC_OPERAND_H

#include "daemon/engine/order/op.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A trainer's process whose own memory operands may lie in, reached with process_vm_readv and
 * process_vm_writev. The engine must never follow an address of it. */
struct engine_process {
    pid_t pid;
    int pid_fd;
    /* Works under way with operands there. The backend's threads count it down, release; acquire in
     * engine_process_end, which waits for 0 after it has set .over. */
    _Atomic uint32_t running;
    _Atomic bool over; /* that memory is not touched any more */
};

struct engine_operand {
    void *address; /* NULL: there is no operand */
    struct engine_process
        *process; /* the address is in that process; NULL: the engine has mapped it */
};

/* A part with its operands. The caller of order/ makes parts as the beginning of one. */
struct engine_share {
    struct engine_part part;
    struct engine_operand in, out;
};

static inline struct engine_share *engine_share_of(const struct engine_part *part)
{
    return (struct engine_share *)(uintptr_t)part;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 * Where a rank's input or output lies, from intake to the backend. The kind follows from the region that
 * the rank has registered, never from what it says of its memory. */
#ifndef ENGINE_EXEC_OPERAND_H
#define ENGINE_EXEC_OPERAND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct engine_region;
struct hvi_fence_page;

/* A trainer's process whose own memory operands may lie in, reached with process_vm_readv and
 * process_vm_writev. The engine must never follow an address of it. */
struct engine_process {
    pid_t pid;
    int pid_fd;
    _Atomic bool over; /* that memory is not touched any more */
};

/* Another node's memory becomes a further kind. */
enum engine_operand_kind {
    ENGINE_OPERAND_NONE,    /* there is no operand */
    ENGINE_OPERAND_MAPPED,  /* the engine has mapped it, at .address */
    ENGINE_OPERAND_PROCESS, /* remote-process memory: .address is one of .process */
    ENGINE_OPERAND_DEVICE,  /* a GPU's: .address is an offset in import .import of worker .worker */
};

struct engine_operand {
    enum engine_operand_kind kind : 8;
    bool late;       /* a transfer that was given up may still write here: it must stay mapped */
    uint16_t worker; /* DEVICE */
    uint32_t import;
    void *address;
    union {
        /* MAPPED, DEVICE: where it lies; a backend does not look at it */
        struct engine_region *region;
        struct engine_process *process; /* PROCESS; it lives as long as the operand */
    };
};

/* Where a rank's stream and a GPU's worker wait for each other (shm/fence.h). */
struct engine_fence {
    struct hvi_fence_page *page; /* NULL: there is none */
    uint32_t id, cell;           /* id: of the page, for workers */
    uint64_t turn;
};

#endif

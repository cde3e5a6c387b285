/* SPDX-License-Identifier: Apache-2.0
 * The device channel: what an engine wants of a GPU's worker, and what the worker has done.
 *
 * One sealed memfd per (worker, engine), made by the worker:
 *
 *   +------------------------------------+ 0
 *   | hvi_device_header                  |
 *   +------------------------------------+ 4096
 *   | commands  HVI_DEVICE_SLOTS x 64    |  engine -> worker
 *   +------------------------------------+
 *   | answers   HVI_DEVICE_DONES x 256   |  worker -> engine
 *   +------------------------------------+
 *
 * A batch is a BATCH slot and the slots behind it, published by one store:
 *
 *   BATCH | WORK MEMBER ... [sizes ...] | WORK MEMBER ... | ...
 *
 * A batch never spans two publications. The worker copies its slots once, validates the copy (imports,
 * ranges, pages) and uses only the copy. Each side keeps masks and sizes in private memory. The worker
 * sleeps on an eventfd; the engine's loop polls another. One thread (or lock) per end; nothing here
 * blocks, allocates or logs after the mapping. */
#ifndef HVI_SHM_DEVICE_H
#define HVI_SHM_DEVICE_H

#include "shm/region.h"
#include "shm/ring.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HVI_DEVICE_MAGIC   0x6563697665644868ull /* "hHdevice" */
#define HVI_DEVICE_SLOTS   8192u
#define HVI_DEVICE_DONES   512u /* the most batches that may be under way */
#define HVI_DEVICE_WORKS   64u  /* most works of a batch */
#define HVI_DEVICE_MEMBERS 64u  /* most members of a work on one GPU */
#define HVI_DEVICE_NONE    0u   /* no import */
#define HVI_DEVICE_TIMED   1u   /* of a batch: its answer has .device_ns, if the worker knows it */

enum hvi_device_command { HVI_DEVICE_BATCH = 1, HVI_DEVICE_WORK, HVI_DEVICE_MEMBER };

struct hvi_device_batch {
    uint32_t command; /* HVI_DEVICE_BATCH */
    uint32_t slots;   /* with this one */
    uint64_t number;  /* 1, 2, 3, ... per channel */
    uint32_t comm;    /* 0: all members of the works are on this GPU */
    uint16_t works;
    uint16_t stream;                /* order domain; not looked at with a communicator */
    uint32_t comm_ranks, comm_rank; /* of this worker; checked against the communicator */
    uint32_t flags;                 /* HVI_DEVICE_TIMED; others mean nothing */
    uint32_t reserved0;
    uint64_t reserved[3];
};
struct hvi_device_work {
    uint32_t command;       /* HVI_DEVICE_WORK */
    uint16_t kind, members; /* members: MEMBER slots that follow, those on this GPU, by set rank */
    uint8_t dtype, reduce_op, flags, reserved0;
    int32_t root;        /* broadcast with a communicator: its rank that has the root; else -1 */
    int32_t root_member; /* index among the members here; -1: elsewhere, or no broadcast */
    uint32_t divisor;    /* an average's: members of the set on all nodes; 0: none */
    uint64_t count, bytes;
    double prescale, postscale;
    /* Slots of hvi_device_sizes behind the members: the engine's engine_work.sizes, as many numbers as the kind
     * has, and at once behind them the homes of hvi_device_has_homes. */
    uint32_t sizes;
    uint32_t ranks; /* members of the set, joined ones included; places are below it */
};
struct hvi_device_member {
    uint32_t command;               /* HVI_DEVICE_MEMBER */
    uint32_t place;                 /* in the set; for hvi_device_done.member */
    uint32_t in_import, out_import; /* HVI_DEVICE_NONE: there is none */
    uint64_t in_offset, out_offset;
    uint32_t page, cell; /* cell 0: no fence. A joined member has no MEMBER slot */
    uint64_t turn;
    uint64_t reserved[2];
};
struct hvi_device_sizes {
    uint64_t values[8];
};
#define HVI_DEVICE_NOWHERE UINT64_MAX
/* Streams of a worker: 0 has everything with a communicator; the others have sets of one GPU, by set number. */
#define HVI_DEVICE_STREAMS 5u

struct hvi_device_done {
    uint64_t seq;    /* 1, 2, 3, ... per channel */
    uint64_t number; /* of the batch */
    /* HVI_OK, an error, or HVI_INPROGRESS: it has begun. That is said of batches older than 100 ms, and only
     * while every batch under way still has a slot for its end. */
    int32_t status;
    int32_t member; /* place to blame; -1 */
    uint64_t waited_ns,
        ran_ns;     /* until all were ready; from there to the end. The worker's clock */
    char text[192]; /* NUL-terminated UTF-8 */
    /* What the stream took, by the GPU's clock, from the moment at which all were ready to the last step's end; 0: not known. */
    uint64_t device_ns;
    uint64_t reserved[2];
};

struct hvi_device_header {
    uint64_t magic;
    uint32_t abi_version, header_bytes;
    uint64_t total_bytes, instance, epoch;
    uint8_t pad0[24];
    /* engine: release; pairs with the worker's acquire in hvi_ring_available */
    _Alignas(64) _Atomic uint32_t command_tail;
    uint8_t pad1[60];
    /* worker: release; pairs with the engine's acquire in hvi_ring_space */
    _Alignas(64) _Atomic uint32_t command_head;
    uint8_t pad2[60];
    /* worker: release; pairs with the engine's acquire in hvi_ring_available */
    _Alignas(64) _Atomic uint32_t done_tail;
    uint8_t pad3[60];
    /* engine: release; pairs with the worker's acquire in hvi_ring_space */
    _Alignas(64) _Atomic uint32_t done_head;
    uint8_t pad4[60];
    /* Both, by exchange alone. The worker: 1 just before it sleeps, 0 when it is awake. The engine: 0, and
     * the one that finds 1 wakes. See device.c. */
    _Alignas(64) _Atomic uint32_t worker_asleep;
    uint8_t pad5[60];
    /* worker: number of the last batch that is on a stream; release, pairs with an acquire of the
     * engine's, which only shows it */
    _Alignas(64) _Atomic uint64_t launched;
    uint8_t reserved[3704];
};

#define HVI_DEVICE_AT(type, field, offset)                                                         \
    _Static_assert(offsetof(struct type, field) == (offset), #type "." #field " moved")

_Static_assert(sizeof(struct hvi_device_batch) == 64, "ABI");
HVI_DEVICE_AT(hvi_device_batch, command, 0);
HVI_DEVICE_AT(hvi_device_batch, slots, 4);
HVI_DEVICE_AT(hvi_device_batch, number, 8);
HVI_DEVICE_AT(hvi_device_batch, comm, 16);
HVI_DEVICE_AT(hvi_device_batch, works, 20);
HVI_DEVICE_AT(hvi_device_batch, stream, 22);
HVI_DEVICE_AT(hvi_device_batch, comm_ranks, 24);
HVI_DEVICE_AT(hvi_device_batch, comm_rank, 28);
HVI_DEVICE_AT(hvi_device_batch, flags, 32);
HVI_DEVICE_AT(hvi_device_batch, reserved, 40);

_Static_assert(sizeof(struct hvi_device_work) == 64, "ABI");
HVI_DEVICE_AT(hvi_device_work, command, 0);
HVI_DEVICE_AT(hvi_device_work, kind, 4);
HVI_DEVICE_AT(hvi_device_work, members, 6);
HVI_DEVICE_AT(hvi_device_work, dtype, 8);
HVI_DEVICE_AT(hvi_device_work, reduce_op, 9);
HVI_DEVICE_AT(hvi_device_work, flags, 10);
HVI_DEVICE_AT(hvi_device_work, root, 12);
HVI_DEVICE_AT(hvi_device_work, root_member, 16);
HVI_DEVICE_AT(hvi_device_work, divisor, 20);
HVI_DEVICE_AT(hvi_device_work, count, 24);
HVI_DEVICE_AT(hvi_device_work, bytes, 32);
HVI_DEVICE_AT(hvi_device_work, prescale, 40);
HVI_DEVICE_AT(hvi_device_work, postscale, 48);
HVI_DEVICE_AT(hvi_device_work, sizes, 56);
HVI_DEVICE_AT(hvi_device_work, ranks, 60);

_Static_assert(sizeof(struct hvi_device_member) == 64, "ABI");
HVI_DEVICE_AT(hvi_device_member, command, 0);
HVI_DEVICE_AT(hvi_device_member, place, 4);
HVI_DEVICE_AT(hvi_device_member, in_import, 8);
HVI_DEVICE_AT(hvi_device_member, out_import, 12);
HVI_DEVICE_AT(hvi_device_member, in_offset, 16);
HVI_DEVICE_AT(hvi_device_member, out_offset, 24);
HVI_DEVICE_AT(hvi_device_member, page, 32);
HVI_DEVICE_AT(hvi_device_member, cell, 36);
HVI_DEVICE_AT(hvi_device_member, turn, 40);
HVI_DEVICE_AT(hvi_device_member, reserved, 48);
_Static_assert(sizeof(struct hvi_device_sizes) == 64, "ABI");

_Static_assert(sizeof(struct hvi_device_done) == 256, "ABI");
HVI_DEVICE_AT(hvi_device_done, seq, 0);
HVI_DEVICE_AT(hvi_device_done, number, 8);
HVI_DEVICE_AT(hvi_device_done, status, 16);
HVI_DEVICE_AT(hvi_device_done, member, 20);
HVI_DEVICE_AT(hvi_device_done, waited_ns, 24);
HVI_DEVICE_AT(hvi_device_done, ran_ns, 32);
HVI_DEVICE_AT(hvi_device_done, text, 40);
HVI_DEVICE_AT(hvi_device_done, device_ns, 232);
HVI_DEVICE_AT(hvi_device_done, reserved, 240);

_Static_assert(sizeof(struct hvi_device_header) == 4096, "ABI");
HVI_DEVICE_AT(hvi_device_header, magic, 0);
HVI_DEVICE_AT(hvi_device_header, abi_version, 8);
HVI_DEVICE_AT(hvi_device_header, header_bytes, 12);
HVI_DEVICE_AT(hvi_device_header, total_bytes, 16);
HVI_DEVICE_AT(hvi_device_header, instance, 24);
HVI_DEVICE_AT(hvi_device_header, epoch, 32);
HVI_DEVICE_AT(hvi_device_header, command_tail, 64);
HVI_DEVICE_AT(hvi_device_header, command_head, 128);
HVI_DEVICE_AT(hvi_device_header, done_tail, 192);
HVI_DEVICE_AT(hvi_device_header, done_head, 256);
HVI_DEVICE_AT(hvi_device_header, worker_asleep, 320);
HVI_DEVICE_AT(hvi_device_header, launched, 384);

struct hvi_device_channel {
    struct hvi_region map;
    struct hvi_device_header *header;
    struct hvi_ring commands; /* engine: producer; worker: consumer */
    struct hvi_ring dones;    /* worker: producer; engine: consumer */
    uint64_t instance, epoch; /* as the header said when it was made or mapped */
};

/* Numbers of .sizes of a work of this kind. */
uint64_t hvi_device_count_sizes(uint32_t kind, uint32_t ranks);
/* Whether a work with a communicator has homes: for each place the communicator's rank that has its memory,
 * HVI_DEVICE_NOWHERE for a joined one. Workers then tell each other whose bytes are whose without a word. */
bool hvi_device_has_homes(uint32_t kind, uint32_t reduce_op);

/* The stream of a batch. Adasums of one GPU share their scratch memory, and so a stream. */
uint32_t hvi_device_stream(bool has_comm, uint32_t set, uint32_t reduce_op);

/* Worker: makes a channel. `instance` is the worker's, `epoch` the engine's generation. The descriptor
 * to send is channel->map.fd. Errors as hvi_region_create. */
int hvi_device_create(uint64_t instance, uint64_t epoch, struct hvi_device_channel *channel_p);
/* Engine: maps `fd` and checks the header. Owns `fd` on success. HVI_OK, HVI_ERR_VERSION,
 * HVI_ERR_PROTOCOL, HVI_ERR_NO_MEMORY. */
int hvi_device_map(int fd, struct hvi_device_channel *channel_p);
/* Unmaps and closes. Harmless on a zeroed channel or twice. */
void hvi_device_fini(struct hvi_device_channel *channel);

/* Engine: publishes `slots` filled command slots and writes `event_fd` if the worker sleeps. True if it
 * made a system call. */
bool hvi_device_publish(struct hvi_device_channel *channel, uint32_t slots, int event_fd);
/* Worker: announces sleep, after it has drained the commands. False, disarmed again, when there are
 * commands, or the engine's index is impossible: drain first. */
bool hvi_device_arm(struct hvi_device_channel *channel);
/* Worker: awake again. */
void hvi_device_disarm(struct hvi_device_channel *channel);
/* Worker: publishes `count` filled answers and writes `event_fd`, which the engine's loop polls. */
void hvi_device_answer(struct hvi_device_channel *channel, uint32_t count, int event_fd);

#endif

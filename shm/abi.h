/* SPDX-License-Identifier: Apache-2.0
 * The memory that a trainer and its job's engine both map. No functions; every struct, constant and
 * offset is here.
 *
 * Two kinds of sealed memfd are made by the engine and handed over at attach:
 *
 *   channel (one per session)                        bell (one per job, mapped by its sessions and
 *                                                    the engine)
 *   +--------------------------------------+ 0       +--------------------------------------+ 0
 *   | hvi_channel_header                   |         | hvi_bell_page                        |
 *   +--------------------------------------+ 4096    +--------------------------------------+ 4096
 *   | submission ring  HVI_SQ_SLOTS x 256  |
 *   +--------------------------------------+
 *   | completion ring  HVI_CQ_SLOTS x 64   |  Anything a tensor lives in is a region: a sealed
 *   +--------------------------------------+  memfd made by the client and registered over its
 *   | name area        HVI_NAMES_BYTES     |  socket. Region 0 is the inline area of the channel
 *   +--------------------------------------+  itself, so a small payload needs no other memory and
 *   | text cells       HVI_TEXT_CELLS x 1K |  the engine knows only one kind of operand:
 *   +--------------------------------------+  (region id, offset, bytes).
 *   | inline area      HVI_INLINE_BYTES    |
 *   +--------------------------------------+
 *
 * Rules: fixed-width integers and offsets only. The client writes sq_tail, submission slots, names,
 * its inline area, cq_head and the client_* words; the engine writes the rest. Each side keeps
 * masks, sizes and offsets in private memory and never reads them back from here. The engine copies
 * a submission once, validates the copy and uses only the copy. ABI changes bump HVI_ABI_VERSION;
 * reserved bytes are zero. */
#ifndef HVI_SHM_ABI_H
#define HVI_SHM_ABI_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define HVI_CHANNEL_MAGIC 0x6c6e616864764868ull /* "hHvdhanl" */
#define HVI_BELL_MAGIC    0x6c6c656264764868ull
#define HVI_ABI_VERSION   8u

#define HVI_CACHE_LINE    64u
#define HVI_PAGE          4096u
#define HVI_SQ_SLOTS      1024u         /* power of two */
#define HVI_CQ_SLOTS      4096u         /* power of two; the most ops one session has in flight */
#define HVI_NAMES_BYTES   (64u * 1024u) /* power of two; a byte ring beside the submission ring */
#define HVI_TEXT_CELLS    128u          /* error sentences; cells are reused in turn */
#define HVI_TEXT_CELL     1024u
#define HVI_INLINE_BYTES  (512u * 1024u)
#define HVI_INLINE_CELL   512u        /* the client's allocation unit inside the inline area */
#define HVI_TENSOR_IDS    16384u      /* ids are 0 .. HVI_TENSOR_IDS-1, reused by the client */
#define HVI_REGION_INLINE 0u          /* region id of the inline area */
#define HVI_REGION_NONE   0xffffffffu /* no operand: barrier, output not known yet */
#define HVI_BELL_CHANNELS 1024u       /* sessions one engine can hold */

/* An operand in the trainer's own memory: its offset is the address there. The engine reaches it by
 * process_vm_readv and _writev; offered by HVI_FEATURE_PROCESS. */
#define HVI_REGION_PROCESS 0xfffffffeu

/* hvi_submission.kind: HVI_KIND_* (base/types.def) or one of these. */
#define HVI_SUBMIT_OUTPUT 64u /* answers HVI_COMPLETE_SIZED: where this cookie's output goes */
/* Takes this cookie's op back if it still waits for other ranks: it then ends with
 * HVI_ERR_CANCELLED, for this rank alone. Otherwise, and for an unknown cookie, nothing happens. */
#define HVI_SUBMIT_CANCEL 65u

/* hvi_submission.flags */
#define HVI_SUBMIT_NAMED 1u /* name_offset/_bytes define tensor_id from here on; else it is known */
#define HVI_SUBMIT_ANON  2u /* unnamed op: matched by (kind, anon_seq); tensor_id is ignored */

struct hvi_submission {
    uint64_t seq;    /* 1, 2, 3, ... per session; a gap is a protocol error */
    uint64_t cookie; /* the client's op; echoed in the completion; unique in flight */
    uint32_t tensor_id;
    uint16_t kind;
    uint16_t flags;
    uint8_t reduce_op;
    uint8_t dtype;
    uint8_t ndim;
    uint8_t reserved0;
    /* broadcast: global rank. SEND, RECV: the other one's global rank; RECV: -1, whoever comes.
     * SET_REMOVE: the set's id. Otherwise -1. */
    int32_t root;
    uint32_t process_set; /* 0: all ranks of the job */
    uint32_t group;       /* 0: not grouped; see group_size */
    uint32_t name_offset; /* into the name area; the name may wrap */
    uint32_t name_bytes;  /* without NUL */
    uint32_t in_region;
    uint32_t out_region;   /* may equal in_region with the same offset: in place */
    uint64_t in_offset;    /* bytes */
    uint64_t out_offset;   /* bytes */
    uint64_t count;        /* elements of the input: the product of dims */
    uint64_t out_capacity; /* bytes available at out_offset; 0 with HVI_REGION_NONE */
    double prescale;       /* 1.0: none */
    double postscale;
    int64_t dims[8];    /* elements; entries past ndim are 0 */
    uint64_t submit_ns; /* CLOCK_MONOTONIC */
    uint64_t anon_seq;  /* SEND, RECV, SET_OPEN: the tag, 0 .. INT32_MAX; always ANON */
    /* Integers that belong to the op, int64 each, in a region of the session. alltoall: the splits,
     * one per member of the set, and behind them room for the received splits, which the engine
     * writes before the completion. SET_ADD, SET_OPEN: the ranks. Otherwise HVI_REGION_NONE. */
    uint32_t aux_region;
    uint32_t aux_count; /* integers that are given: without the room for the received splits */
    uint64_t aux_offset;
    /* Grouped ops are submitted one behind the other: .group is the same number for all of them,
     * unique in flight, and the first one's index is 0. */
    uint32_t group_size;
    uint32_t group_index;
    uint64_t copied_ns; /* that the client took to bring the input into the region; 0: not timed */
    /* Of an op on device memory (shm/fence.h); offered by HVI_FEATURE_DEVICE, else all zero. */
    uint64_t fence_turn; /* 0: no fence; all operands lie in memory of the host */
    uint64_t after; /* held until all of the session's ops up to this .seq have started; 0: none */
    uint32_t fence_cell; /* 1 .. HVI_FENCE_CELLS - 1; 0 without a fence */
    uint32_t reserved1;
    uint64_t reserved[2];
};

/* hvi_completion.kind */
#define HVI_COMPLETE_DONE  1u /* the op is finished with .status; its cookie is free again */
#define HVI_COMPLETE_SIZED 2u /* .rows and .bytes of the output are known: send HVI_SUBMIT_OUTPUT */

#define HVI_TEXT_NONE 0xffffffffu

struct hvi_completion {
    uint64_t seq; /* 1, 2, 3, ... per session */
    uint64_t cookie;
    int32_t status; /* enum hvi_status; never INPROGRESS */
    uint32_t kind;
    uint32_t text_cell; /* HVI_TEXT_NONE, or the cell with the sentence */
    uint32_t text_turn; /* must equal the cell's turn, else the cell has been reused */
    uint64_t bytes;     /* bytes of the output */
    /* First dimension of the output (allgather, alltoall); join: the global rank that joined last;
     * SET_ADD, SET_OPEN: the set's id; RECV: the global rank that sent. */
    int64_t rows;
    uint64_t done_ns; /* CLOCK_MONOTONIC */
    int32_t culprit;  /* global rank that caused a failure, -1 unknown */
    /* Success only: 0, or 1 + the slot that this op may use next time if nothing about it
     * changes, at the turn that stands in text_turn. shm/slots.h */
    uint32_t grant;
};

struct hvi_text_cell {
    /* Written last (release); pairs with the acquire load in hvi_channel_read_text. */
    _Atomic uint32_t turn;
    _Atomic uint32_t bytes; /* release; pairs with the acquire loads in shm/channel.c */
    char text[1016];        /* written and read there as 64-bit atomics */
};

struct hvi_channel_header {
    uint64_t magic;
    uint32_t abi_version;
    uint32_t header_bytes;
    uint64_t total_bytes;
    uint64_t features; /* HVI_FEATURE_* */
    uint64_t epoch;    /* session number, unique in the engine's life */
    uint32_t sq_offset, sq_slots;
    uint32_t cq_offset, cq_slots;
    uint32_t names_offset, names_bytes;
    uint32_t texts_offset, text_cells;
    uint32_t inline_offset, inline_bytes;
    uint32_t channel_index; /* this session's bit in the bell page */
    uint32_t reserved0;
    uint8_t pad0[40];

    /* client: release; pairs with engine's acquire in hvi_ring_available */
    _Alignas(64) _Atomic uint32_t sq_tail;
    uint8_t pad1[60];
    /* engine: release; pairs with client's acquire in hvi_ring_space */
    _Alignas(64) _Atomic uint32_t sq_head;
    uint8_t pad2[60];
    /* engine: release; pairs with client's acquire in hvi_ring_available */
    _Alignas(64) _Atomic uint32_t cq_tail;
    uint8_t pad3[60];
    /* client: release; pairs with engine's acquire in hvi_ring_space */
    _Alignas(64) _Atomic uint32_t cq_head;
    uint8_t pad4[60];

    /* Completion doorbell: the engine bumps .cq_bell (futex word) after it has published
     * completions and wakes when .cq_sleepers is not 0. See bell.h. */
    _Alignas(64) _Atomic uint32_t cq_bell;
    _Atomic uint32_t cq_sleepers;
    _Atomic uint32_t client_event_armed; /* client: 1 while somebody polls the session's eventfd */
    uint8_t pad5[52];
    /* engine: HVI_SESSION_*; the reason of an end comes over the socket */
    _Alignas(64) _Atomic uint32_t session_state;
    uint8_t pad6[60];
    uint8_t reserved1[3584];
};

/* Of a whole channel: header, rings, names, texts, inline area (shm/channel.c). */
#define HVI_CHANNEL_BYTES                                                                          \
    (HVI_PAGE + HVI_SQ_SLOTS * (uint32_t)sizeof(struct hvi_submission) +                           \
     HVI_CQ_SLOTS * (uint32_t)sizeof(struct hvi_completion) + HVI_NAMES_BYTES +                    \
     HVI_TEXT_CELLS * (uint32_t)sizeof(struct hvi_text_cell) + HVI_INLINE_BYTES)

#define HVI_FEATURE_PROCESS 1u /* operands may lie in HVI_REGION_PROCESS */
#define HVI_FEATURE_DEVICE  2u /* operands may lie on a GPU: the engine takes FenceAdd, DeviceAdd */
#define HVI_FEATURES_KNOWN  (HVI_FEATURE_PROCESS | HVI_FEATURE_DEVICE)

#define HVI_SESSION_OPEN  1u
#define HVI_SESSION_ENDED 2u

struct hvi_bell_page {
    uint64_t magic;
    uint32_t abi_version;
    uint32_t reserved0;
    uint8_t pad0[48];
    _Alignas(64) _Atomic uint32_t engine_sleeping; /* engine: 1 just before it blocks; see bell.h */
    uint8_t pad1[60];
    /* engine: moves with each turn of its loop, at most once a millisecond, and soon after the bell
     * rings; relaxed, only that it moves is read. */
    _Alignas(64) _Atomic uint64_t beat;
    /* engine: how long .beat may stand still before the engine is lost; 0: for ever; relaxed, hvdd may change it */
    _Atomic uint64_t silence_ns;
    uint8_t pad2[48];
    _Alignas(64) _Atomic uint64_t active[16]; /* client: bit channel_index set after a submission */
    uint8_t reserved1[3776];
};

#define HVI_AT(type, field, offset)                                                                \
    _Static_assert(offsetof(struct type, field) == (offset), #type "." #field " moved")

_Static_assert(sizeof(struct hvi_submission) == 256, "ABI");
HVI_AT(hvi_submission, seq, 0);
HVI_AT(hvi_submission, cookie, 8);
HVI_AT(hvi_submission, tensor_id, 16);
HVI_AT(hvi_submission, kind, 20);
HVI_AT(hvi_submission, flags, 22);
HVI_AT(hvi_submission, reduce_op, 24);
HVI_AT(hvi_submission, dtype, 25);
HVI_AT(hvi_submission, ndim, 26);
HVI_AT(hvi_submission, reserved0, 27);
HVI_AT(hvi_submission, root, 28);
HVI_AT(hvi_submission, process_set, 32);
HVI_AT(hvi_submission, group, 36);
HVI_AT(hvi_submission, name_offset, 40);
HVI_AT(hvi_submission, name_bytes, 44);
HVI_AT(hvi_submission, in_region, 48);
HVI_AT(hvi_submission, out_region, 52);
HVI_AT(hvi_submission, in_offset, 56);
HVI_AT(hvi_submission, out_offset, 64);
HVI_AT(hvi_submission, count, 72);
HVI_AT(hvi_submission, out_capacity, 80);
HVI_AT(hvi_submission, prescale, 88);
HVI_AT(hvi_submission, postscale, 96);
HVI_AT(hvi_submission, dims, 104);
HVI_AT(hvi_submission, submit_ns, 168);
HVI_AT(hvi_submission, anon_seq, 176);
HVI_AT(hvi_submission, aux_region, 184);
HVI_AT(hvi_submission, aux_count, 188);
HVI_AT(hvi_submission, aux_offset, 192);
HVI_AT(hvi_submission, group_size, 200);
HVI_AT(hvi_submission, group_index, 204);
HVI_AT(hvi_submission, copied_ns, 208);
HVI_AT(hvi_submission, fence_turn, 216);
HVI_AT(hvi_submission, after, 224);
HVI_AT(hvi_submission, fence_cell, 232);
HVI_AT(hvi_submission, reserved1, 236);
HVI_AT(hvi_submission, reserved, 240);
_Static_assert(sizeof(((struct hvi_submission *)0)->reserved) == 16, "ABI");

_Static_assert(sizeof(struct hvi_completion) == 64, "ABI");
HVI_AT(hvi_completion, seq, 0);
HVI_AT(hvi_completion, cookie, 8);
HVI_AT(hvi_completion, status, 16);
HVI_AT(hvi_completion, kind, 20);
HVI_AT(hvi_completion, text_cell, 24);
HVI_AT(hvi_completion, text_turn, 28);
HVI_AT(hvi_completion, bytes, 32);
HVI_AT(hvi_completion, rows, 40);
HVI_AT(hvi_completion, done_ns, 48);
HVI_AT(hvi_completion, culprit, 56);
HVI_AT(hvi_completion, grant, 60);

_Static_assert(sizeof(struct hvi_text_cell) == HVI_TEXT_CELL, "ABI");
HVI_AT(hvi_text_cell, turn, 0);
HVI_AT(hvi_text_cell, bytes, 4);
HVI_AT(hvi_text_cell, text, 8);

_Static_assert(sizeof(struct hvi_channel_header) == HVI_PAGE, "ABI");
HVI_AT(hvi_channel_header, magic, 0);
HVI_AT(hvi_channel_header, abi_version, 8);
HVI_AT(hvi_channel_header, header_bytes, 12);
HVI_AT(hvi_channel_header, total_bytes, 16);
HVI_AT(hvi_channel_header, features, 24);
HVI_AT(hvi_channel_header, epoch, 32);
HVI_AT(hvi_channel_header, sq_offset, 40);
HVI_AT(hvi_channel_header, sq_slots, 44);
HVI_AT(hvi_channel_header, cq_offset, 48);
HVI_AT(hvi_channel_header, cq_slots, 52);
HVI_AT(hvi_channel_header, names_offset, 56);
HVI_AT(hvi_channel_header, names_bytes, 60);
HVI_AT(hvi_channel_header, texts_offset, 64);
HVI_AT(hvi_channel_header, text_cells, 68);
HVI_AT(hvi_channel_header, inline_offset, 72);
HVI_AT(hvi_channel_header, inline_bytes, 76);
HVI_AT(hvi_channel_header, channel_index, 80);
HVI_AT(hvi_channel_header, reserved0, 84);
HVI_AT(hvi_channel_header, sq_tail, 128);
HVI_AT(hvi_channel_header, sq_head, 192);
HVI_AT(hvi_channel_header, cq_tail, 256);
HVI_AT(hvi_channel_header, cq_head, 320);
HVI_AT(hvi_channel_header, cq_bell, 384);
HVI_AT(hvi_channel_header, cq_sleepers, 388);
HVI_AT(hvi_channel_header, client_event_armed, 392);
HVI_AT(hvi_channel_header, session_state, 448);

_Static_assert(sizeof(struct hvi_bell_page) == HVI_PAGE, "ABI");
HVI_AT(hvi_bell_page, magic, 0);
HVI_AT(hvi_bell_page, abi_version, 8);
HVI_AT(hvi_bell_page, engine_sleeping, 64);
HVI_AT(hvi_bell_page, beat, 128);
HVI_AT(hvi_bell_page, silence_ns, 136);
HVI_AT(hvi_bell_page, active, 192);

_Static_assert(sizeof(_Atomic uint32_t) == 4 && sizeof(_Atomic uint64_t) == 8,
               "atomics have no lock word");

#endif

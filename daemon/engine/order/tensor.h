/* SPDX-License-Identifier: Apache-2.0
 * engine_tensors: tensor names, interned for the whole job. Engine thread. */
#ifndef ENGINE_ORDER_TENSOR_H
#define ENGINE_ORDER_TENSOR_H

#include "base/types.h"
#include "daemon/engine/order/partial_name.h"
#include "shm/agreement.h"

#include <stdbool.h>
#include <stdint.h>

#define ENGINE_TENSOR_BUCKETS 8192u
#define ENGINE_LABEL          208 /* bytes of a name in a sentence */

struct engine_op;

/* What all ranks said when they last agreed: a part that says it again agrees with all that do. */
struct engine_agreed {
    bool valid;
    uint8_t memory;                     /* of the part */
    const struct engine_tensor *leader; /* compared, never followed */
    uint32_t group_size, group_index;
    struct hvi_agreement said;
};

/* The sizes that an op of several nodes had when it started last: sizes.c. */
struct engine_kept_sizes {
    uint32_t count;
    int64_t rows[];
};

/* The workers of GPUs that had the memory of its last work over several nodes, by set rank: schedule.c. */
struct engine_kept_gpus {
    uint32_t count;
    bool failed; /* that work */
    uint64_t instances[];
};

/* A tensor name in one process set, and what waits under it. */
struct engine_tensor {
    struct engine_tensor *next; /* in the bucket, or in the list of free ones */
    struct engine_op *waiting;  /* the op that is not ready yet; NULL */
    struct engine_op *failed;   /* FAILED ones, oldest first, by .fallen */
    struct engine_agreed agreed;
    struct engine_kept_sizes *kept; /* NULL: none */
    struct engine_kept_gpus *gpus;  /* likewise */
    uint64_t set;                   /* serial of the set */
    uint64_t hash;
    uint64_t anon_seq;       /* unnamed: matched by (anon_kind, anon_seq, pair) */
    struct engine_pair pair; /* of a SEND and its RECV, whose .anon_seq is the tag; else 0 */
    uint32_t failing;        /* ops of it here that failed before the root says that they do */
    uint32_t entry;          /* of the step that is replayed: 1 + its place; 0: none */
    uint64_t last;  /* the root's: round (steps.h) of its last work; others: see schedule.c */
    uint64_t work;  /* the root's: number of its last work (steps.h) */
    uint64_t sizes; /* the root's: stands for the sizes of its last work in a step; 0: none */
    uint32_t refs;  /* session tables, parts in flight, ops */
    uint16_t anon_kind;
    bool anon;
    uint32_t timeline_epoch,
        timeline_row; /* the observer's: its row in the timeline of that number */
    uint32_t name_bytes;
    uint32_t slot; /* the observer's: 0, or 1 + the slot in which its ranks may meet */
    char *name;    /* NULL when unnamed: engine_tensor_name makes one */
};

struct engine_tensors {
    struct engine_tensor *buckets[ENGINE_TENSOR_BUCKETS];
    struct engine_tensor *free; /* unnamed ones, kept */
    uint32_t count;
    /* The last reference to a tensor with a .slot is gone. NULL: nobody wants to know. */
    void (*gone)(void *gone_user, struct engine_tensor *tensor);
    void *gone_user;
};

/* Finds or makes; the caller holds one reference. NULL: out of memory. */
struct engine_tensor *engine_tensor_get_named(struct engine_tensors *tensors, uint64_t set,
                                              const char *name, uint32_t name_bytes);
struct engine_tensor *engine_tensor_get_anon(struct engine_tensors *tensors, uint64_t set,
                                             uint16_t kind, uint64_t anon_seq);
/* What stands for all unnamed ops of a kind in a set. */
struct engine_tensor *engine_tensor_get_unnamed(struct engine_tensors *tensors, uint64_t set,
                                                uint16_t kind);
/* The same for those that say this; not in the same table. */
struct engine_tensor *engine_tensor_get_saying(struct engine_tensors *tensors, uint64_t set,
                                               const struct hvi_agreement *said);
struct engine_tensor *engine_tensor_get_pair(struct engine_tensors *tensors, uint64_t set,
                                             struct engine_pair pair, uint64_t tag);
void engine_tensor_put(struct engine_tensors *tensors, struct engine_tensor *tensor);
void engine_tensors_fini(struct engine_tensors *tensors);
/* The name: "w1", "allreduce.noname.7". name_p needs HVI_NAME_MAX + 1 bytes. */
void engine_tensor_name(const struct engine_tensor *tensor, char *name_p);
/* For sentences: as above, but a long name is cut to leave room for the rest. label_p needs
 * ENGINE_LABEL bytes. */
void engine_tensor_label(const struct engine_tensor *tensor, char *label_p);

#endif

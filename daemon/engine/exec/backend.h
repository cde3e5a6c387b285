/* SPDX-License-Identifier: Apache-2.0
 * The border between "what has to happen" and "who does it": ops with their operands resolved to
 * addresses, batches of them, and the table of backends. A backend knows nothing of sessions, names
 * or rings. tests/contract runs one suite against every row. */
#ifndef ENGINE_BACKEND_H
#define ENGINE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ENGINE_BATCH_WORKS 256u /* most ops in one batch */

#define ENGINE_MEMORY_HOST 0u

/* Foreign memory that has not answered for so long is waited for by one thread only. */
#define ENGINE_SILENT_NS UINT64_C(100000000)

/* One op that every member of its process set has agreed on. The arrays have one entry per member
 * and are indexed by set rank; they live as long as the work.
 *
 * .in[i] == NULL: member i has joined. It takes part with the neutral element: it is simply absent
 * from sum, min, max, product and adasum, while an average still divides by .ranks. In allgather,
 * alltoall and reducescatter a joined member brings zero bytes where it could bring any and gets no
 * output. At least one .in[] of a reduction is not NULL; a broadcast reads .in[root] only and that
 * is not NULL. .out[i] == NULL: nothing is written for member i. Where .bytes (or the size that
 * counts) is 0, no operand is touched and any pointer will do.
 *
 * What the numbers mean, by kind:
 *
 *   kind           .bytes                     .sizes                              .root
 *   ALLREDUCE      of each input and output   -                                   -
 *   BROADCAST      of the root's input and    -                                   set rank
 *                  of each output
 *   ALLGATHER      of each output: the sum    [ranks] bytes of each input         -
 *   REDUCESCATTER  of each input: the sum     [ranks] bytes of each output: input -
 *                                             slice i, reduced, goes to out[i]
 *   ALLTOALL       of the largest input or    [from * ranks + to] bytes; in[from] -
 *                  output; only for cutting   is laid out by `to`, out[to] is
 *                  and batching               the concatenation by `from`
 *   SEND           of the root's input and    -                                   set rank
 *                  of the one output there is
 *   BARRIER, JOIN, 0                          -                                   -
 *   SET_*          (nothing moves)
 *
 * Sizes are multiples of the dtype's size and operands are aligned to it, and to nothing more. No
 * output overlaps anything else, except that out[i] may be, for the same member,
 *   allreduce, broadcast  in[i]
 *   allgather             such that the member's own part of out[i] is in[i]
 *   reducescatter         the member's own slice of in[i].
 *
 * Foreign operands. .in_pid and .out_pid are both NULL when the engine has mapped every operand.
 * Otherwise an entry that is not 0 says that the operand is an address in that process, which the
 * backend reaches with process_vm_readv and process_vm_writev, piece by piece; 0 is a mapped one.
 * NULL operands and the kinds are as above. Foreign memory is not to be trusted: it may vanish or
 * change meanwhile, which makes the op fail, or its result arbitrary, and nothing else. A work with
 * foreign operands is a batch of its own. Before and after each transfer the backend asks .alive, unless
 * that is NULL: false means that the pid is no longer the member's process and is a failure (ESRCH).
 * .alive is called from any thread, several at a time, until the batch is done. */
struct engine_work {
    uint32_t kind; /* enum hvi_kind */
    uint32_t dtype;
    uint32_t reduce_op; /* allreduce, reducescatter */
    uint32_t memory_kind;
    uint32_t ranks; /* members of the process set, joined ones included */
    int32_t root;
    double prescale; /* allreduce, reducescatter */
    double postscale;
    uint64_t count; /* allreduce: elements of each operand */
    uint64_t bytes;
    const void **in;
    void **out;
    const uint64_t *sizes;
    const pid_t *in_pid;
    const pid_t *out_pid;
    bool (*alive)(void *alive_user, uint32_t rank); /* set rank */
    void *alive_user;
    /* 0, or an address in mapped memory where a page could not be had. The backend sets it in a work
     * that shares its batch with others, which go on. It touches no operand of a work in which it is
     * set already: that fails as if the page had been missing now. */
    uint64_t missing;
};

/* What went wrong with a foreign operand, or with a mapped one. */
struct engine_fault {
    int32_t rank;     /* set rank; -1: no foreign operand is to blame */
    int error;        /* errno: EFAULT, ESRCH, EPERM, ...; EIO for a transfer that was cut short */
    bool writing;     /* the output could not be written; else the input could not be read */
    uint64_t address; /* in the member's process: where the transfer that failed began */
    /* ETIMEDOUT, which is HVI_ERR_STALLED: how long the transfer was waited for. */
    uint64_t waited_ns;
    uint64_t missing; /* here, in mapped memory: where a page could not be had; 0: it is not that */
};

struct engine_batch {
    struct engine_batch *next; /* whoever holds the batch may use it */
    struct engine_work *works[ENGINE_BATCH_WORKS];
    uint32_t count; /* at least 1 */
    uint32_t memory_kind;
    uint64_t bytes; /* sum over the works */
    /* Set by the backend before it reports the batch done: enum hvi_status. HVI_ERR_INVALID: a
     * foreign operand could not be reached, .fault says which; outputs are undefined.
     * HVI_ERR_RANK_LOST: the same because the process is gone. HVI_ERR_STALLED: the same because its
     * memory did not answer. HVI_ERR_NO_MEMORY: no scratch memory for an adasum, nothing was written;
     * or, with .fault.missing, no page of a mapped operand of a batch of one work: outputs are
     * undefined. */
    int status;
    struct engine_fault fault; /* the first one; .rank is -1 and .missing 0 when there was none */
    void *state;               /* the backend's own from here on */
    uint64_t unit_bytes;
    uint32_t units;
    uint32_t units_taken;
    uint32_t units_left;
    uint32_t units_silent; /* memory of theirs does not answer; no further unit is begun */
};

struct engine_backend_config {
    uint32_t threads; /* that may work at once, the caller of help() included; at least 1 */
    /* Called exactly once per started batch, from the thread that did the last piece, under no
     * lock: the batch is the receiver's again. Inside start() for batches that are done at once. */
    void (*done)(void *user, struct engine_batch *batch);
    /* A transfer of this member's input (set rank) was given up that may still write to the member's own
     * mapped output, which must stay mapped from now on. Inside watch() and close(), before the batch
     * is done; under no lock. */
    void (*late)(void *user, struct engine_batch *batch, uint32_t rank);
    void *user;
};

struct engine_backend {
    const char *name;
    /* HVI_OK, HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT (threads). Blocks while threads start. */
    int (*open)(const struct engine_backend_config *config, void **context_p);
    /* Finishes what was started, then releases everything. False: threads that were given up still
     * wait for foreign memory; what they may touch stays, and only the end of the process ends them.
     */
    bool (*close)(void *context);
    /* Whether this backend can do the batch at all. Pure. */
    bool (*accepts)(const struct engine_batch *batch);
    /* Takes the batch and returns; the result comes through done(). Small batches are done before it
     * returns. One thread at a time for start() and help() together. */
    void (*start)(void *context, struct engine_batch *batch);
    /* Does one piece of a started batch on the calling thread; false when there was none to take.
     * Neither start() nor help() touches foreign operands, as that may take for ever. */
    bool (*help)(void *context);
    /* Gives up transfers of foreign memory that have not ended within `limit_ns`, counted from call to
     * call (at most ENGINE_SILENT_NS for each), or within ENGINE_SILENT_NS where a member's process is
     * over or the batch has failed. Their batches fail, in the first case with HVI_ERR_RANK_LOST for that
     * member. To be called now and then while batches with foreign operands are under way, on the thread
     * that calls start(). */
    void (*watch)(void *context, uint64_t limit_ns);
    /* The next transfer from *cursor_p on, which begins with 0, that has lasted for ENGINE_SILENT_NS; one
     * per batch. NULL: no more. The thread that calls start(); the batch is valid until it does
     * something else with the backend. */
    const struct engine_batch *(*silent)(void *context, uint32_t *cursor_p,
                                         struct engine_fault *fault_p);
};

extern const struct engine_backend engine_backend_host;

/* NULL-terminated, in order of preference. */
extern const struct engine_backend *const engine_backends[];

#endif

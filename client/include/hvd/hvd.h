/* SPDX-License-Identifier: Apache-2.0
 * hvd.h: the whole public C API of libhvdclient.
 *
 * A training process opens a session (one per rank), allocates or registers memory, and submits
 * collective ops. hvdd, the node's daemon, does the work; this library writes requests into shared
 * memory and reads completions back.
 *
 *     struct hvd_session *s;
 *     if (hvd_open(NULL, &s) != HVD_OK) { fprintf(stderr, "%s\n", hvd_last_error()); exit(1); }
 *     float *g;
 *     hvd_alloc(s, 1000 * sizeof *g, (void **)&g);
 *     struct hvd_tensor t = hvd_tensor_1d(g, HVD_FLOAT32, 1000);
 *     hvd_allreduce(s, "grad", &t, &t, HVD_AVERAGE);
 *     hvd_close(s);
 *
 * Contract for every function unless it says otherwise
 *   Errors    int functions return HVD_OK (0), HVD_INPROGRESS (1, "not finished": neither success
 *             nor failure) or a negative enum hvd_status. hvd_last_error() then holds a sentence:
 *             what, who, and what to do. Outputs (arguments ending in _p) are written only on
 *             success.
 *   Threads   A session may be used by several threads at once, except hvd_close, which must be the
 *             last call. Several sessions in one process are independent (one test process can host
 *             several ranks). A thread inside a call must not be cancelled (pthread_cancel): the
 *             session's lock would stay taken.
 *   Blocking  Only functions that say so block, and each of them has a deadline.
 *   Fork      In a forked child every call on the parent's session returns HVD_ERR_FORKED; open a
 *             new one.
 *   Process   The library starts no thread and never writes to stdout or stderr. It installs one
 *             signal handler, for SIGBUS, from the first mapping of another rank's memory until the
 *             session is closed: a page of it that cannot be had is an error of the op. Every other
 *             SIGBUS goes to the handler that was there before.
 *   Units     Times are nanoseconds; a negative timeout means no limit. Sizes are bytes. Shapes are
 *             elements, outermost dimension first, row-major, dense.
 *
 * The order in which ranks submit different names may differ from rank to rank. */
#ifndef HVD_HVD_H
#define HVD_HVD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVD_VERSION_MAJOR 0
#define HVD_VERSION_MINOR 1
#define HVD_VERSION_PATCH 0

#if defined(__GNUC__)
#define HVD_API __attribute__((visibility("default")))
#else
#define HVD_API
#endif

/* Frozen numbers, in ranges by what the error destroys: -1xx this op, -2xx this session, -3xx this
 * job (the members must open new sessions), -4xx the daemon. Branch on the range with the HVD_IS_*
 * macros. */
enum hvd_status {
    HVD_OK = 0,
    HVD_INPROGRESS = 1,

    HVD_ERR_INVALID = -100,        /* a bad argument */
    HVD_ERR_DUPLICATE_NAME = -101, /* this name is already in flight on this rank */
    HVD_ERR_MISMATCH = -102,  /* ranks disagree on dtype, shape, op, ...; nothing was executed */
    HVD_ERR_TIMEOUT = -103,   /* the deadline passed; the op itself goes on */
    HVD_ERR_RING_FULL = -104, /* too many ops in flight; wait for one */
    HVD_ERR_UNSUPPORTED = -105,
    HVD_ERR_NO_MEMORY = -106,
    HVD_ERR_BUSY = -107, /* memory is in use by an op in flight */
    HVD_ERR_CANCELLED = -108,
    HVD_ERR_TOO_SMALL = -109, /* the output does not fit the tensor that was given for it */
    HVD_ERR_LIMIT = -110,
    HVD_ERR_NOT_FOUND = -111,
    HVD_ERR_EXISTS = -112, /* such a process set or timeline is there already */
    /* The op waited too long for other ranks (HVD_STALL_POLICY=fail-op), or for memory of a rank
     * (HVD_MEMORY_TIMEOUT_SECONDS); the session goes on. */
    HVD_ERR_STALLED = -113,

    HVD_ERR_CLOSED = -200,
    HVD_ERR_FORKED = -201,
    HVD_ERR_PROTOCOL = -202,
    HVD_ERR_VERSION = -203,
    HVD_ERR_REFUSED = -204,
    HVD_ERR_BAD_RANK = -205,
    HVD_ERR_DUPLICATE_RANK = -206,
    HVD_ERR_BAD_SIZE = -207,
    HVD_ERR_ATTACH_TIMEOUT = -208,

    HVD_ERR_RANK_LOST = -300, /* a rank died; the text names rank, pid and signal */
    HVD_ERR_RANK_LEFT = -301, /* a rank closed its session while others still wanted it */
    HVD_ERR_ENGINE_LOST = -302,
    HVD_ERR_JOB_STOPPED = -303,
    HVD_ERR_NODE_LOST =
        -304, /* a node of the job is gone or cannot be reached; the text names it */
    HVD_ERR_WORKER_LOST =
        -305, /* the process that has a GPU of the job is gone; the text names GPU, pid and why */

    HVD_ERR_NO_DAEMON = -400,
    HVD_ERR_DAEMON = -401,
    HVD_ERR_DRAINING = -402,
    HVD_ERR_DAEMON_LIMIT = -403
};

#define HVD_IS_OP_ERROR(status)      ((status) <= -100 && (status) > -200)
#define HVD_IS_SESSION_ERROR(status) ((status) <= -200 && (status) > -300)
#define HVD_IS_JOB_ERROR(status)     ((status) <= -300 && (status) > -400)
#define HVD_IS_DAEMON_ERROR(status)  ((status) <= -400 && (status) > -500)

enum hvd_dtype {
    HVD_UINT8 = 0,
    HVD_INT8 = 1,
    HVD_UINT16 = 2,
    HVD_INT16 = 3,
    HVD_INT32 = 4,
    HVD_INT64 = 5,
    HVD_FLOAT16 = 6,
    HVD_FLOAT32 = 7,
    HVD_FLOAT64 = 8,
    HVD_BOOL = 9, /* one byte, 0 or 1; reduced by HVD_MIN ("and") and HVD_MAX ("or") alone */
    HVD_BFLOAT16 = 10,
    HVD_FLOAT8_E4M3 = 11, /* "e4m3fn": no infinities; NaN is 0x7f and 0xff, the largest is 448 */
    HVD_FLOAT8_E5M2 = 12
};

/* Reductions accumulate in rank order, shorter floats in float32, so results are bitwise the same
 * for a given size. Integer averages truncate toward zero; integer sums wrap.
 *   Between GPUs NCCL adds, in its own order, and may round shorter floats more than once; HVD_MIN and HVD_MAX
 * of floats keep NaNs there too; an average of float16 or float8 is divided before the sum. */
enum hvd_reduce_op {
    HVD_AVERAGE = 0,
    HVD_SUM = 1,
    HVD_ADASUM = 2, /* floating point only */
    HVD_MIN = 3,
    HVD_MAX = 4,
    HVD_PRODUCT = 5
};

enum hvd_log_level { HVD_LOG_ERROR = 0, HVD_LOG_WARN = 1, HVD_LOG_INFO = 2, HVD_LOG_DEBUG = 3 };

#define HVD_DIMS_MAX  8
#define HVD_NAME_MAX  1023 /* bytes of a tensor name */
#define HVD_OPS_MAX   4096 /* ops one session can have in flight */
#define HVD_GROUP_MAX 1024 /* members of a grouped op */

struct hvd_session; /* one rank's attachment to its job */
struct hvd_op;      /* one submitted op, from submission to hvd_op_free */

/* A dense row-major tensor in memory of the host, or of a CUDA device, which the caller owns. ndim 0 is
 * a scalar (one element). A dimension of 0 is legal; data may then be NULL.
 *   Memory of a device is made known to the engine at its first use, by allocation: that blocks, 35 s at
 * most, because the first one of a GPU starts hvdd's worker for it. All tensors of an op lie on one device
 * or on the host. Where hvdd has no worker for the GPU: HVD_ERR_UNSUPPORTED, with what is missing. There `out`
 * must be given (HVD_ERR_UNSUPPORTED: the library provides no memory of devices for results), and data is a
 * multiple of the element's bytes (HVD_ERR_INVALID). */
struct hvd_tensor {
    void *data;
    enum hvd_dtype dtype;
    int ndim; /* 0 .. HVD_DIMS_MAX */
    int64_t dims[HVD_DIMS_MAX];
};

static inline struct hvd_tensor hvd_tensor_1d(void *data, enum hvd_dtype dtype, int64_t count)
{
    struct hvd_tensor t;
    int i;
    t.data = data;
    t.dtype = dtype;
    t.ndim = 1;
    t.dims[0] = count;
    for (i = 1; i < HVD_DIMS_MAX; i++)
        t.dims[i] = 0;
    return t;
}

/* Called by the thread that runs into the event, inside a library call and under no library lock.
 * Must not call back into the same session. `text` lives for the call. */
typedef void (*hvd_log_fn)(void *user, enum hvd_log_level level, const char *text);

/* ---- session --------------------------------------------------------------------------------- */

#define HVD_FROM_ENV (-1)

struct hvd_options {
    size_t struct_size; /* sizeof(struct hvd_options): set by hvd_options_init */
    /* Directory with hvdd's sockets. NULL: $HVD_ADDRESS, else $XDG_RUNTIME_DIR/hvdd (/tmp/hvdd-UID
     * where the variable names no directory of this user's) if a daemon listens there, else
     * /run/hvdd, else a private hvdd is started for this user. Its program:
     * $HVDD_PROGRAM, else beside this library, else in $PATH; its log: $HVDD_LOG, else thrown away.
     * It ends after 10 s without anybody. For a job on several nodes, $HVD_RENDEZVOUS comes before
     * all of these but $HVD_ADDRESS: hvd.h(3). */
    const char *address;
    /* Job id. NULL: $HVD_JOB_ID, else from the launcher's environment, else a job of its own for a
     * single process and "default" for several. */
    const char *job;
    /* Secret shared by the job's ranks. NULL: $HVD_JOB_KEY, else none. */
    const char *job_key;
    /* HVD_FROM_ENV: hvdrun, torchrun, Open MPI, PMI, Slurm, in that order; else rank 0 of 1.
     * RANK and WORLD_SIZE alone may be a cluster's: hvd.h(3) says when another comes before them. */
    int rank, size;
    /* HVD_FROM_ENV: as above, also where rank and size are given and are the launcher's; else derived
     * from rank and size, as if all ranks were on this node. */
    int local_rank, local_size, cross_rank, cross_size;
    int64_t timeout_ns; /* for the attach; default 30 s */
    hvd_log_fn log;     /* NULL: silent */
    void *log_user;
};

/* Fills defaults. Cannot fail. */
HVD_API void hvd_options_init(struct hvd_options *options);

/* Attaches to the node's hvdd as one rank of a job. Does not wait for the other ranks: ops do.
 * `options` NULL means all defaults. Blocks up to timeout_ns. Errors: HVD_ERR_NO_DAEMON, _REFUSED,
 * _VERSION, _BAD_RANK, _BAD_SIZE, _DUPLICATE_RANK, _ATTACH_TIMEOUT, _DRAINING, _DAEMON,
 * _DAEMON_LIMIT, _PROTOCOL, _NO_MEMORY, _LIMIT, _INVALID; _UNSUPPORTED when the job's ranks are on
 * several nodes (local_size below size, or cross_size above 1) and hvdd is in no mesh with others.
 * That nodes do not meet, or cannot reach each other, is an error of the first call that needs them.
 * Nothing is left behind on failure. May be repeated any number of times in one process. What a
 * session needs of this process is reserved before the daemon is asked, so that a lack of it costs
 * the other ranks nothing. After HVD_ERR_ATTACH_TIMEOUT the daemon may have taken the rank just too
 * late for this call: then the rank is lost to the others (HVD_ERR_RANK_LOST), who have to open new
 * sessions as this one has. */
HVD_API int hvd_open(const struct hvd_options *options, struct hvd_session **session_p);

/* Detaches and frees the session, its memory from hvd_alloc and every op not yet freed. Ops in
 * flight are abandoned; peers that wait for this rank get HVD_ERR_RANK_LEFT. Blocks until
 * nobody writes to the memory of ops any more, which may then be used for something else; but a second
 * at most: HVD_ERR_TIMEOUT, and the memory of ops in flight may still be written to for a while (the
 * engine, or a rank that works on such an op, was stopped). Streams that wait for these ops (hvd_op_stream_wait) go on when the
 * engine does, or when it has been killed. Where the job is on several nodes and no op has
 * ended here, it waits until the nodes have met, so that whoever opens again meets the same ranks again;
 * 45 seconds at most. NULL is fine. Always frees. */
HVD_API int hvd_close(struct hvd_session *session);

/* The wait of hvd_close in pieces, for a caller who looks at signals in between. The first call says goodbye; waits for timeout_ns
 * at most, and not at all if that is 0. HVD_INPROGRESS: the wait goes on, call it again. HVD_OK or HVD_ERR_TIMEOUT: it is over,
 * as hvd_close would return. After the first call only hvd_close_wait and hvd_close may be called. hvd_close
 * waits no longer then: it returns HVD_ERR_TIMEOUT where the wait was given up. NULL is fine. */
HVD_API int hvd_close_wait(struct hvd_session *session, int64_t timeout_ns);

/* For a rank that has nothing left to do but to exit: the process' exit(0) closes the session. One with another
 * status leaves that to the process' end, so that the ranks that wait for this one learn what became of it
 * (HVD_ERR_RANK_LOST: "exited with code 3") and not before it has ended: whoever looks for the first
 * failure finds it. Nothing may be in flight (HVD_ERR_BUSY), and the session's log function is not
 * called any more. One session of a process (HVD_ERR_LIMIT); hvd_close may still be called. */
HVD_API int hvd_close_at_exit(struct hvd_session *session);

/* Identity, fixed at open: -1 for a NULL session. cross_rank: index of this node; cross_size:
 * number of nodes with a rank of this local_rank. Never block. */
HVD_API int hvd_rank(const struct hvd_session *session);
HVD_API int hvd_size(const struct hvd_session *session);
HVD_API int hvd_local_rank(const struct hvd_session *session);
HVD_API int hvd_local_size(const struct hvd_session *session);
HVD_API int hvd_cross_rank(const struct hvd_session *session);
HVD_API int hvd_cross_size(const struct hvd_session *session);

/* The job's id and the directory of the daemon's sockets, owned by the session. "" for a NULL
 * session. */
HVD_API const char *hvd_job(const struct hvd_session *session);
HVD_API const char *hvd_address(const struct hvd_session *session);

/* HVD_OK while the session can take ops; otherwise why not (e.g. HVD_ERR_RANK_LOST,
 * HVD_ERR_ENGINE_LOST), and hvd_last_error() tells the story. Never blocks; looks at the engine's
 * socket. */
HVD_API int hvd_session_status(struct hvd_session *session);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Shared memory of at least `bytes` bytes, zeroed, aligned to 4096. Tensors that live in it are
 * reduced where they are. All other memory is copied: whole, by this library; or in pieces, by the
 * engine, from 32 KiB on, where that is faster and the kernel lets it into this process (hvdctl
 * doctor says; HVD_FOREIGN_MEMORY=always or never decides otherwise).
 * Ranks of the job map it too while they do allreduces of up to 4 MiB together, unless rank 0 has
 * HVD_EXPRESS=small; whoever waits for such an op does a part of it.
 * In a forked child it is still the parent's memory, and so is a result that the library provides: a
 * child must not write there.
 * Blocks while pages are reserved, and for the engine's answer, 8 s at most. HVD_ERR_INVALID: 0 bytes; HVD_ERR_NO_MEMORY,
 * HVD_ERR_LIMIT; HVD_ERR_TIMEOUT: the engine did not answer, and nothing is left. */
HVD_API int hvd_alloc(struct hvd_session *session, size_t bytes, void **ptr_p);
/* `ptr` from hvd_alloc. Blocks until the engine has let go of it, 8 s at most. HVD_ERR_BUSY while an op that is not
 * finished uses it, in place or as ordinary memory; HVD_ERR_NOT_FOUND. */
HVD_API int hvd_free(struct hvd_session *session, void *ptr);

/* Shared memory of the process, of no session, as ncclMemAlloc's is of no communicator: for
 * allocators that live longer than a session. At least `bytes` bytes, zeroed, aligned to 4096, and to
 * 2 MiB from there on; pages come when they are first touched, as malloc's do. To a session it is
 * ordinary memory until hvd_register. In a forked child it is a view of its own, as adopted memory is.
 * Any thread; costs one descriptor. HVD_ERR_INVALID, HVD_ERR_NO_MEMORY, HVD_ERR_LIMIT. */
HVD_API int hvd_mem_alloc(size_t bytes, void **ptr_p);
/* `ptr` from hvd_mem_alloc. HVD_ERR_BUSY while a session has it registered, HVD_ERR_NOT_FOUND. */
HVD_API int hvd_mem_free(void *ptr);

/* Announces long-lived memory of the caller's: its shared twin is reserved now, so that submitting
 * tensors inside [ptr, ptr + bytes) allocates nothing. The memory stays the caller's and must
 * outlive the registration. For memory that cannot be adopted where it is otherwise copied whole.
 * hvd_mem_alloc's needs no twin: wherever `ptr` points to in it, all of it is as hvd_alloc's from then
 * on, until hvd_deregister or hvd_close. Blocks as hvd_alloc does. HVD_ERR_INVALID: NULL, 0 bytes, or memory that this session
 * knows already; HVD_ERR_NO_MEMORY, HVD_ERR_LIMIT, HVD_ERR_TIMEOUT. */
HVD_API int hvd_register(struct hvd_session *session, void *ptr, size_t bytes);

/* Makes long-lived private memory of the caller's shared memory where it is, contents kept: from
 * then on its tensors are as fast as hvd_alloc's. Adopted are the whole pages inside [ptr, ptr +
 * bytes), and, of a malloc'ed buffer with a mapping of its own (128 KiB to 32 MiB and larger,
 * mallopt(3)), all of it; a tensor that reaches beyond is served like ordinary memory. Nobody may
 * write to the memory during the call. Costs a copy and one descriptor. Blocks for the engine's
 * answer, 8 s at most: HVD_ERR_TIMEOUT. HVD_ERR_INVALID for anything but
 * private anonymous memory (files, shared memory, stacks, malloc's heaps, hugetlb, locked pages)
 * and for what this session knows already; HVD_ERR_BUSY while an op uses it; HVD_ERR_NO_MEMORY,
 * _LIMIT. Memory that is pinned for a device (CUDA, RDMA, io_uring) must not be adopted: the device
 * would keep the old pages.
 *   The end   hvd_deregister and hvd_close make it private again, contents kept.
 *   free      Deregister first. What glibc's malloc mapped may be freed or reallocated without
 *             that: it is noticed, and only the shared pages live on until hvd_close.
 *   fork      The child has a view of its own: what it writes stays there; what it has not written
 *             shows what the parent has there now, not what it had at the fork. */
HVD_API int hvd_adopt(struct hvd_session *session, void *ptr, size_t bytes);
/* `ptr` from hvd_register or hvd_adopt. Blocks as hvd_free does. HVD_ERR_BUSY while an op that is not finished uses it;
 * HVD_ERR_NOT_FOUND. HVD_ERR_NO_MEMORY: adopted memory is forgotten, keeps its contents and stays
 * shared memory. */
HVD_API int hvd_deregister(struct hvd_session *session, void *ptr);

/* Memory of a CUDA device, of the process and of no session, made as ncclMemAlloc makes its own: at least
 * `bytes` bytes, not zeroed, rounded up to what the driver recommends (2 MiB as a rule); one piece, which
 * hvdd's worker opens by one descriptor, and which GPUDirect RDMA may use where the device can do that.
 * `device` is its ordinal in this process, as cudaSetDevice takes it. CUDA has to be in use here already: the
 * library does not load libcuda. The device's primary context is made if it is not there.
 *   Where all ranks of an allreduce have `in` and `out` of 512 KiB and more in such memory, each on a GPU of its own,
 * NCCL may use them registered, without a copy inside it and with the NVSwitch's own additions (NVLS). That
 * needs NCCL 2.26 and GPUs that can multicast. It begins with a later op than the first. An op whose memory NCCL does
 * not take goes without; a worker that hangs in a call of NCCL's for this is ended, as in any other call.
 *   Any thread. HVD_ERR_INVALID (also: no such device), HVD_ERR_NO_MEMORY, HVD_ERR_UNSUPPORTED. */
HVD_API int hvd_device_alloc(size_t bytes, int device, void **ptr_p);
/* `ptr` from hvd_device_alloc. Nothing that uses the memory may be enqueued any more: the call need not wait for it.
 * It may wait for streams of this process, though, whatever they do. Sessions notice it as any free: call
 * hvd_device_forget before, so that the GPU's memory is free at once.
 * HVD_ERR_BUSY while an op in flight uses it, HVD_ERR_NOT_FOUND; HVD_ERR_FORKED in a child; HVD_ERR_UNSUPPORTED
 * if the driver refuses: `ptr` is forgotten then. */
HVD_API int hvd_device_free(void *ptr);

/* For allocators of device memory: the allocation that holds `ptr` is about to be freed, and the engine
 * lets go of it. Without this call a free is noticed at the next use of that address, and until then
 * the GPU's memory is not free. Of a reservation that is mapped in chunks (cuMemMap) the engine lets go of
 * the chunks that it knows together with that of `ptr`, or knew before the reservation grew; those that stay are made
 * known again by their next use. Blocks, 8 s at most. The memory may be freed then. Where ops of others have kept its GPU's worker busy for 200 ms,
 * the worker lets go of it after the return, and the GPU's memory is free a little later. Memory of a pool
 * (cuMemAllocFromPoolAsync) must not be freed while a worker has it open: HVD_ERR_TIMEOUT says that one still has. HVD_ERR_BUSY while an
 * op in flight uses it, HVD_ERR_NOT_FOUND. */
HVD_API int hvd_device_forget(struct hvd_session *session, void *ptr);

/* ---- ops ------------------------------------------------------------------------------------- */

/* Optional extras of every _async op; NULL means the defaults that hvd_op_options_init fills in. */
struct hvd_op_options {
    size_t struct_size;
    /* Of reductions; other ops ignore them. */
    double prescale_factor;  /* multiplies each input; 1.0 */
    double postscale_factor; /* multiplies the result; 1.0. Integers: in double, then truncated */
    int process_set;         /* an id from hvd_op_process_set or _add; 0: all ranks */
    /* Of tensors in memory of a CUDA device: the stream (CUstream, cudaStream_t) that the op takes part in;
     * it stays the caller's. CU_STREAM_LEGACY and CU_STREAM_PER_THREAD name the default ones. The GPU waits
     * for the work that the stream has now; the call waits for nothing but for the first use of an allocation
     * (struct hvd_tensor). The result may be used after hvd_wait, or in a stream after hvd_op_stream_wait; until hvd_wait or hvd_test has seen
     * the op finished the memory must not be freed. What the stream has now may wait for other ops by
     * hvd_op_stream_wait alone: GPUs do ops of several process sets in one queue, and where the stream waits for
     * one of another set in a way that the library does not see, both may wait for ever. NULL: the memory is ready, the caller has seen to
     * that. Memory of the host takes part in no stream: HVD_ERR_UNSUPPORTED for anything but NULL, and so
     * is a stream that is being captured into a graph. HVD_ERR_INVALID: a stream of another device.
     *   An op that is cancelled, or fails with a rank, after its GPU has got it writes no output before this
     * stream has come to it. Of ops between GPUs what NCCL has cannot be stopped: it may write there, with
     * anything, and what the stream itself does there until then may be lost. Once hvd_wait or hvd_test says
     * that the op is over nothing writes there any more, but after
     * HVD_ERR_ENGINE_LOST: then for 10 s more at most, as the GPU's worker may outlive the engine. A stream that
     * waits for the op (hvd_op_stream_wait) goes on when that is over. Do not reload weights into such
     * outputs before. */
    void *stream;
};
HVD_API void hvd_op_options_init(struct hvd_op_options *options);

/* Common to the _async functions below.
 *   name     UTF-8, at most HVD_NAME_MAX bytes; pairs the op with the same name on the other ranks
 *            of its process set; the same name in two sets means two ops. NULL: the n-th unnamed op
 *            of its kind and set on this rank meets the n-th on the others, counted from the
 *            session's beginning or the set's last join.
 *   in, out  may be the same tensor (in place); must not overlap otherwise. Until the op is
 *            finished neither may be read or written, except that `in` may be read. The structs
 *            themselves are copied.
 *   options  NULL: scale factors of 1, all ranks. "All ranks", "every rank" and "n" below mean the
 *            members of the op's process set; "set rank" is a member's place among them.
 *   op_p     to be finished by hvd_wait or hvd_test and released by hvd_op_free.
 * They never wait for other ranks or for room: a full ring is HVD_ERR_RING_FULL. The first use of a
 * size of ordinary memory that this library must copy (above 4096 bytes, see hvd_alloc) makes and
 * announces shared memory to stage it, which takes the engine's answer (8 s at most); hvd_alloc,
 * hvd_adopt and hvd_register avoid that. Where the engine reads and writes ordinary memory itself,
 * an op whose memory is unmapped meanwhile fails on every rank with HVD_ERR_INVALID. Other immediate
 * errors: HVD_ERR_INVALID (also: this rank is no member of the set, or has joined it),
 * _DUPLICATE_NAME, _NOT_FOUND (no such set), _UNSUPPORTED, _NO_MEMORY (staging for ordinary
 * memory), _LIMIT (HVD_OPS_MAX finished ops are not released, or so many that a group can find no
 * room), a lost session. An op that meets a page of shared memory that cannot be had fails on every
 * rank with HVD_ERR_NO_MEMORY, and names the rank. After an op has failed while it was executing, its output is undefined. */

/* out = reduction over all ranks; shapes and dtypes equal everywhere. */
HVD_API int hvd_allreduce_async(struct hvd_session *session, const char *name,
                                const struct hvd_tensor *in, const struct hvd_tensor *out,
                                enum hvd_reduce_op reduce_op, const struct hvd_op_options *options,
                                struct hvd_op **op_p);
/* Concatenation along the first dimension, by set rank; first dimensions may differ (also 0), the
 * others must be equal. A scalar has no rows: HVD_ERR_INVALID.
 * `in` may be this rank's own part of `out`.
 * `out` NULL: the library provides the memory, see hvd_op_result; it lives until hvd_op_free.
 * Otherwise out->data must have room for the whole result as described by out's dims
 * (HVD_ERR_TOO_SMALL if it has not); out's first dimension may be larger than the result's. With
 * out NULL the op makes progress inside hvd_test, the hvd_wait functions and hvd_session_status:
 * the first of them that learns its size makes and announces shared memory, as above (8 s at
 * most). */
HVD_API int hvd_allgather_async(struct hvd_session *session, const char *name,
                                const struct hvd_tensor *in, const struct hvd_tensor *out,
                                const struct hvd_op_options *options, struct hvd_op **op_p);
/* out on every rank = in of rank `root` (a global rank, member of the set). On the other ranks `in`
 * gives dtype and shape, and its data is not read. */
HVD_API int hvd_broadcast_async(struct hvd_session *session, const char *name,
                                const struct hvd_tensor *in, const struct hvd_tensor *out, int root,
                                const struct hvd_op_options *options, struct hvd_op **op_p);
/* out = this rank's rows of the reduction. Rows (of the first dimension) are dealt out by set rank:
 * with n members the first dim0 % n get dim0 / n + 1 rows each, the others dim0 / n. Shapes and
 * dtypes of `in` are equal everywhere; a scalar has no rows: HVD_ERR_INVALID. Every reduce op but
 * HVD_ADASUM. A member that has joined (hvd_join_async) gets no rows: they are dealt out among the
 * others. `out` as in hvd_allgather_async: NULL, or with room for at least this rank's rows
 * (HVD_ERR_INVALID otherwise; HVD_ERR_TOO_SMALL when they are more because of a join). `out` may
 * be this rank's own rows inside `in`; not in place otherwise. */
HVD_API int hvd_reducescatter_async(struct hvd_session *session, const char *name,
                                    const struct hvd_tensor *in, const struct hvd_tensor *out,
                                    enum hvd_reduce_op reduce_op,
                                    const struct hvd_op_options *options, struct hvd_op **op_p);
/* Every rank sends rows of `in` to every rank: the first splits[0] rows go to set rank 0, the next
 * splits[1] to set rank 1, and so on. `splits` has one entry per member, none negative, with a sum
 * of at most in's first dimension (rows beyond it are not sent); it is copied. NULL: equal parts,
 * which in's first dimension must allow. All dimensions but the first are equal everywhere; a
 * scalar has no rows: HVD_ERR_INVALID. out = the rows received, those of set rank 0 first. `out` as
 * in hvd_allgather_async: NULL, or with room for the result. Not in place. Rows for a member that
 * has joined go nowhere. */
HVD_API int hvd_alltoall_async(struct hvd_session *session, const char *name,
                               const struct hvd_tensor *in, const int64_t *splits,
                               const struct hvd_tensor *out, const struct hvd_op_options *options,
                               struct hvd_op **op_p);
/* Finishes when every rank has submitted it. Does not wait for other ops. */
HVD_API int hvd_barrier_async(struct hvd_session *session, const char *name,
                              const struct hvd_op_options *options, struct hvd_op **op_p);

/* ---- groups ----
 * `count` (1 .. HVD_GROUP_MAX) ops at once: none runs until every member is ready on every rank;
 * all finish together; if one fails all fail with the same sentence. in[count], out[count] and
 * ops_p[count]; dtypes and shapes may differ between members. Member i is named
 * "<name>_<i+1>of<count>". On an error nothing was submitted and ops_p is untouched. The first
 * submission of a group carries its members' names, 64 KiB at most: HVD_ERR_LIMIT beyond. Each op
 * is waited for and released by itself. */
HVD_API int hvd_grouped_allreduce_async(struct hvd_session *session, const char *name,
                                        const struct hvd_tensor *in, const struct hvd_tensor *out,
                                        int count, enum hvd_reduce_op reduce_op,
                                        const struct hvd_op_options *options,
                                        struct hvd_op **ops_p);
/* `out` NULL: the library provides the memory of every member. */
HVD_API int hvd_grouped_allgather_async(struct hvd_session *session, const char *name,
                                        const struct hvd_tensor *in, const struct hvd_tensor *out,
                                        int count, const struct hvd_op_options *options,
                                        struct hvd_op **ops_p);
/* `out` NULL: the library provides the memory of every member. */
HVD_API int hvd_grouped_reducescatter_async(struct hvd_session *session, const char *name,
                                            const struct hvd_tensor *in,
                                            const struct hvd_tensor *out, int count,
                                            enum hvd_reduce_op reduce_op,
                                            const struct hvd_op_options *options,
                                            struct hvd_op **ops_p);

/* ---- join ----
 * This rank has no more data: until every member of the set (options->process_set) has joined, it
 * takes part in the others' ops with neutral elements: 0 for sums, nothing for min, max and
 * product, no rows for allgather, alltoall and reducescatter. Averages still divide by the number
 * of members. A broadcast whose root has joined fails on all. Ops that this rank submitted before
 * are not affected; until the join is finished (or taken back) it may submit nothing on that set
 * (HVD_ERR_INVALID). Finished when all members have joined; afterwards the set is used as before,
 * and hvd_op_joined_rank is the global rank that joined last. */
HVD_API int hvd_join_async(struct hvd_session *session, const struct hvd_op_options *options,
                           struct hvd_op **op_p);
/* Of a finished join; -1 otherwise. */
HVD_API int hvd_op_joined_rank(const struct hvd_op *op);
/* Joins all ranks and waits without limit. `last_rank_p` may be NULL. */
HVD_API int hvd_join(struct hvd_session *session, int *last_rank_p);

/* ---- point to point ----
 * From one rank to another one of the process set (options->process_set, whose set ranks do not
 * matter here: `to` and `from` are global ranks). The n-th send to a rank with a tag meets the n-th
 * recv there from this rank with that tag; different tags, pairs and sets never wait for each other.
 * Both ends must agree on dtype and number of elements (HVD_ERR_MISMATCH on both), shapes may
 * differ. Both finish once the data has been copied: a send waits for its recv, so two ranks that
 * first send to each other and then receive must submit both before they wait. Sending to oneself
 * is HVD_ERR_INVALID. What fails or is cancelled counts as never submitted. `tag`: 0 or more. */
HVD_API int hvd_send_async(struct hvd_session *session, const struct hvd_tensor *in, int to,
                           int tag, const struct hvd_op_options *options, struct hvd_op **op_p);
#define HVD_ANY_RANK (-1) /* recv: whoever sends first with this tag */
HVD_API int hvd_recv_async(struct hvd_session *session, const struct hvd_tensor *out, int from,
                           int tag, const struct hvd_op_options *options, struct hvd_op **op_p);
/* The global rank from which a finished recv got its data; -1 otherwise. */
HVD_API int hvd_op_source(const struct hvd_op *op);

/* ---- process sets ----
 * Subsets of the job's ranks with ops of their own. A set that waits never delays another. Every
 * rank of the job, member or not, adds and removes the same sets in the same order; disagreement is
 * HVD_ERR_MISMATCH on all. Ids are small, the same on all ranks, and used again after a removal.
 * Sets end with the session. */

/* `ranks[count]`: distinct global ranks in any order; members are ordered by global rank. It is
 * copied. Duplicates and unknown ranks are HVD_ERR_INVALID; a set of the same ranks that exists
 * already (also: all ranks) is HVD_ERR_EXISTS. Several may be in flight. */
HVD_API int hvd_process_set_add_async(struct hvd_session *session, const int *ranks, int count,
                                      struct hvd_op **op_p);
/* The id that a finished hvd_process_set_add_async or _open_async got; -1 otherwise. */
HVD_API int hvd_op_process_set(const struct hvd_op *op);
/* Wait without limit for all ranks of the job. */
HVD_API int hvd_process_set_add(struct hvd_session *session, const int *ranks, int count,
                                int *id_p);
/* Set 0 is HVD_ERR_INVALID, an unknown one HVD_ERR_NOT_FOUND. From its submission on this rank may
 * submit nothing on the set. */
HVD_API int hvd_process_set_remove_async(struct hvd_session *session, int id, struct hvd_op **op_p);
HVD_API int hvd_process_set_remove(struct hvd_session *session, int id);

/* The same among the members alone: the other ranks of the job need not know. Sets are opened by
 * those ranks that give the same `ranks` (as above, this rank among them; also all ranks) and the
 * same `tag` (0 or more), each in the order in which they do so; there may be any number with the
 * same ranks. Finished when all of them have come, on all nodes; hvd_op_process_set is the id.
 * A set that was opened is closed by its members, each once; then what waits in it fails. From its
 * submission on this rank may submit nothing on the set; nobody has to wait for it. */
HVD_API int hvd_process_set_open_async(struct hvd_session *session, const int *ranks, int count,
                                       int tag, struct hvd_op **op_p);
HVD_API int hvd_process_set_close_async(struct hvd_session *session, int id, struct hvd_op **op_p);

/* What this rank knows of the sets; never block. HVD_ERR_NOT_FOUND for an unknown set. A set is
 * known from the call on that sees its op finished. */
/* This rank's place in the set; -1: not a member. */
HVD_API int hvd_process_set_rank(struct hvd_session *session, int id);
HVD_API int hvd_process_set_size(struct hvd_session *session, int id);
/* The set's size; writes its first `capacity` global ranks, ascending. */
HVD_API int hvd_process_set_ranks(struct hvd_session *session, int id, int *ranks_p, int capacity);
/* The number of sets, set 0 included; writes the first `capacity` ids, ascending. */
HVD_API int hvd_process_set_ids(struct hvd_session *session, int *ids_p, int capacity);

/* ---- the end of ops -------------------------------------------------------------------------- */

/* HVD_INPROGRESS, HVD_OK, or the op's error. Never blocks, though a finished op of ordinary memory
 * is copied out by the call that first sees it finished. */
HVD_API int hvd_test(struct hvd_op *op);
/* Blocks until the op is finished or timeout_ns has passed (HVD_ERR_TIMEOUT; the op goes on).
 * Returns the op's status. Spins briefly, then yields, then sleeps. A dead engine is noticed within
 * 100 ms. */
HVD_API int hvd_wait(struct hvd_op *op, int64_t timeout_ns);
/* Blocks until one of ops[0 .. count) is finished or timeout_ns has passed (HVD_ERR_TIMEOUT; all go
 * on). NULL entries are skipped; ops of several sessions may be mixed. Returns the status of the
 * finished op with the lowest index and writes that index, also when the op has failed; otherwise
 * (HVD_ERR_TIMEOUT; HVD_ERR_INVALID: no ops) it is -1. An op that was seen before counts again:
 * replace it by NULL. Sleeps as hvd_wait does. */
HVD_API int hvd_wait_any(struct hvd_op *const *ops, int count, int64_t timeout_ns, int *index_p);
/* Blocks until all of ops[0 .. count) are finished. NULL entries are skipped; ops of several
 * sessions may be mixed. HVD_OK, the error of the failed op with the lowest index, or
 * HVD_ERR_TIMEOUT (the unfinished ones go on). */
HVD_API int hvd_wait_all(struct hvd_op *const *ops, int count, int64_t timeout_ns);
/* Takes the op back if it still waits for other ranks: it then ends with HVD_ERR_CANCELLED on this
 * rank, while the others go on waiting for it. HVD_OK: the request is on its way; look at the op to
 * see what became of it. An op that executes or is finished is left alone. In a job on several nodes so is
 * one after whose submission all ranks of its node have joined. Never blocks.
 * HVD_ERR_RING_FULL. */
HVD_API int hvd_cancel(struct hvd_op *op);
/* The output of a finished op: its data, dtype and shape. HVD_INPROGRESS before that, or the op's
 * error. */
HVD_API int hvd_op_result(const struct hvd_op *op, struct hvd_tensor *result_p);
/* Rows that a finished alltoall got from each member; `count` must be the number of members
 * (HVD_ERR_INVALID otherwise, also for other ops). HVD_INPROGRESS before the end, or the op's
 * error. */
HVD_API int hvd_op_received_splits(const struct hvd_op *op, int64_t *splits_p, int count);
/* The op's name ("allreduce.noname.7" for unnamed ones) and, after a failure, its sentence (""
 * otherwise). Both live until hvd_op_free. */
HVD_API const char *hvd_op_name(const struct hvd_op *op);
HVD_API const char *hvd_op_error(const struct hvd_op *op);
/* After a failure: the global rank that caused it, or -1. */
HVD_API int hvd_op_culprit(const struct hvd_op *op);
/* Of an op on tensors of a CUDA device: what is enqueued in `stream` (CUstream or cudaStream_t) from now on
 * begins when the op is over; the call waits for nothing. That is no success: a stream goes on also
 * after a failure, with undefined outputs, and hvd_test or hvd_wait tells. It goes on too when the engine or
 * the GPU's worker dies; when hvdd is dead as well, with a call of this session, or a later one, 10 s
 * after that: a thread that waits for its stream alone then waits for ever. Where hvd_close has returned HVD_ERR_TIMEOUT,
 * these 10 s begin when hvdd would have killed the engine.
 * HVD_ERR_UNSUPPORTED for an op of memory of the host (call hvd_wait) and while the stream is captured
 * into a graph; HVD_ERR_INVALID for NULL (CU_STREAM_LEGACY and CU_STREAM_PER_THREAD name the default ones) and for a stream of
 * another device. */
HVD_API int hvd_op_stream_wait(struct hvd_op *op, void *stream);
/* Releases a finished op. An op in flight is released once it finishes; until then its memory must
 * stay, and its output is then undefined. NULL is fine. */
HVD_API void hvd_op_free(struct hvd_op *op);

/* The blocking forms: submit, wait without limit, release. A full ring is waited out; HVD_ERR_LIMIT where
 * more than half of HVD_OPS_MAX are finished ops that were not released and no other ends for a second. */
HVD_API int hvd_allreduce(struct hvd_session *session, const char *name,
                          const struct hvd_tensor *in, const struct hvd_tensor *out,
                          enum hvd_reduce_op reduce_op);
HVD_API int hvd_broadcast(struct hvd_session *session, const char *name,
                          const struct hvd_tensor *in, const struct hvd_tensor *out, int root);
HVD_API int hvd_barrier(struct hvd_session *session, const char *name);
/* `*result_p` gets the shape; its data is memory from malloc(3), to be freed by the caller. */
HVD_API int hvd_allgather(struct hvd_session *session, const char *name,
                          const struct hvd_tensor *in, struct hvd_tensor *result_p);

/* Starts a timeline of the job: a Chrome trace (chrome://tracing, Perfetto) with the phases of every
 * op of every rank, as Horovod writes them. The file is created or emptied with this process'
 * rights, must be a regular one, and is written by the engine; it is valid JSON at every moment.
 * With mark_cycles not 0 also every pass of the engine that found work. Any rank may call it; there
 * is one timeline per job: HVD_ERR_EXISTS while one runs. HVD_ERR_INVALID when the file cannot be
 * opened, HVD_ERR_LIMIT when it cannot be written. Blocks until the file is there, 8 s at most.
 * HVD_TIMELINE=path (or HOROVOD_TIMELINE) in rank 0's environment does it at hvd_open; the value
 * DYNAMIC does nothing. */
HVD_API int hvd_timeline_start(struct hvd_session *session, const char *path, int mark_cycles);
/* Completes and closes the file; HVD_OK also when no timeline runs. Blocks, 8 s at most. */
HVD_API int hvd_timeline_stop(struct hvd_session *session);

/* A descriptor for event loops: readable when a completion is waiting or the session has ended.
 * Poll it, then call hvd_test on the ops of interest; now and then it is readable a moment late, for
 * what has been seen already, so poll again if nothing has changed. Owned by the session; never read
 * or close it. Blocks where small or medium ops that the ranks do themselves are in flight, until the
 * engine has taken them over: microseconds, 100 ms at most if the engine stands still. */
HVD_API int hvd_event_fd(struct hvd_session *session, int *fd_p);

/* ---- text ------------------------------------------------------------------------------------ */

/* The sentence of this thread's last failed call; "" before the first. Valid until this thread's
 * next hvd_ call. */
HVD_API const char *hvd_last_error(void);
/* "HVD_ERR_RANK_LOST"; a constant string for any number. */
HVD_API const char *hvd_status_name(int status);
/* Library version, e.g. "0.1.0". */
HVD_API const char *hvd_version(void);
/* Bytes of one element, 0 for an unknown dtype. */
HVD_API size_t hvd_dtype_size(enum hvd_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif

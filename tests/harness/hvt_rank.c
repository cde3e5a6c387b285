/* SPDX-License-Identifier: Apache-2.0
 * hvt-rank: a trainer on strings. It reads one JSON object per line on stdin, does what it says
 * through hvd.h, and prints one JSON object per line on stdout, in order. The Python tests drive it
 * as hvt.Rank.
 *
 *     {"do": "open", "session": 0, "address": S, "job": S, "key": S, "rank": N, "size": N,
 * "timeout_ms": N}
 *     {"do": "state", "session": 0}
 *     {"do": "close", "session": 0, "watch": B} -> "wrong": N (watch: bytes of the outputs in lasting memory that
 * somebody has changed after hvd_close)
 *     {"do": "submit", "session": 0, "kind": "allreduce" | "allgather" | "broadcast" |
 * "reducescatter" | "alltoall" | "barrier" | "join" | "set_add" | "set_remove" | "send" | "recv" |
 * "set_open" | "set_close", "name": S, "tag": N,
 * "name_hex": H, "process_set": N, "dtype": N, "dims": [..], "ndim": N, "data": H, "bytes": N,
 * "memory": "malloc" | "shared" | "registered" | "adopted" | "lasting" | "device" (of a GPU, hvt_gpu.h) | "own" (the same, an
 * allocation of its own) | "segment" (in chunks) | "pool" | "made" (by hvd_device_alloc) | "fabric" (in chunks with fabric handles), "gpu": N, "stream": N (of "stream"), "out_memory", "out_gpu": as "memory" and "gpu", which stand for
 * them otherwise, "silent": "in" | "out" (the second half of that memory does not answer), "in_place": B, "reduce_op": N,
 * "root": N, "prescale": X, "postscale": X, "out_dims": [..], "out_fill": N, "splits": [..],
 * "pattern": N (instead of data: byte i is N * (i mod 251)), "ranks": [..], "set": N}                                                       -> "op": N
 *     {"do": "group", "session": 0, "kind": ..., "name": S, "members": [{as for submit}, ..], the
 * rest as for submit; allreduce, allgather, reducescatter}                       -> "ops": [..]
 *     {"do": "test" | "wait", "op": N, "timeout_ms": N, "output": B, "pattern": N}
 *                                       -> "at_ns", "culprit", "error", "dims", "data": H,
 * "splits": [..] (received), "joined": N, "set": N, "source": N, "wrong": N (against the pattern)
 *     {"do": "wait_any" | "wait_all", "ops": [..] (-1: NULL), "timeout_ms": N}     -> "index": N
 *     {"do": "cancel", "op": N}          {"do": "where", "op": N} -> "in": N   the address of its input
 *     {"do": "stream", "gpu": N} -> "stream": N            {"do": "gate", "stream": N, "open": B}
 *     {"do": "stream_wait", "op": N, "stream": N}
 *     {"do": "drain", "stream": N, "timeout_ms": N} -> "ended": B, "at_ns"
 *     {"do": "read", "op": N, "stream": N, "timeout_ms": N} -> "ended": B, "at_ns", "data": H   the output, in the stream's order
 *     {"do": "sets", "session": 0}                  -> "sets": [{"id", "rank", "ranks"}, ..]
 *     {"do": "free" | "abandon", "op": N, "unsaid": B (the library is not told that memory goes)}
 *     {"do": "loop", "session": 0, "name": S, "elements": N, "count": N, "for_ms": N, "memory": M,
 * "buffers": N (that are used by turns), "pause_us": N (between submitting and waiting), "rest_us": N (asleep after
 * each round)}      -> "at_ns", "done": N (rounds), "worst_ns": N (the longest time from the end of one to that of the next)
 * "keep": B (after a failure its memory stays), "blind": B (the rank itself does not touch its memory, which may
 * be gone)      allreduces until a failure; name "": unnamed
 *     {"do": "kept"} -> "first": N, "last": N   bytes there that have changed since; -1: none
 *     {"do": "alloc", "session": 0, "bytes": N} -> "memory": N        {"do": "unalloc", "session":
 * 0, "memory": N}
 *     {"do": "event", "session": 0, "timeout_ms": N} -> "readable": B
 *     {"do": "log"} -> "lines": [S]      what the library has told since the last time
 *     {"do": "fill", "bytes": N}       touches that much memory of its own and keeps it
 *     {"do": "unmap", "op": N, "side": "in" | "out"}   whole pages inside the op's memory vanish
 *     {"do": "answer"} -> "written": N   silent memory answers, with zeros; bytes that are none a little later
 *     {"do": "limit", "files": N}      lowers RLIMIT_NOFILE
 *     {"do": "hold"}                   forks a child that keeps every descriptor and sleeps ->
 * "pid": N
 *     {"do": "forked", "session": 0}   what a forked child gets from the parent's session
 *     {"do": "become", "path": S, "op": N}   executes hvt-other in its place, with all descriptors and where the op's input
 * was; that one answers
 *     {"do": "exit", "code": N | "signal": N}          ends without closing anything; no reply
 *
 * Every reply has "status" (enum hvd_status) and, when it is negative, "text" (hvd_last_error).
 * "data" is hexadecimal; without it the input is zeros (of "bytes" or of the shape). Output memory
 * of a library-provided allgather result lives until "free". End of input: every session is closed
 * and the program ends. Times are CLOCK_MONOTONIC. */
#include "tests/harness/hvt_gpu.h"

#include <hvd/hvd.h>

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SESSIONS 16
#define OPS      8192
#define MEMORIES 256

enum hvt_memory {
    HVT_MALLOC,
    HVT_SHARED,
    HVT_REGISTERED,
    HVT_ADOPTED,
    HVT_LASTING,
    HVT_DEVICE, /* and those that follow: of a GPU */
    HVT_OWN,
    HVT_SEGMENT,
    HVT_POOL,
    HVT_MADE,
    HVT_FABRIC
};

struct hvt_buffer {
    void *data;
    size_t bytes;
    enum hvt_memory memory;
    void *host;   /* of a GPU: what is copied there */
    bool is_lent; /* .host is a stream's, which may come to it later */
};

struct hvt_op {
    struct hvd_op *op; /* NULL: this place is free */
    int session;
    struct hvt_buffer in, out;
};

static struct hvd_session *sessions[SESSIONS];
static struct hvt_op ops[OPS];
static void *memories[MEMORIES];
static void **lent; /* memory that streams may still read; reachable, it is no leak */
static size_t lent_count;
static struct hvt_op abandoned[256]; /* keeps their memory reachable: it is no leak */
static size_t abandoned_count;

/* ---- JSON ---- */

static int64_t get_int(const cJSON *command, const char *name, int64_t standard)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(command, name);
    return cJSON_IsNumber(item) ? (int64_t)item->valuedouble : standard;
}

static double get_double(const cJSON *command, const char *name, double standard)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(command, name);
    if (cJSON_IsString(item))
        return strtod(item->valuestring, NULL); /* "nan", "inf" */
    return cJSON_IsNumber(item) ? item->valuedouble : standard;
}

static const char *get_text(const cJSON *command, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(command, name));
}

static bool get_bool(const cJSON *command, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(command, name));
}

static int64_t get_timeout_ns(const cJSON *command)
{
    int64_t timeout_ms = get_int(command, "timeout_ms", 5000);
    return timeout_ms < 0 ? -1 : timeout_ms * 1000000;
}

/* Times need more digits than a double prints. */
static void add_int(cJSON *reply, const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    cJSON_AddRawToObject(reply, name, text);
}

static void add_status(cJSON *reply, int status)
{
    add_int(reply, "status", status);
    if (status < 0)
        cJSON_AddStringToObject(reply, "text", hvd_last_error());
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int nibble(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

static void from_hex(const char *text, unsigned char *bytes_p, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bytes_p[i] = (unsigned char)(nibble(text[2 * i]) << 4 | nibble(text[2 * i + 1]));
}

static void add_hex(cJSON *reply, const char *name, const unsigned char *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdef";
    char *text = malloc(2 * count + 1);
    if (!text)
        abort();
    for (size_t i = 0; i < count; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    text[2 * count] = '\0';
    cJSON_AddStringToObject(reply, name, text);
    free(text);
}

/* ---- sessions ---- */

static struct hvd_session *get_session(const cJSON *command)
{
    int64_t number = get_int(command, "session", 0);
    return number >= 0 && number < SESSIONS ? sessions[number] : NULL;
}

static void add_identity(cJSON *reply, const struct hvd_session *session)
{
    add_int(reply, "rank", hvd_rank(session));
    add_int(reply, "size", hvd_size(session));
    add_int(reply, "local_rank", hvd_local_rank(session));
    add_int(reply, "local_size", hvd_local_size(session));
    add_int(reply, "cross_rank", hvd_cross_rank(session));
    add_int(reply, "cross_size", hvd_cross_size(session));
    cJSON_AddStringToObject(reply, "job", hvd_job(session));
    cJSON_AddStringToObject(reply, "address", hvd_address(session));
}

/* ---- what the library tells ---- */

static cJSON *log_lines;

static void keep_line(void *user, enum hvd_log_level level, const char *text)
{
    (void)user, (void)level;
    if (!log_lines)
        log_lines = cJSON_CreateArray();
    cJSON_AddItemToArray(log_lines, cJSON_CreateString(text));
}

/* What has been told since it was asked for last. */
static void do_log(const cJSON *command, cJSON *reply)
{
    (void)command;
    cJSON_AddItemToObject(reply, "lines", log_lines ? log_lines : cJSON_CreateArray());
    log_lines = NULL;
}

static void do_open(const cJSON *command, cJSON *reply)
{
    struct hvd_options options;
    int64_t number = get_int(command, "session", 0);
    int64_t begin_ns = now_ns();
    hvd_options_init(&options);
    options.address = get_text(command, "address");
    options.job = get_text(command, "job");
    options.job_key = get_text(command, "key");
    options.rank = (int)get_int(command, "rank", HVD_FROM_ENV);
    options.size = (int)get_int(command, "size", HVD_FROM_ENV);
    options.timeout_ns = get_int(command, "timeout_ms", 30000) * 1000000;
    options.log = keep_line;
    int status = hvd_open(&options, &sessions[number]);
    add_status(reply, status);
    add_int(reply, "took_ns", now_ns() - begin_ns);
    if (status == HVD_OK)
        add_identity(reply, sessions[number]);
}

/* ---- memory that does not answer ---- */

static int fault_fd = -1;

static struct {
    struct uffdio_range range;
    bool freed;
} silent[64];

static size_t silent_count;

static int open_fault_fd(void)
{
    struct uffdio_api api = {.api = UFFD_API};
    if (fault_fd >= 0)
        return HVD_OK;
    fault_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    return fault_fd >= 0 && ioctl(fault_fd, UFFDIO_API, &api) == 0 ? HVD_OK : HVD_ERR_UNSUPPORTED;
}

/* Whole pages of the second half. */
static int silence(const struct hvt_buffer *buffer)
{
    struct uffdio_register reg = {.mode = UFFDIO_REGISTER_MODE_MISSING};
    uintptr_t first = ((uintptr_t)buffer->data + buffer->bytes / 2 + 4095) / 4096 * 4096;
    uintptr_t end = ((uintptr_t)buffer->data + buffer->bytes) / 4096 * 4096;
    reg.range = (struct uffdio_range){.start = first, .len = end - first};
    if (open_fault_fd() != HVD_OK || silent_count == sizeof silent / sizeof *silent ||
        first >= end || ioctl(fault_fd, UFFDIO_REGISTER, &reg) != 0 ||
        madvise((void *)first, end - first, MADV_DONTNEED) != 0)
        return HVD_ERR_UNSUPPORTED;
    silent[silent_count].freed = false;
    silent[silent_count++].range = reg.range;
    return HVD_OK;
}

static void note_freed(const struct hvt_buffer *buffer)
{
    for (size_t i = 0; i < silent_count; i++) {
        uintptr_t at = (uintptr_t)silent[i].range.start - (uintptr_t)buffer->data;
        if (at < buffer->bytes)
            silent[i].freed = true;
    }
}

/* Whoever waits for memory that was freed meanwhile looks again, too. */
static void answer(void)
{
    for (size_t i = 0; i < silent_count; i++) {
        if (!silent[i].freed)
            ioctl(fault_fd, UFFDIO_UNREGISTER, &silent[i].range);
        ioctl(fault_fd, UFFDIO_WAKE, &silent[i].range);
    }
}

static void do_answer(const cJSON *command, cJSON *reply)
{
    enum { MS = 50 };
    int64_t written = 0;
    (void)command;
    answer();
    poll(NULL, 0, MS);
    for (size_t i = 0; i < silent_count; i++) {
        for (size_t at = 0; !silent[i].freed && at < silent[i].range.len; at++)
            written += ((unsigned char *)(uintptr_t)silent[i].range.start)[at] != 0;
    }
    silent_count = 0;
    add_int(reply, "status", HVD_OK);
    add_int(reply, "written", written);
}

static bool is_on_gpu(const struct hvt_buffer *buffer)
{
    return buffer->memory >= HVT_DEVICE;
}

static enum hvt_gpu_kind kind_of(enum hvt_memory memory)
{
    static const enum hvt_gpu_kind kinds[] = {HVT_GPU_ARENA, HVT_GPU_OWN,  HVT_GPU_SEGMENT,
                                              HVT_GPU_POOL,  HVT_GPU_MADE, HVT_GPU_FABRIC};
    return kinds[memory - HVT_DEVICE];
}

static void forget(void *session, void *data)
{
    int status = hvd_device_forget(session, data);
    if (status < 0 && status != HVD_ERR_NOT_FOUND && hvd_session_status(session) == HVD_OK) {
        fprintf(stderr, "hvt-rank: hvd_device_forget: %s\n", hvd_last_error());
        exit(3);
    }
}

static void keep_lent(void *data)
{
    void **more = realloc(lent, (lent_count + 1) * sizeof *lent);
    if (!more)
        abort();
    lent = more;
    lent[lent_count++] = data;
}

static void release_buffer(struct hvd_session *session, struct hvt_buffer *buffer)
{
    if (is_on_gpu(buffer)) {
        hvt_gpu_free(buffer->data, session ? forget : NULL, session);
        if (buffer->is_lent)
            keep_lent(buffer->host);
        else
            free(buffer->host);
        *buffer = (struct hvt_buffer){0};
        return;
    }
    if (buffer->data)
        note_freed(buffer);
    if (buffer->data && buffer->memory == HVT_SHARED && session)
        hvd_free(session, buffer->data);
    bool told = buffer->memory != HVT_SHARED && buffer->memory != HVT_MALLOC;
    if (buffer->data && told && session)
        hvd_deregister(session, buffer->data);
    if (buffer->data && buffer->memory == HVT_ADOPTED)
        munmap(buffer->data, buffer->bytes + 1);
    else if (buffer->data && buffer->memory == HVT_LASTING)
        hvd_mem_free(buffer->data);
    else if (buffer->memory != HVT_SHARED)
        free(buffer->data);
    *buffer = (struct hvt_buffer){0};
}

static void release_operands(struct hvd_session *session, struct hvt_op *op)
{
    release_buffer(session, &op->in);
    release_buffer(session, &op->out);
}

/* The memory of a session that was closed is used for something else. Bytes that are not what was written. */
static size_t watch_outputs(int number)
{
    enum { PATTERN = 0xa5, MS = 30 };
    size_t wrong = 0;
    for (size_t i = 0; i < OPS; i++) {
        struct hvt_buffer *out = &ops[i].out;
        if (!ops[i].op || ops[i].session != number || out->memory != HVT_LASTING)
            continue;
        memset(out->data, PATTERN, out->bytes);
        poll(NULL, 0, MS);
        for (size_t at = 0; at < out->bytes; at++)
            wrong += ((unsigned char *)out->data)[at] != PATTERN;
    }
    return wrong;
}

/* hvd_close frees the session's ops and shared memory itself. */
static int close_session(int number, bool watch, size_t *wrong_p)
{
    int status = hvd_close(sessions[number]);
    sessions[number] = NULL;
    *wrong_p = watch ? watch_outputs(number) : 0;
    for (size_t i = 0; i < OPS; i++) {
        if (ops[i].op && ops[i].session == number) {
            release_operands(NULL, &ops[i]);
            ops[i].op = NULL;
        }
    }
    return status;
}

/* Without a path: stops it. */
static void do_timeline(const cJSON *command, cJSON *reply)
{
    const char *path = get_text(command, "path");
    struct hvd_session *session = get_session(command);
    add_status(reply, path ? hvd_timeline_start(session, path, (int)get_int(command, "mark", 0))
                           : hvd_timeline_stop(session));
}

static void do_close(const cJSON *command, cJSON *reply)
{
    size_t wrong;
    add_status(reply, close_session((int)get_int(command, "session", 0), get_bool(command, "watch"),
                                    &wrong));
    add_int(reply, "wrong", (int64_t)wrong);
}

static void do_state(const cJSON *command, cJSON *reply)
{
    add_status(reply, hvd_session_status(get_session(command)));
}

/* ---- ops ---- */

static int adopt_pages(struct hvd_session *session, size_t bytes, void **data_p)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return HVD_ERR_NO_MEMORY;
    int status = hvd_adopt(session, data, (bytes + 4095) / 4096 * 4096);
    if (status == HVD_OK)
        *data_p = data;
    else
        munmap(data, bytes);
    return status;
}

static int last(struct hvd_session *session, size_t bytes, void **data_p)
{
    void *data;
    int status = hvd_mem_alloc(bytes, &data);
    if (status != HVD_OK)
        return status;
    status = hvd_register(session, data, bytes);
    if (status == HVD_OK)
        *data_p = data;
    else
        hvd_mem_free(data);
    return status;
}

static int get_buffer(struct hvd_session *session, enum hvt_memory memory, int gpu, size_t bytes,
                      struct hvt_buffer *buffer_p)
{
    void *data = NULL;
    int status = HVD_OK;
    size_t some = bytes ? bytes : 1;
    if (memory >= HVT_DEVICE)
        data = hvt_gpu_alloc(gpu, bytes, kind_of(memory));
    else if (memory == HVT_SHARED)
        status = hvd_alloc(session, some, &data);
    else if (memory == HVT_ADOPTED)
        status = adopt_pages(session, bytes + 1, &data);
    else if (memory == HVT_LASTING)
        status = last(session, some, &data);
    else
        data = calloc(1, some);
    if (status == HVD_OK && memory == HVT_REGISTERED)
        status = hvd_register(session, data, some);
    if (status != HVD_OK && memory == HVT_REGISTERED)
        free(data);
    if (status == HVD_OK)
        *buffer_p = (struct hvt_buffer){data, bytes, memory, NULL, false};
    return status;
}

/* Where the buffer's contents are written, before `settle`. */
static void *contents(struct hvt_buffer *buffer)
{
    if (!is_on_gpu(buffer))
        return buffer->data;
    if (!buffer->host)
        buffer->host = calloc(1, buffer->bytes + 1);
    if (!buffer->host)
        abort();
    return buffer->host;
}

static void settle(struct hvt_buffer *buffer, int stream)
{
    if (!is_on_gpu(buffer) || buffer->bytes == 0)
        return;
    buffer->is_lent |= stream >= 0;
    hvt_gpu_copy_in(stream, buffer->data, contents(buffer), buffer->bytes);
}

static enum hvt_memory get_memory(const cJSON *command, const char *name)
{
    static const char *const names[] = {
        [HVT_MALLOC] = "malloc",   [HVT_SHARED] = "shared",   [HVT_REGISTERED] = "registered",
        [HVT_ADOPTED] = "adopted", [HVT_LASTING] = "lasting", [HVT_DEVICE] = "device",
        [HVT_OWN] = "own",         [HVT_SEGMENT] = "segment", [HVT_POOL] = "pool",
        [HVT_MADE] = "made",       [HVT_FABRIC] = "fabric"};
    const char *text = get_text(command, name);
    size_t i = sizeof names / sizeof *names - 1;
    while (text && i > 0 && strcmp(text, names[i]) != 0)
        i--;
    return text ? (enum hvt_memory)i : HVT_MALLOC;
}

/* The tensor as the command describes it, also where it is nonsense. `bytes_p`: of its payload, 0
 * for nonsense. */
static void get_tensor(const cJSON *command, const char *dims_name, struct hvd_tensor *tensor_p,
                       size_t *bytes_p)
{
    const cJSON *dims = cJSON_GetObjectItemCaseSensitive(command, dims_name), *dim;
    size_t bytes;
    *tensor_p =
        (struct hvd_tensor){.dtype = (enum hvd_dtype)get_int(command, "dtype", HVD_FLOAT32)};
    bytes = hvd_dtype_size(tensor_p->dtype);
    cJSON_ArrayForEach(dim, dims)
    {
        int64_t value = (int64_t)dim->valuedouble;
        if (tensor_p->ndim < HVD_DIMS_MAX)
            tensor_p->dims[tensor_p->ndim++] = value;
        bytes = value < 0 || value > 1ll << 40 ? 0 : bytes * (size_t)value;
    }
    tensor_p->ndim = (int)get_int(command, "ndim", tensor_p->ndim);
    *bytes_p = bytes;
}

#define INTEGERS 4096

struct hvt_request {
    const char *kind;
    struct hvd_tensor in, out;
    bool has_out;
    struct hvd_op_options options;
    int64_t integers[INTEGERS]; /* splits, ranks */
    int integer_count;          /* -1: none were given */
    char name[2048];
    const char *name_or_null;
};

static void get_name(const cJSON *command, struct hvt_request *request)
{
    const char *hex = get_text(command, "name_hex"), *text = get_text(command, "name");
    if (hex)
        from_hex(hex, (unsigned char *)request->name, strlen(hex) / 2);
    else if (text)
        snprintf(request->name, sizeof request->name, "%s", text);
    request->name_or_null = hex || text ? request->name : NULL;
}

/* For what is too large to be told: byte i is (i mod 251) times `factor`. */
static void fill_pattern(unsigned char *bytes, size_t count, unsigned factor)
{
    unsigned char period[251];
    for (unsigned i = 0; i < sizeof period; i++)
        period[i] = (unsigned char)(i * factor);
    for (size_t at = 0; at < count; at += sizeof period)
        memcpy(bytes + at, period, count - at < sizeof period ? count - at : sizeof period);
}

/* Bytes at which such a result is not the pattern. */
static int64_t count_wrong(const unsigned char *bytes, size_t count, unsigned factor)
{
    unsigned char period[251];
    int64_t wrong = 0;
    fill_pattern(period, sizeof period, factor);
    for (size_t at = 0; at < count; at += sizeof period) {
        size_t part = count - at < sizeof period ? count - at : sizeof period;
        wrong += memcmp(bytes + at, period, part) != 0;
    }
    return wrong;
}

static int silence_side(const struct hvt_op *op, const char *side)
{
    if (!side)
        return HVD_OK;
    return silence(strcmp(side, "out") == 0 ? &op->out : &op->in);
}

static void prepare_input(const cJSON *command, struct hvt_buffer *in)
{
    const char *hex = get_text(command, "data");
    if (hex)
        from_hex(hex, contents(in), strlen(hex) / 2);
    if (cJSON_HasObjectItem(command, "pattern"))
        fill_pattern(contents(in), in->bytes, (unsigned)get_int(command, "pattern", 1));
    settle(in, (int)get_int(command, "stream", -1));
}

static int prepare_output(const cJSON *command, struct hvd_session *session, size_t bytes,
                          struct hvt_buffer *out)
{
    const char *memory = cJSON_HasObjectItem(command, "out_memory") ? "out_memory" : "memory";
    const char *gpu = cJSON_HasObjectItem(command, "out_gpu") ? "out_gpu" : "gpu";
    int status =
        get_buffer(session, get_memory(command, memory), (int)get_int(command, gpu, 0), bytes, out);
    if (status == HVD_OK && bytes) {
        memset(contents(out), (int)get_int(command, "out_fill", 0xee), bytes);
        settle(out, (int)get_int(command, "stream", -1));
    }
    return status;
}

/* Makes the operands' memory. */
static int prepare(const cJSON *command, struct hvd_session *session, struct hvt_op *op,
                   struct hvt_request *request)
{
    const char *kind = request->kind;
    bool sized = strcmp(kind, "allreduce") == 0 || strcmp(kind, "broadcast") == 0 ||
                 strcmp(kind, "recv") == 0;
    bool given = cJSON_HasObjectItem(command, "out_dims");
    const char *hex = get_text(command, "data");
    size_t in_bytes, out_bytes;
    get_name(command, request);
    get_tensor(command, "dims", &request->in, &in_bytes);
    get_tensor(command, given ? "out_dims" : "dims", &request->out, &out_bytes);
    if (hex && strlen(hex) / 2 > in_bytes)
        in_bytes = strlen(hex) / 2;
    int status = get_buffer(session, get_memory(command, "memory"), (int)get_int(command, "gpu", 0),
                            in_bytes, &op->in);
    if (status != HVD_OK)
        return status;
    prepare_input(command, &op->in);
    request->in.data = op->in.data;
    request->has_out = given || sized;
    if (get_bool(command, "in_place")) {
        request->out = request->in;
        return HVD_OK;
    }
    if (!request->has_out)
        return HVD_OK;
    status = prepare_output(command, session, out_bytes, &op->out);
    request->out.data = op->out.data;
    return status;
}

static void get_options(const cJSON *command, struct hvd_op_options *options_p)
{
    hvd_op_options_init(options_p);
    options_p->prescale_factor = get_double(command, "prescale", 1.0);
    options_p->postscale_factor = get_double(command, "postscale", 1.0);
    options_p->process_set = (int)get_int(command, "process_set", 0);
    options_p->stream = hvt_gpu_handle((int)get_int(command, "stream", -1));
}

static void get_integers(const cJSON *command, const char *name, struct hvt_request *request)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(command, name), *item;
    request->integer_count = cJSON_IsArray(list) ? 0 : -1;
    cJSON_ArrayForEach(item, list)
    {
        if (request->integer_count < INTEGERS)
            request->integers[request->integer_count++] = (int64_t)item->valuedouble;
    }
}

static int submit_set(const cJSON *command, struct hvd_session *session,
                      const struct hvt_request *request, struct hvd_op **op_p)
{
    int ranks[INTEGERS];
    for (int i = 0; i < request->integer_count; i++)
        ranks[i] = (int)request->integers[i];
    if (strcmp(request->kind, "set_open") == 0)
        return hvd_process_set_open_async(session, ranks, request->integer_count,
                                          (int)get_int(command, "tag", 0), op_p);
    return hvd_process_set_add_async(session, ranks, request->integer_count, op_p);
}

/* The kinds without operands. */
static bool is_bare(const char *kind)
{
    return strcmp(kind, "barrier") == 0 || strcmp(kind, "join") == 0 ||
           strncmp(kind, "set_", strlen("set_")) == 0;
}

static int submit_bare(const cJSON *command, struct hvd_session *session,
                       const struct hvt_request *request, struct hvd_op **op_p)
{
    if (strcmp(request->kind, "join") == 0)
        return hvd_join_async(session, &request->options, op_p);
    if (strcmp(request->kind, "set_add") == 0 || strcmp(request->kind, "set_open") == 0)
        return submit_set(command, session, request, op_p);
    if (strcmp(request->kind, "set_close") == 0)
        return hvd_process_set_close_async(session, (int)get_int(command, "set", 0), op_p);
    if (strcmp(request->kind, "set_remove") == 0)
        return hvd_process_set_remove_async(session, (int)get_int(command, "set", 0), op_p);
    return hvd_barrier_async(session, request->name_or_null, &request->options, op_p);
}

static int submit(const cJSON *command, struct hvd_session *session,
                  const struct hvt_request *request, struct hvd_op **op_p)
{
    const char *kind = request->kind, *name = request->name_or_null;
    const struct hvd_op_options *options = &request->options;
    const struct hvd_tensor *in = &request->in, *out = request->has_out ? &request->out : NULL;
    enum hvd_reduce_op reduce_op = (enum hvd_reduce_op)get_int(command, "reduce_op", HVD_SUM);
    if (strcmp(kind, "allreduce") == 0)
        return hvd_allreduce_async(session, name, in, out, reduce_op, options, op_p);
    if (strcmp(kind, "allgather") == 0)
        return hvd_allgather_async(session, name, in, out, options, op_p);
    if (strcmp(kind, "reducescatter") == 0)
        return hvd_reducescatter_async(session, name, in, out, reduce_op, options, op_p);
    if (strcmp(kind, "alltoall") == 0)
        return hvd_alltoall_async(session, name, in,
                                  request->integer_count >= 0 ? request->integers : NULL, out,
                                  options, op_p);
    if (strcmp(kind, "broadcast") == 0)
        return hvd_broadcast_async(session, name, in, out, (int)get_int(command, "root", 0),
                                   options, op_p);
    int peer = (int)get_int(command, "root", -1), tag = (int)get_int(command, "tag", 0);
    if (strcmp(kind, "send") == 0)
        return hvd_send_async(session, in, peer, tag, options, op_p);
    if (strcmp(kind, "recv") == 0)
        return hvd_recv_async(session, out, peer, tag, options, op_p);
    fprintf(stderr, "hvt-rank: no kind %s\n", kind);
    exit(3);
}

static struct hvt_op *free_op(void)
{
    for (size_t i = 0; i < OPS; i++) {
        if (!ops[i].op)
            return &ops[i];
    }
    fputs("hvt-rank: too many ops\n", stderr);
    exit(3);
}

static void do_submit(const cJSON *command, cJSON *reply)
{
    static struct hvt_request request;
    struct hvd_session *session = get_session(command);
    struct hvt_op *op = free_op();
    int status = HVD_OK;
    memset(&request, 0, sizeof request);
    request.kind = get_text(command, "kind");
    op->session = (int)get_int(command, "session", 0);
    get_name(command, &request);
    get_options(command, &request.options);
    get_integers(command, strncmp(request.kind, "set_", strlen("set_")) == 0 ? "ranks" : "splits",
                 &request);
    if (is_bare(request.kind)) {
        status = submit_bare(command, session, &request, &op->op);
    } else {
        status = prepare(command, session, op, &request);
        if (status == HVD_OK)
            status = silence_side(op, get_text(command, "silent"));
        if (status == HVD_OK)
            status = submit(command, session, &request, &op->op);
    }
    add_status(reply, status);
    if (status == HVD_OK) {
        add_int(reply, "op", op - ops);
        return;
    }
    release_operands(session, op);
}

/* ---- groups ---- */

struct hvt_group {
    struct hvd_tensor in[HVD_GROUP_MAX], out[HVD_GROUP_MAX];
    struct hvd_op *ops[HVD_GROUP_MAX];
    struct hvt_op *places[HVD_GROUP_MAX];
    int count;
    bool has_out;
};

static struct hvd_op *reserved = (struct hvd_op *)&reserved; /* marks a place that is taken */

static int prepare_members(const cJSON *command, struct hvd_session *session,
                           struct hvt_request *request, struct hvt_group *group)
{
    const cJSON *members = cJSON_GetObjectItemCaseSensitive(command, "members"), *member;
    int status = HVD_OK;
    cJSON_ArrayForEach(member, members)
    {
        if (group->count == HVD_GROUP_MAX || status != HVD_OK)
            return status;
        struct hvt_op *op = group->places[group->count] = free_op();
        op->session = (int)get_int(command, "session", 0);
        op->op = reserved;
        status = prepare(member, session, op, request);
        group->in[group->count] = request->in;
        group->out[group->count] = request->out;
        group->has_out = request->has_out;
        group->count++;
    }
    return status;
}

static int submit_group(const cJSON *command, struct hvd_session *session,
                        const struct hvt_request *request, struct hvt_group *group)
{
    const struct hvd_tensor *out = group->has_out ? group->out : NULL;
    enum hvd_reduce_op reduce_op = (enum hvd_reduce_op)get_int(command, "reduce_op", HVD_SUM);
    int count = (int)get_int(command, "count", group->count);
    if (strcmp(request->kind, "allreduce") == 0)
        return hvd_grouped_allreduce_async(session, request->name_or_null, group->in, out, count,
                                           reduce_op, &request->options, group->ops);
    if (strcmp(request->kind, "allgather") == 0)
        return hvd_grouped_allgather_async(session, request->name_or_null, group->in, out, count,
                                           &request->options, group->ops);
    return hvd_grouped_reducescatter_async(session, request->name_or_null, group->in, out, count,
                                           reduce_op, &request->options, group->ops);
}

static void do_group(const cJSON *command, cJSON *reply)
{
    static struct hvt_request request;
    static struct hvt_group group;
    struct hvd_session *session = get_session(command);
    memset(&request, 0, sizeof request);
    memset(&group, 0, sizeof group);
    request.kind = get_text(command, "kind");
    int status = prepare_members(command, session, &request, &group);
    get_name(command, &request);
    get_options(command, &request.options);
    if (status == HVD_OK)
        status = submit_group(command, session, &request, &group);
    add_status(reply, status);
    cJSON *list = cJSON_AddArrayToObject(reply, "ops");
    for (int i = 0; i < group.count; i++) {
        struct hvt_op *op = group.places[i];
        op->op = group.ops[i];
        if (status == HVD_OK) {
            cJSON_AddItemToArray(list, cJSON_CreateNumber((double)(op - ops)));
            continue;
        }
        release_operands(session, op);
    }
}

/* ---- looking at ops ---- */

/* Of an op whose memory may be a GPU's: a copy, which is freed by the caller; or NULL, and the bytes are where they are. */
static unsigned char *copy_of(const struct hvt_op *op, const void *data, size_t bytes)
{
    if (!is_on_gpu(&op->in) && !is_on_gpu(&op->out))
        return NULL;
    unsigned char *copy = malloc(bytes + 1);
    if (!copy)
        abort();
    if (bytes > 0)
        hvt_gpu_copy_out(-1, copy, data, bytes);
    return copy;
}

static void add_bytes(cJSON *reply, const struct hvt_op *op, const void *data, size_t bytes)
{
    unsigned char *copy = copy_of(op, data, bytes);
    add_hex(reply, "data", copy ? copy : data, bytes);
    free(copy);
}

static size_t bytes_of(const struct hvd_tensor *tensor)
{
    size_t bytes = hvd_dtype_size(tensor->dtype);
    for (int i = 0; i < tensor->ndim; i++)
        bytes *= (size_t)tensor->dims[i];
    return bytes;
}

static void add_output(cJSON *reply, const struct hvt_op *op, const struct hvd_tensor *result)
{
    const size_t bytes = bytes_of(result);
    cJSON *dims = cJSON_AddArrayToObject(reply, "dims");
    for (int i = 0; i < result->ndim; i++)
        cJSON_AddItemToArray(dims, cJSON_CreateNumber((double)result->dims[i]));
    if (result->data || bytes == 0)
        add_bytes(reply, op, result->data, bytes);
}

static void add_wrong(const cJSON *command, cJSON *reply, const struct hvt_op *op,
                      const struct hvd_tensor *result)
{
    const size_t bytes = bytes_of(result);
    unsigned char *copy = copy_of(op, result->data, bytes);
    add_int(
        reply, "wrong",
        count_wrong(copy ? copy : result->data, bytes, (unsigned)get_int(command, "pattern", 1)));
    free(copy);
}

/* What else the kinds have to say at their end. */
static void add_answers(cJSON *reply, const struct hvt_op *op)
{
    int64_t splits[INTEGERS];
    int size = hvd_size(sessions[op->session]);
    for (int count = 1; count <= size; count++) { /* members of its set */
        if (hvd_op_received_splits(op->op, splits, count) != HVD_OK)
            continue;
        cJSON *list = cJSON_AddArrayToObject(reply, "splits");
        for (int i = 0; i < count; i++)
            cJSON_AddItemToArray(list, cJSON_CreateNumber((double)splits[i]));
    }
    if (hvd_op_joined_rank(op->op) >= 0)
        add_int(reply, "joined", hvd_op_joined_rank(op->op));
    if (hvd_op_process_set(op->op) >= 0)
        add_int(reply, "set", hvd_op_process_set(op->op));
    if (hvd_op_source(op->op) >= 0)
        add_int(reply, "source", hvd_op_source(op->op));
}

/* The op's result, or after a failure what is in the memory that was given for it. */
static void add_result(const cJSON *command, cJSON *reply, const struct hvt_op *op, int status)
{
    struct hvd_tensor result = {0};
    bool wanted = get_bool(command, "output");
    if (status == HVD_OK && cJSON_HasObjectItem(command, "pattern") &&
        hvd_op_result(op->op, &result) == HVD_OK)
        add_wrong(command, reply, op, &result);
    if (status == HVD_OK && wanted && hvd_op_result(op->op, &result) == HVD_OK)
        add_output(reply, op, &result);
    else if (status < 0 && wanted && op->out.data)
        add_bytes(reply, op, op->out.data, op->out.bytes);
    if (status < 0 && status != HVD_ERR_TIMEOUT) {
        cJSON_AddStringToObject(reply, "error", hvd_op_error(op->op));
        add_int(reply, "culprit", hvd_op_culprit(op->op));
    }
    if (status == HVD_OK)
        add_answers(reply, op);
    cJSON_AddStringToObject(reply, "name", hvd_op_name(op->op));
}

static struct hvt_op *get_op(const cJSON *command)
{
    int64_t number = get_int(command, "op", -1);
    if (number < 0 || number >= OPS || !ops[number].op) {
        fprintf(stderr, "hvt-rank: no op %lld\n", (long long)number);
        exit(3);
    }
    return &ops[number];
}

static void do_test(const cJSON *command, cJSON *reply)
{
    struct hvt_op *op = get_op(command);
    int status = hvd_test(op->op);
    add_int(reply, "at_ns", now_ns());
    add_status(reply, status);
    add_result(command, reply, op, status);
}

static void do_wait(const cJSON *command, cJSON *reply)
{
    struct hvt_op *op = get_op(command);
    int status = hvd_wait(op->op, get_timeout_ns(command));
    add_int(reply, "at_ns", now_ns());
    add_status(reply, status);
    add_result(command, reply, op, status);
}

/* wait_any and wait_all. */
static void wait_many(const cJSON *command, cJSON *reply, bool any)
{
    static struct hvd_op *list[OPS];
    const cJSON *numbers = cJSON_GetObjectItemCaseSensitive(command, "ops"), *item;
    int64_t timeout_ns = get_timeout_ns(command);
    int count = 0, index = -1;
    cJSON_ArrayForEach(item, numbers)
    {
        int number = (int)item->valuedouble;
        list[count++] = number >= 0 && number < OPS ? ops[number].op : NULL;
    }
    add_status(reply, any ? hvd_wait_any(list, count, timeout_ns, &index)
                          : hvd_wait_all(list, count, timeout_ns));
    add_int(reply, "at_ns", now_ns());
    add_int(reply, "index", index);
}

static void do_wait_any(const cJSON *command, cJSON *reply)
{
    wait_many(command, reply, true);
}

static void do_wait_all(const cJSON *command, cJSON *reply)
{
    wait_many(command, reply, false);
}

static void do_cancel(const cJSON *command, cJSON *reply)
{
    add_status(reply, hvd_cancel(get_op(command)->op));
}

static void do_sets(const cJSON *command, cJSON *reply)
{
    static int ids[INTEGERS], ranks[INTEGERS];
    struct hvd_session *session = get_session(command);
    int count = hvd_process_set_ids(session, ids, INTEGERS);
    add_status(reply, count < 0 ? count : HVD_OK);
    cJSON *list = cJSON_AddArrayToObject(reply, "sets");
    for (int i = 0; i < count; i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddItemToArray(list, row);
        add_int(row, "id", ids[i]);
        add_int(row, "rank", hvd_process_set_rank(session, ids[i]));
        cJSON *members = cJSON_AddArrayToObject(row, "ranks");
        int size = hvd_process_set_ranks(session, ids[i], ranks, INTEGERS);
        for (int k = 0; k < size; k++)
            cJSON_AddItemToArray(members, cJSON_CreateNumber(ranks[k]));
    }
}

static void do_free(const cJSON *command, cJSON *reply)
{
    struct hvt_op *op = get_op(command);
    struct hvd_session *session = get_bool(command, "unsaid") ? NULL : sessions[op->session];
    hvd_op_free(op->op);
    op->op = NULL;
    release_operands(session, op);
    add_int(reply, "status", HVD_OK);
}

static void do_where(const cJSON *command, cJSON *reply)
{
    add_int(reply, "status", HVD_OK);
    add_int(reply, "in", (int64_t)(uintptr_t)get_op(command)->in.data);
}

/* hvd_op_free of an op in flight; its memory stays until the end of the program, as the header
 * asks. */
static void do_abandon(const cJSON *command, cJSON *reply)
{
    struct hvt_op *op = get_op(command);
    hvd_op_free(op->op);
    abandoned[abandoned_count++ % 256] = *op;
    *op = (struct hvt_op){0};
    add_int(reply, "status", HVD_OK);
}

static bool asked_to_stop(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&input, 1, 0) == 1;
}

static int reduce_once(struct hvd_session *session, const char *name, struct hvd_tensor *tensor,
                       int64_t pause_us)
{
    struct hvd_op *op = NULL;
    if (pause_us == 0)
        return hvd_allreduce(session, name, tensor, tensor, HVD_SUM);
    int status = hvd_allreduce_async(session, name, tensor, tensor, HVD_SUM, NULL, &op);
    if (status != HVD_OK)
        return status;
    int64_t end_ns = now_ns() + pause_us * 1000;
    while (now_ns() < end_ns) {
    }
    status = hvd_wait(op, -1);
    hvd_op_free(op);
    return status;
}

/* What a rank adds is its weight times a number of its round and element. The numbers repeat after a prime: chunks and
 * rounds that change places have other ones. All sums are whole numbers below 2^24, so no order of adding matters. */
#define PERIOD 251
#define STRIDE 7 /* from a round to the next one */

static float weight_of(int rank)
{
    return (float)(1 + rank % 16);
}

static float weight_of_all(int size)
{
    float weight = 0;
    for (int rank = 0; rank < size; rank++)
        weight += weight_of(rank);
    return weight;
}

static int begin_of(int64_t round)
{
    return (int)(round * STRIDE % PERIOD);
}

/* The last element counts the ranks that want to stop, so that all stop in the same round. */
static void fill_loop(float *data, int64_t elements, int64_t round, float weight,
                      bool wants_to_stop)
{
    int number = begin_of(round);
    for (int64_t i = 0; i < elements; i++) {
        data[i] = weight * (float)(1 + number);
        number = number + 1 < PERIOD ? number + 1 : 0;
    }
    data[elements - 1] = wants_to_stop ? 1.0f : 0.0f;
}

static void check_loop(const float *data, int64_t elements, int64_t round, float weight)
{
    int number = begin_of(round);
    for (int64_t i = 0; i < elements - 1; i++) {
        const float sum = weight * (float)(1 + number);
        number = number + 1 < PERIOD ? number + 1 : 0;
        if (data[i] == sum)
            continue;
        fprintf(stderr, "hvt-rank: wrong sum %g instead of %g at %ld in round %ld\n",
                (double)data[i], (double)sum, (long)i, (long)round);
        exit(3);
    }
}

/* What became of a loop: rounds that were done, and the longest time from one's end to that of the next one. */
struct hvt_rounds {
    int64_t done, ended_ns, worst_ns;
};

static void end_round(struct hvt_rounds *rounds)
{
    const int64_t last_ns = rounds->ended_ns;

    rounds->ended_ns = now_ns();
    if (rounds->done++ > 0 && rounds->ended_ns - last_ns > rounds->worst_ns)
        rounds->worst_ns = rounds->ended_ns - last_ns;
}

/* Allreduces whose sums are checked, until a failure, `count` rounds or `for_ms`. Blind ones tell each other nothing, so after
 * `for_ms` one may have done a round more, and wait for the others. */
static int loop(const cJSON *command, struct hvd_session *session, float *data, int64_t elements,
                struct hvt_rounds *rounds)
{
    int64_t count = get_int(command, "count", INT64_MAX >> 12), end_ns = now_ns();
    struct hvd_tensor tensor = hvd_tensor_1d(data, HVD_FLOAT32, elements);
    const char *name = get_text(command, "name");
    name = !name ? "loop" : name[0] ? name : NULL;
    end_ns += get_int(command, "for_ms", 3600 * 1000) * 1000000;
    bool until_stdin = get_bool(command, "until_stdin"), stop = false;
    int64_t buffers = get_int(command, "buffers", 1), pause_us = get_int(command, "pause_us", 0);
    int64_t rest_us = get_int(command, "rest_us", 0);
    bool blind = get_bool(command, "blind");
    float *first = data, own = weight_of(hvd_rank(session)), all = weight_of_all(hvd_size(session));
    while (rounds->done < count && !stop && !(blind && now_ns() >= end_ns)) {
        const int64_t round = rounds->done;
        tensor.data = data = first + round % buffers * elements;
        if (!blind)
            fill_loop(data, elements, round, own,
                      now_ns() >= end_ns || (until_stdin && asked_to_stop()));
        if (rest_us > 0)
            usleep((useconds_t)rest_us);
        int status = reduce_once(session, name, &tensor, pause_us);
        if (status != HVD_OK)
            return status;
        end_round(rounds);
        if (blind)
            continue;
        stop = data[elements - 1] > 0.0f;
        check_loop(data, elements, round, all);
    }
    return HVD_OK;
}

/* The memory of a failed loop, and what stood there when it failed. */
static struct hvt_buffer kept;
static void *kept_before;

static void keep(const struct hvt_buffer *buffer)
{
    kept_before = malloc(buffer->bytes);
    if (!kept_before)
        exit(3);
    memcpy(kept_before, buffer->data, buffer->bytes);
    kept = *buffer;
}

static void do_loop(const cJSON *command, cJSON *reply)
{
    int64_t elements = get_int(command, "elements", 16);
    struct hvt_rounds rounds = {0};
    struct hvd_session *session = get_session(command);
    struct hvt_buffer buffer = {0};
    int status =
        get_buffer(session, get_memory(command, "memory"), (int)get_int(command, "gpu", 0),
                   (size_t)(elements * get_int(command, "buffers", 1)) * sizeof(float), &buffer);
    if (status == HVD_OK)
        status = loop(command, session, buffer.data, elements, &rounds);
    add_int(reply, "at_ns", now_ns());
    add_status(reply, status);
    add_int(reply, "done", rounds.done);
    add_int(reply, "worst_ns", rounds.worst_ns);
    if (status < 0 && get_bool(command, "keep"))
        keep(&buffer);
    else
        release_buffer(session, &buffer);
}

static void do_kept(const cJSON *command, cJSON *reply)
{
    const unsigned char *now = kept.data, *before = kept_before;
    int64_t first = -1, last = -1;
    (void)command;
    for (size_t at = 0; at < kept.bytes; at++) {
        if (now[at] == before[at])
            continue;
        first = first < 0 ? (int64_t)at : first;
        last = (int64_t)at;
    }
    add_int(reply, "status", kept.data ? HVD_OK : HVD_ERR_INVALID);
    add_int(reply, "first", first);
    add_int(reply, "last", last);
}

/* ---- streams ---- */

static void do_stream(const cJSON *command, cJSON *reply)
{
    add_int(reply, "status", HVD_OK);
    add_int(reply, "stream", hvt_gpu_stream((int)get_int(command, "gpu", 0)));
}

static void do_gate(const cJSON *command, cJSON *reply)
{
    int stream = (int)get_int(command, "stream", 0);
    if (get_bool(command, "open"))
        hvt_gpu_open(stream);
    else
        hvt_gpu_gate(stream);
    add_int(reply, "status", HVD_OK);
}

static void do_stream_wait(const cJSON *command, cJSON *reply)
{
    add_status(reply, hvd_op_stream_wait(get_op(command)->op,
                                         hvt_gpu_handle((int)get_int(command, "stream", -1))));
}

static bool drain(const cJSON *command, cJSON *reply)
{
    bool ended =
        hvt_gpu_drain((int)get_int(command, "stream", 0), get_int(command, "timeout_ms", 5000));
    add_int(reply, "at_ns", now_ns());
    add_int(reply, "status", HVD_OK);
    cJSON_AddBoolToObject(reply, "ended", ended);
    return ended;
}

static void do_drain(const cJSON *command, cJSON *reply)
{
    drain(command, reply);
}

static void do_read(const cJSON *command, cJSON *reply)
{
    const struct hvt_op *op = get_op(command);
    const struct hvt_buffer *out = op->out.data ? &op->out : &op->in; /* in place */
    unsigned char *copy = malloc(out->bytes + 1);
    hvt_gpu_copy_out((int)get_int(command, "stream", 0), copy, out->data, out->bytes);
    if (!drain(command, reply))
        return; /* the copy is the stream's for ever */
    add_hex(reply, "data", copy, out->bytes);
    free(copy);
}

/* ---- the rest ---- */

static void do_alloc(const cJSON *command, cJSON *reply)
{
    int number = 0;
    while (number < MEMORIES - 1 && memories[number])
        number++;
    int status =
        hvd_alloc(get_session(command), (size_t)get_int(command, "bytes", 4096), &memories[number]);
    add_status(reply, status);
    if (status == HVD_OK)
        add_int(reply, "memory", number);
}

static void do_unalloc(const cJSON *command, cJSON *reply)
{
    int64_t number = get_int(command, "memory", 0);
    add_status(reply, hvd_free(get_session(command), memories[number]));
    memories[number] = NULL;
}

static void do_event(const cJSON *command, cJSON *reply)
{
    struct pollfd event = {.fd = -1, .events = POLLIN};
    int status = hvd_event_fd(get_session(command), &event.fd);
    add_status(reply, status);
    if (status == HVD_OK)
        cJSON_AddBoolToObject(reply, "readable",
                              poll(&event, 1, (int)get_int(command, "timeout_ms", 0)) == 1);
    add_int(reply, "at_ns", now_ns());
}

static void do_fill(const cJSON *command, cJSON *reply)
{
    static volatile char *volatile filled; /* reachable: no leak */
    size_t bytes = (size_t)get_int(command, "bytes", 0);
    filled = malloc(bytes);
    for (size_t at = 0; filled && at < bytes; at += 4096)
        filled[at] = 1;
    add_int(reply, "status", filled ? HVD_OK : HVD_ERR_NO_MEMORY);
}

static void do_unmap(const cJSON *command, cJSON *reply)
{
    const struct hvt_op *op = get_op(command);
    const struct hvt_buffer *buffer =
        strcmp(get_text(command, "side"), "out") == 0 ? &op->out : &op->in;
    uintptr_t begin = ((uintptr_t)buffer->data + 4095) / 4096 * 4096;
    uintptr_t end = ((uintptr_t)buffer->data + buffer->bytes) / 4096 * 4096;
    bool done = begin < end && munmap((void *)begin, end - begin) == 0;
    add_status(reply, done ? HVD_OK : HVD_ERR_INVALID);
}

static void do_limit(const cJSON *command, cJSON *reply)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = (rlim_t)get_int(command, "files", 64);
    add_int(reply, "status", setrlimit(RLIMIT_NOFILE, &limit) == 0 ? HVD_OK : HVD_ERR_INVALID);
}

static void do_hold(const cJSON *command, cJSON *reply)
{
    (void)command;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        for (;;)
            pause();
    }
    add_int(reply, "status", child > 0 ? HVD_OK : HVD_ERR_LIMIT);
    add_int(reply, "pid", child);
}

static void do_become(const cJSON *command, cJSON *reply)
{
    const struct hvt_buffer *input = &get_op(command)->in;
    const char *path = get_text(command, "path");
    char address[32], bytes[32];
    snprintf(address, sizeof address, "%llu", (unsigned long long)(uintptr_t)input->data);
    snprintf(bytes, sizeof bytes, "%zu", input->bytes);
    for (int fd = 3; fd < 1024; fd++)
        fcntl(fd, F_SETFD, 0);
    execl(path, path, address, bytes, NULL);
    add_status(reply, HVD_ERR_INVALID);
}

static void do_forked(const cJSON *command, cJSON *reply)
{
    struct hvd_session *session = get_session(command);
    int wait_status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(hvd_barrier(session, "child") == HVD_ERR_FORKED &&
                      hvd_session_status(session) == HVD_ERR_FORKED
                  ? 0
                  : 1);
    waitpid(child, &wait_status, 0);
    add_int(reply, "status", wait_status == 0 ? HVD_ERR_FORKED : HVD_OK);
    add_int(reply, "wait_status", wait_status);
}

static void do_stop(const cJSON *command, cJSON *reply)
{
    (void)command;
    add_int(reply, "status", HVD_OK);
}

static void do_exit(const cJSON *command, cJSON *reply)
{
    (void)reply;
    if (cJSON_HasObjectItem(command, "signal"))
        raise((int)get_int(command, "signal", 0));
    _exit((int)get_int(command, "code", 0));
}

struct hvt_command {
    const char *name;
    void (*run)(const cJSON *command, cJSON *reply);
};

static const struct hvt_command commands[] = {
    {"open", do_open},       {"close", do_close},       {"state", do_state},
    {"submit", do_submit},   {"test", do_test},         {"wait", do_wait},
    {"free", do_free},       {"loop", do_loop},         {"alloc", do_alloc},
    {"event", do_event},     {"limit", do_limit},       {"unalloc", do_unalloc},
    {"hold", do_hold},       {"forked", do_forked},     {"fill", do_fill},
    {"abandon", do_abandon}, {"stop", do_stop},         {"exit", do_exit},
    {"group", do_group},     {"wait_any", do_wait_any}, {"wait_all", do_wait_all},
    {"cancel", do_cancel},   {"sets", do_sets},         {"log", do_log},
    {"unmap", do_unmap},     {"timeline", do_timeline}, {"kept", do_kept},
    {"answer", do_answer},   {"stream", do_stream},     {"gate", do_gate},
    {"read", do_read},       {"drain", do_drain},       {"stream_wait", do_stream_wait},
    {"where", do_where},     {"become", do_become},
};

static void run(const cJSON *command)
{
    const char *name = get_text(command, "do");
    cJSON *reply = cJSON_CreateObject();
    size_t i = 0;
    while (i < sizeof commands / sizeof *commands && (!name || strcmp(commands[i].name, name) != 0))
        i++;
    if (i == sizeof commands / sizeof *commands) {
        fprintf(stderr, "hvt-rank: unknown command %s\n", name ? name : "(none)");
        exit(3);
    }
    commands[i].run(command, reply);
    char *text = cJSON_PrintUnformatted(reply);
    puts(text);
    fflush(stdout);
    free(text);
    cJSON_Delete(reply);
}

int main(void)
{
    mallopt(M_MMAP_THRESHOLD, 128 * 1024); /* fixed: what "unmap" takes away is no heap */
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        cJSON *command = cJSON_Parse(line);
        if (!command) {
            fputs("hvt-rank: not JSON\n", stderr);
            exit(3);
        }
        run(command);
        cJSON_Delete(command);
    }
    free(line);
    answer();
    for (int i = 0; i < SESSIONS; i++)
        close_session(i, false, &(size_t){0});
    return 0;
}

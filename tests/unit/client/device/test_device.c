/* SPDX-License-Identifier: Apache-2.0
 * Tensors in memory of a CUDA device, on the fake libcuda, before a scripted engine: the test plays the engine and its worker. */
#include "base/types.h"
#include "client/session/session.h"
#include "gpu/cuda.h"
#include "tests/fakegpu/cuda_abi.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT  1000
#define BYTES  (COUNT * sizeof(float))
#define LEGACY ((void *)1)

static struct hvi_cuda cuda;
static struct hvt_fake *fake;
static struct hvd_session *session;
static struct hvt_fake_session *engine;
static hvi_cu_stream stream;

static void start_script(const struct hvt_fake_script *script, const char *policy)
{
    if (policy)
        setenv("HVD_GPU", policy, 1);
    fake = hvt_fake_start(script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
}

static void start(uint64_t features, const char *policy)
{
    const struct hvt_fake_script script = {.manual = true, .features = features};
    start_script(&script, policy);
}

static void start_fabric(void)
{
    const struct hvt_fake_script script = {
        .manual = true, .features = HVI_FEATURE_DEVICE, .fabric = true};
    start_script(&script, NULL);
}

/* Each test has its own process. */
static void load(const char *settings, const char *faults)
{
    char text[512] = "";
    hvi_cu_context context;
    setenv("FAKEGPU", settings, 1);
    setenv("FAKEGPU_FAULT", faults, 1);
    ck_assert_msg(hvi_cuda_open(false, &cuda, text, sizeof(text)) == 0, "%s", text);
    ck_assert_int_eq(cuda.init(0), 0);
    ck_assert_int_eq(cuda.context_retain(&context, 0), 0);
    ck_assert_int_eq(cuda.context_set(context), 0);
    ck_assert_int_eq(cuda.stream_create(&stream, HVI_CU_STREAM_NON_BLOCKING), 0);
}

static void set_up(void)
{
    load("devices=2", "");
    start(HVI_FEATURE_DEVICE, NULL);
}

static void set_up_fabric(void)
{
    load("", "");
    start_fabric();
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

static float *alloc(size_t bytes)
{
    hvi_cu_ptr address = 0;
    ck_assert_int_eq(cuda.alloc(&address, bytes), 0);
    return (float *)(uintptr_t)address;
}

static int submit_on(void *in, void *out, int64_t count, void *on, struct hvd_op **op_p)
{
    struct hvd_tensor a = hvd_tensor_1d(in, HVD_FLOAT32, count);
    struct hvd_tensor b = hvd_tensor_1d(out, HVD_FLOAT32, count);
    struct hvd_op_options options;
    hvd_op_options_init(&options);
    options.stream = on;
    return hvd_allreduce_async(session, NULL, &a, &b, HVD_SUM, &options, op_p);
}

static struct hvi_submission submit(void *in, void *out, void *on, struct hvd_op **op_p)
{
    ck_assert_msg(submit_on(in, out, COUNT, on, op_p) == HVD_OK, "%s", hvd_last_error());
    return hvt_fake_take(engine);
}

static void finish(struct hvd_op *op, const struct hvi_submission *slot, int status)
{
    hvt_fake_done(engine, slot->cookie, status, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 5000000000), status);
    hvd_op_free(op);
}

static uint32_t announced(void)
{
    uint32_t count, chunks;
    hvt_fake_device(engine, &count, &chunks);
    return count;
}

static bool is_ready(const struct hvi_submission *slot)
{
    return hvi_fence_is_ready(hvt_fake_fences(engine), slot->fence_cell, slot->fence_turn);
}

static void nap(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static bool becomes_ready(const struct hvi_submission *slot)
{
    for (int i = 0; i < 5000 && !is_ready(slot); i++)
        nap(1);
    return is_ready(slot);
}

/* A word in registered memory at which `stream` stands until open_gate. */
static _Atomic uint64_t *close_gate(void)
{
    hvi_cu_ptr address;
    void *word = aligned_alloc(4096, 4096);
    memset(word, 0, 4096);
    ck_assert_int_eq(cuda.host_register(word, 4096, HVI_CU_HOST_PORTABLE | HVI_CU_HOST_DEVICEMAP),
                     0);
    ck_assert_int_eq(cuda.host_pointer(&address, word, 0), 0);
    ck_assert_int_eq(cuda.wait64(stream, address, 1, 0), 0);
    return word;
}

static void open_gate(_Atomic uint64_t *gate)
{
    atomic_store(gate, 1);
}

static bool stream_ends(void)
{
    for (int i = 0; i < 5000; i++) {
        if (cuda.stream_query(stream) != HVI_CU_NOT_READY)
            return true;
        nap(1);
    }
    return false;
}

#define MANY 5000 /* more than inline cells have */

/* BUFFER_ID of memory of the host that the driver has registered; 0: it has not. */
static uint64_t registered(const void *memory)
{
    int attributes[] = {HVI_CU_POINTER_MEMORY_TYPE, HVI_CU_POINTER_BUFFER_ID};
    uint64_t answers[2] = {0};
    void *places[] = {&answers[0], &answers[1]};
    ck_assert_int_eq(cuda.pointer_attributes(2, attributes, places, (uintptr_t)memory), 0);
    return (uint32_t)answers[0] == FAKE_MEMORY_HOST ? answers[1] : 0;
}

/* A staged op, whole: its block. */
static void *run_staged(float *memory)
{
    struct hvd_op *op = NULL;
    memory[MANY - 1] = 3;
    ck_assert_msg(submit_on(memory, memory, MANY, NULL, &op) == HVD_OK, "%s", hvd_last_error());
    void *block = op->out.shared;
    struct hvi_submission slot = hvt_fake_take(engine);
    float *shared = hvt_fake_memory(engine, slot.out_region, slot.out_offset);
    ck_assert(shared[MANY - 1] == 3);
    shared[MANY - 1] = 4;
    finish(op, &slot, HVD_OK);
    ck_assert(memory[MANY - 1] == 4);
    return block;
}

/* ---- reservations ---- */

#define CHUNK    (2u << 20)
#define CHUNK_OF ((ptrdiff_t)(CHUNK / sizeof(float)))

static hvi_cu_ptr reserve(unsigned chunks)
{
    hvi_cu_ptr base = 0;
    ck_assert_int_eq(cuda.reserve(&base, chunks * (size_t)CHUNK, 0, 0, 0), 0);
    return base;
}

/* Maps a new chunk there. */
static void map_chunk(hvi_cu_ptr base, unsigned number, int handle_types)
{
    int (*create)(hvi_cu_allocation *, size_t, const struct hvi_cu_allocation_properties *,
                  uint64_t);
    const struct hvi_cu_allocation_properties properties = {
        .type = 1, .handle_types = handle_types, .location = {1, 0}};
    const struct hvi_cu_access access = {{1, 0}, 3};
    hvi_cu_ptr at = base + number * (hvi_cu_ptr)CHUNK;
    hvi_cu_allocation chunk;
    void *symbol = dlsym(cuda.library, "cuMemCreate");
    memcpy(&create, &symbol, sizeof(create));
    ck_assert_int_eq(create(&chunk, CHUNK, &properties, 0), 0);
    ck_assert_int_eq(cuda.map(at, CHUNK, 0, chunk, 0), 0);
    ck_assert_int_eq(cuda.allocation_release(chunk), 0);
    ck_assert_int_eq(cuda.set_access(at, CHUNK, &access, 1), 0);
}

static void unmap_chunk(hvi_cu_ptr base, unsigned number)
{
    ck_assert_int_eq(cuda.unmap(base + number * (hvi_cu_ptr)CHUNK, CHUNK), 0);
}

static float *floats(hvi_cu_ptr base, unsigned chunk, ptrdiff_t offset)
{
    return (float *)(uintptr_t)base + chunk * CHUNK_OF + offset;
}

/* The engine was told of so many ranges and chunks in all, the last one these chunks of the reservation. */
static void expect_told_by(uint32_t kind, uint32_t ranges, uint32_t chunks, hvi_cu_ptr base,
                           unsigned first, unsigned count)
{
    uint32_t told_ranges, told_chunks;
    struct hvi_device_memory told = hvt_fake_device(engine, &told_ranges, &told_chunks);
    ck_assert_uint_eq(told_ranges, ranges);
    ck_assert_uint_eq(told_chunks, chunks);
    ck_assert_uint_eq(told.kind, kind);
    ck_assert_uint_eq(told.address, base + first * (hvi_cu_ptr)CHUNK);
    ck_assert_uint_eq(told.bytes, count * (uint64_t)CHUNK);
}

static void expect_told(uint32_t ranges, uint32_t chunks, hvi_cu_ptr base, unsigned first,
                        unsigned count)
{
    expect_told_by(HVI_DEVICE_VMM, ranges, chunks, base, first, count);
}

START_TEST(of_a_reservation_the_chunks_of_the_tensor_become_known)
{
    hvi_cu_ptr base = reserve(8);
    struct hvd_op *op;
    for (unsigned i = 0; i < 4; i++)
        map_chunk(base, i, HVI_CU_HANDLE_FD);
    float *memory = floats(base, 2, -10); /* over the end of the second one */
    struct hvi_submission slot = submit(memory, memory, NULL, &op);
    expect_told(1, 2, base, 1, 2);
    ck_assert_uint_eq(slot.in_offset, CHUNK - 10 * sizeof(float));
    finish(op, &slot, HVD_OK);
    slot = submit(floats(base, 1, 5), memory, NULL, &op); /* both known */
    expect_told(1, 2, base, 1, 2);
    finish(op, &slot, HVD_OK);
    slot = submit(floats(base, 3, 0), memory, NULL, &op); /* beside what is known */
    expect_told(2, 3, base, 3, 1);
    ck_assert_uint_ne(slot.in_region, slot.out_region);
    finish(op, &slot, HVD_OK);
    ck_assert_uint_eq(hvt_fake_regions(engine), 2);
}
END_TEST

START_TEST(a_segment_that_grows_is_told_again_as_a_whole)
{
    hvi_cu_ptr base = reserve(8);
    struct hvd_op *op, *other;
    map_chunk(base, 0, HVI_CU_HANDLE_FD);
    struct hvi_submission first = submit(floats(base, 0, 7), floats(base, 0, 7), NULL, &op);
    expect_told(1, 1, base, 0, 1);
    map_chunk(base, 1, HVI_CU_HANDLE_FD);
    float *memory = floats(base, 1, -10);
    struct hvi_submission second = submit(memory, memory, NULL, &other);
    expect_told(2, 3, base, 0, 2);
    ck_assert_uint_ne(second.in_region, first.in_region);
    ck_assert_uint_eq(hvt_fake_regions(engine), 2); /* the first op has the smaller one */
    finish(op, &first, HVD_OK);
    finish(other, &second, HVD_OK);
    first = submit(floats(base, 0, 7), floats(base, 0, 7), NULL, &op);
    ck_assert_uint_eq(first.in_region, second.in_region);
    expect_told(2, 3, base, 0, 2);
    finish(op, &first, HVD_OK);
    map_chunk(base, 2, HVI_CU_HANDLE_FD);
    memory = floats(base, 2, -10); /* and now that one goes */
    first = submit(memory, memory, NULL, &op);
    expect_told(3, 6, base, 0, 3);
    ck_assert_uint_eq(hvt_fake_regions(engine), 1);
    finish(op, &first, HVD_OK);
}
END_TEST

START_TEST(a_chunk_that_was_mapped_anew_is_told_anew_and_its_neighbour_is_not)
{
    hvi_cu_ptr base = reserve(3);
    struct hvd_op *op;
    for (unsigned i = 0; i < 3; i++)
        map_chunk(base, i, HVI_CU_HANDLE_FD);
    float *memory = floats(base, 0, 0), *over = floats(base, 1, -10);
    struct hvi_submission slot = submit(over, over, NULL, &op);
    expect_told(1, 2, base, 0, 2);
    finish(op, &slot, HVD_OK);
    unmap_chunk(base, 1);
    map_chunk(base, 1, HVI_CU_HANDLE_FD);
    slot = submit(memory, memory, NULL, &op); /* its own chunk is what it was */
    expect_told(1, 2, base, 0, 2);
    finish(op, &slot, HVD_OK);
    uint32_t region = slot.in_region;
    slot = submit(over, over, NULL, &op);
    expect_told(2, 4, base, 0, 2);
    ck_assert_uint_ne(slot.in_region, region);
    ck_assert_uint_eq(hvt_fake_regions(engine), 1);
    finish(op, &slot, HVD_OK);
    unmap_chunk(base,
                0); /* the range cannot grow to the whole any more: it is the tensor's chunks */
    over = floats(base, 2, -10);
    slot = submit(over, over, NULL, &op);
    expect_told(3, 6, base, 1, 2);
    ck_assert_uint_eq(hvt_fake_regions(engine), 1);
    finish(op, &slot, HVD_OK);
}
END_TEST

START_TEST(many_chunks_come_in_pieces)
{
    hvi_cu_ptr base = reserve(21);
    struct hvd_op *op;
    for (unsigned i = 0; i < 21; i++)
        map_chunk(base, i, HVI_CU_HANDLE_FD);
    float *memory = floats(base, 0, 3);
    ck_assert_msg(submit_on(memory, memory, 20 * CHUNK_OF, NULL, &op) == HVD_OK, "%s",
                  hvd_last_error());
    struct hvi_submission slot = hvt_fake_take(engine);
    expect_told(1, 21, base, 0, 21);
    finish(op, &slot, HVD_OK);
    ck_assert_int_eq(hvd_device_forget(session, floats(base, 17, 0)), HVD_OK);
    ck_assert_uint_eq(hvt_fake_regions(engine), 0);
    slot = submit(memory, memory, NULL, &op);
    expect_told(2, 22, base, 0, 1);
    finish(op, &slot, HVD_OK);
}
END_TEST

START_TEST(chunks_without_handles_are_copied_or_refused)
{
    hvi_cu_ptr base = reserve(3);
    struct hvd_op *op;
    map_chunk(base, 0, HVI_CU_HANDLE_FD);
    map_chunk(base, 1, 0);
    map_chunk(base, 2, HVI_CU_HANDLE_FABRIC);
    for (unsigned i = 1; i <= 2; i++) { /* with a neighbour by descriptor, and by fabric handle */
        float *memory = floats(base, i, -10);
        ck_assert_int_eq(submit_on(memory, memory, COUNT, stream, &op), HVD_ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(hvd_last_error(), "no other process can open"));
        struct hvi_submission slot = submit(memory, memory, NULL, &op);
        ck_assert_uint_eq(announced(), 0);
        ck_assert_uint_eq(slot.fence_turn, 0); /* it works on a copy */
        finish(op, &slot, HVD_OK);
    }
}
END_TEST

/* One of before there were such. */
START_TEST(an_engine_that_knows_no_fabric_handles_is_told_of_none)
{
    hvi_cu_ptr base = reserve(1);
    struct hvd_op *op;
    map_chunk(base, 0, HVI_CU_HANDLE_FABRIC);
    float *fabric = floats(base, 0, 0);
    ck_assert_int_eq(submit_on(fabric, fabric, COUNT, stream, &op), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "fabric handles alone"));
    struct hvi_submission slot = submit(fabric, fabric, NULL, &op);
    ck_assert_uint_eq(announced(), 0);
    ck_assert_uint_eq(slot.fence_turn, 0);
    finish(op, &slot, HVD_OK);
}
END_TEST

START_TEST(chunks_with_fabric_handles_alone_go_by_these_and_others_by_descriptors)
{
    const int both = HVI_CU_HANDLE_FD | HVI_CU_HANDLE_FABRIC;
    hvi_cu_ptr base = reserve(20);
    struct hvd_op *op;
    map_chunk(base, 0, both);
    map_chunk(base, 1, both);
    for (unsigned i = 2; i < 20; i++)
        map_chunk(base, i, HVI_CU_HANDLE_FABRIC);
    struct hvi_submission slot = submit(floats(base, 1, -10), floats(base, 1, -10), NULL, &op);
    expect_told(1, 2, base, 0, 2);
    finish(op, &slot, HVD_OK);
    float *memory = floats(base, 19, -10);
    slot = submit(memory, memory, stream, &op);
    expect_told_by(HVI_DEVICE_FABRIC, 2, 4, base, 18, 2);
    finish(op, &slot, HVD_OK);
    memory = floats(base, 1, 3); /* over all that is known, in three messages */
    ck_assert_msg(submit_on(memory, memory, 17 * CHUNK_OF, NULL, &op) == HVD_OK, "%s",
                  hvd_last_error());
    slot = hvt_fake_take(engine);
    expect_told_by(HVI_DEVICE_FABRIC, 3, 24, base, 0, 20);
    finish(op, &slot, HVD_OK);
    ck_assert_uint_eq(hvt_fake_regions(engine), 1);
}
END_TEST

/* What a worker without the channel, of another version or without the driver's call does, is known when it is asked, once. */
START_TEST(fabric_handles_that_a_worker_refuses_are_a_copy_and_others_a_sentence)
{
    const int refusal = _i == 0 ? HVD_ERR_UNSUPPORTED : HVD_ERR_INVALID;
    hvi_cu_ptr base = reserve(2);
    struct hvd_op *op;
    for (unsigned i = 0; i < 2; i++)
        map_chunk(base, i, HVI_CU_HANDLE_FABRIC);
    hvt_fake_refuse_devices(fake, refusal, "fabric handles need an IMEX channel");
    if (_i == 2) { /* the stream's op is the first: it hears why */
        ck_assert_int_eq(submit_on(floats(base, 0, 0), floats(base, 0, 0), COUNT, stream, &op),
                         refusal);
        ck_assert_ptr_nonnull(strstr(hvd_last_error(), "IMEX channel"));
    }
    for (unsigned i = 0; i < 2; i++) { /* of the second allocation no message is sent */
        run_staged(floats(base, i, 0));
        ck_assert_uint_eq(announced(), 1);
    }
    float *memory = floats(base, 1, 0);
    ck_assert_int_eq(submit_on(memory, memory, COUNT, stream, &op), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "fabric handles alone"));
    ck_assert_uint_eq(announced(), 1);
    hvt_fake_refuse_devices(fake, HVD_OK, NULL); /* others go as ever */
    memory = alloc(BYTES);
    struct hvi_submission slot = submit(memory, memory, stream, &op);
    ck_assert_uint_ne(slot.fence_turn, 0);
    finish(op, &slot, HVD_OK);
}
END_TEST

START_TEST(fabric_handles_are_asked_for_again_after_an_error_that_is_no_refusal)
{
    hvi_cu_ptr base = reserve(1);
    struct hvd_op *op;
    map_chunk(base, 0, HVI_CU_HANDLE_FABRIC);
    float *memory = floats(base, 0, 0);
    hvt_fake_refuse_devices(fake, HVD_ERR_NO_MEMORY, "out of memory");
    ck_assert_int_eq(submit_on(memory, memory, COUNT, NULL, &op), HVD_ERR_NO_MEMORY);
    hvt_fake_refuse_devices(fake, HVD_OK, NULL);
    struct hvi_submission slot = submit(memory, memory, stream, &op);
    ck_assert_uint_ne(slot.fence_turn, 0);
    finish(op, &slot, HVD_OK);
}
END_TEST

/* The first use of a handle is the creation, the second one the export. */
START_TEST(a_fabric_handle_that_the_driver_refuses_is_a_sentence_or_a_copy)
{
    struct hvd_op *op;
    load("", "no-imex@2");
    start_fabric();
    hvi_cu_ptr base = reserve(1);
    map_chunk(base, 0, HVI_CU_HANDLE_FABRIC);
    float *memory = floats(base, 0, 0);
    ck_assert_int_eq(submit_on(memory, memory, COUNT, stream, &op), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "cannot be shared: CUDA_ERROR_NOT_PERMITTED"));
    struct hvi_submission slot = submit(memory, memory, NULL, &op);
    ck_assert_uint_eq(announced(), 0);
    ck_assert_uint_eq(slot.fence_turn, 0);
    finish(op, &slot, HVD_OK);
    tear_down();
}
END_TEST

START_TEST(a_tensor_that_lies_partly_nowhere_is_an_error)
{
    hvi_cu_ptr base = reserve(2);
    struct hvd_op *op;
    map_chunk(base, 0, HVI_CU_HANDLE_FD);
    float *memory = floats(base, 1, -10);
    ck_assert_int_eq(submit_on(memory, memory, COUNT, NULL, &op), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "does not say what memory"));
    ck_assert_uint_eq(announced(), 0);
}
END_TEST

/* ---- allocations ---- */

START_TEST(an_allocation_becomes_known_once_and_tensors_in_it_are_offsets)
{
    uint32_t count, chunks;
    float *memory = alloc(4 * BYTES);
    struct hvd_op *op;
    struct hvi_submission slot = submit(memory + COUNT, memory + 2 * COUNT, NULL, &op);
    struct hvi_device_memory told = hvt_fake_device(engine, &count, &chunks);
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(told.kind, HVI_DEVICE_LEGACY);
    ck_assert_uint_eq(told.address, (uintptr_t)memory);
    ck_assert_uint_eq(told.bytes, 4 * BYTES);
    ck_assert_uint_ne(told.buffer_id, 0);
    ck_assert_uint_eq(slot.in_region, slot.out_region);
    ck_assert_uint_eq(slot.in_offset, BYTES);
    ck_assert_uint_eq(slot.out_offset, 2 * BYTES);
    ck_assert_uint_eq(slot.out_capacity, BYTES);
    ck_assert(is_ready(&slot)); /* without a stream it is, at once */
    ck_assert_uint_eq(slot.after, 0);
    finish(op, &slot, HVD_OK);
    slot = submit(memory, memory, NULL, &op);
    ck_assert_uint_eq(announced(), 1);
    ck_assert_uint_eq(hvt_fake_regions(engine), 1);
    finish(op, &slot, HVD_OK);
}
END_TEST

START_TEST(an_op_of_a_stream_is_ready_when_the_stream_has_come_to_it)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op;
    _Atomic uint64_t *gate = close_gate();
    struct hvi_submission slot = submit(memory, memory, stream, &op);
    nap(20);
    ck_assert(!is_ready(&slot));
    open_gate(gate);
    ck_assert(becomes_ready(&slot));
    finish(op, &slot, HVD_OK);
}
END_TEST

START_TEST(a_stream_waits_for_the_op_and_later_ops_say_after_which)
{
    float *memory = alloc(BYTES);
    struct hvd_op *first, *second;
    struct hvi_submission one = submit(memory, memory, stream, &first);
    ck_assert_int_eq(hvd_op_stream_wait(first, stream), HVD_OK);
    struct hvi_submission two = submit(memory, memory, stream, &second);
    ck_assert_uint_eq(two.after, one.seq);
    ck_assert_uint_ne(one.fence_cell, two.fence_cell);
    nap(20);
    ck_assert_int_eq(cuda.stream_query(stream), HVI_CU_NOT_READY);
    hvi_fence_store_done(hvt_fake_fences(engine), one.fence_cell, one.fence_turn);
    ck_assert(stream_ends());
    ck_assert(becomes_ready(&two));
    finish(first, &one, HVD_OK);
    finish(second, &two, HVD_OK);
}
END_TEST

START_TEST(tensors_without_bytes_take_part_in_streams)
{
    struct hvd_op *op;
    float host;
    ck_assert_msg(submit_on(&host, &host, 0, stream, &op) == HVD_OK, "%s", hvd_last_error());
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_ne(slot.fence_turn, 0);
    ck_assert_int_eq(hvd_op_stream_wait(op, stream), HVD_OK);
    nap(20);
    ck_assert_int_eq(cuda.stream_query(stream), HVI_CU_NOT_READY);
    hvi_fence_store_done(hvt_fake_fences(engine), slot.fence_cell, slot.fence_turn);
    ck_assert(stream_ends());
    finish(op, &slot, HVD_OK);
    float *memory = alloc(BYTES);
    slot = submit(memory, memory, stream, &op);
    finish(op, &slot, HVD_OK);
}
END_TEST

START_TEST(a_finished_op_makes_no_stream_wait)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op;
    struct hvi_submission slot = submit(memory, memory, stream, &op);
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 5000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_stream_wait(op, stream), HVD_OK);
    ck_assert(stream_ends());
    ck_assert_int_eq(hvd_op_stream_wait(op, NULL), HVD_ERR_INVALID);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_cell_is_used_again_when_its_stream_has_come_and_never_after_a_failure)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op;
    struct hvi_submission first = submit(memory, memory, NULL, &op);
    finish(op, &first, HVD_OK);
    struct hvi_submission again = submit(memory, memory, NULL, &op);
    ck_assert_uint_eq(again.fence_cell, first.fence_cell);
    ck_assert_uint_eq(again.fence_turn, first.fence_turn + 1);
    finish(op, &again, HVD_ERR_MISMATCH);
    again = submit(memory, memory, NULL, &op);
    ck_assert_uint_eq(again.fence_cell, first.fence_cell);
    finish(op, &again, HVD_ERR_STALLED);
    again = submit(memory, memory, NULL, &op);
    ck_assert_uint_ne(again.fence_cell, first.fence_cell);
    finish(op, &again, HVD_OK);
    _Atomic uint64_t *gate = close_gate();
    struct hvi_submission late = submit(memory, memory, stream, &op);
    ck_assert_uint_eq(late.fence_cell, again.fence_cell);
    finish(op, &late, HVD_ERR_CANCELLED); /* its stream has not come */
    again = submit(memory, memory, NULL, &op);
    ck_assert_uint_ne(again.fence_cell, late.fence_cell);
    open_gate(gate);
    ck_assert(becomes_ready(&late));
    finish(op, &again, HVD_OK);
}
END_TEST

START_TEST(memory_that_was_freed_is_announced_anew)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op;
    struct hvi_submission slot = submit(memory, memory, NULL, &op);
    uint32_t region = slot.in_region;
    finish(op, &slot, HVD_OK);
    ck_assert_int_eq(cuda.free((uintptr_t)memory), 0);
    float *again = alloc(BYTES);
    slot = submit(again, again, NULL, &op);
    ck_assert_uint_ne(slot.in_region, region);
    ck_assert_uint_eq(announced(), 2);
    if (again == memory)
        ck_assert_uint_eq(hvt_fake_regions(engine), 1);
    finish(op, &slot, HVD_OK);
}
END_TEST

START_TEST(memory_is_forgotten_but_not_while_an_op_uses_it)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op;
    struct hvi_submission slot = submit(memory, memory, NULL, &op);
    ck_assert_int_eq(hvd_device_forget(session, memory + 7), HVD_ERR_BUSY);
    finish(op, &slot, HVD_OK);
    ck_assert_int_eq(hvd_device_forget(session, memory + 7), HVD_OK);
    ck_assert_uint_eq(hvt_fake_regions(engine), 0);
    ck_assert_int_eq(hvd_device_forget(session, memory), HVD_ERR_NOT_FOUND);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_ERR_NOT_FOUND);
}
END_TEST

/* The worker has what its segment was before, as an op used it then. */
START_TEST(a_segment_is_forgotten_with_what_it_was_before_it_grew)
{
    hvi_cu_ptr base = reserve(2);
    struct hvd_op *op, *other;
    map_chunk(base, 0, HVI_CU_HANDLE_FD);
    float *memory = floats(base, 0, 7), *grown = floats(base, 1, -10);
    struct hvi_submission first = submit(memory, memory, NULL, &op);
    map_chunk(base, 1, HVI_CU_HANDLE_FD);
    struct hvi_submission second = submit(grown, grown, NULL, &other);
    ck_assert_uint_eq(hvt_fake_regions(engine), 2);
    finish(other, &second, HVD_OK);
    ck_assert_int_eq(hvd_device_forget(session, grown), HVD_ERR_BUSY);
    ck_assert_uint_eq(hvt_fake_regions(engine), 2);
    finish(op, &first, HVD_OK);
    ck_assert_int_eq(hvd_device_forget(session, grown), HVD_OK);
    ck_assert_uint_eq(hvt_fake_regions(engine), 0);
    ck_assert_int_eq(hvd_device_forget(session, memory), HVD_ERR_NOT_FOUND);
}
END_TEST

/* It could not be told again when it had grown. */
START_TEST(what_a_segment_was_is_forgotten_where_the_whole_is_not_known)
{
    hvi_cu_ptr base = reserve(2);
    struct hvd_op *op, *other;
    map_chunk(base, 0, HVI_CU_HANDLE_FD);
    float *memory = floats(base, 0, 7), *grown = floats(base, 1, -10);
    struct hvi_submission first = submit(memory, memory, NULL, &op);
    map_chunk(base, 1, HVI_CU_HANDLE_FD);
    hvt_fake_refuse_devices(fake, HVD_ERR_NO_MEMORY, "the worker is out of memory");
    ck_assert_int_eq(submit_on(grown, grown, COUNT, NULL, &other), HVD_ERR_NO_MEMORY);
    ck_assert_int_eq(hvd_device_forget(session, memory), HVD_ERR_BUSY);
    finish(op, &first, HVD_OK);
    ck_assert_int_eq(hvd_device_forget(session, memory), HVD_OK);
    ck_assert_uint_eq(hvt_fake_regions(engine), 0);
}
END_TEST

/* An op for which the stream waits, of an engine that dies. */
static void lose_engine(void)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op;
    submit(memory, memory, stream, &op);
    ck_assert_int_eq(hvd_op_stream_wait(op, stream), HVD_OK);
    hvt_fake_die(engine);
    ck_assert_int_eq(hvd_wait(op, 5000000000), HVD_ERR_ENGINE_LOST);
    hvd_op_free(op);
}

/* The engine's worker may still write the op's output. */
START_TEST(after_a_dead_engine_a_stream_waits_for_the_worker_or_hvdd)
{
    lose_engine();
    ck_assert_int_eq(hvd_session_status(session), HVD_ERR_ENGINE_LOST);
    nap(25);
    ck_assert_int_eq(cuda.stream_query(stream), HVI_CU_NOT_READY);
    hvi_fence_poison(hvt_fake_fences(engine), false);
    ck_assert(stream_ends());
}
END_TEST

/* 0: a later call of the session does it; 1: of the next one, as this one is closed. */
START_TEST(after_a_dead_engine_a_later_call_releases_the_streams_if_none_else_has)
{
    lose_engine();
    session->memory.device->lost_ns = hvi_deadline_after(20 * HVI_NS_MS);
    if (_i == 1) {
        hvd_close(session);
        session = hvt_fake_open(fake);
    }
    ck_assert_int_eq(cuda.stream_query(stream), HVI_CU_NOT_READY);
    nap(25);
    hvd_session_status(session);
    ck_assert(stream_ends());
}
END_TEST

START_TEST(closing_releases_the_streams)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op;
    submit(memory, memory, stream, &op);
    ck_assert_int_eq(hvd_op_stream_wait(op, stream), HVD_OK);
    hvd_close(session);
    session = NULL;
    ck_assert(stream_ends());
}
END_TEST

/* A worker may have the op, and wait for its stream. 0: the engine stands still while the session is closed; 1: the wait for it is
 * given up; 2: the client finds that the engine breaks the protocol. */
START_TEST(an_end_without_the_engines_word_opens_no_gate_and_leaves_streams_to_it)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op;
    _Atomic uint64_t *gate = close_gate();
    const struct hvi_submission slot = submit(memory, memory, stream, &op);
    ck_assert_int_eq(hvd_op_stream_wait(op, stream), HVD_OK);
    hvt_fake_mute(fake);
    if (_i == 2) {
        hvt_fake_completion(engine, (struct hvi_completion){.cookie = slot.cookie + 1});
        ck_assert_int_eq(hvd_wait(op, 5000000000), HVD_ERR_PROTOCOL);
    } else {
        if (_i == 1)
            ck_assert_int_eq(hvd_close_wait(session, 0), HVD_INPROGRESS);
        ck_assert_int_eq(hvd_close(session), HVD_ERR_TIMEOUT);
        session = NULL;
    }
    ck_assert(!is_ready(&slot));
    ck_assert_uint_eq(atomic_load(&hvt_fake_fences(engine)->cells[slot.fence_cell].done), 0);
    open_gate(gate);
    ck_assert(becomes_ready(&slot));
    ck_assert_int_eq(cuda.stream_query(stream), HVI_CU_NOT_READY);
    hvi_fence_poison(hvt_fake_fences(engine), false); /* it goes on, and ends the session */
    ck_assert(stream_ends());
}
END_TEST

static uint64_t lost_ns(uint64_t still_ns)
{
    session->memory.device->lost_ns = 0;
    client_fence_lost(session->memory.device, still_ns);
    return session->memory.device->lost_ns;
}

/* And the client opens no gate then, either: the engine may not be dead. */
START_TEST(streams_that_the_engine_does_not_release_are_released_after_it_would_have_been_killed)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op;
    const struct hvi_submission slot = submit(memory, memory, stream, &op);
    const uint64_t now_ns = hvi_clock_ns();
    ck_assert_uint_ge(lost_ns(0), now_ns + 10 * HVI_NS_SEC);
    ck_assert_uint_ge(lost_ns(60 * HVI_NS_SEC), now_ns + 70 * HVI_NS_SEC);
    ck_assert_uint_lt(lost_ns(60 * HVI_NS_SEC), now_ns + 100 * HVI_NS_SEC);
    ck_assert_uint_eq(lost_ns(HVI_NEVER), HVI_NEVER);
    ck_assert_int_eq(hvd_op_stream_wait(op, stream), HVD_OK);
    ck_assert(becomes_ready(&slot));
    session->memory.device->lost_ns = hvi_deadline_after(20 * HVI_NS_MS);
    nap(25);
    hvd_session_status(session);
    ck_assert(stream_ends());
    const struct hvi_fence *cell = &hvt_fake_fences(engine)->cells[slot.fence_cell];
    ck_assert_uint_eq(atomic_load(&cell->ready), slot.fence_turn);
}
END_TEST

static void capture(hvi_cu_stream captured)
{
    int (*begin)(hvi_cu_stream, int);
    void *symbol = dlsym(cuda.library, "cuStreamBeginCapture_v2");
    memcpy(&begin, &symbol, sizeof(begin));
    ck_assert_int_eq(begin(captured, 2), 0);
}

START_TEST(a_captured_stream_is_refused)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op = NULL;
    capture(stream);
    ck_assert_int_eq(submit_on(memory, memory, COUNT, stream, &op), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "captured into a CUDA graph"));
    ck_assert(hvt_fake_is_idle(engine));
    ck_assert_uint_eq(session->ops.in_flight, 0);
}
END_TEST

START_TEST(a_captured_stream_waits_for_no_op)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op;
    hvi_cu_stream captured;
    struct hvi_submission slot = submit(memory, memory, stream, &op);
    ck_assert_int_eq(cuda.stream_create(&captured, HVI_CU_STREAM_NON_BLOCKING), 0);
    capture(captured);
    ck_assert_int_eq(hvd_op_stream_wait(op, captured), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "captured into a CUDA graph"));
    finish(op, &slot, HVD_OK);
}
END_TEST

START_TEST(managed_and_locked_memory_goes_as_memory_of_the_host)
{
    int (*alloc_managed)(hvi_cu_ptr *, size_t, unsigned), (*host_alloc)(void **, size_t, unsigned);
    void *managed_symbol = dlsym(cuda.library, "cuMemAllocManaged");
    void *locked_symbol = dlsym(cuda.library, "cuMemHostAlloc");
    hvi_cu_ptr managed;
    void *locked;
    struct hvd_op *op;
    memcpy(&alloc_managed, &managed_symbol, sizeof(alloc_managed));
    memcpy(&host_alloc, &locked_symbol, sizeof(host_alloc));
    ck_assert_int_eq(alloc_managed(&managed, BYTES, 1), 0);
    ck_assert_int_eq(host_alloc(&locked, BYTES, 0), 0);
    float *const both[] = {(float *)(uintptr_t)managed, locked};
    for (int i = 0; i < 2; i++) {
        struct hvi_submission slot = submit(both[i], both[i], NULL, &op);
        ck_assert_uint_eq(slot.fence_turn, 0);
        ck_assert_uint_eq(announced(), 0);
        finish(op, &slot, HVD_OK);
    }
}
END_TEST

START_TEST(a_result_without_memory_and_an_address_within_an_element_are_refused)
{
    float *memory = alloc(BYTES);
    const struct hvd_tensor in = hvd_tensor_1d(memory, HVD_FLOAT32, COUNT),
                            apart = hvd_tensor_1d((char *)memory + 2, HVD_FLOAT32, COUNT / 2);
    struct hvd_op *op = NULL;
    ck_assert_int_eq(hvd_allgather_async(session, "g", &in, NULL, NULL, &op), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "the result's memory must be given"));
    ck_assert_int_eq(hvd_allreduce_async(session, "r", &apart, &apart, HVD_SUM, NULL, &op),
                     HVD_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "is no multiple of its element's 4 bytes"));
    ck_assert(hvt_fake_is_idle(engine));
}
END_TEST

START_TEST(a_stream_of_another_device_is_refused)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op = NULL;
    hvi_cu_context before, other;
    hvi_cu_stream there;
    ck_assert_int_eq(cuda.context_get(&before), 0);
    ck_assert_int_eq(cuda.context_retain(&other, 1), 0);
    ck_assert_int_eq(cuda.context_set(other), 0);
    ck_assert_int_eq(cuda.stream_create(&there, HVI_CU_STREAM_NON_BLOCKING), 0);
    ck_assert_int_eq(submit_on(memory, memory, COUNT, there, &op), HVD_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "another device"));
    hvi_cu_context now;
    ck_assert_int_eq(cuda.context_get(&now), 0);
    ck_assert_ptr_eq(now, other); /* the thread's context is its own again */
    ck_assert_int_eq(cuda.context_set(before), 0);
}
END_TEST

START_TEST(a_submission_that_its_stream_refuses_costs_no_cell)
{
    float *memory = alloc(BYTES);
    struct hvd_op *op = NULL;
    hvi_cu_stream captured;
    ck_assert_int_eq(cuda.stream_create(&captured, HVI_CU_STREAM_NON_BLOCKING), 0);
    struct hvi_submission first = submit(memory, memory, stream, &op);
    ck_assert(becomes_ready(&first));
    finish(op, &first, HVD_OK);
    capture(captured);
    for (uint32_t i = 0; i < HVI_FENCE_CELLS + 1; i++)
        ck_assert_int_eq(submit_on(memory, memory, COUNT, captured, &op), HVD_ERR_UNSUPPORTED);
    struct hvi_submission next = submit(memory, memory, stream, &op);
    ck_assert_uint_eq(next.fence_cell, first.fence_cell);
    ck_assert_uint_eq(next.fence_turn, first.fence_turn + 1);
    ck_assert(becomes_ready(&next));
    finish(op, &next, HVD_OK);
}
END_TEST

static void *without_context(void *memory)
{
    struct hvd_op *op = NULL;
    struct hvi_submission slot = submit(memory, memory, stream, &op);
    ck_assert(becomes_ready(&slot));
    finish(op, &slot, HVD_OK);
    hvi_cu_context now;
    ck_assert_int_eq(cuda.context_get(&now), 0);
    ck_assert_ptr_null(now);
    return NULL;
}

START_TEST(a_thread_without_a_context_may_submit)
{
    float *memory = alloc(BYTES);
    pthread_t thread;
    struct hvd_op *op;
    struct hvi_submission slot = submit(memory, memory, NULL, &op);
    finish(op, &slot, HVD_OK);
    ck_assert_int_eq(pthread_create(&thread, NULL, without_context, memory), 0);
    pthread_join(thread, NULL);
}
END_TEST

START_TEST(memory_of_host_and_device_in_one_op_is_refused)
{
    float *memory = alloc(BYTES);
    float *host = malloc(BYTES);
    struct hvd_op *op = NULL;
    ck_assert_int_eq(submit_on(host, memory, COUNT, NULL, &op), HVD_ERR_INVALID);
    ck_assert_ptr_nonnull(
        strstr(hvd_last_error(), "out lies in device memory and in in memory of the host"));
    ck_assert_int_eq(submit_on(memory, host, COUNT, NULL, &op), HVD_ERR_INVALID);
    ck_assert(hvt_fake_is_idle(engine));
    free(host);
}
END_TEST

START_TEST(memory_of_the_host_goes_its_way_beside_libcuda_and_has_no_stream)
{
    float *host = calloc(COUNT, sizeof(float));
    struct hvd_op *op = NULL;
    struct hvi_submission slot = submit(host, host, NULL, &op);
    ck_assert_uint_eq(slot.fence_turn, 0);
    ck_assert_uint_eq(slot.fence_cell, 0);
    ck_assert_ptr_null(session->memory.device);
    ck_assert_int_eq(hvd_op_stream_wait(op, stream), HVD_ERR_UNSUPPORTED);
    finish(op, &slot, HVD_OK);
    ck_assert_int_eq(submit_on(host, host, COUNT, stream, &op), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "take part in no stream"));
    ck_assert_uint_eq(announced(), 0);
    free(host);
}
END_TEST

START_TEST(two_sessions_and_a_granule_of_the_host_are_told_apart_from_device_memory)
{
    /* As large as what may be asked at each op: it was the host's when libcuda was not there. */
    float *host = aligned_alloc(1 << 21, 1 << 21);
    struct hvd_op *op = NULL;
    memset(host, 0, BYTES);
    struct hvi_submission slot = submit(host, host, NULL, &op);
    finish(op, &slot, HVD_OK);
    ck_assert(client_hosts_know(&session->memory.hosts, host));
    float *memory = alloc(BYTES);
    slot = submit(memory, memory, NULL, &op);
    ck_assert_uint_ne(slot.fence_turn, 0);
    ck_assert(!client_hosts_know(&session->memory.hosts, memory));
    finish(op, &slot, HVD_OK);
    free(host);
}
END_TEST

static void tear_down_fake(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

START_TEST(an_engine_without_workers_is_refused_with_what_is_missing_and_the_next_step)
{
    struct hvd_op *op = NULL;
    load("", "");
    start(0, NULL);
    float *memory = alloc(BYTES);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(submit_on(memory, memory, COUNT, i ? stream : NULL, &op),
                         HVD_ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(hvd_last_error(), "GPU-"));
        ck_assert_ptr_nonnull(strstr(hvd_last_error(), "has no worker for GPUs"));
        ck_assert_ptr_nonnull(strstr(hvd_last_error(), "hvdctl doctor"));
        ck_assert_ptr_nonnull(strstr(hvd_last_error(), "HVD_GPU=staged"));
    }
    ck_assert(hvt_fake_is_idle(engine));
    ck_assert_uint_eq(session->ops.in_flight, 0);
    tear_down_fake();
}
END_TEST

START_TEST(a_worker_that_does_not_come_is_told_in_hvdds_words)
{
    struct hvd_op *op = NULL;
    load("", "");
    start(HVI_FEATURE_DEVICE, NULL);
    hvt_fake_refuse_devices(fake, HVD_ERR_UNSUPPORTED, "no NVIDIA driver: install one");
    float *memory = alloc(BYTES);
    ck_assert_int_eq(submit_on(memory, memory, COUNT, NULL, &op), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "no NVIDIA driver: install one"));
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "HVD_GPU=staged"));
    hvt_fake_refuse_devices(fake, HVD_OK, NULL);
    struct hvi_submission slot = submit(memory, memory, NULL, &op);
    finish(op, &slot, HVD_OK);
    tear_down_fake();
}
END_TEST

/* A worker that is never without ops: what only it can close, as memory of a pool, must not be freed. */
START_TEST(memory_that_the_worker_does_not_let_go_of_is_said_to_be_open)
{
    const struct hvt_fake_script script = {
        .manual = true, .features = HVI_FEATURE_DEVICE, .keeps = true};
    struct hvd_op *op;
    load("devices=2", "");
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
    float *memory = alloc(BYTES);
    struct hvi_submission slot = submit(memory, memory, NULL, &op);
    finish(op, &slot, HVD_OK);
    ck_assert_int_eq(hvd_device_forget(session, memory), HVD_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "pool"));
    ck_assert_int_eq(hvd_device_forget(session, memory), HVD_ERR_NOT_FOUND);
    tear_down();
}
END_TEST

START_TEST(staged_tensors_are_copied_in_and_out)
{
    struct hvd_op *op = NULL;
    load("", "");
    start(0, "staged");
    float *in = alloc(BYTES), *out = alloc(BYTES);
    float host[COUNT];
    for (int i = 0; i < COUNT; i++)
        host[i] = (float)i;
    memcpy(in, host, BYTES); /* the fake's memory is the CPU's too */
    struct hvi_submission slot = submit(in, out, NULL, &op);
    ck_assert_uint_eq(slot.fence_turn, 0);
    float *shared = hvt_fake_memory(engine, slot.in_region, slot.in_offset);
    ck_assert_mem_eq(shared, host, BYTES);
    shared = hvt_fake_memory(engine, slot.out_region, slot.out_offset);
    for (int i = 0; i < COUNT; i++)
        shared[i] = (float)(2 * i);
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 5000000000), HVD_OK);
    ck_assert_mem_eq(in, host, BYTES);
    for (int i = 0; i < COUNT; i++)
        ck_assert(out[i] == (float)(2 * i));
    hvd_op_free(op);
    ck_assert_int_eq(submit_on(in, out, COUNT, stream, &op), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "HVD_GPU=staged"));
    tear_down_fake();
}
END_TEST

/* It is mapped, else the write is a fault, and registered as it was. */
static void expect_left(void *block, uint64_t id)
{
    ck_assert_uint_eq(registered(block), id);
    memset(block, 1, MANY * sizeof(float));
}

START_TEST(a_staging_block_is_registered_once_and_stays_so_after_its_session)
{
    load("", "");
    start(0, "staged");
    float *memory = alloc(MANY * sizeof(float));
    void *block = run_staged(memory);
    uint64_t id = registered(block);
    ck_assert_uint_ne(id, 0);
    ck_assert_ptr_eq(run_staged(memory), block);
    ck_assert_uint_eq(registered(block), id);
    tear_down_fake();
    expect_left(block, id);
}
END_TEST

START_TEST(a_driver_that_registers_no_memory_makes_no_difference)
{
    load("", "no-register");
    start(0, "staged");
    float *memory = alloc(MANY * sizeof(float));
    void *block = run_staged(memory);
    ck_assert_uint_eq(registered(block), 0);
    ck_assert_ptr_eq(run_staged(memory), block);
    tear_down_fake();
}
END_TEST

/* The engine may still write there. */
START_TEST(a_registered_block_that_is_withdrawn_stays_mapped)
{
    struct client_staging *staging;
    struct client_staging_block *block;
    load("", "");
    start(0, "staged");
    run_staged(alloc(MANY * sizeof(float)));
    staging = &session->memory.staging;
    pthread_mutex_lock(&session->link.mutex);
    ck_assert_int_eq(client_staging_get(staging, MANY * sizeof(float), "test", &block), HVD_OK);
    void *memory = block->address;
    uint64_t id = registered(memory);
    ck_assert_uint_ne(id, 0);
    client_staging_withdraw(staging, block);
    client_staging_put(staging, block);
    ck_assert_ptr_null(staging->regions);
    ck_assert_uint_eq(staging->idle_bytes, 0);
    pthread_mutex_unlock(&session->link.mutex);
    expect_left(memory, id);
    tear_down_fake();
    expect_left(memory, id);
}
END_TEST

/* A stream of the process may stand for ever, at words of another session or of its own. */
START_TEST(closing_waits_for_no_stream)
{
    load("", "");
    start(0, "staged");
    void *block = run_staged(alloc(MANY * sizeof(float)));
    uint64_t id = registered(block);
    _Atomic uint64_t *gate = close_gate();
    tear_down_fake();
    ck_assert_int_eq(cuda.stream_query(stream), HVI_CU_NOT_READY);
    expect_left(block, id);
    open_gate(gate);
    ck_assert(stream_ends());
}
END_TEST

/* Another thread's capture would end by it. */
START_TEST(a_block_is_registered_while_a_stream_is_captured_in_global_mode)
{
    int (*begin)(hvi_cu_stream, int), mode = HVI_CU_CAPTURE_RELAXED;
    load("", "");
    start(0, "staged");
    void *symbol = dlsym(cuda.library, "cuStreamBeginCapture_v2");
    memcpy(&begin, &symbol, sizeof(begin));
    ck_assert_int_eq(begin(stream, FAKE_CAPTURE_GLOBAL), 0);
    ck_assert_uint_ne(registered(run_staged(alloc(MANY * sizeof(float)))), 0);
    ck_assert_int_eq(cuda.capture_mode(&mode), 0);
    ck_assert_int_eq(mode, FAKE_CAPTURE_GLOBAL); /* as before */
    tear_down_fake();
}
END_TEST

/* Of all sessions of the process, also of those that are closed: what comes then is copied as it is. */
START_TEST(no_more_than_the_bound_is_registered)
{
    size_t bytes = CLIENT_DEVICE_PIN_MAX, used = 0;
    load("", "");
    char *memory = hvt_space(CLIENT_DEVICE_PINNED + bytes);
    ck_assert(!client_device_pin(0, memory, bytes + 1));
    for (; used < CLIENT_DEVICE_PINNED; used += bytes)
        ck_assert(client_device_pin(0, memory + used, bytes));
    ck_assert(!client_device_pin(0, memory + used, 1));
    start(0, "staged");
    ck_assert_uint_eq(registered(run_staged(alloc(MANY * sizeof(float)))), 0);
    tear_down_fake();
}
END_TEST

START_TEST(a_stage_whose_op_fails_leaves_the_output_alone)
{
    struct hvd_op *op = NULL;
    load("", "");
    start(0, "staged");
    float *memory = alloc(BYTES);
    memory[0] = 5;
    struct hvi_submission slot = submit(memory, memory, NULL, &op);
    *(float *)hvt_fake_memory(engine, slot.out_region, slot.out_offset) = 7;
    finish(op, &slot, HVD_ERR_MISMATCH);
    ck_assert(memory[0] == 5);
    tear_down_fake();
}
END_TEST

/* ---- memory of hvd_device_alloc ---- */

static size_t free_bytes(void)
{
    size_t left = 0, total = 0;
    ck_assert_int_eq(cuda.memory_info(&left, &total), 0);
    return left;
}

static float *make(size_t bytes)
{
    void *memory = NULL;
    ck_assert_msg(hvd_device_alloc(bytes, 0, &memory) == HVD_OK, "%s", hvd_last_error());
    return memory;
}

START_TEST(own_memory_is_told_as_one_chunk_and_is_not_freed_while_an_op_uses_it)
{
    size_t before = free_bytes();
    struct hvd_op *op;
    float *memory = make(5u << 20);
    ck_assert_uint_eq(before - free_bytes(), 6u << 20);
    struct hvi_submission slot = submit(memory, memory + CHUNK_OF, NULL, &op);
    expect_told(1, 1, (uintptr_t)memory, 0, 3);
    ck_assert_int_eq(hvd_device_free(memory), HVD_ERR_BUSY);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "2 operands"));
    finish(op, &slot, HVD_OK);
    slot = submit(memory, memory, NULL, &op); /* known already */
    ck_assert_int_eq(hvd_device_free(memory), HVD_ERR_BUSY);
    finish(op, &slot, HVD_ERR_MISMATCH);
    ck_assert_int_eq(hvd_device_free(memory + 1), HVD_ERR_NOT_FOUND);
    ck_assert_int_eq(hvd_device_free(memory), HVD_OK);
    ck_assert_int_eq(hvd_device_free(memory), HVD_ERR_NOT_FOUND);
    ck_assert_uint_eq(free_bytes(), before);
}
END_TEST

START_TEST(own_memory_that_was_freed_is_announced_anew)
{
    struct hvd_op *op;
    for (unsigned i = 0; i < 3; i++) {
        float *memory = make(CHUNK);
        struct hvi_submission slot = submit(memory, memory, NULL, &op);
        expect_told(i + 1, i + 1, (uintptr_t)memory, 0, 1);
        finish(op, &slot, HVD_OK);
        if (i == 1)
            ck_assert_int_eq(hvd_device_forget(session, memory), HVD_OK);
        ck_assert_int_eq(hvd_device_free(memory), HVD_OK);
    }
}
END_TEST

START_TEST(own_memory_outlives_sessions_and_is_free_after_them)
{
    struct hvd_op *op;
    load("", "");
    start(HVI_FEATURE_DEVICE, NULL);
    float *memory = make(CHUNK);
    submit(memory, memory, NULL, &op);
    ck_assert_int_eq(hvd_device_free(memory), HVD_ERR_BUSY);
    tear_down_fake();
    ck_assert_int_eq(hvd_device_free(memory), HVD_OK);
}
END_TEST

START_TEST(own_memory_that_is_staged_is_not_freed_before_the_copy)
{
    struct hvd_op *op;
    load("", "");
    start(0, "staged");
    float *memory = make(CHUNK);
    struct hvi_submission slot = submit(memory, memory, NULL, &op);
    *(float *)hvt_fake_memory(engine, slot.out_region, slot.out_offset) = 7;
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_device_free(memory), HVD_ERR_BUSY);
    ck_assert_int_eq(hvd_wait(op, 5000000000), HVD_OK);
    ck_assert(memory[0] == 7);
    hvd_op_free(op);
    ck_assert_int_eq(hvd_device_free(memory), HVD_OK);
    tear_down_fake();
}
END_TEST

START_TEST(own_memory_that_cannot_be_had_is_an_error_with_a_reason)
{
    void *memory = &session;
    ck_assert_int_eq(hvd_device_alloc(CHUNK, 0, &memory), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "no libcuda"));
    load("memory=64;multicast=on", "");
    size_t before = free_bytes();
    ck_assert_int_eq(hvd_device_alloc(0, 0, &memory), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_device_alloc(1, 0, NULL), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_device_alloc(1, 1, &memory), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_device_alloc(1, -1, &memory), HVD_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "is there such a device"));
    ck_assert_int_eq(hvd_device_alloc(65u << 20, 0, &memory), HVD_ERR_NO_MEMORY);
    ck_assert_int_eq(hvd_device_alloc(SIZE_MAX - 1, 0, &memory), HVD_ERR_NO_MEMORY);
    ck_assert_ptr_eq(memory, &session);
    ck_assert_uint_eq(free_bytes(), before);
    float *own = make(1); /* what is recommended for a multicast object would not fit */
    ck_assert_uint_eq(before - free_bytes(), CHUNK);
    pid_t child = fork();
    if (child == 0)
        _exit(hvd_device_free(own) == HVD_ERR_FORKED ? 0 : 1);
    int status = 1;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(hvd_device_free(own), HVD_OK);
}
END_TEST

START_TEST(streams_without_memory_operations_are_refused)
{
    struct hvd_op *op = NULL;
    load("", "no-memops");
    start(HVI_FEATURE_DEVICE, NULL);
    float *memory = alloc(BYTES);
    ck_assert_int_eq(submit_on(memory, memory, COUNT, stream, &op), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "no 64-bit memory operations"));
    struct hvi_submission slot = submit(memory, memory, NULL, &op);
    finish(op, &slot, HVD_OK);
    tear_down_fake();
}
END_TEST

START_TEST(libcuda_that_comes_late_is_noticed)
{
    struct hvd_op *op = NULL;
    start(HVI_FEATURE_DEVICE, NULL);
    float *host = calloc(COUNT, sizeof(float));
    struct hvi_submission slot = submit(host, host, NULL, &op);
    finish(op, &slot, HVD_OK);
    ck_assert(client_driver_is_absent());
    load("", "");
    ck_assert(!client_driver_is_absent());
    float *memory = alloc(BYTES);
    slot = submit(memory, memory, NULL, &op);
    ck_assert_uint_ne(slot.fence_turn, 0);
    finish(op, &slot, HVD_OK);
    free(host);
    tear_down_fake();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client device");
    TCase *tcase = tcase_create("with a worker");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, an_allocation_becomes_known_once_and_tensors_in_it_are_offsets);
    tcase_add_test(tcase, of_a_reservation_the_chunks_of_the_tensor_become_known);
    tcase_add_test(tcase, a_segment_that_grows_is_told_again_as_a_whole);
    tcase_add_test(tcase, a_chunk_that_was_mapped_anew_is_told_anew_and_its_neighbour_is_not);
    tcase_add_test(tcase, many_chunks_come_in_pieces);
    tcase_add_test(tcase, an_engine_that_knows_no_fabric_handles_is_told_of_none);
    tcase_add_test(tcase, a_tensor_that_lies_partly_nowhere_is_an_error);
    tcase_add_test(tcase, an_op_of_a_stream_is_ready_when_the_stream_has_come_to_it);
    tcase_add_test(tcase, a_stream_waits_for_the_op_and_later_ops_say_after_which);
    tcase_add_test(tcase, tensors_without_bytes_take_part_in_streams);
    tcase_add_test(tcase, a_finished_op_makes_no_stream_wait);
    tcase_add_test(tcase, a_cell_is_used_again_when_its_stream_has_come_and_never_after_a_failure);
    tcase_add_test(tcase, memory_that_was_freed_is_announced_anew);
    tcase_add_test(tcase, memory_is_forgotten_but_not_while_an_op_uses_it);
    tcase_add_test(tcase, a_segment_is_forgotten_with_what_it_was_before_it_grew);
    tcase_add_test(tcase, what_a_segment_was_is_forgotten_where_the_whole_is_not_known);
    tcase_add_test(tcase, after_a_dead_engine_a_stream_waits_for_the_worker_or_hvdd);
    tcase_add_loop_test(
        tcase, after_a_dead_engine_a_later_call_releases_the_streams_if_none_else_has, 0, 2);
    tcase_add_test(tcase, closing_releases_the_streams);
    tcase_add_loop_test(
        tcase, an_end_without_the_engines_word_opens_no_gate_and_leaves_streams_to_it, 0, 3);
    tcase_add_test(
        tcase,
        streams_that_the_engine_does_not_release_are_released_after_it_would_have_been_killed);
    tcase_add_test(tcase, a_captured_stream_is_refused);
    tcase_add_test(tcase, a_submission_that_its_stream_refuses_costs_no_cell);
    tcase_add_test(tcase, a_captured_stream_waits_for_no_op);
    tcase_add_test(tcase, managed_and_locked_memory_goes_as_memory_of_the_host);
    tcase_add_test(tcase, a_result_without_memory_and_an_address_within_an_element_are_refused);
    tcase_add_test(tcase, a_stream_of_another_device_is_refused);
    tcase_add_test(tcase, a_thread_without_a_context_may_submit);
    tcase_add_test(tcase, memory_of_host_and_device_in_one_op_is_refused);
    tcase_add_test(tcase, memory_of_the_host_goes_its_way_beside_libcuda_and_has_no_stream);
    tcase_add_test(tcase, two_sessions_and_a_granule_of_the_host_are_told_apart_from_device_memory);
    tcase_add_test(tcase, own_memory_is_told_as_one_chunk_and_is_not_freed_while_an_op_uses_it);
    tcase_add_test(tcase, own_memory_that_was_freed_is_announced_anew);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("fabric handles");
    tcase_add_checked_fixture(tcase, set_up_fabric, tear_down);
    tcase_add_test(tcase, chunks_without_handles_are_copied_or_refused);
    tcase_add_test(tcase, chunks_with_fabric_handles_alone_go_by_these_and_others_by_descriptors);
    tcase_add_loop_test(
        tcase, fabric_handles_that_a_worker_refuses_are_a_copy_and_others_a_sentence, 0, 3);
    tcase_add_test(tcase, fabric_handles_are_asked_for_again_after_an_error_that_is_no_refusal);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("without");
    tcase_add_test(tcase, a_fabric_handle_that_the_driver_refuses_is_a_sentence_or_a_copy);
    tcase_add_test(tcase,
                   an_engine_without_workers_is_refused_with_what_is_missing_and_the_next_step);
    tcase_add_test(tcase, a_worker_that_does_not_come_is_told_in_hvdds_words);
    tcase_add_test(tcase, memory_that_the_worker_does_not_let_go_of_is_said_to_be_open);
    tcase_add_test(tcase, staged_tensors_are_copied_in_and_out);
    tcase_add_test(tcase, a_staging_block_is_registered_once_and_stays_so_after_its_session);
    tcase_add_test(tcase, a_driver_that_registers_no_memory_makes_no_difference);
    tcase_add_test(tcase, a_registered_block_that_is_withdrawn_stays_mapped);
    tcase_add_test(tcase, closing_waits_for_no_stream);
    tcase_add_test(tcase, a_block_is_registered_while_a_stream_is_captured_in_global_mode);
    tcase_add_test(tcase, no_more_than_the_bound_is_registered);
    tcase_add_test(tcase, a_stage_whose_op_fails_leaves_the_output_alone);
    tcase_add_test(tcase, own_memory_outlives_sessions_and_is_free_after_them);
    tcase_add_test(tcase, own_memory_that_is_staged_is_not_freed_before_the_copy);
    tcase_add_test(tcase, own_memory_that_cannot_be_had_is_an_error_with_a_reason);
    tcase_add_test(tcase, streams_without_memory_operations_are_refused);
    tcase_add_test(tcase, libcuda_that_comes_late_is_noticed);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

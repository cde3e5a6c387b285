/* SPDX-License-Identifier: Apache-2.0
 * Waits for values and writes of values, 64 bits.
 *
 * Rules. A wait is signed and cyclic: (int64)(word - value) >= 0; one that is never satisfied hangs (cuda.h). A stream's write
 * a CPU's store into registered memory and a copy release it (P4, an H100). An address that
 * is neither the device's nor registered is an error, so is one that is not aligned (cuda.h). Fewer than 256 operations in one call
 * (cuda.h), and no flags: of the second version of these calls cuda.h says that it has no NO_MEMORY_BARRIER, and an H100's driver
 * refuses it. In a capturing stream they are a fault of the test (section 2.5). Without the device's attribute: NOT_SUPPORTED. */
#include "tests/fakegpu/counts.h"
#include "tests/fakegpu/stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define MOST        255
#define PAGE_BYTES  4096u
#define LARGE_BYTES (1u << 20)

struct wait {
    struct wait *next;
    _Atomic uint64_t *at;
    uint64_t value;
    bool is_written;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct wait *waits; /* of this process, at work now */

static bool is_reached(uint64_t word, uint64_t value)
{
    return (int64_t)(word - value) >= 0;
}

/* Needs the lock. */
static bool is_over(struct wait *wait, bool is_deaf)
{
    const uint64_t word = atomic_load(wait->at);

    if (is_deaf && !wait->is_written)
        return false;
    return is_reached(word, wait->value);
}

static bool is_host(const void *at)
{
    struct range *range = fake_pin((uintptr_t)at, "a wait");
    const bool host = range != NULL && fake_range_device(range) < 0;

    if (range != NULL)
        fake_unpin(range);
    return host;
}

static void run_wait(_Atomic uint64_t *at, uint64_t value)
{
    struct wait wait = {.at = at, .value = value};
    const uint64_t since = fake_now_ns();
    const bool is_deaf =
        fake_fault("deaf") != 0 && is_host(at) && !is_reached(atomic_load(at), value);

    pthread_mutex_lock(&lock);
    wait.next = waits;
    waits = &wait;
    while (!is_over(&wait, is_deaf) && fake_broken() == HVI_CU_OK) {
        pthread_mutex_unlock(&lock);
        fake_nap(since);
        pthread_mutex_lock(&lock);
    }
    for (struct wait **at_p = &waits; *at_p != NULL; at_p = &(*at_p)->next) {
        if (*at_p == &wait) {
            *at_p = wait.next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

static void run_write(_Atomic uint64_t *at, uint64_t value)
{
    pthread_mutex_lock(&lock);
    atomic_store(at, value);
    for (struct wait *wait = waits; wait != NULL; wait = wait->next) {
        wait->is_written = wait->is_written || wait->at == at;
    }
    pthread_mutex_unlock(&lock);
}

static bool is_watched(const void *to, size_t bytes)
{
    for (struct wait *wait = waits; wait != NULL; wait = wait->next) {
        if ((uintptr_t)wait->at - (uintptr_t)to < bytes)
            return true;
    }
    return false;
}

/* Large memory becomes zeros by giving its pages back: filling them would take a test tens of milliseconds. */
static void set_bytes(void *to, int value, size_t bytes)
{
    const size_t whole = bytes & ~(size_t)(PAGE_BYTES - 1);

    if (value != 0 || whole < LARGE_BYTES || (uintptr_t)to % PAGE_BYTES != 0 ||
        madvise(to, whole, MADV_REMOVE) != 0)
        memset(to, value, bytes);
    else
        memset((char *)to + whole, 0, bytes - whole);
}

void fake_copy(void *to, const void *from, int value, size_t bytes)
{
    pthread_mutex_lock(&lock);
    const bool keeps_lock = is_watched(to, bytes); /* the waits read there */
    if (!keeps_lock)
        pthread_mutex_unlock(&lock);
    if (from != NULL)
        memcpy(to, from, bytes);
    else
        set_bytes(to, value, bytes);
    if (keeps_lock)
        pthread_mutex_unlock(&lock);
}

/* --- calls --- */

struct operations {
    unsigned count;
    union hvi_cu_memop ops[];
};

static void run_operations(void *data)
{
    struct operations *all = data;

    for (unsigned i = 0; i < all->count; i++) {
        _Atomic uint64_t *at = (_Atomic uint64_t *)(uintptr_t)all->ops[i].op.address;
        if (all->ops[i].op.operation == HVI_CU_MEMOP_WAIT_64)
            run_wait(at, all->ops[i].op.value);
        else
            run_write(at, all->ops[i].op.value);
    }
}

static bool is_sound(const union hvi_cu_memop *op)
{
    return (op->op.operation == HVI_CU_MEMOP_WAIT_64 ||
            op->op.operation == HVI_CU_MEMOP_WRITE_64) &&
           op->op.flags == 0 && op->op.address % 8 == 0;
}

static void check_capture(hvi_cu_stream handle)
{
    struct hvi_cu_stream *stream;

    if (fake_stream_find(handle, &stream) == HVI_CU_OK && stream->is_capturing)
        fake_blame(
            "a memory operation in a stream that is being captured: it would run with the graph");
}

/* The last one is work of its own: a process that sees what it has written may take back the memory of the others. */
static int enqueue(hvi_cu_stream stream, struct operations *all, const struct fakegpu_span *spans,
                   unsigned count)
{
    const size_t bytes = sizeof(*all) + sizeof(union hvi_cu_memop);
    int error = HVI_CU_OK;

    all->count = count - 1;
    if (count > 1)
        error =
            fake_enqueue(stream, run_operations, all,
                         sizeof(*all) + (count - 1) * sizeof(union hvi_cu_memop), spans, count - 1);
    if (count == 0 || error != HVI_CU_OK)
        return error;
    all->count = 1;
    all->ops[0] = all->ops[count - 1];
    return fake_enqueue(stream, run_operations, all, bytes, &spans[count - 1], 1);
}

int cu_memops(hvi_cu_stream stream, unsigned count, union hvi_cu_memop *ops, unsigned flags)
{
    char data[sizeof(struct operations) + MOST * sizeof(union hvi_cu_memop)]
        __attribute__((aligned(16)));
    struct operations *all = (void *)data;
    struct fakegpu_span spans[MOST];
    const int error = fake_ready();

    if (error != HVI_CU_OK || flags != 0 || count > MOST)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    if (fake_fault("no-memops") != 0)
        return HVI_CU_NOT_SUPPORTED;
    check_capture(stream);
    for (unsigned i = 0; i < count; i++) {
        if (!is_sound(&ops[i]))
            return HVI_CU_INVALID_VALUE;
        all->ops[i] = ops[i];
        spans[i] = (struct fakegpu_span){ops[i].op.address, 8};
    }
    atomic_fetch_add(&fake_counts()->memops, 1);
    return enqueue(stream, all, spans, count);
}

static int one(hvi_cu_stream stream, uint32_t operation, hvi_cu_ptr address, uint64_t value,
               unsigned flags)
{
    union hvi_cu_memop op = {
        .op = {.operation = operation, .address = address, .value = value, .flags = flags}};

    return cu_memops(stream, 1, &op, 0);
}

int cu_write64(hvi_cu_stream stream, hvi_cu_ptr address, uint64_t value, unsigned flags)
{
    return one(stream, HVI_CU_MEMOP_WRITE_64, address, value, flags);
}

int cu_wait64(hvi_cu_stream stream, hvi_cu_ptr address, uint64_t value, unsigned flags)
{
    return one(stream, HVI_CU_MEMOP_WAIT_64, address, value, flags);
}

/* SPDX-License-Identifier: Apache-2.0
 * Libraries and modules, whose images are not looked into, and kernels, which are found by name: rows that a test has added, the
 * worker's kernels as the host's compiler built them (hvd_kernel_rows), the probes'.
 *
 * Rules. A kernel that is not there: 500. A grid or a block of nothing, or of more than 1024 threads: an error (cuda.h). A first
 * launch loads its library, EAGER or not, and may wait for all streams (section 2.4; sync=). Memory that is not there, not the
 * device's or too short is an illegal address, which stays (cuda.h; P9). */
#include "tests/fakegpu/counts.h"
#include "tests/fakegpu/stream.h"

#include "base/types.h"
#include "tests/fakegpu/probe_kernels.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PARAMETER_BYTES 4096 /* of a kernel, before CUDA 12.1 */
#define SPANS_MAX       (PARAMETER_BYTES / 8)
#define ADDED_MAX       16

struct hvi_cu_kernel {
    struct hvi_cu_kernel *next;
    char name[64];
    const struct hvd_kernel_row *row;
    const struct fake_probe_kernel *probe;
    _Atomic bool is_loaded;
};

struct hvi_cu_library {
    int unused;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hvi_cu_library the_library;
static struct hvi_cu_kernel *kernels;
static const struct hvd_kernel_row *added[ADDED_MAX];
static unsigned added_count;

void fake_add_kernels(const struct hvd_kernel_row *rows)
{
    pthread_mutex_lock(&lock);
    if (added_count == ADDED_MAX)
        fake_blame("rows of kernels were added %u times", ADDED_MAX);
    added[added_count++] = rows;
    pthread_mutex_unlock(&lock);
}

static const struct hvd_kernel_row *find_row(const struct hvd_kernel_row *rows, const char *name)
{
    for (; rows != NULL && rows->name != NULL; rows++) {
        if (strcmp(rows->name, name) == 0)
            return rows;
    }
    return NULL;
}

/* Needs the lock. */
static const struct hvd_kernel_row *row_named(const char *name)
{
    for (unsigned i = added_count; i > 0; i--) {
        const struct hvd_kernel_row *row = find_row(added[i - 1], name);
        if (row != NULL)
            return row;
    }
    return find_row(hvd_kernel_rows, name);
}

/* Needs the lock. Kernels are kept: a handle may be used for ever. */
static struct hvi_cu_kernel *kernel_named(const char *name)
{
    const struct hvd_kernel_row *row = row_named(name);
    const struct fake_probe_kernel *probe = row == NULL ? fake_probe_kernel_find(name) : NULL;

    for (struct hvi_cu_kernel *kernel = kernels; kernel != NULL; kernel = kernel->next) {
        if (strcmp(kernel->name, name) == 0 && kernel->row == row && kernel->probe == probe)
            return kernel;
    }
    struct hvi_cu_kernel *kernel =
        (row == NULL && probe == NULL) || strlen(name) >= sizeof(kernel->name)
            ? NULL
            : calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return NULL;
    strcpy(kernel->name, name);
    kernel->row = row;
    kernel->probe = probe;
    kernel->next = kernels;
    kernels = kernel;
    return kernel;
}

int cu_library_load(hvi_cu_library *library_p, const void *image, void *options, void *values,
                    unsigned count, void *library_options, void *library_values,
                    unsigned library_count)
{
    const int error = fake_ready();

    (void)options, (void)values, (void)count;
    (void)library_options, (void)library_values, (void)library_count;
    if (error != HVI_CU_OK || image == NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    if (fake_fault("old-driver") != 0)
        return FAKE_INVALID_IMAGE;
    fake_may_synchronize("load");
    *library_p = &the_library;
    return HVI_CU_OK;
}

int cu_library_kernel(hvi_cu_kernel *kernel_p, hvi_cu_library library, const char *name)
{
    const int error = fake_ready();

    if (error != HVI_CU_OK || library != &the_library)
        return error != HVI_CU_OK ? error : FAKE_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    struct hvi_cu_kernel *kernel = kernel_named(name);
    pthread_mutex_unlock(&lock);
    if (kernel == NULL)
        return HVI_CU_NOT_FOUND;
    *kernel_p = kernel;
    return HVI_CU_OK;
}

int cu_module_load(hvi_cu_library *module_p, const void *image)
{
    if (*(const uint32_t *)image != 0xba55ed50u) /* a fatbin */
        return FAKE_INVALID_IMAGE;
    return cu_library_load(module_p, image, NULL, NULL, 0, NULL, NULL, 0);
}

int cu_module_kernel(hvi_cu_kernel *kernel_p, hvi_cu_library module, const char *name)
{
    return cu_library_kernel(kernel_p, module, name);
}

/* --- what memory a kernel uses --- */

struct spans {
    size_t count;
    struct fakegpu_span span[SPANS_MAX];
};

static void add_span(struct spans *spans, uint64_t address, size_t bytes)
{
    if (spans->count < SPANS_MAX)
        spans->span[spans->count++] = (struct fakegpu_span){address, bytes};
}

static bool is_named(const char *name, const char *one, const char *other)
{
    return strcmp(name, one) == 0 || strcmp(name, other) == 0;
}

/* Of the worker's kernels by their arguments. False: another kernel. */
static bool own_spans(const char *name, const void *arguments, struct spans *spans)
{
    const struct hvd_reduce_args *reduce = arguments;
    const struct hvd_pack_args *pack = arguments;
    const struct hvd_move_args *move = arguments;

    if (is_named(name, "hvd_reduce", "hvd_spread")) {
        const size_t bytes = reduce->count * hvi_dtype_bytes(reduce->dtype);
        for (uint32_t i = 0; i < reduce->ins; i++)
            add_span(spans, reduce->in[i], bytes);
        for (uint32_t i = 0; i < reduce->outs; i++)
            add_span(spans, reduce->out[i], bytes);
    } else if (is_named(name, "hvd_pack", "hvd_unpack")) {
        const size_t element = hvi_dtype_bytes(pack->dtype);
        for (uint32_t i = 0; i < pack->pieces; i++) {
            add_span(spans, pack->piece[i].piece, pack->piece[i].count * element);
            add_span(spans, pack->base + pack->piece[i].at, pack->piece[i].count * element);
        }
    } else if (is_named(name, "hvd_move", "")) {
        for (uint32_t i = 0; i < move->pieces; i++) {
            add_span(spans, move->piece[i].to, move->piece[i].bytes);
            add_span(spans, move->piece[i].from, move->piece[i].bytes);
        }
    } else {
        return false;
    }
    return true;
}
/* Of another kernel: what looks like an address of our memory is one. */
static void guess_spans(const void *arguments, size_t bytes, struct spans *spans)
{
    for (size_t at = 0; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (const char *)arguments + at, sizeof(word));
        struct range *range = word == 0 ? NULL : fake_pin(word, "a kernel");
        if (range == NULL)
            continue;
        add_span(spans, word, 1);
        fake_unpin(range);
    }
}

/* --- launches --- */

struct launch {
    struct hvi_cu_kernel *kernel;
    uint32_t blocks, threads;
    bool is_breaking;
    _Alignas(16) char arguments[PARAMETER_BYTES];
};

static void run_launch(void *data)
{
    struct launch *launch = data;

    if (launch->is_breaking)
        fake_break(HVI_CU_ILLEGAL_ADDRESS);
    else if (launch->kernel->row != NULL)
        launch->kernel->row->run(launch->arguments, launch->blocks, launch->threads);
    else
        launch->kernel->probe->run(launch->kernel->name, (void *)launch->arguments);
}

/* The bytes of the arguments. */
static size_t take_arguments(const struct hvi_cu_kernel *kernel, void **arguments, char *to)
{
    if (kernel->row == NULL)
        return fake_probe_kernel_arguments(kernel->probe, arguments, to);
    if (kernel->row->argument_bytes > PARAMETER_BYTES)
        fake_blame("%s has %zu bytes of arguments, at most %u", kernel->name,
                   kernel->row->argument_bytes, PARAMETER_BYTES);
    memcpy(to, arguments[0], kernel->row->argument_bytes);
    return kernel->row->argument_bytes;
}

int cu_launch(hvi_cu_kernel kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
              hvi_cu_stream stream, void **arguments, void **extra)
{
    const int error = fake_ready();
    struct launch launch = {.kernel = kernel, .blocks = grid_x, .threads = block_x};
    struct spans spans = {.count = 0};

    if (error != HVI_CU_OK || kernel == NULL || arguments == NULL || extra != NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x > 1024 ||
        block_y != 1 || block_z != 1 || shared_bytes > 48 << 10)
        return HVI_CU_INVALID_VALUE;
    if (!atomic_exchange(&kernel->is_loaded, true))
        fake_may_synchronize("load");
    launch.is_breaking = fake_fault_now("sticky");
    const size_t bytes = take_arguments(kernel, arguments, launch.arguments);
    if (!own_spans(kernel->name, launch.arguments, &spans))
        guess_spans(launch.arguments, bytes, &spans);
    atomic_fetch_add(&fake_counts()->launches, 1);
    return fake_enqueue_kernel(stream, run_launch, &launch,
                               offsetof(struct launch, arguments) + bytes, spans.span, spans.count);
}

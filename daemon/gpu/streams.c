/* SPDX-License-Identifier: Apache-2.0
 * Streams. Each kernel is launched once at the start, with nothing to do: whatever the driver loads at a first launch is there
 * before a stream waits for anything (gpu-facts: a load may wait for streams).
 *
 * A BatchMemOp has fewer than 256 operations (cuda.h). */
#include "daemon/gpu/streams.h"

#include "base/assert.h"
#include "daemon/gpu/kernels/image.h"
#include "shm/fence.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS_BYTES 4096u
_Static_assert(GPU_STREAMS * sizeof(struct gpu_words) <= WORDS_BYTES, "one page");
#define MEMOPS_MAX   255u
#define THREADS      256u
#define THREAD_BYTES 64u  /* of one input, for each thread of a grid */
#define LOOKS_MAX    4u   /* blocks that look at a word of the host's themselves */
#define SEEN_BYTES   256u /* of a stream */
#define MS_MAX       1e9f /* that a batch may have taken: eleven days */
#define OWN_BYTES    (GPU_STREAM_STAGING + GPU_STREAM_SCRATCH + GPU_STREAMS * SEEN_BYTES)
#define LOAD_CALLS                                                                                 \
    4u /* loading kernels may take as long as so many calls: the driver may compile them */

static const char *const kernel_names[GPU_STREAM_KERNELS] = {
    [GPU_STEP_REDUCE] = "hvd_reduce",
    [GPU_STEP_SPREAD] = "hvd_spread",
    [GPU_STEP_PACK] = "hvd_pack",
    [GPU_STEP_UNPACK] = "hvd_unpack",
    [GPU_STEP_MOVE] = "hvd_move",
    [GPU_STEP_ADASUM_DOTS] = "hvd_adasum_dots",
    [GPU_STEP_ADASUM_FACTORS] = "hvd_adasum_factors",
    [GPU_STEP_ADASUM_BLEND] = "hvd_adasum_blend",
};

/* ---- kernels ---- */

/* NULL, with a sentence: it cannot be read. Stays mapped. */
static const void *map_image(const char *file, char *text_p, size_t text_size)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    struct stat about;
    void *image = MAP_FAILED;

    if (fd >= 0 && fstat(fd, &about) == 0 && about.st_size > 0)
        image = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    else if (fd >= 0)
        errno = EINVAL;
    if (image == MAP_FAILED)
        snprintf(text_p, text_size, "%s: %s", file, strerror(errno));
    if (fd >= 0)
        close(fd);
    return image == MAP_FAILED ? NULL : image;
}

/* A driver that is older than the toolkit refuses what that has compiled, though it knows the GPU. */
static void describe_load(const struct gpu_calls *calls, int error, bool has_none, char *text_p,
                          size_t text_size)
{
    const int version = calls->cuda->version;
    char name[64];

    hvi_cuda_describe(calls->cuda, error, name, sizeof(name));
    if (has_none)
        snprintf(text_p, text_size,
                 "this hvdd-gpu was built without nvcc and has no kernels; gpu-kernels "
                 "(hvdd.conf) names a file that has");
    else
        snprintf(text_p, text_size,
                 "%s; the driver is of CUDA %d.%d, and kernels that a newer nvcc has compiled are "
                 "nothing to it: gpu-kernels (hvdd.conf) names a file of others",
                 name, version / 1000, version % 1000 / 10);
}

static bool load_image(struct gpu_streams *streams, const char *file)
{
    static const uint64_t nothing[8]; /* which every driver refuses */
    struct gpu_calls *calls = streams->calls;
    const bool is_built_in = gpu_kernels_image_bytes > 0;
    const void *image = is_built_in ? (const void *)gpu_kernels_image : nothing;
    char text[280];

    if (file[0] != '\0')
        image = map_image(file, text, sizeof(text));
    if (image == NULL) {
        gpu_calls_fail(calls, "gpu-kernels", text);
        return false;
    }
    gpu_calls_begin(calls, "cuLibraryLoadData", LOAD_CALLS * calls->usual_ns);
    const int error =
        calls->cuda->library_load(&streams->library, image, NULL, NULL, 0, NULL, NULL, 0);
    gpu_calls_end(calls);
    if (error == HVI_CU_OK)
        return true;
    describe_load(calls, error, file[0] == '\0' && !is_built_in, text, sizeof(text));
    gpu_calls_fail(calls, "cuLibraryLoadData", text);
    return false;
}

static unsigned blocks_of(const struct gpu_streams *streams, uint64_t bytes)
{
    const uint64_t blocks = bytes / (THREADS * THREAD_BYTES) + 1;

    return (unsigned)(blocks < streams->blocks_max ? blocks : streams->blocks_max);
}

static bool launch(struct gpu_streams *streams, struct gpu_stream *stream, hvi_cu_kernel kernel,
                   const void *arguments, unsigned blocks, unsigned threads)
{
    void *parameters[1] = {(void *)(uintptr_t)arguments};

    stream->works++;
    return GPU_CALL(streams->calls, "cuLaunchKernel",
                    streams->calls->cuda->launch(kernel, blocks, 1, 1, threads, 1, 1, 0,
                                                 stream->handle, parameters, NULL));
}

/* A kernel of many blocks, which is to do nothing where its batch is cancelled: one looks for all. */
static bool look_and_launch(struct gpu_streams *streams, struct gpu_stream *stream,
                            const struct gpu_step *step, unsigned blocks)
{
    const struct hvd_look_args look = {.from = step->guard.skip, .to = stream->seen};
    struct gpu_step with_seen = *step;

    if (stream->seen_from != look.from && !launch(streams, stream, streams->look, &look, 1, 1))
        return false;
    stream->seen_from = look.from;
    with_seen.guard.skip = stream->seen;
    return launch(streams, stream, streams->kernels[step->kind], &with_seen.reduce, blocks,
                  THREADS);
}

static bool find_kernels(struct gpu_streams *streams)
{
    struct gpu_calls *calls = streams->calls;

    for (int i = 0; i < GPU_STREAM_KERNELS; i++) {
        if (!GPU_CALL(calls, kernel_names[i],
                      calls->cuda->library_kernel(&streams->kernels[i], streams->library,
                                                  kernel_names[i])))
            return false;
    }
    return GPU_CALL(calls, "hvd_look",
                    calls->cuda->library_kernel(&streams->look, streams->library, "hvd_look"));
}

static bool launch_first(struct gpu_streams *streams)
{
    static const struct gpu_step nothing;
    struct gpu_calls *calls = streams->calls;
    struct gpu_stream *stream = &streams->streams[0];
    bool is_timed;

    if (!gpu_streams_time(streams, stream, &is_timed))
        return false;
    for (int i = 0; i < GPU_STREAM_KERNELS; i++) {
        if (!launch(streams, stream, streams->kernels[i], &nothing.reduce, 1, THREADS))
            return false;
    }
    if (!launch(streams, stream, streams->look, &nothing.reduce, 1, 1) ||
        !gpu_streams_time_end(streams, stream) ||
        !GPU_CALL(calls, "cuStreamSynchronize", calls->cuda->stream_synchronize(stream->handle)))
        return false;
    (void)gpu_streams_took(streams, stream);
    stream->works = 0;
    return true;
}

/* ---- opening ---- */

/* As many blocks for each processor: all are busy until the end. */
static bool measure_grid(struct gpu_streams *streams)
{
    struct gpu_calls *calls = streams->calls;
    hvi_cu_device device;
    int processors = 0;

    if (!GPU_CALL(calls, "cuCtxGetDevice", calls->cuda->context_device(&device)) ||
        !GPU_CALL(calls, "cuDeviceGetAttribute",
                  calls->cuda->device_attribute(&processors, HVI_CU_DEVICE_PROCESSORS, device)))
        return false;
    streams->blocks_max = GPU_STREAM_GRID * (processors > 0 ? (unsigned)processors : 1u);
    return true;
}

static bool make_words(struct gpu_streams *streams)
{
    struct gpu_calls *calls = streams->calls;
    void *page =
        mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    hvi_cu_ptr address;

    if (page == MAP_FAILED) {
        gpu_calls_fail(calls, "mmap", strerror(errno));
        return false;
    }
    streams->words = page;
    if (!GPU_CALL(calls, "cuMemHostRegister",
                  calls->cuda->host_register(page, WORDS_BYTES,
                                             HVI_CU_HOST_PORTABLE | HVI_CU_HOST_DEVICEMAP)) ||
        !GPU_CALL(calls, "cuMemHostGetDevicePointer", calls->cuda->host_pointer(&address, page, 0)))
        return false;
    for (uint32_t i = 0; i < GPU_STREAMS; i++) {
        streams->streams[i].words = &streams->words[i];
        streams->streams[i].address = address + i * sizeof(struct gpu_words);
    }
    return true;
}

static bool make_staging(struct gpu_streams *streams)
{
    struct gpu_calls *calls = streams->calls;
    const size_t used = GPU_STREAM_STAGING + GPU_STREAM_SCRATCH, bytes = OWN_BYTES;
    size_t free_bytes = 0, total = 0;
    char text[100];

    gpu_calls_begin(calls, "cuMemAlloc", calls->usual_ns);
    const int error = calls->cuda->alloc(&streams->staging, bytes);
    for (uint32_t i = 0; i < GPU_STREAMS; i++)
        streams->streams[i].seen = streams->staging + used + i * SEEN_BYTES;
    if (error != HVI_CU_OUT_OF_MEMORY)
        return gpu_calls_good(calls, "cuMemAlloc of the staging memory", error);
    calls->cuda->memory_info(&free_bytes, &total);
    snprintf(text, sizeof(text), "%zu bytes are needed, and %zu of %zu are free", bytes, free_bytes,
             total);
    gpu_calls_fail(calls, "cuMemAlloc of the staging memory", text);
    return false;
}

static bool make_stream(struct gpu_streams *streams, struct gpu_stream *stream)
{
    struct gpu_calls *calls = streams->calls;

    if (!GPU_CALL(calls, "cuStreamCreate",
                  calls->cuda->stream_create(&stream->handle, HVI_CU_STREAM_NON_BLOCKING)))
        return false;
    for (uint32_t i = 0; i < GPU_STREAM_TIMES; i++) {
        if (!GPU_CALL(calls, "cuEventCreate",
                      calls->cuda->event_create(&stream->times[i].begin, 0)) ||
            !GPU_CALL(calls, "cuEventCreate", calls->cuda->event_create(&stream->times[i].end, 0)))
            return false;
    }
    return true;
}

bool gpu_streams_open(struct gpu_streams *streams, const char *file)
{
    for (uint32_t i = 0; i < GPU_STREAMS; i++) {
        if (!make_stream(streams, &streams->streams[i]))
            return false;
    }
    return measure_grid(streams) && make_words(streams) && make_staging(streams) &&
           load_image(streams, file) && find_kernels(streams) && launch_first(streams);
}

static void end_event(struct gpu_calls *calls, hvi_cu_event event)
{
    if (event != NULL)
        (void)GPU_CALL(calls, "cuEventDestroy", calls->cuda->event_destroy(event));
}

static void end_stream(struct gpu_streams *streams, struct gpu_stream *stream)
{
    struct gpu_calls *calls = streams->calls;

    for (uint32_t i = 0; i < GPU_STREAM_TIMES; i++) {
        end_event(calls, stream->times[i].begin);
        end_event(calls, stream->times[i].end);
    }
    if (stream->handle != NULL)
        (void)GPU_CALL(calls, "cuStreamDestroy", calls->cuda->stream_destroy(stream->handle));
}

void gpu_streams_close(struct gpu_streams *streams)
{
    struct gpu_calls *calls = streams->calls;

    if (streams->staging != 0)
        (void)GPU_CALL(calls, "cuMemFree", calls->cuda->free(streams->staging));
    for (uint32_t i = 0; i < GPU_STREAMS; i++)
        end_stream(streams, &streams->streams[i]);
    if (streams->words == NULL)
        return;
    (void)GPU_CALL(calls, "cuMemHostUnregister", calls->cuda->host_unregister(streams->words));
    munmap(streams->words, WORDS_BYTES);
    streams->words = NULL;
}

bool gpu_streams_clear(struct gpu_streams *streams)
{
    const struct hvi_cuda *cuda = streams->calls->cuda;
    hvi_cu_stream stream = streams->streams[0].handle;

    return GPU_CALL(streams->calls, "cuMemsetD8Async",
                    cuda->memset8(streams->staging, 0, OWN_BYTES, stream)) &&
           GPU_CALL(streams->calls, "cuStreamSynchronize", cuda->stream_synchronize(stream));
}

/* ---- waits and writes ---- */

struct memops {
    uint32_t count;
    union hvi_cu_memop ops[MEMOPS_MAX];
};

static bool flush(struct gpu_streams *streams, struct gpu_stream *stream, struct memops *memops)
{
    const uint32_t count = memops->count;

    memops->count = 0;
    stream->works++;
    return GPU_CALL(streams->calls, "cuStreamBatchMemOp",
                    streams->calls->cuda->memops(stream->handle, count, memops->ops, 0));
}

static bool add(struct gpu_streams *streams, struct gpu_stream *stream, struct memops *memops,
                uint32_t operation, hvi_cu_ptr address, uint64_t value)
{
    if (memops->count == MEMOPS_MAX && !flush(streams, stream, memops))
        return false;
    memops->ops[memops->count++] =
        (union hvi_cu_memop){.op = {.operation = operation, .address = address, .value = value}};
    return true;
}

bool gpu_streams_wait(struct gpu_streams *streams, struct gpu_stream *stream,
                      const struct gpu_batch *batch, bool *waits_p)
{
    struct memops memops;

    memops.count = 0;
    *waits_p = false;
    stream->works_before = stream->works;
    gpu_stream_look_again(stream);
    for (uint32_t i = 0; i < batch->member_count; i++) {
        const struct gpu_member *member = &batch->members[i];
        if (member->fence != 0 &&
            !(member->page != NULL &&
              hvi_fence_is_ready(member->page, member->cell, member->turn)) &&
            !add(streams, stream, &memops, HVI_CU_MEMOP_WAIT_64,
                 member->fence + offsetof(struct hvi_fence, ready), member->turn))
            return false;
        *waits_p = *waits_p || memops.count > 0;
    }
    if (!*waits_p)
        return true;
    return add(streams, stream, &memops, HVI_CU_MEMOP_WRITE_64,
               stream->address + offsetof(struct gpu_words, begun), stream->queued) &&
           flush(streams, stream, &memops);
}

/* ---- times ---- */

static bool record(struct gpu_streams *streams, struct gpu_stream *stream, hvi_cu_event event)
{
    stream->works++;
    return GPU_CALL(streams->calls, "cuEventRecord",
                    streams->calls->cuda->event_record(event, stream->handle));
}

bool gpu_streams_time(struct gpu_streams *streams, struct gpu_stream *stream, bool *is_timed_p)
{
    *is_timed_p = stream->timed - stream->told < GPU_STREAM_TIMES;
    return !*is_timed_p ||
           record(streams, stream, stream->times[stream->timed++ % GPU_STREAM_TIMES].begin);
}

bool gpu_streams_time_end(struct gpu_streams *streams, struct gpu_stream *stream)
{
    return record(streams, stream, stream->times[(stream->timed - 1) % GPU_STREAM_TIMES].end);
}

/* Whether the context is sound is asked elsewhere: an error here costs the time, and no more. */
uint64_t gpu_streams_took(struct gpu_streams *streams, struct gpu_stream *stream)
{
    const struct gpu_times *times = &stream->times[stream->told++ % GPU_STREAM_TIMES];
    struct gpu_calls *calls = streams->calls;
    float ms = 0;

    gpu_calls_begin(calls, "cuEventElapsedTime", calls->usual_ns);
    const int error = calls->cuda->event_elapsed(&ms, times->begin, times->end);
    gpu_calls_end(calls);
    if (error != HVI_CU_OK || !(ms >= 0 && ms < MS_MAX))
        return 0;
    const uint64_t ns = (uint64_t)((double)ms * 1e6);
    return ns > 0 ? ns : 1;
}

/* ---- the ends of portions and batches ---- */

bool gpu_streams_mark(struct gpu_streams *streams, struct gpu_stream *stream)
{
    struct memops memops;

    memops.count = 0;
    return add(streams, stream, &memops, HVI_CU_MEMOP_WRITE_64,
               stream->address + offsetof(struct gpu_words, portions), ++stream->portions) &&
           flush(streams, stream, &memops);
}

bool gpu_streams_finish(struct gpu_streams *streams, struct gpu_stream *stream,
                        const struct gpu_batch *batch)
{
    struct memops memops;

    memops.count = 0;
    for (uint32_t i = 0; i < batch->member_count; i++) {
        const struct gpu_member *member = &batch->members[i];
        if (member->fence != 0 &&
            !add(streams, stream, &memops, HVI_CU_MEMOP_WRITE_64,
                 member->fence + offsetof(struct hvi_fence, done), member->turn))
            return false;
    }
    return add(streams, stream, &memops, HVI_CU_MEMOP_WRITE_64,
               stream->address + offsetof(struct gpu_words, finished), stream->queued) &&
           flush(streams, stream, &memops);
}

bool gpu_streams_launch(struct gpu_streams *streams, struct gpu_stream *stream,
                        const struct gpu_step *step)
{
    const unsigned blocks = blocks_of(streams, step->bytes);

    HVI_ASSERT(step->kind < GPU_STREAM_KERNELS);
    if (blocks > LOOKS_MAX && step->guard.skip != 0)
        return look_and_launch(streams, stream, step, blocks);
    return launch(streams, stream, streams->kernels[step->kind], &step->reduce, blocks, THREADS);
}

bool gpu_streams_sound(struct gpu_streams *streams, struct gpu_stream *stream)
{
    struct gpu_calls *calls = streams->calls;

    gpu_calls_begin(calls, "cuStreamQuery", calls->usual_ns);
    const int error = calls->cuda->stream_query(stream->handle);
    return gpu_calls_good(calls, "a stream", error == HVI_CU_NOT_READY ? HVI_CU_OK : error);
}

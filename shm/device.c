/* SPDX-License-Identifier: Apache-2.0
 * The device channel of device.h.
 *
 * The worker sleeps without missing a command: it drains, arms, drains again, sleeps; the engine
 * publishes, then looks whether the worker is armed, and wakes it.
 *
 *   engine                        worker
 *   publish tail                  asleep: exchange 1
 *   asleep: exchange 0            read tail
 *   was 1: eventfd                more: disarm, drain; none: poll
 *
 * .worker_asleep is only ever exchanged, so all its values form one chain in which each exchange sees the
 * one before it. The engine's exchange comes before the worker's, and then the worker sees the tail; or
 * behind it, and then the engine finds the 1. The first engine that finds the 1 takes it: a
 * worker is woken once however many batches follow.
 *
 * The other way needs no such word: the engine's loop polls its eventfd with everything else.
 *
 * Untrusted memory: the word is writable by both. A worker that lies about it misses its own wake-ups; an
 * engine that does stops its own batches, which the engine's deadlines see. */
#include "shm/device.h"

#include "base/status.h"
#include "base/types.h"
#include "shm/abi.h"

#include <string.h>
#include <sys/eventfd.h>

#define COMMANDS_OFFSET ((uint32_t)sizeof(struct hvi_device_header))
#define DONES_OFFSET                                                                               \
    (COMMANDS_OFFSET + HVI_DEVICE_SLOTS * (uint32_t)sizeof(struct hvi_device_batch))
#define CHANNEL_BYTES (DONES_OFFSET + HVI_DEVICE_DONES * (uint32_t)sizeof(struct hvi_device_done))
_Static_assert(CHANNEL_BYTES % HVI_PAGE == 0, "a channel is whole pages");

/* The part of the header that never changes. */
#define FIXED_BYTES offsetof(struct hvi_device_header, command_tail)

uint64_t hvi_device_count_sizes(uint32_t kind, uint32_t ranks)
{
    if (kind == HVI_KIND_ALLTOALL)
        return (uint64_t)ranks * ranks;
    return kind == HVI_KIND_ALLGATHER || kind == HVI_KIND_REDUCESCATTER ? ranks : 0;
}

bool hvi_device_has_homes(uint32_t kind, uint32_t reduce_op)
{
    const bool reduces = kind == HVI_KIND_ALLREDUCE || kind == HVI_KIND_REDUCESCATTER;

    return kind == HVI_KIND_ALLGATHER || kind == HVI_KIND_ALLTOALL ||
           (reduces && reduce_op == HVI_REDUCE_ADASUM);
}

static void fill_header(struct hvi_device_header *header, uint64_t instance, uint64_t epoch)
{
    header->magic = HVI_DEVICE_MAGIC;
    header->abi_version = HVI_ABI_VERSION;
    header->header_bytes = COMMANDS_OFFSET;
    header->total_bytes = CHANNEL_BYTES;
    header->instance = instance;
    header->epoch = epoch;
}

static struct hvi_device_channel make_view(const struct hvi_region *map, uint64_t instance,
                                           uint64_t epoch)
{
    unsigned char *base = map->base;
    struct hvi_device_header *header = map->base;
    struct hvi_device_channel channel = {
        .map = *map, .header = header, .instance = instance, .epoch = epoch};
    hvi_ring_init(&channel.commands, base + COMMANDS_OFFSET, sizeof(struct hvi_device_batch),
                  HVI_DEVICE_SLOTS, &header->command_head, &header->command_tail);
    hvi_ring_init(&channel.dones, base + DONES_OFFSET, sizeof(struct hvi_device_done),
                  HVI_DEVICE_DONES, &header->done_head, &header->done_tail);
    return channel;
}

int hvi_device_create(uint64_t instance, uint64_t epoch, struct hvi_device_channel *channel_p)
{
    struct hvi_region map = HVI_REGION_INIT;
    int status = hvi_region_create("hvd-device", CHANNEL_BYTES, &map);
    if (status != HVI_OK)
        return status;
    fill_header(map.base, instance, epoch);
    *channel_p = make_view(&map, instance, epoch);
    return HVI_OK;
}

/* `fixed` is a private copy of the header's unchanging part; the rest of it is not looked at. */
static int check_fixed(const struct hvi_device_header *fixed)
{
    struct hvi_device_header expected;
    if (fixed->magic != HVI_DEVICE_MAGIC)
        return HVI_ERR_PROTOCOL;
    if (fixed->abi_version != HVI_ABI_VERSION)
        return HVI_ERR_VERSION;
    memset(&expected, 0, FIXED_BYTES);
    fill_header(&expected, fixed->instance, fixed->epoch);
    return memcmp(fixed, &expected, FIXED_BYTES) == 0 ? HVI_OK : HVI_ERR_PROTOCOL;
}

/* A channel is mapped before its first message, so the rings must still be at their start. */
static bool is_fresh(const struct hvi_device_header *header)
{
    /* Relaxed: the socket that brought the descriptor has ordered the worker's stores before this. */
    return (atomic_load_explicit(&header->command_tail, memory_order_relaxed) |
            atomic_load_explicit(&header->command_head, memory_order_relaxed) |
            atomic_load_explicit(&header->done_tail, memory_order_relaxed) |
            atomic_load_explicit(&header->done_head, memory_order_relaxed)) == 0;
}

int hvi_device_map(int fd, struct hvi_device_channel *channel_p)
{
    struct hvi_region map = HVI_REGION_INIT;
    struct hvi_device_header fixed;
    int status = hvi_region_map(fd, CHANNEL_BYTES, &map);
    if (status != HVI_OK)
        return status;
    memcpy(&fixed, map.base, FIXED_BYTES);
    atomic_signal_fence(memory_order_seq_cst); /* compiler only: check the copy, not the original */
    status = check_fixed(&fixed);
    if (status == HVI_OK && !is_fresh(map.base))
        status = HVI_ERR_PROTOCOL;
    if (status != HVI_OK) {
        map.fd = -1; /* stays the caller's */
        hvi_region_fini(&map);
        return status;
    }
    *channel_p = make_view(&map, fixed.instance, fixed.epoch);
    return HVI_OK;
}

uint32_t hvi_device_stream(bool has_comm, uint32_t set, uint32_t reduce_op)
{
    if (has_comm)
        return 0;
    return reduce_op == HVI_REDUCE_ADASUM ? 1 : 1 + set % (HVI_DEVICE_STREAMS - 1);
}

void hvi_device_fini(struct hvi_device_channel *channel)
{
    hvi_region_fini(&channel->map);
    *channel = (struct hvi_device_channel){.map = HVI_REGION_INIT};
}

bool hvi_device_publish(struct hvi_device_channel *channel, uint32_t slots, int event_fd)
{
    hvi_ring_publish(&channel->commands, slots);
    /* Seq_cst, pairs with the exchange in hvi_device_arm: as a release it carries the tail along. */
    if (atomic_exchange_explicit(&channel->header->worker_asleep, 0, memory_order_seq_cst) == 0)
        return false;
    (void)eventfd_write(event_fd, 1); /* EAGAIN: it is full, so it is readable already */
    return true;
}

bool hvi_device_arm(struct hvi_device_channel *channel)
{
    uint32_t slots = 0;
    /* Seq_cst, pairs with the exchange in hvi_device_publish. */
    atomic_exchange_explicit(&channel->header->worker_asleep, 1, memory_order_seq_cst);
    if (hvi_ring_available(&channel->commands, &slots) == HVI_OK && slots == 0)
        return true;
    hvi_device_disarm(channel);
    return false;
}

void hvi_device_disarm(struct hvi_device_channel *channel)
{
    /* An exchange, and seq_cst, so that the chain has no gap: a store would hide the engine's exchange from
     * the next hvi_device_arm. */
    atomic_exchange_explicit(&channel->header->worker_asleep, 0, memory_order_seq_cst);
}

void hvi_device_answer(struct hvi_device_channel *channel, uint32_t count, int event_fd)
{
    hvi_ring_publish(&channel->dones, count);
    (void)eventfd_write(event_fd, 1); /* EAGAIN: it is full, so it is readable already */
}

/* SPDX-License-Identifier: Apache-2.0
 * A batch in the ring of a device channel, as an engine may write it: any slots. What the worker takes for one names no
 * memory but imports and fence pages that are there, at places of its works, and its sizes lie in the slots.
 *
 * Input: a byte, whose lowest bit says whether the communicator has one rank or two; the slots. */
#include "fuzz.h"

#include "base/types.h"
#include "daemon/gpu/batch.h"

#include <string.h>

#define BASE    UINT64_C(0x100000) /* of import n, from 1 on: n * BASE, so many bytes */
#define PAGE    UINT64_C(0x77000000)
#define IMPORTS 3u
#define COMM    5u
#define SLOTS   256u

static union gpu_slot slots[SLOTS];
static struct gpu_batch batch;
static uint32_t comm_ranks;

static bool find_import(void *user, uint32_t number, uint64_t *address_p, uint64_t *bytes_p)
{
    (void)user;
    *address_p = number * BASE;
    *bytes_p = BASE;
    return number >= 1 && number <= IMPORTS;
}

static bool find_page(void *user, uint32_t number, uint64_t *address_p,
                      const struct hvi_fence_page **page_p)
{
    (void)user;
    *address_p = PAGE;
    *page_p = NULL;
    return number == 1;
}

static bool find_comm(void *user, uint32_t number, uint32_t *ranks_p, uint32_t *rank_p)
{
    (void)user;
    *ranks_p = comm_ranks;
    *rank_p = 0;
    return number == COMM;
}

static const struct gpu_batch_names names = {NULL, find_import, find_page, find_comm};

static void check_operand(uint64_t address, uint64_t least_bytes)
{
    HVT_FUZZ_REQUIRE(address == 0 || (address >= BASE && address < (IMPORTS + 1) * BASE &&
                                      least_bytes <= BASE && address % BASE <= BASE - least_bytes));
}

/* What lies before the members' first byte is not known for a kind with sizes: then one byte is asked for. */
static void check_member(const struct gpu_work *work, const struct gpu_member *member)
{
    const bool whole = work->said.kind == HVI_KIND_ALLREDUCE;
    const uint64_t bytes = whole ? work->said.bytes : 1;

    HVT_FUZZ_REQUIRE(member->place < work->said.ranks);
    check_operand(member->in, bytes);
    check_operand(member->out, bytes);
    HVT_FUZZ_REQUIRE(member->fence == 0 ||
                     (member->fence > PAGE && member->fence < PAGE + HVI_FENCE_BYTES &&
                      member->turn > 0 && member->turn < HVI_FENCE_TURNS));
}

static void check_numbers(const uint64_t *numbers, uint64_t count, uint32_t filled)
{
    const uint64_t *first = slots[0].sizes.values, *end = first + (size_t)filled * 8;

    HVT_FUZZ_REQUIRE(count == 0 || (numbers >= first && count <= (uint64_t)(end - numbers)));
}

static void check_work(const struct gpu_work *work, uint32_t filled)
{
    HVT_FUZZ_REQUIRE(work->members >= batch.members &&
                     work->members + work->said.members <= batch.members + batch.member_count);
    for (uint32_t i = 0; i < work->said.members; i++)
        check_member(work, &work->members[i]);
    check_numbers(work->sizes, hvi_device_count_sizes(work->said.kind, work->said.ranks), filled);
    if (work->homes)
        check_numbers(work->homes, work->said.ranks, filled);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 + sizeof slots[0])
        return 0;
    const size_t most = (size - 1) / sizeof slots[0];
    const uint32_t filled = most < SLOTS ? (uint32_t)most : SLOTS;

    comm_ranks = 1 + (data[0] & 1);
    memcpy(slots, data + 1, filled * sizeof slots[0]);
    slots[0].batch.slots = filled; /* or nothing gets far */
    if (gpu_batch_read(slots, filled, &names, &batch) != NULL)
        return 0;
    HVT_FUZZ_REQUIRE(batch.work_count > 0 && batch.work_count <= HVI_DEVICE_WORKS &&
                     batch.member_count <= HVI_DEVICE_SLOTS);
    for (uint32_t i = 0; i < batch.work_count; i++)
        check_work(&batch.works[i], filled);
    return 0;
}

/* ---- seeds: two works of two members of each kind, with a communicator and without ---- */

static const uint16_t kinds[] = {HVI_KIND_ALLREDUCE,     HVI_KIND_ALLGATHER, HVI_KIND_BROADCAST,
                                 HVI_KIND_REDUCESCATTER, HVI_KIND_ALLTOALL,  HVI_KIND_SEND};

static uint32_t add_work(uint32_t at, uint16_t kind, bool with_comm)
{
    const uint64_t sizes = hvi_device_count_sizes(kind, 2);
    const bool has_homes = with_comm && hvi_device_has_homes(kind, HVI_REDUCE_SUM);
    const uint32_t numbers = (uint32_t)sizes + (has_homes ? 2 : 0);
    struct hvi_device_work *work = &slots[at++].work;

    *work = (struct hvi_device_work){.command = HVI_DEVICE_WORK,
                                     .kind = kind,
                                     .members = 2,
                                     .dtype = HVI_DTYPE_FLOAT32,
                                     .reduce_op = HVI_REDUCE_SUM,
                                     .root = 0,
                                     .ranks = 2,
                                     .count = 100,
                                     .bytes = 400,
                                     .prescale = 1,
                                     .postscale = 1,
                                     .sizes = (numbers + 7) / 8};
    for (uint32_t i = 0; i < 2; i++) {
        const bool no_out = kind == HVI_KIND_SEND && (with_comm || i == 1);
        slots[at++].member =
            (struct hvi_device_member){.command = HVI_DEVICE_MEMBER,
                                       .place = i,
                                       .in_import = 1 + i,
                                       .out_import = no_out ? HVI_DEVICE_NONE : 1 + i,
                                       .out_offset = BASE / 2,
                                       .page = 1,
                                       .cell = 1 + i,
                                       .turn = 7};
    }
    for (uint32_t i = 0; i < sizes; i++)
        slots[at + i / 8].sizes.values[i % 8] = 200;
    return at + work->sizes;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    const bool with_comm = index % 2;
    uint32_t filled = 1;

    if (index / 2 >= sizeof kinds / sizeof kinds[0])
        return 0;
    memset(slots, 0, sizeof slots);
    slots[0].batch = (struct hvi_device_batch){.command = HVI_DEVICE_BATCH,
                                               .number = 1,
                                               .works = 2,
                                               .comm = with_comm ? COMM : 0,
                                               .comm_ranks = with_comm ? 2 : 0};
    for (uint32_t i = 0; i < 2; i++)
        filled = add_work(filled, kinds[index / 2], with_comm);
    const size_t length = 1 + filled * sizeof slots[0];
    HVT_FUZZ_REQUIRE(length <= room);
    bytes_p[0] = with_comm;
    memcpy(bytes_p + 1, slots, length - 1);
    return length;
}

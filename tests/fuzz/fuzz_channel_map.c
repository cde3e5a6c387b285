/* SPDX-License-Identifier: Apache-2.0
 * The client's side of a channel against an engine that writes anything anywhere: first into the
 * memory it hands over, then, once it is mapped, into the words that change.
 *
 * Input: struct input, then the bytes of the header. Whatever they are, mapping either refuses or
 * yields the view that the ABI prescribes, rings never claim more than they hold, and texts and
 * names never leave their room. */
#include "fuzz.h"

#include "base/status.h"
#include "base/types.h"
#include "shm/channel.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct input {
    uint8_t seals;      /* which of the three are left out */
    uint8_t size_kind;  /* 0: right */
    uint16_t text_room; /* of the reader's buffer */
    uint32_t cq_tail;   /* written after mapping */
    uint32_t sq_head;
    uint32_t cell, turn; /* what the reader asks for */
    uint32_t cell_turn, cell_bytes;
    uint32_t name_offset, name_bytes;
};

static uint64_t honest_bytes;

static uint64_t pick_bytes(uint8_t kind)
{
    switch (kind) {
    case 0:
        return honest_bytes;
    case 1:
        return honest_bytes - 1;
    case 2:
        return honest_bytes + HVI_PAGE;
    default:
        return (uint64_t)kind * 1000;
    }
}

static int make_memfd(const struct input *input, const uint8_t *header, size_t header_bytes)
{
    static const int seals[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL};
    int fd = memfd_create("hvt-fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING), wanted = 0;
    HVT_FUZZ_REQUIRE(fd >= 0);
    HVT_FUZZ_REQUIRE(ftruncate(fd, (off_t)pick_bytes(input->size_kind)) == 0);
    ssize_t written = pwrite(fd, header, header_bytes, 0);
    HVT_FUZZ_REQUIRE(written == (ssize_t)header_bytes);
    for (int i = 0; i < 3; i++) {
        if (!(input->seals & (1u << i)))
            wanted |= seals[i];
    }
    HVT_FUZZ_REQUIRE(fcntl(fd, F_ADD_SEALS, wanted) == 0);
    return fd;
}

static void check_view(const struct hvi_channel *channel)
{
    const unsigned char *base = channel->region.base, *end = base + channel->region.bytes;
    HVT_FUZZ_REQUIRE(channel->region.bytes == honest_bytes);
    HVT_FUZZ_REQUIRE((const unsigned char *)channel->header == base);
    HVT_FUZZ_REQUIRE(channel->sq.slots + HVI_SQ_SLOTS * sizeof(struct hvi_submission) ==
                     channel->cq.slots);
    HVT_FUZZ_REQUIRE(channel->inline_base + HVI_INLINE_BYTES == end);
    HVT_FUZZ_REQUIRE((const unsigned char *)channel->names > channel->cq.slots);
    HVT_FUZZ_REQUIRE((const unsigned char *)(channel->texts + HVI_TEXT_CELLS) ==
                     channel->inline_base);
    HVT_FUZZ_REQUIRE(channel->channel_index < HVI_BELL_CHANNELS);
}

static void check_rings(struct hvi_channel *channel, const struct input *input)
{
    uint32_t slots = 0;
    atomic_store(&channel->header->cq_tail, input->cq_tail);
    if (hvi_ring_available(&channel->cq, &slots) == HVI_OK) {
        struct hvi_completion completion;
        HVT_FUZZ_REQUIRE(slots <= HVI_CQ_SLOTS);
        if (slots > 0)
            hvi_ring_copy(&channel->cq, slots - 1, &completion);
        hvi_ring_release(&channel->cq, slots);
    }
    atomic_store(&channel->header->sq_head, input->sq_head);
    if (hvi_ring_space(&channel->sq, &slots) == HVI_OK)
        HVT_FUZZ_REQUIRE(slots <= HVI_SQ_SLOTS);
}

static void check_text(struct hvi_channel *channel, const struct input *input)
{
    size_t room = input->text_room % 2048u;
    char *text = malloc(room ? room : 1);
    HVT_FUZZ_REQUIRE(text != NULL);
    struct hvi_text_cell *cell = &channel->texts[input->cell % HVI_TEXT_CELLS];
    memset(cell->text, 0xc3, sizeof cell->text);
    cell->bytes = input->cell_bytes;
    atomic_store(&cell->turn, input->cell_turn);
    if (hvi_channel_read_text(channel, input->cell, input->turn, text, room))
        HVT_FUZZ_REQUIRE(room > 0 && strnlen(text, room) < room);
    free(text);
}

static void check_name(const struct hvi_channel *channel, const struct input *input)
{
    char *name = malloc(HVI_NAME_MAX + 1);
    HVT_FUZZ_REQUIRE(name != NULL);
    if (hvi_channel_read_name(channel, input->name_offset, input->name_bytes, name))
        HVT_FUZZ_REQUIRE(name[input->name_bytes] == '\0');
    free(name);
}

static uint64_t learn_honest_bytes(uint8_t *header_p, size_t room)
{
    struct hvi_channel channel;
    HVT_FUZZ_REQUIRE(hvi_channel_create(5, 77, &channel) == HVI_OK);
    uint64_t bytes = channel.region.bytes;
    memcpy(header_p, channel.header, room < HVI_PAGE ? room : HVI_PAGE);
    hvi_channel_fini(&channel);
    return bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {0};
    struct hvi_channel channel;
    uint8_t header[HVI_PAGE];
    if (size < sizeof input)
        return 0;
    if (honest_bytes == 0)
        honest_bytes = learn_honest_bytes(header, sizeof header);
    memcpy(&input, data, sizeof input);
    size_t header_bytes = size - sizeof input;
    int fd =
        make_memfd(&input, data + sizeof input, header_bytes < HVI_PAGE ? header_bytes : HVI_PAGE);
    if (hvi_channel_map(fd, &channel) != HVI_OK) {
        close(fd); /* still ours */
        return 0;
    }
    HVT_FUZZ_REQUIRE((input.seals & 7) == 0 && input.size_kind == 0);
    check_view(&channel);
    check_rings(&channel, &input);
    check_text(&channel, &input);
    check_name(&channel, &input);
    hvi_channel_fini(&channel);
    return 0;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    static const struct input inputs[] = {
        {.text_room = 512, .cell = 1, .turn = 7, .cell_turn = 7, .cell_bytes = 20, .cq_tail = 3},
        {.text_room = 1, .cell = 127, .turn = 1, .cell_turn = 1, .cell_bytes = 1016, .sq_head = 9},
        {.text_room = 2000, .cell = 128, .cell_bytes = 1017, .cq_tail = 4096, .sq_head = 1024},
        {.name_offset = 65535, .name_bytes = 1023, .cq_tail = 4097, .sq_head = 1025},
        {.seals = 1, .name_offset = 65536, .name_bytes = 1024},
        {.size_kind = 1, .cq_tail = UINT32_MAX},
    };
    if (index >= sizeof inputs / sizeof inputs[0] || room < sizeof inputs[0] + 512)
        return 0;
    uint8_t header[HVI_PAGE];
    learn_honest_bytes(header, sizeof header);
    memcpy(bytes_p, &inputs[index], sizeof inputs[0]);
    memcpy(bytes_p + sizeof inputs[0], header, 512); /* up to the last word that is used */
    return sizeof inputs[0] + 512;
}

/* SPDX-License-Identifier: Apache-2.0
 * Making, checking and viewing a channel.
 *
 * The layout is a constant of the ABI version. The header states it for people and tools that look
 * at the memory; the client checks that it says exactly this, from one private copy, and neither
 * side ever computes with it.
 *
 * Text cells are a seqlock without a fence: the writer sets the turn to 0, writes the words
 * (release), then the new turn (release). A reader that copies even one word of a newer sentence
 * (acquire) therefore also sees turn 0 or later when it looks at the turn again, and drops the
 * copy. Words are atomics, so a torn read is a stale sentence and not undefined behaviour. */
#include "shm/channel.h"

#include "base/status.h"
#include "base/types.h"
#include "base/utf8.h"

#include <fcntl.h>
#include <string.h>

#define SQ_OFFSET     HVI_PAGE
#define CQ_OFFSET     (SQ_OFFSET + HVI_SQ_SLOTS * (uint32_t)sizeof(struct hvi_submission))
#define NAMES_OFFSET  (CQ_OFFSET + HVI_CQ_SLOTS * (uint32_t)sizeof(struct hvi_completion))
#define TEXTS_OFFSET  (NAMES_OFFSET + HVI_NAMES_BYTES)
#define INLINE_OFFSET (TEXTS_OFFSET + HVI_TEXT_CELLS * (uint32_t)sizeof(struct hvi_text_cell))
#define CHANNEL_BYTES HVI_CHANNEL_BYTES

_Static_assert(CHANNEL_BYTES == INLINE_OFFSET + HVI_INLINE_BYTES, "the inline area is the last");
_Static_assert(CHANNEL_BYTES % HVI_PAGE == 0, "a channel is whole pages");

#define TEXT_BYTES sizeof(((struct hvi_text_cell *)0)->text)
#define TEXT_WORDS (TEXT_BYTES / sizeof(uint64_t))
_Static_assert(TEXT_BYTES % sizeof(uint64_t) == 0, "cells are copied in words");

/* The part of the header that never changes. */
#define FIXED_BYTES offsetof(struct hvi_channel_header, sq_tail)

static void fill_header(struct hvi_channel_header *header, uint32_t channel_index, uint64_t epoch)
{
    header->magic = HVI_CHANNEL_MAGIC;
    header->abi_version = HVI_ABI_VERSION;
    header->header_bytes = HVI_PAGE;
    header->total_bytes = CHANNEL_BYTES;
    header->epoch = epoch;
    header->sq_offset = SQ_OFFSET;
    header->sq_slots = HVI_SQ_SLOTS;
    header->cq_offset = CQ_OFFSET;
    header->cq_slots = HVI_CQ_SLOTS;
    header->names_offset = NAMES_OFFSET;
    header->names_bytes = HVI_NAMES_BYTES;
    header->texts_offset = TEXTS_OFFSET;
    header->text_cells = HVI_TEXT_CELLS;
    header->inline_offset = INLINE_OFFSET;
    header->inline_bytes = HVI_INLINE_BYTES;
    header->channel_index = channel_index;
}

static struct hvi_channel make_view(const struct hvi_region *region, uint32_t channel_index)
{
    unsigned char *base = region->base;
    struct hvi_channel_header *header = region->base;
    struct hvi_channel channel = {
        .region = *region,
        .header = header,
        .names = (char *)base + NAMES_OFFSET,
        .texts = (struct hvi_text_cell *)(void *)(base + TEXTS_OFFSET),
        .inline_base = base + INLINE_OFFSET,
        .channel_index = channel_index,
    };
    hvi_ring_init(&channel.sq, base + SQ_OFFSET, sizeof(struct hvi_submission), HVI_SQ_SLOTS,
                  &header->sq_head, &header->sq_tail);
    hvi_ring_init(&channel.cq, base + CQ_OFFSET, sizeof(struct hvi_completion), HVI_CQ_SLOTS,
                  &header->cq_head, &header->cq_tail);
    return channel;
}

int hvi_channel_create(uint32_t channel_index, uint64_t epoch, struct hvi_channel *channel_p)
{
    if (channel_index >= HVI_BELL_CHANNELS)
        return HVI_ERR_INVALID;
    struct hvi_region region = HVI_REGION_INIT;
    int status = hvi_region_create("hvd-channel", CHANNEL_BYTES, &region);
    if (status != HVI_OK)
        return status;
    struct hvi_channel_header *header = region.base;
    fill_header(header, channel_index, epoch);
    /* Relaxed: the descriptor is sent after this, which orders it before anything the client reads.
     */
    atomic_store_explicit(&header->session_state, HVI_SESSION_OPEN, memory_order_relaxed);
    *channel_p = make_view(&region, channel_index);
    return HVI_OK;
}

void hvi_channel_offer(struct hvi_channel *channel, uint64_t features)
{
    channel->header->features = features;
    channel->features = features;
}

/* The words that change. A channel is mapped before its first message, so the rings must still be
 * at their start. */
static bool is_fresh(const struct hvi_channel_header *header)
{
    /* Relaxed: the socket that brought the descriptor has ordered the engine's stores before this.
     */
    uint32_t indices = atomic_load_explicit(&header->sq_tail, memory_order_relaxed) |
                       atomic_load_explicit(&header->sq_head, memory_order_relaxed) |
                       atomic_load_explicit(&header->cq_tail, memory_order_relaxed) |
                       atomic_load_explicit(&header->cq_head, memory_order_relaxed);
    uint32_t state = atomic_load_explicit(&header->session_state, memory_order_relaxed);
    return indices == 0 && (state == HVI_SESSION_OPEN || state == HVI_SESSION_ENDED);
}

/* `fixed` is a private copy of the header's unchanging part; the rest of it is not looked at. */
static int check_fixed(const struct hvi_channel_header *fixed)
{
    if (fixed->magic != HVI_CHANNEL_MAGIC)
        return HVI_ERR_PROTOCOL;
    if (fixed->abi_version != HVI_ABI_VERSION)
        return HVI_ERR_VERSION;
    if (fixed->channel_index >= HVI_BELL_CHANNELS)
        return HVI_ERR_PROTOCOL;
    /* Whatever an honest engine may have written is what we would have written ourselves. */
    struct hvi_channel_header expected;
    memset(&expected, 0, FIXED_BYTES);
    fill_header(&expected, fixed->channel_index, fixed->epoch);
    expected.features = fixed->features & HVI_FEATURES_KNOWN;
    return memcmp(fixed, &expected, FIXED_BYTES) == 0 ? HVI_OK : HVI_ERR_PROTOCOL;
}

int hvi_channel_map(int fd, struct hvi_channel *channel_p)
{
    struct hvi_region region = HVI_REGION_INIT;
    int status = hvi_region_map(fd, CHANNEL_BYTES, &region);
    if (status != HVI_OK)
        return status;
    struct hvi_channel_header fixed;
    memcpy(&fixed, region.base, FIXED_BYTES);
    atomic_signal_fence(memory_order_seq_cst); /* compiler only: check the copy, not the original */
    status = check_fixed(&fixed);
    if (status == HVI_OK && !is_fresh(region.base))
        status = HVI_ERR_PROTOCOL;
    if (status != HVI_OK) {
        region.fd = -1; /* stays the caller's */
        hvi_region_fini(&region);
        return status;
    }
    *channel_p = make_view(&region, fixed.channel_index);
    channel_p->features = fixed.features;
    return HVI_OK;
}

void hvi_channel_fini(struct hvi_channel *channel)
{
    hvi_region_fini(&channel->region);
    *channel = (struct hvi_channel){.region = HVI_REGION_INIT};
}

/* The text of a cell as words. Nothing else touches it, so its effective type is always this one.
 */
static _Atomic uint64_t *text_words(struct hvi_text_cell *cell)
{
    return (_Atomic uint64_t *)(void *)cell->text;
}

void hvi_channel_write_text(struct hvi_channel *channel, const char *text, uint32_t *cell_p,
                            uint32_t *turn_p)
{
    uint64_t words[TEXT_WORDS] = {0};
    size_t bytes = hvi_utf8_cut(text, strlen(text), TEXT_BYTES);
    memcpy(words, text, bytes);
    uint32_t index = channel->text_next;
    struct hvi_text_cell *cell = &channel->texts[index];
    channel->text_next = (index + 1) % HVI_TEXT_CELLS;
    if (++channel->text_turn == 0)
        channel->text_turn = 1; /* 0 means "being written" */
    /* Relaxed: the release stores that follow publish it. */
    atomic_store_explicit(&cell->turn, 0, memory_order_relaxed);
    /* Release, pairs with the acquire loads in copy_cell: who sees a word of this turn sees that
     * the old one is over. */
    atomic_store_explicit(&cell->bytes, (uint32_t)bytes, memory_order_release);
    for (size_t i = 0; i * sizeof(uint64_t) < bytes; i++)
        atomic_store_explicit(&text_words(cell)[i], words[i], memory_order_release);
    /* Release, pairs with the acquire load in hvi_channel_read_text: the sentence is complete. */
    atomic_store_explicit(&cell->turn, channel->text_turn, memory_order_release);
    *cell_p = index;
    *turn_p = channel->text_turn;
}

/* Copies a cell into `words`; returns its length, or UINT32_MAX when the length is impossible. */
static uint32_t copy_cell(struct hvi_text_cell *cell, uint64_t *words)
{
    /* Acquire, pairs with the release stores in hvi_channel_write_text. */
    uint32_t bytes = atomic_load_explicit(&cell->bytes, memory_order_acquire);
    if (bytes > TEXT_BYTES)
        return UINT32_MAX;
    for (size_t i = 0; i * sizeof(uint64_t) < bytes; i++)
        words[i] = atomic_load_explicit(&text_words(cell)[i], memory_order_acquire);
    return bytes;
}

bool hvi_channel_read_text(const struct hvi_channel *channel, uint32_t cell, uint32_t turn,
                           char *text_p, size_t text_size)
{
    if (text_size == 0)
        return false;
    text_p[0] = '\0';
    if (cell >= HVI_TEXT_CELLS || turn == 0)
        return false;
    uint64_t words[TEXT_WORDS];
    struct hvi_text_cell *source = &channel->texts[cell];
    /* Acquire, pairs with the last store in hvi_channel_write_text. */
    if (atomic_load_explicit(&source->turn, memory_order_acquire) != turn)
        return false;
    uint32_t bytes = copy_cell(source, words);
    /* Relaxed: the acquire loads of copy_cell keep it behind them. */
    if (bytes == UINT32_MAX || atomic_load_explicit(&source->turn, memory_order_relaxed) != turn)
        return false;
    size_t kept = hvi_utf8_cut((const char *)words, bytes, text_size - 1);
    memcpy(text_p, words, kept);
    text_p[kept] = '\0';
    return true;
}

bool hvi_channel_read_name(const struct hvi_channel *channel, uint32_t offset, uint32_t bytes,
                           char *name_p)
{
    if (offset >= HVI_NAMES_BYTES || bytes > HVI_NAME_MAX)
        return false;
    uint32_t first = HVI_NAMES_BYTES - offset;
    if (first > bytes)
        first = bytes;
    memcpy(name_p, channel->names + offset, first);
    memcpy(name_p + first, channel->names, bytes - first);
    atomic_signal_fence(
        memory_order_seq_cst); /* compiler only: the copy is what gets validated and used */
    name_p[bytes] = '\0';
    return true;
}

void hvi_channel_write_name(struct hvi_channel *channel, uint32_t offset, const char *name,
                            uint32_t bytes)
{
    offset &= HVI_NAMES_BYTES - 1;
    uint32_t first = HVI_NAMES_BYTES - offset;
    if (first > bytes)
        first = bytes;
    memcpy(channel->names + offset, name, first);
    memcpy(channel->names, name + first, bytes - first);
}

int hvi_bell_create(struct hvi_region *region_p, struct hvi_bell_page **page_p)
{
    struct hvi_region region = HVI_REGION_INIT;
    int status = hvi_region_create("hvd-bell", sizeof(struct hvi_bell_page), &region);
    if (status != HVI_OK)
        return status;
    struct hvi_bell_page *page = region.base;
    page->magic = HVI_BELL_MAGIC;
    page->abi_version = HVI_ABI_VERSION;
    /* Where no lock can be had, hvi_bell_maker says 0. */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    (void)fcntl(region.fd, F_SETLK, &lock);
    *region_p = region;
    *page_p = page;
    return HVI_OK;
}

int hvi_bell_map(int fd, struct hvi_region *region_p, struct hvi_bell_page **page_p)
{
    struct hvi_region region = HVI_REGION_INIT;
    int status = hvi_region_map(fd, sizeof(struct hvi_bell_page), &region);
    if (status != HVI_OK)
        return status;
    struct hvi_bell_page *page = region.base;
    if (page->magic != HVI_BELL_MAGIC || page->reserved0 != 0)
        status = HVI_ERR_PROTOCOL;
    else if (page->abi_version != HVI_ABI_VERSION)
        status = HVI_ERR_VERSION;
    if (status != HVI_OK) {
        region.fd = -1; /* stays the caller's */
        hvi_region_fini(&region);
        return status;
    }
    *region_p = region;
    *page_p = page;
    return HVI_OK;
}

pid_t hvi_bell_maker(const struct hvi_region *region)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(region->fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK || lock.l_pid < 0)
        return 0;
    return lock.l_pid;
}

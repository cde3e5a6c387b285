/* SPDX-License-Identifier: Apache-2.0
 * hvi_channel: one session's shared memory, seen from one end. The engine creates it, the client
 * maps and checks it. The view keeps every size and offset in private memory. Layout: abi.h. */
#ifndef HVI_SHM_CHANNEL_H
#define HVI_SHM_CHANNEL_H

#include "shm/abi.h"
#include "shm/region.h"
#include "shm/ring.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct hvi_channel {
    struct hvi_region region;
    struct hvi_channel_header *header;
    struct hvi_ring sq; /* client: producer; engine: consumer */
    struct hvi_ring cq; /* engine: producer; client: consumer */
    char *names;        /* HVI_NAMES_BYTES */
    struct hvi_text_cell *texts;
    unsigned char *inline_base; /* HVI_INLINE_BYTES: region 0 */
    uint32_t channel_index;
    uint64_t features;  /* HVI_FEATURE_* */
    uint32_t text_next; /* engine: next cell to write */
    uint32_t text_turn; /* engine: turn of the last write */
};

/* Engine: creates and fills the header. The descriptor to send is channel->region.fd. Errors as
 * hvi_region_create. */
int hvi_channel_create(uint32_t channel_index, uint64_t epoch, struct hvi_channel *channel_p);
/* Engine, before the descriptor is sent: what the client may use. */
void hvi_channel_offer(struct hvi_channel *channel, uint64_t features);
/* Client: maps `fd` and checks magic, version, sizes and every offset. Owns `fd` on success.
 * HVI_OK, HVI_ERR_VERSION, HVI_ERR_PROTOCOL, HVI_ERR_NO_MEMORY. */
int hvi_channel_map(int fd, struct hvi_channel *channel_p);
void hvi_channel_fini(struct hvi_channel *channel);

/* Engine: writes a sentence (cut at a UTF-8 border) into the next cell. */
void hvi_channel_write_text(struct hvi_channel *channel, const char *text, uint32_t *cell_p,
                            uint32_t *turn_p);
/* Client: copies the sentence; false when the cell is out of range or has been reused. Always
 * NUL-terminates. */
bool hvi_channel_read_text(const struct hvi_channel *channel, uint32_t cell, uint32_t turn,
                           char *text_p, size_t text_size);

/* Copies a (possibly wrapping) name out of the name area. False when the numbers do not fit the
 * area or `bytes` > HVI_NAME_MAX. name_p needs HVI_NAME_MAX + 1 bytes. */
bool hvi_channel_read_name(const struct hvi_channel *channel, uint32_t offset, uint32_t bytes,
                           char *name_p);
/* Client: writes a name at `offset` (mod the area's size), wrapping. */
void hvi_channel_write_name(struct hvi_channel *channel, uint32_t offset, const char *name,
                            uint32_t bytes);

/* Engine: makes the job's bell page and says by a lock on it which process made it. */
int hvi_bell_create(struct hvi_region *region_p, struct hvi_bell_page **page_p);
int hvi_bell_map(int fd, struct hvi_region *region_p, struct hvi_bell_page **page_p);
/* Client: the process that made the bell page, as the kernel says it. 0 where that process has no pid
 * here (another pid namespace) or is this one. */
pid_t hvi_bell_maker(const struct hvi_region *region);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/link/ring.h"

#include "client/error.h"
#include "client/link/control.h"
#include "client/link/link.h"

int client_ring_full(const char *what, const char *why)
{
    return client_error(HVD_ERR_RING_FULL, "%s: %s; wait for an op and submit again", what, why);
}

/* Where the name area is still in use: after the names of the last slot the engine took. */
static uint32_t names_head(const struct client_ring *ring, uint32_t free_slots)
{
    uint32_t taken = (uint32_t)ring->seq - (HVI_SQ_SLOTS - free_slots);
    return taken ? ring->slot_names_end[(taken - 1) % HVI_SQ_SLOTS] : 0;
}

int client_ring_room(struct client_ring *ring, const char *what, uint32_t slots, size_t name_bytes)
{
    uint32_t free_slots = 0;
    if (hvi_ring_space(&ring->link->channel.sq, &free_slots) != HVD_OK) {
        client_link_end(ring->link, HVD_ERR_PROTOCOL,
                        "the engine of job '%s' (pid %d) moved its ring index impossibly; close "
                        "this session and open a new one",
                        ring->link->identity.job, ring->link->engine_pid);
        return client_link_usable(ring->link, what);
    }
    if (free_slots < slots)
        return client_ring_full(what, slots == 1 ? "the submission ring is full"
                                                 : "the submission ring has no room for the group");
    if (name_bytes == 0)
        return HVD_OK;
    if (name_bytes > HVI_NAMES_BYTES)
        return client_error(HVD_ERR_LIMIT,
                            "%s: the names of the group's members have %zu bytes, and %u is the "
                            "most; use a shorter name or a smaller group",
                            what, name_bytes, HVI_NAMES_BYTES);
    uint32_t used = ring->names_tail - names_head(ring, free_slots);
    if (name_bytes > HVI_NAMES_BYTES - used)
        return client_ring_full(what, "the area for new tensor names is full");
    return HVD_OK;
}

int client_ring_ready(struct client_ring *ring, const char *what)
{
    if (atomic_load_explicit(&ring->link->channel.header->session_state, memory_order_relaxed) ==
        HVI_SESSION_ENDED)
        client_control_look(ring->link);
    return client_link_usable(ring->link, what);
}

struct hvi_submission *client_ring_slot(struct client_ring *ring, uint32_t ahead)
{
    return hvi_ring_slot(&ring->link->channel.sq, ahead);
}

void client_ring_filled(struct client_ring *ring, uint32_t ahead)
{
    ring->slot_names_end[(uint32_t)(ring->seq + ahead) % HVI_SQ_SLOTS] = ring->names_tail;
}

void client_ring_publish(struct client_ring *ring, uint32_t slots)
{
    ring->seq += slots;
    hvi_ring_publish(&ring->link->channel.sq, slots);
    hvi_bell_ring_engine(ring->link->bell, ring->link->channel.channel_index,
                         ring->link->engine_event_fd);
}

uint32_t client_ring_write_name(struct client_ring *ring, const char *name, uint32_t bytes)
{
    uint32_t offset = ring->names_tail % HVI_NAMES_BYTES;
    hvi_channel_write_name(&ring->link->channel, offset, name, bytes);
    ring->names_tail += bytes;
    return offset;
}

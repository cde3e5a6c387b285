/* SPDX-License-Identifier: Apache-2.0
 * What an engine's batches may name: fence pages and imports. Each is made known to the launch thread before the engine hears
 * that it is there, and is given back only when the launch thread says that no batch uses it.
 *
 *   page     registering ──► known ──session ends──► forgotten ──► unregistering ──► gone
 *   import   gathering ──last piece──► opening ──────► known ──GpuRelease────► forgotten ──► the cache's again (import.c)
 *
 * With the end of its engine, which drains the launch thread first, each goes on from where it is. */
#include "daemon/gpu/engine.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

enum state { GATHERING, COMING, KNOWN, FORGOTTEN, GOING };

struct gpu_page {
    struct gpu_page *prev, *next;
    struct gpu_engine *engine;
    enum state state;
    uint64_t request;
    bool is_over; /* its session is */
    struct hvi_fence_page fences;
    struct gpu_pin pin;
    struct gpu_thing thing;
};

struct gpu_held {
    struct gpu_held *prev, *next;
    struct gpu_engine *engine;
    enum state state;
    uint64_t request;
    struct gpu_exported exported; /* GATHERING: what was said so far */
    int status;                   /* of that */
    struct hvi_gpu_release release;
    struct gpu_thing thing;
};

/* The launch thread knows it from now on, and the engine may. */
static void make_known(struct gpu_engine *engine, struct gpu_thing *thing,
                       void (*forgotten)(struct gpu_order *order), void *user)
{
    thing->source = &engine->source;
    thing->add.kind = GPU_ORDER_ADD;
    thing->forget.kind = GPU_ORDER_FORGET;
    thing->forget.done = forgotten;
    thing->forget.user = user;
    thing->add.thing = thing->forget.thing = thing;
    thing->add.source = thing->forget.source = &engine->source;
    gpu_launch_order(&engine->worker->launch, &thing->add);
}

static void forget(struct gpu_engine *engine, struct gpu_thing *thing)
{
    gpu_launch_order(&engine->worker->launch, &thing->forget);
}

/* ---- fence pages ---- */

static struct gpu_page *find_page(struct gpu_engine *engine, uint32_t number)
{
    struct gpu_page *page;

    DL_FOREACH(engine->pages, page)
    {
        if (page->thing.number == number && !page->is_over)
            return page;
    }
    return NULL;
}

static void free_page(struct gpu_page *page)
{
    struct gpu_engine *engine = page->engine;

    DL_DELETE(engine->pages, page);
    hvi_fence_fini(&page->fences);
    free(page);
    gpu_engine_settle(engine);
}

/* Nothing uses it. */
static void unregister(struct gpu_page *page)
{
    page->state = GOING;
    gpu_import_unpin(&page->engine->worker->imports, &page->pin);
}

/* No batch writes what this page's .done speaks of. */
static void page_forgotten(struct gpu_order *order)
{
    struct gpu_page *page = order->user;

    hvi_fence_poison(&page->fences, !page->engine->is_leaving);
    unregister(page);
}

/* The driver has registered it, or has not, or has given it back. */
static void on_pin(struct gpu_pin *pin)
{
    struct gpu_page *page = (struct gpu_page *)((char *)pin - offsetof(struct gpu_page, pin));
    struct gpu_engine *engine = page->engine;

    if (page->state == GOING) {
        free_page(page);
    } else if (pin->status != HVI_OK) {
        (void)gpu_engine_ack(engine, page->request, pin->status, pin->text);
        free_page(page);
    } else if (page->is_over || engine->is_leaving) {
        hvi_fence_poison(&page->fences, !engine->is_leaving);
        unregister(page);
    } else {
        page->state = KNOWN;
        page->thing.is_page = true;
        page->thing.address = pin->address;
        page->thing.bytes = pin->bytes;
        page->thing.fences = &page->fences;
        make_known(engine, &page->thing, page_forgotten, page);
        (void)gpu_engine_ack(engine, page->request, HVI_OK, "");
    }
}

/* HVI_OK: on_pin follows. The page is in the list. */
static int register_page(struct gpu_page *page)
{
    page->pin =
        (struct gpu_pin){.base = page->fences.cells, .bytes = HVI_FENCE_BYTES, .done = on_pin};
    return gpu_import_pin(&page->engine->worker->imports, &page->pin);
}

bool gpu_memory_page(struct gpu_engine *engine, const struct hvi_gpu_page *said)
{
    struct hvi_packet *packet = &engine->worker->packet;
    struct gpu_page *page;
    int status;

    if (packet->fd_count != 1 || said->page == 0 || find_page(engine, said->page) != NULL)
        return false;
    page = calloc(1, sizeof(*page));
    status = page == NULL ? HVI_ERR_NO_MEMORY : hvi_fence_map(packet->fds[0], &page->fences);
    if (status != HVI_OK) {
        free(page);
        return gpu_engine_ack(engine, said->request, status, "the fence page cannot be mapped") ==
               HVI_OK;
    }
    hvi_packet_take_fd(packet, 0);
    hvi_region_close_fd(&page->fences.map);
    page->engine = engine;
    page->request = said->request;
    page->thing.number = said->page;
    DL_APPEND(engine->pages, page);
    status = register_page(page);
    if (status == HVI_OK)
        return true;
    free_page(page);
    return gpu_engine_ack(engine, said->request, status, "no memory for a fence page") == HVI_OK;
}

bool gpu_memory_session_end(struct gpu_engine *engine, const struct hvi_gpu_session_end *end)
{
    struct gpu_page *page = find_page(engine, end->page);

    if (page == NULL)
        return true; /* it could not be registered, and the engine knows that */
    page->is_over = true;
    hvi_fence_poison(&page->fences, true);
    if (page->state != KNOWN)
        return true; /* when it is registered */
    page->state = FORGOTTEN;
    forget(engine, &page->thing);
    return true;
}

void gpu_memory_skip(struct gpu_engine *engine)
{
    struct gpu_page *page;

    DL_FOREACH(engine->pages, page)
    hvi_fence_skip_all(&page->fences);
}

bool gpu_memory_poison(struct gpu_engine *engine)
{
    struct gpu_page *page;
    bool found = false;

    DL_FOREACH(engine->pages, page)
    {
        if ((!page->is_over && !engine->is_leaving) || page->state == GOING)
            continue;
        hvi_fence_poison(&page->fences, !engine->is_drained);
        found = true;
    }
    return found;
}

/* ---- imports ---- */

static struct gpu_held *find_held(struct gpu_engine *engine, uint32_t number)
{
    struct gpu_held *held;

    DL_FOREACH(engine->held, held)
    {
        if (held->thing.number == number)
            return held;
    }
    return NULL;
}

static void free_held(struct gpu_held *held)
{
    DL_DELETE(held->engine->held, held);
    gpu_exported_fini(&held->exported);
    free(held);
}

static void release(struct gpu_held *held)
{
    struct gpu_engine *engine = held->engine;
    const struct hvi_gpu_release said = held->release;

    free_held(held);
    gpu_import_release(&engine->worker->imports, engine, &said);
}

static void held_forgotten(struct gpu_order *order)
{
    release(order->user);
}

/* The cache's answer to an import or a release. */
void gpu_serve_answer(void *owner, uint64_t request, int status, const char *text)
{
    struct gpu_engine *engine = owner;
    struct gpu_held *held = NULL;

    DL_FOREACH(engine->held, held)
    {
        if (held->state == COMING && held->request == request)
            break;
    }
    if (held != NULL && status != HVI_OK) {
        free_held(held);
    } else if (held != NULL && !engine->is_leaving) {
        gpu_link_used(engine->worker); /* before the engine's answer: hvdd hears it first */
        held->state = KNOWN;
        gpu_import_where(&engine->worker->imports, engine, held->thing.number, &held->thing.address,
                         &held->thing.bytes);
        make_known(engine, &held->thing, held_forgotten, held);
    }
    (void)gpu_engine_ack(engine, request, status, text);
}

/* One more piece, whose descriptors it takes. An error is told at the last one. */
static void gather(struct gpu_held *held, const struct hvi_gpu_import *said)
{
    struct hvi_packet *packet = &held->engine->worker->packet;

    held->request = said->request;
    if (held->status == HVI_OK)
        held->status =
            gpu_exported_add(&held->exported, &said->memory, packet->fds, packet->fd_count);
    for (uint32_t i = 0; held->status == HVI_OK && i < packet->fd_count; i++)
        (void)hvi_packet_take_fd(packet, i);
    if (held->status == HVI_OK && !said->more && !gpu_exported_is_whole(&held->exported))
        held->status = HVI_ERR_INVALID;
}

static const char *text_of(int status)
{
    if (status == HVI_ERR_LIMIT)
        return "the memory has more chunks than one import may have";
    return status == HVI_ERR_INVALID ? "its chunks are not the memory that was said"
                                     : "no memory for an import";
}

/* All of it was said. */
static bool begin_import(struct gpu_held *held, const struct hvi_gpu_import *said)
{
    struct gpu_engine *engine = held->engine;
    const int status = held->status;

    held->state = COMING;
    if (status == HVI_OK) {
        struct gpu_exported exported = held->exported; /* an answer at once may free `held` */
        held->exported = (struct gpu_exported){0};
        if (gpu_import_add(&engine->worker->imports, engine, said, &exported))
            return true;
    }
    free_held(held);
    return status != HVI_OK &&
           gpu_engine_ack(engine, said->request, status, text_of(status)) == HVI_OK;
}

bool gpu_memory_import(struct gpu_engine *engine, const struct hvi_gpu_import *said)
{
    struct gpu_held *held = find_held(engine, said->import);

    if (said->import == 0 || (held != NULL && held->state != GATHERING) ||
        !hvi_device_memory_has_handles(&said->memory, engine->worker->packet.fd_count, said->more))
        return false;
    if (held == NULL) {
        held = calloc(1, sizeof(*held));
        if (held == NULL) /* of a piece that is not the last the engine would hear nothing */
            return !said->more && gpu_engine_ack(engine, said->request, HVI_ERR_NO_MEMORY,
                                                 "no memory for an import") == HVI_OK;
        held->engine = engine;
        held->thing.number = said->import;
        DL_APPEND(engine->held, held);
    }
    gather(held, said);
    return said->more || begin_import(held, said);
}

bool gpu_memory_release(struct gpu_engine *engine, const struct hvi_gpu_release *said)
{
    struct gpu_held *held = find_held(engine, said->import);

    if (held == NULL || held->state == FORGOTTEN) {
        const struct hvi_gpu_release none = {said->request, 0};
        gpu_import_release(&engine->worker->imports, engine, &none); /* which says so */
        return true;
    }
    held->release = *said;
    if (held->state == GATHERING) { /* the trainer has given it up */
        free_held(held);
        return gpu_engine_ack(engine, said->request, HVI_OK, "") == HVI_OK;
    }
    if (held->state == COMING) {
        release(held);
        return true;
    }
    held->state = FORGOTTEN;
    forget(engine, &held->thing);
    return true;
}

bool gpu_memory_where(struct gpu_engine *engine, uint32_t import, uint64_t *address_p,
                      uint64_t *bytes_p)
{
    const struct gpu_held *held = find_held(engine, import);

    if (held == NULL || held->state != KNOWN)
        return false;
    *address_p = held->thing.address;
    *bytes_p = held->thing.bytes;
    return true;
}

/* ---- the end of the engine ---- */

void gpu_memory_drop(struct gpu_engine *engine)
{
    struct gpu_page *page, *next;

    while (engine->held != NULL)
        free_held(engine->held);
    gpu_import_owner_gone(&engine->worker->imports, engine);
    DL_FOREACH_SAFE(engine->pages, page, next)
    {
        if (page->state == KNOWN) {
            hvi_fence_poison(&page->fences, false);
            unregister(page);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0
 * Fence pages: each session has one, and every worker registers it before it gets an op of the session.
 *
 * A worker that comes later gets all pages before its first import, and answers in this order. If it cannot register one, it
 * takes no import: the ranks are told so at their next DeviceAdd, and stage what lies on its GPU. One that answers late
 * takes imports again. */
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/device/room.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct engine_device_page {
    struct engine_device_page *next;
    uint32_t number, waiting; /* workers that have not answered */
    uint64_t ticket;          /* 0: nobody waits */
    int fd, status;
    char text[HVI_TEXT_MAX + 1]; /* of .status */
};

static int send_page(struct engine_device_worker *worker, const struct engine_device_page *page)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_PAGE};

    msg.page.page = page->number;
    int status = engine_device_expect(worker, ENGINE_DEVICE_PAGE, page->number,
                                      ENGINE_DEVICE_ANSWER_NS, &msg.page.request);
    if (status != HVI_OK)
        return status;
    status = engine_device_send(worker, &msg, &page->fd, 1);
    if (status != HVI_OK)
        engine_device_unexpect(worker, msg.page.request);
    return status;
}

static void cannot(struct engine_device_worker *worker, int status, const char *text)
{
    worker->page_status = status;
    snprintf(worker->text, sizeof worker->text,
             "the worker of %s cannot take part in streams: %.800s", worker->uuid_text, text);
    HVI_LOG(HVI_LOG_WARN, "device", "page-refused", worker->text, "gpu=%s status=%s",
            worker->uuid_text, hvi_status_name(status));
}

int engine_device_page(struct engine_device *device, uint64_t ticket, int fd, uint32_t *page_p)
{
    struct engine_device_page *page = calloc(1, sizeof *page);

    if (!page)
        return HVI_ERR_NO_MEMORY;
    page->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (page->fd < 0) {
        free(page);
        return HVI_ERR_LIMIT;
    }
    page->number = ++device->last_page;
    page->next = device->pages;
    device->pages = page;
    for (uint32_t i = 0; i < device->count; i++) {
        struct engine_device_worker *worker = &device->workers[i];
        if (worker->state != ENGINE_DEVICE_LINKED)
            continue;
        int status = send_page(worker, page);
        page->waiting += status == HVI_OK;
        if (status != HVI_OK)
            cannot(worker, status, hvi_status_text(status));
    }
    page->ticket = page->waiting > 0 ? ticket : 0;
    *page_p = page->number;
    return page->waiting > 0 ? HVI_INPROGRESS : HVI_OK;
}

void engine_device_page_linked(struct engine_device_worker *worker)
{
    for (struct engine_device_page *page = worker->device->pages; page; page = page->next) {
        int status = send_page(worker, page);
        if (status != HVI_OK)
            cannot(worker, status, hvi_status_text(status));
        page->waiting += status == HVI_OK && page->ticket != 0;
    }
}

static struct engine_device_page **find(struct engine_device *device, uint32_t number)
{
    struct engine_device_page **link = &device->pages;

    while (*link && (*link)->number != number)
        link = &(*link)->next;
    return link;
}

void engine_device_page_answered(struct engine_device_worker *worker, uint32_t number,
                                 const struct engine_device_answer *answer)
{
    struct engine_device *device = worker->device;
    struct engine_device_page *page = *find(device, number);

    if (answer->status == HVI_OK && worker->page_status == HVI_ERR_TIMEOUT &&
        !engine_device_is_late(worker)) {
        worker->page_status = HVI_OK;
        HVI_LOG(HVI_LOG_INFO, "device", "page-late", "a worker has registered all pages after all",
                "gpu=%s", worker->uuid_text);
    }
    if (!page) /* its session is over */
        return;
    if (answer->status == HVI_ERR_TIMEOUT) {
        cannot(worker, answer->status, answer->text); /* the session has its page all the same */
    } else if (answer->status != HVI_OK) {
        page->status = answer->status;
        snprintf(page->text, sizeof page->text, "%s", answer->text);
        cannot(worker, answer->status, answer->text);
    }
    if (page->waiting > 0)
        page->waiting--; /* no more, if it was late */
    uint64_t ticket = page->waiting == 0 ? page->ticket : 0;
    if (ticket == 0)
        return;
    page->ticket = 0;
    device->calls->paged(device->user, ticket, page->status, page->text);
}

void engine_device_session_over(struct engine_device *device, uint32_t number, bool process_over)
{
    struct engine_device_page **link = find(device, number), *page = *link;
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_SESSION_END};

    if (!page)
        return;
    msg.session_end.page = number;
    msg.session_end.process_over = process_over;
    for (uint32_t i = 0; i < device->count; i++) {
        if (device->workers[i].state == ENGINE_DEVICE_LINKED)
            engine_device_send(&device->workers[i], &msg, NULL, 0);
    }
    *link = page->next;
    close(page->fd);
    free(page);
}

void engine_device_page_close(struct engine_device *device)
{
    while (device->pages) {
        struct engine_device_page *page = device->pages;
        device->pages = page->next;
        close(page->fd);
        free(page);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 * What hvd_admin.h declares, over client.c: the handle, one question, sentences. */
#include "admin/api.h"

#include "admin/address.h"
#include "admin/answer.h"
#include "admin/client.h"
#include "admin/error.h"
#include "hvd/hvd_admin.h"

#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hvd_admin {
    struct admin_client *client;
    pid_t pid; /* that opened it */
    char dir[ADDRESS_DIR_MAX + 1];
};

#define REQUEST_BYTES_MIN                                                                          \
    (offsetof(struct hvd_admin_request, before) + sizeof(uint64_t)) /* 0.1's */
#define REQUEST_BYTES_MAX 4096 /* no version's; a size beyond is no size */

_Static_assert(sizeof(struct hvd_admin_place) == HVD_ADMIN_DIR_MAX + 1 + 256,
               "hvd_admin_place is the caller's and says no size, so it never grows");
_Static_assert(HVD_ADMIN_DIR_MAX == ADDRESS_DIR_MAX, "a directory fits hvd_admin_place");
_Static_assert((int)HVD_ADMIN_STATUS == (int)HVI_ADMIN_STATUS &&
                   (int)HVD_ADMIN_GPUS == (int)HVI_ADMIN_GPUS &&
                   (int)HVD_ADMIN_LIMITS == (int)HVI_ADMIN_LIMITS &&
                   HVI_ADMIN_KIND_END == HVI_ADMIN_LIMITS + 1,
               "the kinds of hvd_admin.h are those of the wire");
_Static_assert((int)HVD_ADMIN_LINK_DATA == (int)HVI_LINK_DATA, "and so are the purposes of links");

const char *hvd_admin_version(void)
{
    return HVD_VERSION_TEXT;
}

/* ---- the handle ---- */

int hvd_admin_find(const char *address, struct hvd_admin_place *place_p)
{
    struct address found;
    const int status = address_find(address, &found);
    memset(place_p, 0, sizeof *place_p);
    snprintf(place_p->dir, sizeof place_p->dir, "%s", found.dir);
    if (status == HVI_OK)
        return status;
    snprintf(place_p->tried, sizeof place_p->tried, "%s", found.why);
    if (status == HVI_ERR_INVALID)
        return admin_error(status, "bad address: %s", found.why);
    return admin_error(
        status,
        "no hvdd is running. Tried: %s. Start one (hvdd, or systemctl start hvdd), or name "
        "its directory with HVD_ADDRESS.",
        found.why);
}

int hvd_admin_open(const char *address, struct hvd_admin **admin_p)
{
    struct hvd_admin_place place;
    int status = hvd_admin_find(address, &place);
    if (status != HVI_OK)
        return status;
    struct hvd_admin *admin = calloc(1, sizeof *admin);
    if (admin == NULL)
        return admin_error(HVI_ERR_NO_MEMORY, "%s", hvi_status_text(HVI_ERR_NO_MEMORY));
    status = admin_client_open(place.dir, &admin->client);
    if (status != HVI_OK) {
        free(admin);
        if (status == HVI_ERR_NO_DAEMON)
            return admin_error(status, "the hvdd in %s has just gone", place.dir);
        return admin_error(status, "%s", hvi_status_text(status));
    }
    admin->pid = getpid();
    snprintf(admin->dir, sizeof admin->dir, "%s", place.dir);
    *admin_p = admin;
    return HVI_OK;
}

/* libzmq's threads are not in a forked child, and to end its sockets would wait for them. */
void hvd_admin_close(struct hvd_admin *admin)
{
    if (admin == NULL)
        return;
    if (admin->pid == getpid())
        admin_client_close(admin->client);
    free(admin);
}

const char *hvd_admin_address(const struct hvd_admin *admin)
{
    return admin != NULL ? admin->dir : "";
}

int admin_check_handle(const struct hvd_admin *admin)
{
    if (admin->pid == getpid())
        return HVI_OK;
    return admin_error(HVI_ERR_FORKED,
                       "this handle is the parent process'; open one in this process");
}

/* ---- one question ---- */

int admin_check_job(const char *job)
{
    if (job != NULL && hvi_job_id_valid(job))
        return HVI_OK;
    return admin_error(HVI_ERR_INVALID,
                       "'%.200s' is no job id: 1 to %d letters, digits or any of . _ : @ -",
                       job != NULL ? job : "", HVI_JOB_ID_MAX);
}

/* Whose, and which: limits have an owner and no job. */
static int copy_job(const struct hvd_admin_request *request, struct hvi_admin_request *wire_p)
{
    if (request->job == NULL && request->kind != HVD_ADMIN_LIMITS)
        return HVI_OK;
    wire_p->of_owner = request->owner >= 0;
    wire_p->owner = wire_p->of_owner ? (uint32_t)request->owner : 0;
    if (request->job == NULL)
        return HVI_OK;
    const int status = admin_check_job(request->job);
    if (status == HVI_OK)
        snprintf(wire_p->job, sizeof wire_p->job, "%s", request->job);
    return status;
}

/* The request of a program that was built against another version: what it does not have is 0, and what only it has must
 * be. */
static int read_request(const struct hvd_admin_request *request,
                        struct hvd_admin_request *request_p)
{
    const size_t size = request->struct_size;
    const size_t known = size < sizeof *request_p ? size : sizeof *request_p;
    bool is_known = size >= REQUEST_BYTES_MIN && size <= REQUEST_BYTES_MAX;
    for (size_t i = known; is_known && i < size; i++)
        is_known = ((const unsigned char *)request)[i] == 0;
    if (!is_known)
        return admin_error(
            HVI_ERR_INVALID,
            "a request of %zu bytes, where libhvdadmin %s knows %zu: call "
            "hvd_admin_request_init first, or build against this version's hvd_admin.h",
            size, HVD_VERSION_TEXT, sizeof *request);
    memset(request_p, 0, sizeof *request_p);
    memcpy(request_p, request, known);
    return HVI_OK;
}

static int to_wire(const struct hvd_admin_request *request, struct hvi_admin_request *wire_p)
{
    if (request->kind < HVD_ADMIN_STATUS || request->kind > HVD_ADMIN_LIMITS ||
        (int)request->kind == (int)HVI_ADMIN_EVENTS)
        return admin_error(HVI_ERR_INVALID, "%d is no kind of request", (int)request->kind);
    *wire_p = (struct hvi_admin_request){
        .kind = (enum hvi_admin_kind)request->kind,
        .min_age_ns = request->min_age_ns,
        .rank = request->rank,
        .pid = request->pid,
        .signaled = request->signaled != 0,
        .code = request->code,
        .limit = request->limit,
        .before = request->before,
        .of_mesh = request->of_mesh != 0,
    };
    if (request->reason != NULL)
        memcpy(wire_p->reason, request->reason,
               hvi_utf8_cut(request->reason, strlen(request->reason), sizeof wire_p->reason - 1));
    return copy_job(request, wire_p);
}

static int call(struct hvd_admin *admin, struct hvi_admin_request *wire, int64_t timeout_ns,
                uint64_t deadline_ns, struct hvi_admin_reply *reply_p)
{
    char text[HVI_TEXT_MAX + 1] = "";
    int status = admin_client_call(admin->client, wire, deadline_ns, reply_p, text, sizeof text);
    if (status != HVI_OK)
        return admin_error_explain(status, admin->dir, timeout_ns, text);
    status = reply_p->status;
    if (status == HVI_OK)
        return HVI_OK;
    admin_error(status, "%s", reply_p->text[0] != '\0' ? reply_p->text : hvi_status_text(status));
    hvi_admin_reply_free(reply_p);
    return status;
}

/* hvdd's gate counts the connections and requests of tools, and answers for those itself: its rows follow hvdd's. */
static int add_gates(struct hvd_admin *admin, struct hvi_admin_request *wire, int64_t timeout_ns,
                     uint64_t deadline_ns, struct hvi_admin_reply *reply)
{
    struct hvi_admin_reply gate;
    wire->of_gate = true;
    const int status = call(admin, wire, timeout_ns, deadline_ns, &gate);
    if (status != HVI_OK)
        return status;
    if (gate.limit_count == 0) {
        hvi_admin_reply_free(&gate);
        return HVI_OK;
    }
    const size_t count = reply->limit_count + gate.limit_count;
    struct hvi_limit_row *all = realloc(reply->limits, count * sizeof *all);
    if (all != NULL) {
        memcpy(&all[reply->limit_count], gate.limits, gate.limit_count * sizeof *all);
        reply->limits = all;
        reply->limit_count = count;
        reply->rows_left_out += gate.rows_left_out;
    }
    hvi_admin_reply_free(&gate);
    return all != NULL ? HVI_OK
                       : admin_error(HVI_ERR_NO_MEMORY, "%s", hvi_status_text(HVI_ERR_NO_MEMORY));
}

int hvd_admin_ask(struct hvd_admin *admin, const struct hvd_admin_request *request,
                  int64_t timeout_ns, struct hvd_admin_answer **answer_p)
{
    struct hvd_admin_request known;
    struct hvi_admin_request wire;
    struct hvi_admin_reply reply;
    int status = admin_check_handle(admin);
    if (status == HVI_OK)
        status = read_request(request, &known);
    if (status == HVI_OK)
        status = to_wire(&known, &wire);
    if (status != HVI_OK)
        return status;
    const uint64_t deadline_ns = hvi_deadline_after(timeout_ns);
    status = call(admin, &wire, timeout_ns, deadline_ns, &reply);
    if (status != HVI_OK)
        return status;
    if (request->kind == HVD_ADMIN_LIMITS)
        status = add_gates(admin, &wire, timeout_ns, deadline_ns, &reply);
    if (status == HVI_OK && admin_answer_new(&reply, answer_p) != HVI_OK)
        status = admin_error(HVI_ERR_NO_MEMORY, "%s", hvi_status_text(HVI_ERR_NO_MEMORY));
    if (status != HVI_OK)
        hvi_admin_reply_free(&reply);
    return status;
}

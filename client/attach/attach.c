/* SPDX-License-Identifier: Apache-2.0
 *   address -> connect -> reserve -> AttachRequest -> AttachReply + 4 or 5 descriptors
 *
 * The engine takes the rank with its answer, and a rank that goes then is lost to the others. So what the answer needs here
 * is reserved before the request is sent (reserve.c).
 *
 * Where the caller named no daemon, one may be just about to end by itself (a private one does, when
 * idle): its end of file before a reply makes us look for a daemon again, and so does a private one that takes no new
 * sessions, after a nap: it may wait for its workers, or for other jobs, for longer than our caller likes. */
#include "client/attach/attach.h"

#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "base/utf8.h"
#include "client/attach/address.h"
#include "client/attach/identity.h"
#include "client/attach/reserve.h"
#include "client/error.h"
#include "shm/abi.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ATTACH_TRIES 4u
#define DRAIN_NAP_NS 50000000
#define DRAIN_NS     (10 * (int64_t)HVI_NS_SEC)

/* ---- the request ---- */

static bool is_ours(const char *name)
{
    return strcmp(name, "HVD_JOB_KEY") != 0 &&
           (strncmp(name, "HVD_", 4) == 0 || strncmp(name, "HOROVOD_", 8) == 0);
}

/* What is too long to be a setting is none of ours. */
static bool to_setting(const char *assignment, bool (*is_wanted)(const char *name),
                       struct hvi_setting *setting_p)
{
    size_t name_bytes = strcspn(assignment, "=");
    const char *value = assignment + name_bytes + 1;
    if (!assignment[name_bytes] || name_bytes >= sizeof(setting_p->name))
        return false;
    memcpy(setting_p->name, assignment, name_bytes);
    setting_p->name[name_bytes] = '\0';
    if (!is_wanted(setting_p->name) || strlen(value) >= sizeof(setting_p->value) ||
        !hvi_utf8_valid(value, strlen(value)) || !hvi_utf8_valid(assignment, name_bytes))
        return false;
    memcpy(setting_p->value, value, strlen(value) + 1);
    return true;
}

static size_t add_settings(bool (*is_wanted)(const char *name), struct hvi_setting *settings,
                           size_t count)
{
    for (char **at = environ; at && *at && count < HVI_WIRE_SETTINGS_MAX; at++)
        if (to_setting(*at, is_wanted, &settings[count]))
            count++;
    return count;
}

/* Those of NCCL, which are for workers of GPUs, take no room of the others. */
static size_t collect_settings(struct hvi_setting *settings)
{
    return add_settings(hvi_nccl_is_allowed, settings, add_settings(is_ours, settings, 0));
}

static bool is_sent(const char *name, size_t bytes, const struct hvi_setting *settings,
                    size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strncmp(settings[i].name, name, bytes) == 0 && !settings[i].name[bytes])
            return true;
    return false;
}

/* NCCL_VERSION is no variable of NCCL: images of NVIDIA's say by it what they contain. */
static bool is_nccls(const char *name, size_t bytes)
{
    static const char characters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    return bytes < HVI_WIRE_SETTING_NAME && strncmp(name, "NCCL_", 5) == 0 &&
           strspn(name, characters) == bytes &&
           !(bytes == strlen("NCCL_VERSION") && strncmp(name, "NCCL_VERSION", bytes) == 0);
}

static void name_unsent(const struct hvi_setting *settings, size_t count,
                        char names_p[CLIENT_UNSENT_BYTES])
{
    const size_t most = CLIENT_UNSENT_BYTES - sizeof(", and 4294967295 more");
    size_t used = 0;
    unsigned left_out = 0;
    names_p[0] = '\0';
    for (char **at = environ; at && *at; at++) {
        size_t bytes = strcspn(*at, "=");
        if (!(*at)[bytes] || !is_nccls(*at, bytes) || is_sent(*at, bytes, settings, count))
            continue;
        if (left_out > 0 || used + bytes + 2 > most)
            left_out++;
        else
            used += (size_t)snprintf(names_p + used, CLIENT_UNSENT_BYTES - used, "%s%.*s",
                                     used > 0 ? ", " : "", (int)bytes, *at);
    }
    if (left_out > 0)
        snprintf(names_p + used, CLIENT_UNSENT_BYTES - used, ", and %u more", left_out);
}

static int set_key(const struct hvd_options *options, struct hvi_attach_request *request)
{
    const char *key = options->job_key ? options->job_key : getenv("HVD_JOB_KEY");
    if (!key)
        return HVD_OK;
    if (strlen(key) > HVI_JOB_KEY_MAX || !hvi_utf8_valid(key, strlen(key)))
        return client_error(HVD_ERR_INVALID,
                            "hvd_open: the job key is not UTF-8 or is longer than %d bytes",
                            HVI_JOB_KEY_MAX);
    memcpy(request->job_key, key, strlen(key) + 1);
    return HVD_OK;
}

/* Encodes the AttachRequest into the packet. */
static int encode_request(const struct hvd_options *options, const struct client_identity *identity,
                          struct hvi_packet *packet, char unsent_p[CLIENT_UNSENT_BYTES])
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ATTACH_REQUEST};
    struct hvi_attach_request *request = &msg.attach_request;
    int rc = set_key(options, request);
    if (rc != HVD_OK)
        return rc;
    request->settings = calloc(HVI_WIRE_SETTINGS_MAX, sizeof(request->settings[0]));
    if (!request->settings)
        return client_error(HVD_ERR_NO_MEMORY, "hvd_open: out of memory");
    request->setting_count = collect_settings(request->settings);
    name_unsent(request->settings, request->setting_count, unsent_p);
    request->protocol_version = HVI_PROTOCOL_VERSION;
    request->abi_version = HVI_ABI_VERSION;
    request->rank = identity->rank;
    request->size = identity->size;
    request->local_rank = identity->local_rank;
    request->local_size = identity->local_size;
    request->cross_rank = identity->cross_rank;
    request->cross_size = identity->cross_size;
    request->own_pid = getpid();
    snprintf(request->job, sizeof(request->job), "%s", identity->job);
    snprintf(request->origin, sizeof(request->origin), "%s", identity->origin);
    snprintf(request->client_version, sizeof(request->client_version), "%s", hvd_version());
    rc = hvi_packet_msg_encode(&msg, packet->bytes, sizeof(packet->bytes), &packet->length);
    free(request->settings);
    if (rc != HVD_OK)
        return client_error(rc, "hvd_open: the attach request cannot be encoded: %s",
                            hvi_status_text(rc));
    return HVD_OK;
}

/* ---- the exchange ---- */

static int attach_error(int rc, const struct client_address *address)
{
    switch (rc) {
    case HVD_ERR_TIMEOUT:
        return client_error(HVD_ERR_ATTACH_TIMEOUT,
                            "hvd_open: hvdd at %s accepted the connection and did not answer in "
                            "time",
                            address->directory);
    case HVD_ERR_CLOSED:
        return client_error(HVD_ERR_DAEMON,
                            "hvd_open: hvdd at %s, or the engine it started, closed the connection "
                            "without an answer; see hvdd's log",
                            address->directory);
    default:
        return client_error(rc, "hvd_open: attaching at %s: %s", address->directory,
                            hvi_status_text(rc));
    }
}

/* Until there is something to receive. */
static void await_reply(int socket_fd, uint64_t deadline_ns)
{
    struct pollfd pollfd = {.fd = socket_fd, .events = POLLIN};
    while (poll(&pollfd, 1, hvi_deadline_poll_ms(deadline_ns)) <= 0 &&
           !hvi_deadline_passed(deadline_ns)) {
    }
}

/* Sends what is in the packet; receives the reply into it. */
static int exchange(const struct client_address *address, struct hvi_packet *packet,
                    uint64_t deadline_ns)
{
    struct client_reserve reserve;
    int rc = client_reserve_take(&reserve, address->socket_fd);
    if (rc != HVD_OK)
        return rc;
    rc = hvi_packet_send(address->socket_fd, packet->bytes, packet->length, NULL, 0, deadline_ns);
    /* A refusal may come before we have sent all; it says more than the broken pipe. */
    const bool receives = rc == HVD_OK || rc == HVD_ERR_CLOSED;
    if (receives)
        await_reply(address->socket_fd, deadline_ns);
    client_reserve_drop(&reserve);
    if (receives)
        rc = hvi_packet_receive(address->socket_fd, packet, deadline_ns);
    return rc == HVD_OK ? rc : attach_error(rc, address);
}

static int judge_reply(const struct hvi_attach_reply *reply, const struct hvi_packet *packet,
                       const struct client_address *address)
{
    if (reply->status != HVD_OK)
        return client_error(
            reply->status < 0 ? reply->status : HVD_ERR_PROTOCOL, "hvd_open: %s (hvdd at %s)",
            reply->text[0] ? reply->text : hvi_status_text(reply->status), address->directory);
    if (reply->protocol_version != HVI_PROTOCOL_VERSION || reply->abi_version != HVI_ABI_VERSION)
        return client_error(HVD_ERR_VERSION,
                            "hvd_open: hvdd at %s speaks protocol %u and ABI %u, this library "
                            "(%s) protocol %u and ABI %u; install matching versions",
                            address->directory, reply->protocol_version, reply->abi_version,
                            hvd_version(), HVI_PROTOCOL_VERSION, HVI_ABI_VERSION);
    if (packet->fd_count != CLIENT_ATTACH_FDS && packet->fd_count != CLIENT_ATTACH_FDS + 1)
        return client_error(
            HVD_ERR_PROTOCOL, "hvd_open: hvdd at %s sent %u descriptors instead of %u or %u",
            address->directory, packet->fd_count, CLIENT_ATTACH_FDS, CLIENT_ATTACH_FDS + 1);
    return HVD_OK;
}

static int read_reply(const struct client_address *address, const struct hvi_packet *packet,
                      struct client_attached *attached_p)
{
    struct hvi_packet_msg msg;
    char why[HVI_TEXT_MAX + 1] = "";
    int rc = hvi_packet_msg_decode(packet->bytes, packet->length, &msg, why, sizeof(why));
    if (rc != HVD_OK)
        return client_error(rc, "hvd_open: hvdd at %s answered with something else: %s",
                            address->directory, why[0] ? why : hvi_status_text(rc));
    if (msg.kind != HVI_PACKET_ATTACH_REPLY)
        rc = client_error(HVD_ERR_PROTOCOL,
                          "hvd_open: hvdd at %s answered with a message of kind %d",
                          address->directory, (int)msg.kind);
    else
        rc = judge_reply(&msg.attach_reply, packet, address);
    if (rc == HVD_OK) {
        attached_p->engine_pid = msg.attach_reply.engine_pid;
        attached_p->takes_fabric = msg.attach_reply.fabric;
    }
    hvi_packet_msg_free(&msg);
    return rc;
}

static bool spans(const struct client_identity *identity)
{
    return hvi_job_nodes(identity->size, identity->local_size, identity->cross_size) > 1;
}

/* One try: connects, asks, and leaves the reply's descriptors in the packet. */
static int attach_once(const struct hvd_options *options, const struct client_identity *identity,
                       uint64_t deadline_ns, struct hvi_packet *packet,
                       struct client_address *address_p, struct client_attached *attached_p)
{
    struct client_address address;
    int rc = client_address_connect(options->address, spans(identity), deadline_ns, &address);
    if (rc != HVD_OK)
        return rc;
    address_p->is_default = address.is_default;
    address_p->is_service = address.is_service;
    rc = encode_request(options, identity, packet, attached_p->unsent);
    if (rc == HVD_OK)
        rc = exchange(&address, packet, deadline_ns);
    if (rc == HVD_OK) {
        rc = read_reply(&address, packet, attached_p);
        if (rc != HVD_OK)
            hvi_packet_close_fds(packet);
    }
    if (rc != HVD_OK) {
        close(address.socket_fd);
        return rc;
    }
    *address_p = address;
    return HVD_OK;
}

/* Another daemon may take the place of the one that has answered so. */
static bool may_try_again(int rc, const struct client_address *address, unsigned tries,
                          uint64_t patience_ns)
{
    const struct timespec nap = {.tv_nsec = DRAIN_NAP_NS};
    if (!address->is_default)
        return false;
    if (rc != HVD_ERR_DRAINING)
        return rc == HVD_ERR_DAEMON && tries < ATTACH_TRIES;
    if (address->is_service || hvi_deadline_passed(patience_ns))
        return false;
    nanosleep(&nap, NULL);
    return true;
}

int client_attach(const struct hvd_options *options, const struct client_identity *identity,
                  struct hvi_packet *packet, struct client_address *address_p,
                  struct client_attached *attached_p)
{
    const uint64_t deadline_ns = hvi_deadline_after(options->timeout_ns);
    const uint64_t drain_ns = hvi_deadline_after(DRAIN_NS);
    const uint64_t patience_ns = (deadline_ns < drain_ns ? deadline_ns : drain_ns) - DRAIN_NAP_NS;
    unsigned tries = 0;
    int rc;
    do
        rc = attach_once(options, identity, deadline_ns, packet, address_p, attached_p);
    while (rc != HVD_OK && may_try_again(rc, address_p, ++tries, patience_ns));
    return rc;
}

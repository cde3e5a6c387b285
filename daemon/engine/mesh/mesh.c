/* SPDX-License-Identifier: Apache-2.0
 * Mesh: order/'s reports and the root's verdicts as messages.
 *
 *   order/span.c --report--> [node, its parent, ...] --> node 0: order/root_report.c
 *        ^                                                      |
 *        +------verdict------ [..., node] <---------------------+
 *
 * A verdict for every node is sent once to each of those below the root, and each passes it on to those below it. What
 * all nodes from one on down report alike comes up as one (bundle.c).
 *
 * A message has the numbers of the nodes that it comes from and goes to. A neighbour is believed only
 * about nodes behind it in the tree. What a message says of ops is checked where it is used: by
 * root_report.c and verdict.c, which know the sets; a peer that sends what cannot be breaks the job, with a
 * sentence, because its idea of the order is no longer ours.
 *
 * On node 0 order/ and the root are both here. They may not be called while one of them calls, so what
 * they say waits in a list until engine_mesh_run.
 *
 * What hvdctl asks on one node is asked of the others, and answered, the same way (gather.c). So do nodes talk about
 * communicators of their GPUs (device/comm.c).
 *
 * A job that cannot go on says so once: up to the root, and from there down the tree. Each node tells those right
 * below it, behind the verdicts that the root had sent before. A node that loses a neighbour tells those below it at
 * once: its own way to the root may be what is lost. */
#include "daemon/engine/mesh/mesh.h"

#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/mesh/tree.h"
#include "daemon/engine/order/span.h"
#include "daemon/engine/order/verdict.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct engine_mesh_letter {
    struct engine_mesh_letter *next;
    size_t length;
    unsigned char bytes[];
};

static void fall(struct engine_mesh *mesh, int status, int32_t culprit, const char *text);

static void give_up(struct engine_mesh *mesh, const char *what, int status)
{
    char text[HVI_TEXT_MAX + 1];

    snprintf(text, sizeof text, "node %u of the job cannot go on: %s: %s", mesh->roster->here, what,
             hvi_status_text(status));
    fall(mesh, HVI_ERR_NODE_LOST, -1, text);
}

/* ---- sending ---- */

static int keep(struct engine_mesh_letter **first, struct engine_mesh_letter **last,
                const unsigned char *bytes, size_t length)
{
    struct engine_mesh_letter *letter = malloc(sizeof *letter + length);

    if (!letter)
        return HVI_ERR_NO_MEMORY;
    letter->next = NULL;
    letter->length = length;
    memcpy(letter->bytes, bytes, length);
    if (*first)
        (*last)->next = letter;
    else
        *first = letter;
    *last = letter;
    return HVI_OK;
}

static int post(struct engine_mesh *mesh, uint32_t to, const unsigned char *bytes, size_t length)
{
    uint32_t here = mesh->roster->here;

    if (to == here)
        return keep(&mesh->first, &mesh->last, bytes, length);
    return mesh->way->send(mesh->way_user, engine_mesh_next_hop(here, to), bytes, length);
}

/* To those right below this node. The worst of what came of it. */
static int post_below(struct engine_mesh *mesh, const unsigned char *bytes, size_t length)
{
    const uint32_t first = mesh->roster->here * ENGINE_MESH_RADIX + 1;
    int worst = HVI_OK;

    for (uint32_t node = first; node < first + ENGINE_MESH_RADIX && node < mesh->roster->nodes;
         node++) {
        int status = mesh->way->send(mesh->way_user, node, bytes, length);
        if (status != HVI_OK && status != HVI_ERR_NODE_LOST)
            worst = status;
    }
    return worst;
}

/* mesh->packet. */
static int send_from(struct engine_mesh *mesh, uint32_t from, uint32_t to)
{
    unsigned char *bytes;
    size_t length;

    mesh->packet.from = from;
    mesh->packet.to = to;
    int status = hvi_mesh_encode(&mesh->packet, &bytes, &length);
    if (status != HVI_OK)
        return status;
    status = post(mesh, to, bytes, length);
    free(bytes);
    return status;
}

static int send(struct engine_mesh *mesh, uint32_t to)
{
    return send_from(mesh, mesh->roster->here, to);
}

static void go_up(void *user, uint32_t from, bool below, const struct hvi_mesh_report *report)
{
    struct engine_mesh *mesh = user;

    if (mesh->broken_status != HVI_OK)
        return;
    mesh->packet = (struct hvi_mesh_packet){.has_report = true, .below = below, .report = *report};
    int status = send_from(mesh, from, 0);
    if (status != HVI_OK && status != HVI_ERR_NODE_LOST)
        give_up(mesh, "a report", status);
}

/* A report, of this node or of one behind it: false: it goes now. */
static bool waits_for_others(struct engine_mesh *mesh, uint32_t from, bool below,
                             const struct hvi_mesh_report *report)
{
    const struct engine_mesh_bundle_way up = {go_up, mesh};

    return mesh->broken_status == HVI_OK &&
           engine_mesh_bundles_take(&mesh->bundles, from, below, report, &up);
}

static void report(void *user, const struct hvi_mesh_report *report)
{
    struct engine_mesh *mesh = user;
    const uint32_t here = mesh->roster->here;

    if (!waits_for_others(mesh, here, false, report))
        go_up(mesh, here, false, report);
}

static void verdict(void *user, uint32_t node, const struct hvi_mesh_verdict *verdict)
{
    struct engine_mesh *mesh = user;

    if (mesh->broken_status != HVI_OK)
        return;
    mesh->packet = (struct hvi_mesh_packet){.has_verdict = true, .verdict = *verdict};
    int status = send(mesh, node);
    if (status != HVI_OK && status != HVI_ERR_NODE_LOST)
        give_up(mesh, "a verdict", status);
}

static void verdict_for_all(void *user, const struct hvi_mesh_verdict *verdict)
{
    struct engine_mesh *mesh = user;
    unsigned char *bytes;
    size_t length;

    if (mesh->broken_status != HVI_OK)
        return;
    mesh->packet = (struct hvi_mesh_packet){.all = true, .has_verdict = true, .verdict = *verdict};
    int status = hvi_mesh_encode(&mesh->packet, &bytes, &length);
    if (status == HVI_OK) {
        status = keep(&mesh->first, &mesh->last, bytes, length);
        if (status == HVI_OK)
            status = post_below(mesh, bytes, length);
        free(bytes);
    }
    if (status != HVI_OK)
        give_up(mesh, "a verdict", status);
}

static void withdraw(void *user, uint64_t least, uint64_t top)
{
    const struct engine_mesh *mesh = user;

    mesh->calls->withdraw(mesh->user, least, top);
}

int engine_mesh_ask(struct engine_mesh *mesh, uint32_t to, const struct hvi_mesh_ask *ask)
{
    mesh->packet = (struct hvi_mesh_packet){.has_ask = true, .ask = *ask};
    return send(mesh, to);
}

int engine_mesh_answer(struct engine_mesh *mesh, uint32_t to, const struct hvi_mesh_answer *answer)
{
    mesh->packet = (struct hvi_mesh_packet){.has_answer = true, .answer = *answer};
    return send(mesh, to);
}

int engine_mesh_gpu(struct engine_mesh *mesh, uint32_t to, const struct hvi_mesh_gpu *gpu)
{
    mesh->packet = (struct hvi_mesh_packet){.has_gpu = true, .gpu = *gpu};
    return send(mesh, to);
}

static const struct engine_order_span span_calls = {report, withdraw};
static const struct engine_root_calls root_calls = {verdict, verdict_for_all};

int engine_mesh_open(struct engine_mesh *mesh)
{
    int status = HVI_OK;

    engine_mesh_bundles_init(&mesh->bundles, mesh->roster->here, mesh->roster->nodes);
    if (mesh->roster->here == 0) {
        status = engine_root_init(&mesh->root, mesh->roster, &root_calls, mesh);
        mesh->below = calloc(mesh->roster->nodes, sizeof *mesh->below);
    }
    if (status == HVI_OK && mesh->roster->here == 0 && !mesh->below)
        status = HVI_ERR_NO_MEMORY;
    if (status == HVI_OK)
        status = engine_span_open(mesh->order, &span_calls, mesh);
    if (status == HVI_OK && mesh->roster->here == 0)
        mesh->order->root = &mesh->root;
    mesh->root.replay = &mesh->order->replay;
    return status;
}

static struct engine_mesh_letter *take(struct engine_mesh_letter **first)
{
    struct engine_mesh_letter *letter = *first;

    if (letter)
        *first = letter->next;
    return letter;
}

void engine_mesh_close(struct engine_mesh *mesh)
{
    struct engine_mesh_letter *letter;

    while ((letter = take(&mesh->first)))
        free(letter);
    while ((letter = take(&mesh->late_first)))
        free(letter);
    if (mesh->order)
        mesh->order->root = NULL;
    engine_mesh_bundles_fini(&mesh->bundles);
    engine_root_fini(&mesh->root);
    free(mesh->below);
    mesh->below = NULL;
}

/* ---- the end ---- */

static void tell(struct engine_mesh *mesh, uint32_t to, int status, int32_t culprit,
                 const char *text)
{
    mesh->packet = (struct hvi_mesh_packet){.has_broken = true,
                                            .broken = {.status = status, .culprit = culprit}};
    snprintf(mesh->packet.broken.text, sizeof mesh->packet.broken.text, "%s", text);
    int sent = send(mesh, to);
    /* Of ranks that leave, some have left before: no news. */
    enum hvi_log_level level = status == HVI_ERR_RANK_LEFT ? HVI_LOG_DEBUG : HVI_LOG_WARN;
    if (sent != HVI_OK) /* a node that cannot be reached will be lost by its own clock */
        HVI_LOG(level, "mesh", "not-told", hvi_status_text(sent), "job=%s node=%u",
                mesh->order->job, to);
}

/* Those right below this node, the one that said so included: it knows already and ignores it. */
static void tell_below(struct engine_mesh *mesh, int status, int32_t culprit, const char *text)
{
    const uint32_t first = mesh->roster->here * ENGINE_MESH_RADIX + 1;

    for (uint32_t node = first; node < first + ENGINE_MESH_RADIX && node < mesh->roster->nodes;
         node++)
        tell(mesh, node, status, culprit, text);
}

/* What the root says of it comes by this node to those below, where this one may have gone by then: an engine ends with
 * its last rank. */
static void spread(struct engine_mesh *mesh, int status, int32_t culprit, const char *text)
{
    if (mesh->roster->here != 0)
        tell(mesh, 0, status, culprit, text);
    tell_below(mesh, status, culprit, text);
}

/* The first reason stays. A stop replaces it. A lost node replaces a rank that left, because works still run then. */
static bool is_news(struct engine_mesh *mesh, int status)
{
    const bool more = status == HVI_ERR_JOB_STOPPED ||
                      (mesh->broken_status == HVI_ERR_RANK_LEFT && status == HVI_ERR_NODE_LOST);

    if (mesh->broken_status == status || (mesh->broken_status != HVI_OK && !more))
        return false;
    mesh->broken_status = status;
    return true;
}

void engine_mesh_break(struct engine_mesh *mesh, int status, int32_t culprit, const char *text)
{
    if (is_news(mesh, status))
        spread(mesh, status, culprit, text);
}

/* order/ may be what calls: it hears of it from engine_mesh_run. */
static void break_here(struct engine_mesh *mesh, int32_t culprit, const char *text)
{
    mesh->broken_culprit = culprit;
    snprintf(mesh->broken_text, sizeof mesh->broken_text, "%s", text);
    mesh->broken_news = true;
}

static void fall(struct engine_mesh *mesh, int status, int32_t culprit, const char *text)
{
    if (!is_news(mesh, status))
        return;
    HVI_LOG(HVI_LOG_WARN, "mesh", "job-broken", text, "job=%s node=%u status=%s", mesh->order->job,
            mesh->roster->here, hvi_status_name(status));
    spread(mesh, status, culprit, text);
    mesh->broken_here = true;
    break_here(mesh, culprit, text);
}

void engine_mesh_node_lost(struct engine_mesh *mesh, uint32_t node, const char *text)
{
    (void)node; /* the text names it */
    fall(mesh, HVI_ERR_NODE_LOST, -1, text);
    engine_mesh_run(mesh);
}

/* At the root from another node; else from the one above, whatever is known here already. */
static void hear_of_break(struct engine_mesh *mesh, const struct hvi_mesh_broken *broken)
{
    int status = broken->status < HVI_OK ? broken->status : HVI_ERR_NODE_LOST;

    bool news = is_news(mesh, status);
    if (news || mesh->roster->here != 0)
        tell_below(mesh, status, broken->culprit, broken->text);
    if (news) {
        mesh->broken_here = false;
        break_here(mesh, broken->culprit, broken->text);
    }
}

/* ---- receiving ---- */

static void disbelieve(struct engine_mesh *mesh, uint32_t node, const char *why)
{
    char text[HVI_TEXT_MAX + 1];

    snprintf(text, sizeof text, "node %u of the job sent node %u what cannot be: %.800s", node,
             mesh->roster->here, why);
    fall(mesh, HVI_ERR_NODE_LOST, -1, text);
}

/* Verdicts may be of ops whose works are being withdrawn. */
static bool is_late(const struct engine_mesh *mesh)
{
    return mesh->order->schedule.returning > 0;
}

static int keep_late(struct engine_mesh *mesh, const struct hvi_mesh_packet *packet)
{
    unsigned char *bytes;
    size_t length;
    int status = hvi_mesh_encode(packet, &bytes, &length);

    if (status != HVI_OK)
        return status;
    status = keep(&mesh->late_first, &mesh->late_last, bytes, length);
    free(bytes);
    return status;
}

/* What is for all nodes has a number of its own, and here it is the next one that this node hears. */
static int hear(struct engine_mesh *mesh, struct hvi_mesh_packet *packet, char *text_p, size_t size)
{
    struct hvi_mesh_verdict *verdict = &packet->verdict;

    if (packet->all && verdict->number != ++mesh->heard_for_all) {
        snprintf(text_p, size, "verdict %" PRIu64 " for all nodes, where %" PRIu64 " was due",
                 verdict->number, mesh->heard_for_all);
        return HVI_ERR_PROTOCOL;
    }
    if (packet->all)
        verdict->number = mesh->order->seen + 1;
    return engine_verdict_hear(mesh->order, verdict, text_p, size);
}

/* A report of one node, or of all from one on down. */
static int judge(struct engine_mesh *mesh, const struct hvi_mesh_packet *packet, char *text_p,
                 size_t size)
{
    if (!packet->below)
        return engine_root_report(&mesh->root, packet->from, &packet->report, text_p, size);
    const uint32_t count = engine_mesh_below(packet->from, mesh->roster->nodes, mesh->below);
    return engine_root_report_alike(&mesh->root, mesh->below, count, &packet->report, text_p, size);
}

/* It is for this node. */
static void carry_out(struct engine_mesh *mesh, struct hvi_mesh_packet *packet)
{
    char text[HVI_TEXT_MAX + 1] = "";
    int status = HVI_OK;

    if (packet->has_broken) {
        hear_of_break(mesh, &packet->broken);
        return;
    }
    if (packet->has_ask && mesh->calls->asked)
        mesh->calls->asked(mesh->user, packet->from, &packet->ask);
    if (packet->has_answer && mesh->calls->answered)
        mesh->calls->answered(mesh->user, packet->from, &packet->answer);
    if (packet->has_gpu && mesh->calls->gpu)
        mesh->calls->gpu(mesh->user, packet->from, &packet->gpu);
    if (packet->has_ask || packet->has_answer || packet->has_gpu)
        return;
    if (mesh->broken_status != HVI_OK || mesh->order->broken_status != HVI_OK)
        return;
    mesh->root.now_ns = mesh->order->now_ns;
    if (packet->has_report)
        status = judge(mesh, packet, text, sizeof text);
    else if (is_late(mesh))
        status = keep_late(mesh, packet);
    else
        status = hear(mesh, packet, text, sizeof text);
    if (status == HVI_ERR_PROTOCOL)
        disbelieve(mesh, packet->from, text);
    else if (status != HVI_OK)
        give_up(mesh, packet->has_report ? "a report" : "a verdict", status);
}

static bool is_above(uint32_t here, uint32_t node)
{
    return here != 0 && engine_mesh_parent(here) == node;
}

/* Who may say what to whom. NULL: it is in order. */
static const char *refusal(const struct engine_mesh *mesh, uint32_t node,
                           const struct hvi_mesh_packet *packet)
{
    uint32_t here = mesh->roster->here, nodes = mesh->roster->nodes;

    if (packet->from >= nodes || packet->to >= nodes)
        return "a message of a node that there is not";
    if (packet->from == here || engine_mesh_next_hop(here, packet->from) != node)
        return "a message of a node that is not behind it";
    if (packet->all)
        return packet->has_verdict && packet->from == 0 && here != 0
                   ? NULL
                   : "what is for all, and is no verdict of the root's";
    if (packet->to != here && engine_mesh_next_hop(here, packet->to) == node)
        return "a message that should not have come here";
    if (packet->has_report && packet->to != 0)
        return "a report that is not for the root";
    if (packet->below && !(packet->has_report && engine_mesh_bundle_may(&packet->report)))
        return "what several nodes cannot say as one";
    if (packet->has_verdict && packet->from != 0)
        return "a verdict that is not the root's";
    if (packet->has_broken && packet->to != 0 && (packet->to != here || !is_above(here, node)))
        return "news that pass the root by";
    return NULL;
}

static void take_or_pass(struct engine_mesh *mesh, struct hvi_mesh_packet *packet,
                         const unsigned char *bytes, size_t length)
{
    const struct engine_mesh_bundle_way up = {go_up, mesh};
    const bool is_ours = packet->all || packet->to == mesh->roster->here;
    int status = HVI_OK;

    if (packet->has_verdict && mesh->broken_status == HVI_OK)
        engine_mesh_bundles_hear(&mesh->bundles, &packet->verdict, &up);
    if (packet->all)
        status = post_below(mesh, bytes, length);
    else if (!is_ours && !(packet->has_report &&
                           waits_for_others(mesh, packet->from, packet->below, &packet->report)))
        status = post(mesh, packet->to, bytes, length);
    if (status == HVI_ERR_NO_MEMORY)
        give_up(mesh, "a message to be passed on", status);
    if (is_ours)
        carry_out(mesh, packet);
}

void engine_mesh_message(struct engine_mesh *mesh, uint32_t node, const unsigned char *bytes,
                         size_t length)
{
    struct hvi_mesh_packet packet;
    char text[256] = "";
    int status = hvi_mesh_decode(bytes, length, &packet, text, sizeof text);

    if (mesh->late_first) /* it came before this */
        engine_mesh_run(mesh);
    if (status != HVI_OK) {
        if (status == HVI_ERR_NO_MEMORY)
            give_up(mesh, "a message", status);
        else
            disbelieve(mesh, node, text);
        engine_mesh_run(mesh);
        return;
    }
    const char *why = refusal(mesh, node, &packet);
    if (why)
        disbelieve(mesh, node, why);
    else
        take_or_pass(mesh, &packet, bytes, length);
    hvi_mesh_free(&packet);
    engine_mesh_run(mesh);
}

static struct engine_mesh_letter *next_letter(struct engine_mesh *mesh)
{
    struct engine_mesh_letter *letter = is_late(mesh) ? NULL : take(&mesh->late_first);

    return letter ? letter : take(&mesh->first);
}

bool engine_mesh_keeps(const struct engine_mesh *mesh)
{
    return mesh->bundles.held > 0 && mesh->broken_status == HVI_OK;
}

void engine_mesh_tick(struct engine_mesh *mesh)
{
    const struct engine_mesh_bundle_way up = {go_up, mesh};

    engine_mesh_bundles_tick(&mesh->bundles, &up);
    engine_mesh_run(mesh);
}

bool engine_mesh_run(struct engine_mesh *mesh)
{
    struct engine_mesh_letter *letter;
    struct hvi_mesh_packet packet;
    bool found = false;

    while ((letter = next_letter(mesh))) {
        char text[256] = "";
        int status = hvi_mesh_decode(letter->bytes, letter->length, &packet, text, sizeof text);
        found = true;
        free(letter);
        if (status != HVI_OK) { /* what this node has encoded itself */
            give_up(mesh, "a message to itself", status);
            continue;
        }
        carry_out(mesh, &packet);
        hvi_mesh_free(&packet);
    }
    if (!mesh->broken_news)
        return found;
    mesh->broken_news = false;
    mesh->calls->broken(mesh->user, mesh->broken_status, mesh->broken_culprit, mesh->broken_text);
    return true;
}

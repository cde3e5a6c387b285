/* SPDX-License-Identifier: Apache-2.0
 * NCCL's variables (NCCL_*, those of base/types.def). The workers of a node get those of its lowest rank, and no worker hears of
 * another's. NCCL wants most of them alike everywhere, and says little where they are not: it hangs, or is slow. So differences
 * are told, once those of the node's ranks and once those of nodes, in the log and to the log callbacks of the node's ranks:
 *
 *   a rank attaches ──compare──► .text ──a GPU is used──► told
 *   READY of another node: its workers can join ──compare──► .text ──the communicator is made, or fails──► told
 *
 * A READY comes to the first node of a communicator, which so hears of all its nodes before it says anything. What other nodes
 * say is bounded by the wire, is of the list, and ends up in a sentence. Once a difference of nodes was told, nodes that only a later
 * communicator has are not compared. */
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/order/sentence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_MOST   4u  /* differences in one sentence */
#define VALUE_SHOWN  48u /* bytes of a value */
#define VALUE_BYTES  (VALUE_SHOWN + 16u)
#define ADVICE_BYTES 280u /* of the sentence without the differences */

/* What a rank has set, which speaks for its node. */
struct side {
    const struct hvi_setting *settings;
    size_t count;
    int32_t rank;
    char node[HVI_WIRE_NODE_NAME + 40]; /* " on node 1 (n2)"; "" */
};

static const char *find(const struct side *side, const char *name)
{
    for (size_t i = 0; i < side->count; i++) {
        if (strcmp(side->settings[i].name, name) == 0)
            return side->settings[i].value;
    }
    return NULL;
}

/* Callbacks of ranks get the text as it is: what may not be shown becomes '?'. */
static void make_plain(char *text)
{
    size_t left = strlen(text);
    char *to = text;

    while (left > 0) {
        uint32_t code;
        const size_t bytes = hvi_utf8_character(text, left, &code), step = bytes > 0 ? bytes : 1;
        if (bytes > 0 && hvi_utf8_is_plain(code)) {
            memmove(to, text, bytes);
            to += bytes;
        } else {
            *to++ = '?';
        }
        text += step;
        left -= step;
    }
    *to = '\0';
}

/* '"Ring"', 'not set'. */
static void describe(const char *value, char text_p[VALUE_BYTES])
{
    if (!value) {
        snprintf(text_p, VALUE_BYTES, "not set");
        return;
    }
    const size_t length = strlen(value), shown = hvi_utf8_cut(value, length, VALUE_SHOWN);
    snprintf(text_p, VALUE_BYTES, "\"%.*s%s\"", (int)shown, value, shown < length ? "..." : "");
    make_plain(text_p);
}

static void add(struct engine_nccl *nccl, const char *name, const struct side *one,
                const struct side *other)
{
    struct engine_sentence text = {nccl->text, sizeof nccl->text, strlen(nccl->text)};
    char first[VALUE_BYTES], second[VALUE_BYTES];

    if (nccl->differences++ >= SHOWN_MOST)
        return;
    describe(find(one, name), first);
    describe(find(other, name), second);
    engine_sentence_append(&text, "%s%s is %s for rank %d%s and %s for rank %d%s",
                           nccl->differences > 1 ? "; " : "", name, first, (int)one->rank,
                           one->node, second, (int)other->rank, other->node);
}

/* NCCL_HOSTID is a node's own. */
static bool counts(const char *name, bool of_nodes)
{
    return hvi_nccl_is_allowed(name) && !(of_nodes && strcmp(name, "NCCL_HOSTID") == 0);
}

/* True: there are differences, which are in the text. */
static bool compare(struct engine_nccl *nccl, const struct side *one, const struct side *other,
                    bool of_nodes)
{
    const uint32_t before = nccl->differences;

    for (size_t i = 0; i < one->count; i++) {
        const char *name = one->settings[i].name, *value = find(other, name);
        if (counts(name, of_nodes) && (!value || strcmp(value, one->settings[i].value) != 0))
            add(nccl, name, one, other);
    }
    for (size_t i = 0; i < other->count; i++) {
        const char *name = other->settings[i].name;
        if (counts(name, of_nodes) && !find(one, name))
            add(nccl, name, one, other);
    }
    return nccl->differences > before;
}

/* Without memory: nothing. */
static void take(struct engine_nccl *nccl, int32_t rank, const struct hvi_setting *settings,
                 size_t count)
{
    free(nccl->settings);
    nccl->rank = rank;
    nccl->count = 0;
    nccl->settings = count > 0 ? calloc(count, sizeof *settings) : NULL;
    for (size_t i = 0; nccl->settings && i < count; i++) {
        if (hvi_nccl_is_allowed(settings[i].name))
            nccl->settings[nccl->count++] = settings[i];
    }
}

static void name_node(const struct engine *engine, uint32_t node, struct side *side)
{
    char name[HVI_WIRE_NODE_NAME + 32];

    engine_nodes_describe(&engine->nodes, node, name, sizeof name);
    snprintf(side->node, sizeof side->node, " on %s", name);
}

static struct side side_here(const struct engine_nccl *nccl)
{
    return (struct side){.settings = nccl->settings, .count = nccl->count, .rank = nccl->rank};
}

void engine_nccl_take(struct engine *engine, int32_t rank, const struct hvi_setting *settings,
                      size_t count)
{
    struct engine_nccl *nccl = &engine->nccl;
    const struct side came = {.settings = settings, .count = count, .rank = rank};
    const struct side here = side_here(nccl);
    const bool is_lower = rank < engine->settings_rank;

    if (!engine->start.gpu)
        return;
    if (engine->settings_rank != INT32_MAX && !nccl->ranks_differ)
        nccl->ranks_differ =
            compare(nccl, is_lower ? &came : &here, is_lower ? &here : &came, false);
    if (is_lower)
        take(nccl, rank, settings, count);
    engine_nccl_tell(engine, false);
}

void engine_nccl_heard(struct engine *engine, uint32_t node, const struct hvi_mesh_gpu *gpu)
{
    struct engine_nccl *nccl = &engine->nccl;
    const struct engine_roster *roster = &engine->roster;
    struct side here = side_here(nccl);
    struct side there = {.settings = gpu->settings,
                         .count = gpu->setting_count,
                         .rank = roster->of_nodes[roster->first[node]]};

    if (!gpu->says_settings || nccl->nodes_told)
        return;
    name_node(engine, roster->here, &here);
    name_node(engine, node, &there);
    nccl->nodes_differ = compare(nccl, &here, &there, true) || nccl->nodes_differ;
}

/* A rank that does not read its socket has it in the log. */
static void notify_ranks(struct engine *engine, const char *text)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_NOTICE};

    msg.notice.status = HVI_INPROGRESS; /* nothing is over */
    msg.notice.rank = -1;
    snprintf(msg.notice.text, sizeof msg.notice.text, "%s", text);
    for (uint32_t i = 0; i < engine->sessions.seats; i++) {
        const struct engine_session *session = engine->sessions.ranks[i].session;
        if (session)
            engine_sessions_send(&engine->sessions, session->socket_fd, &msg, NULL, 0);
    }
}

void engine_nccl_tell(struct engine *engine, bool all_heard)
{
    struct engine_nccl *nccl = &engine->nccl;
    char text[HVI_TEXT_MAX + 1], more[32] = "";

    if (nccl->differences == 0 || engine->device.count == 0 || (nccl->nodes_differ && !all_heard))
        return;
    if (nccl->differences > SHOWN_MOST)
        snprintf(more, sizeof more, "; and %u more", nccl->differences - SHOWN_MOST);
    snprintf(
        text, sizeof text,
        "ranks of the job have set variables of NCCL differently: %.*s%s; on each node its "
        "lowest rank's count, and where nodes differ, NCCL may hang or be slow: set them alike "
        "for all ranks",
        (int)hvi_utf8_cut(nccl->text, strlen(nccl->text), HVI_TEXT_MAX - ADVICE_BYTES), nccl->text,
        more);
    HVI_LOG(HVI_LOG_WARN, "settings", "nccl-differs", text, "job=%s", engine->start.job);
    notify_ranks(engine, text);
    nccl->nodes_told = nccl->nodes_told || nccl->nodes_differ;
    nccl->nodes_differ = false;
    nccl->differences = 0;
    nccl->text[0] = '\0';
}

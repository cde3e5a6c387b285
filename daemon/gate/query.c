/* SPDX-License-Identifier: Apache-2.0
 * What hvdctl asks of all nodes of the mesh: which there are, and which jobs they have.
 *
 *   hvdctl --> gate ==question==> gate of the rendezvous ==question==> every other gate --> its hvdd
 *                   <===reply====                        <===reply====
 *
 * The gate that is asked passes the question to the seed at which jobs meet, unless that is its own node. The gate there knows
 * the nodes; about jobs it asks every node's hvdd, its own too. They are asked for no user: hvdd tells what it tells
 * everybody, without asking an engine, so no node has to believe another one who asks. A node that is silent for a second is
 * named, and the rest is told. Whoever is asked twice at the same moment has two queries.
 *
 *   PASSED   a connection here has asked, a seed answers
 *   GATHERS  a connection here or a node has asked, this gate answers when all nodes have
 *   FETCHES  a seed has asked, hvdd here answers
 *
 * A ticket is a query's number. hvdd gets it with TICKET, which no connection of admin.sock has. */
#include "daemon/gate/mesh.h"

#include "base/clock.h"
#include "base/rate.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#define QUERIES_MAX 256u
#define GATHER_NS   ((int64_t)HVI_NS_SEC)
#define PASS_NS     (2 * (int64_t)HVI_NS_SEC)
#define TICKET      (UINT64_C(1) << 63)

/* Ten times a second all nodes are asked. */
#define GATHERS_EACH_NS (100 * HVI_NS_MS)
#define GATHERS_BURST   20u
#define NO_USER         UINT32_MAX

enum query_kind { PASSED, GATHERS, FETCHES };

struct mesh_query {
    struct mesh_query *prev, *next;
    enum query_kind kind;
    uint64_t ticket, end_ns;
    uint64_t request;       /* AdminRequest.request */
    uint32_t what;          /* HVI_ADMIN_JOBS or HVI_ADMIN_NODES */
    uint64_t connection;    /* PASSED, GATHERS: that has asked; 0: a node has */
    uint64_t node;          /* GATHERS: that has asked */
    struct mesh_seed *seed; /* PASSED: that is asked; FETCHES: that has asked */
    uint64_t their_ticket;  /* of the node or seed that has asked */

    /* GATHERS */
    bool waits_here;
    uint64_t *waits; /* nodes that have not answered */
    size_t wait_count;
    struct hvi_admin_reply reply;
};

static void query_free(struct gate_mesh *mesh, struct mesh_query *query)
{
    DL_DELETE(mesh->queries, query);
    mesh->query_count--;
    hvi_admin_reply_free(&query->reply);
    free(query->waits);
    free(query);
}

static struct mesh_query *query_new(struct gate_mesh *mesh, enum query_kind kind, int64_t ns)
{
    struct mesh_query *query = mesh->query_count < QUERIES_MAX ? calloc(1, sizeof(*query)) : NULL;

    if (query == NULL)
        return NULL;
    query->kind = kind;
    query->ticket = ++mesh->last_ticket;
    query->end_ns = hvi_deadline_after(ns);
    DL_APPEND(mesh->queries, query);
    mesh->query_count++;
    return query;
}

static struct mesh_query *query_find(const struct gate_mesh *mesh, enum query_kind kind,
                                     uint64_t ticket)
{
    struct mesh_query *query;

    DL_FOREACH(mesh->queries, query)
    {
        if (query->kind == kind && query->ticket == ticket)
            return query;
    }
    return NULL;
}

/* ---- answers ---- */

/* One part, to the node or seed that has asked; copies. */
static void say_part(struct gate_mesh *mesh, const struct mesh_query *query,
                     const unsigned char *part, size_t length, bool more)
{
    struct hvi_mesh_msg msg = {
        .kind = HVI_MESH_REPLY,
        .reply = {.ticket = query->their_ticket, .part_bytes = length, .more = more}};

    msg.reply.part = malloc(length + 1);
    if (msg.reply.part == NULL)
        return; /* the other side's time runs out */
    memcpy(msg.reply.part, part, length);
    if (query->kind == FETCHES)
        mesh_join_say(query->seed, &msg);
    else
        mesh_listen_say(mesh, query->node, &msg);
}

/* To the connection or node that has asked. */
static void answer(struct gate_mesh *mesh, const struct mesh_query *query,
                   struct hvi_admin_reply *reply)
{
    unsigned char *bytes = NULL;
    size_t length = 0, sent = 0;

    reply->protocol_version = HVI_PROTOCOL_VERSION;
    reply->request = query->request;
    if (hvi_admin_reply_encode(reply, &bytes, &length) != HVI_OK)
        return; /* out of memory: the asker's time runs out */
    if (query->connection != 0)
        gate_admin_anew(mesh->gate, query->connection); /* a seed may have stopped half way */
    do {
        size_t left = length - sent, part = left < HVI_GATE_PART_MAX ? left : HVI_GATE_PART_MAX;
        struct hvi_gate_reply to = {.ticket = query->connection,
                                    .part = bytes + sent,
                                    .part_bytes = part,
                                    .more = part < left};
        if (query->connection == 0)
            say_part(mesh, query, bytes + sent, part, part < left);
        else
            gate_admin_answer(mesh->gate, &to);
        sent += part;
    } while (sent < length);
    free(bytes);
}

static void finish(struct gate_mesh *mesh, struct mesh_query *query)
{
    answer(mesh, query, &query->reply);
    query_free(mesh, query);
}

static void answer_rows(struct gate_mesh *mesh, const struct mesh_query *query)
{
    struct hvi_admin_reply reply = {.status = HVI_OK};

    gate_mesh_rows(mesh->gate, &reply);
    answer(mesh, query, &reply);
    hvi_admin_reply_free(&reply);
}

/* ---- asking hvdd here ---- */

static void ask_here(struct gate_mesh *mesh, const struct mesh_query *query)
{
    const struct hvi_admin_request request = {
        .protocol_version = HVI_PROTOCOL_VERSION, .request = 1, .kind = HVI_ADMIN_JOBS};
    struct hvi_gate_msg msg = {.kind = HVI_GATE_ASK};

    msg.ask.ticket = query->ticket | TICKET;
    msg.ask.uid = NO_USER;
    if (hvi_admin_request_encode(&request, &msg.ask.request, &msg.ask.request_bytes) != HVI_OK)
        return; /* its time runs out */
    gate_link_send(mesh->gate, &msg);
    free(msg.ask.request);
}

/* ---- gathering ---- */

static void add_jobs(struct hvi_admin_reply *reply, const struct hvi_admin_reply *from,
                     const char *node)
{
    size_t room = HVI_WIRE_ROWS_MAX - reply->job_count;
    size_t count = from->job_count < room ? from->job_count : room;
    struct hvi_job_row *rows =
        count > 0 ? realloc(reply->jobs, (reply->job_count + count) * sizeof(*rows)) : NULL;

    if (rows == NULL)
        count = 0;
    else
        reply->jobs = rows;
    for (size_t i = 0; i < count; i++) {
        struct hvi_job_row *row = &rows[reply->job_count++];
        *row = from->jobs[i];
        snprintf(row->node, sizeof(row->node), "%s", node);
    }
    reply->rows_left_out += from->rows_left_out + from->job_count - count;
}

/* Adds a sentence about a node; where the text is full, nothing. */
static void note(struct hvi_admin_reply *reply, const char *node, const char *why)
{
    const size_t used = strlen(reply->text);

    if (used + HVI_WIRE_NODE_NAME + 64 < sizeof(reply->text))
        snprintf(reply->text + used, sizeof(reply->text) - used, "%snode %s %s",
                 used > 0 ? "; " : "", node, why);
}

static void take_part(struct mesh_query *query, const struct hvi_mesh_reply *part, const char *node)
{
    struct hvi_admin_reply reply;

    if (part->more) {
        note(&query->reply, node, "has more jobs than fit into a message");
    } else if (hvi_admin_reply_decode(part->part, part->part_bytes, &reply, NULL, 0) != HVI_OK) {
        note(&query->reply, node, "gave an answer that cannot be read");
    } else {
        if (reply.status != HVI_OK)
            note(&query->reply, node, "cannot answer now");
        add_jobs(&query->reply, &reply, node);
        hvi_admin_reply_free(&reply);
    }
}

static void finish_if_all(struct gate_mesh *mesh, struct mesh_query *query)
{
    if (!query->waits_here && query->wait_count == 0)
        finish(mesh, query);
}

/* False: it was not waited for. */
static bool strike(struct mesh_query *query, uint64_t node)
{
    for (size_t i = 0; i < query->wait_count; i++) {
        if (query->waits[i] != node)
            continue;
        query->waits[i] = query->waits[--query->wait_count];
        return true;
    }
    return false;
}

/* Asks all nodes; answers at once where the question is which there are. */
static void gather(struct gate_mesh *mesh, struct mesh_query *query)
{
    const struct hvi_mesh_question question = {.ticket = query->ticket, .what = HVI_ADMIN_JOBS};

    if (query->what == HVI_ADMIN_NODES) {
        answer_rows(mesh, query);
        query_free(mesh, query);
        return;
    }
    query->waits_here = true;
    ask_here(mesh, query);
    if (mesh->listens)
        (void)mesh_listen_ask(mesh, &question, &query->waits, &query->wait_count);
}

/* ---- questions ---- */

/* Every node is asked for its jobs, outside its users' measures. */
static bool is_too_often(struct gate_mesh *mesh, uint32_t what)
{
    return what == HVI_ADMIN_JOBS &&
           hvi_rate_take(&mesh->asked_paid_ns, hvi_clock_ns(), GATHERS_EACH_NS, GATHERS_BURST) > 0;
}

void mesh_query_take(struct gate_mesh *mesh, struct mesh_seed *seed, uint64_t node,
                     const struct hvi_mesh_question *question)
{
    struct mesh_query *query;

    if (question->what != HVI_ADMIN_JOBS && (seed != NULL || question->what != HVI_ADMIN_NODES))
        return; /* a newer one's: its time runs out */
    if (seed == NULL && is_too_often(mesh, question->what))
        return; /* as well: its gate has a measure of its own */
    query = query_new(mesh, seed != NULL ? FETCHES : GATHERS, GATHER_NS);
    if (query == NULL)
        return;
    query->their_ticket = question->ticket;
    query->request = question->request;
    query->what = question->what;
    query->seed = seed;
    query->node = node;
    if (seed != NULL)
        ask_here(mesh, query);
    else
        gather(mesh, query);
}

static void pass(struct mesh_query *query, struct mesh_seed *seed)
{
    struct hvi_mesh_msg msg = {
        .kind = HVI_MESH_QUESTION,
        .question = {.ticket = query->ticket, .request = query->request, .what = query->what}};

    query->kind = PASSED;
    query->end_ns = hvi_deadline_after(PASS_NS);
    query->seed = seed;
    mesh_join_say(seed, &msg);
}

int gate_mesh_ask(struct gate *gate, uint64_t connection, uint64_t request, uint32_t what)
{
    struct gate_mesh *mesh = gate->mesh;
    struct mesh_query *query;
    struct mesh_seed *seed = mesh_join_seed(mesh);

    if (!mesh->open)
        return HVI_ERR_UNSUPPORTED;
    query = is_too_often(mesh, what) ? NULL : query_new(mesh, GATHERS, GATHER_NS);
    if (query == NULL)
        return HVI_ERR_LIMIT;
    query->connection = connection;
    query->request = request;
    query->what = what;
    if (seed != NULL && !seed->here) {
        pass(query, seed);
        return HVI_OK;
    }
    if (seed == NULL && mesh->seed_count > 0 && what == HVI_ADMIN_JOBS)
        snprintf(query->reply.text, sizeof(query->reply.text),
                 "no seed of the mesh can be reached, so these are the jobs of node %s alone",
                 mesh->name);
    gather(mesh, query);
    return HVI_OK;
}

/* ---- what comes back ---- */

void mesh_query_reply(struct gate_mesh *mesh, const struct mesh_seed *seed, uint64_t node,
                      struct hvi_mesh_reply *reply)
{
    struct mesh_query *query = query_find(mesh, seed != NULL ? PASSED : GATHERS, reply->ticket);

    if (query == NULL || query->seed != seed)
        return; /* too late */
    if (seed == NULL) {
        if (strike(query, node))
            take_part(query, reply, mesh_listen_name(mesh, node));
        finish_if_all(mesh, query);
        return;
    }
    struct hvi_gate_reply part = {.ticket = query->connection,
                                  .part = reply->part,
                                  .part_bytes = reply->part_bytes,
                                  .more = reply->more};
    if (!reply->more)
        query_free(mesh, query);
    gate_admin_answer(mesh->gate, &part);
}

bool gate_mesh_answer(struct gate *gate, struct hvi_gate_reply *reply)
{
    struct gate_mesh *mesh = gate->mesh;
    const uint64_t ticket = reply->ticket & ~TICKET;
    const struct hvi_mesh_reply part = {
        .part = reply->part, .part_bytes = reply->part_bytes, .more = reply->more};
    struct mesh_query *query;

    if (mesh == NULL || (reply->ticket & TICKET) == 0)
        return false;
    query = query_find(mesh, FETCHES, ticket);
    if (query != NULL) {
        say_part(mesh, query, part.part, part.part_bytes, part.more);
        query_free(mesh, query); /* of a long answer the rest is left out */
        return true;
    }
    query = query_find(mesh, GATHERS, ticket);
    if (query != NULL && query->waits_here) {
        query->waits_here = false;
        take_part(query, &part, mesh->name);
        finish_if_all(mesh, query);
    }
    return true;
}

void mesh_query_gone(struct gate_mesh *mesh, uint64_t node)
{
    struct mesh_query *query, *spare;

    DL_FOREACH_SAFE(mesh->queries, query, spare)
    {
        if (query->kind == GATHERS && strike(query, node))
            finish_if_all(mesh, query);
    }
}

/* ---- time ---- */

/* What is there is told, with what is missing. */
static void end_late(struct gate_mesh *mesh, struct mesh_query *query)
{
    char why[HVI_TEXT_MAX + 1];

    if (query->kind == FETCHES) {
        query_free(mesh, query);
        return;
    }
    if (query->kind == PASSED) {
        snprintf(why, sizeof(why),
                 "node %.200s, the first seed of the mesh, did not answer within 2 s",
                 query->seed->name[0] != '\0' ? query->seed->name : query->seed->endpoint);
        if (query->what == HVI_ADMIN_NODES)
            gate_mesh_rows(mesh->gate, &query->reply);
        else
            query->reply.status = HVI_ERR_ATTACH_TIMEOUT;
        snprintf(query->reply.text, sizeof(query->reply.text), "%s", why);
    } else {
        for (size_t i = 0; i < query->wait_count; i++)
            note(&query->reply, mesh_listen_name(mesh, query->waits[i]),
                 "did not answer within a second");
        if (query->waits_here)
            note(&query->reply, mesh->name, "did not answer within a second");
    }
    finish(mesh, query);
}

void mesh_query_tick(struct gate_mesh *mesh, uint64_t now_ns)
{
    struct mesh_query *query, *spare;

    DL_FOREACH_SAFE(mesh->queries, query, spare)
    {
        if (now_ns >= query->end_ns)
            end_late(mesh, query);
    }
}

/* Connections that wait are told what is known. */
void mesh_query_close(struct gate_mesh *mesh)
{
    while (mesh->queries != NULL) {
        if (mesh->queries->connection != 0 && mesh->gate->admin != NULL)
            finish(mesh, mesh->queries);
        else
            query_free(mesh, mesh->queries);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 * The side of the mesh that joins: it tells the rendezvous what hvdd's engines register, until it has an
 * answer, and everything again when the rendezvous has begun anew. Where the rendezvous cannot be
 * reached, the engines get an error a little after the start timeout. */
#include "daemon/gate/mesh.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#define GRACE_NS (5 * HVI_NS_SEC) /* for the answer of a rendezvous whose own time is over */
/* hvdds that serve one job end together, some a moment before others. */
#define UNSAID_NS (2 * HVI_NS_SEC)

struct mesh_own {
    struct mesh_own *prev, *next;
    struct hvi_node_register registered;
    uint64_t since_ns;
    bool answered;
    bool gone; /* before the rendezvous was reached: it is still told why */
    struct hvi_node_withdraw withdrawn;
};

/* ---- saying ---- */

static void transmit(void *user, struct hvi_mesh_msg *msg)
{
    mesh_send(user, "", msg);
}

/* It is the first of all. */
static bool has_said_hello(const struct gate_mesh *mesh)
{
    return mesh->talk.said > 0;
}

static void flush(struct gate_mesh *mesh)
{
    if (!has_said_hello(mesh))
        return;
    gate_talk_flush(&mesh->talk, hvi_clock_ns(), transmit, mesh);
}

static void say(struct gate_mesh *mesh, struct hvi_mesh_msg *msg)
{
    if (gate_talk_say(&mesh->talk, msg) != HVI_OK)
        mesh_log_refused(mesh, "the rendezvous confirms nothing of what it is told", mesh->address);
}

static void say_hello(struct gate_mesh *mesh)
{
    struct hvi_mesh_msg msg = {.kind = HVI_MESH_HELLO};

    snprintf(msg.hello.name, sizeof(msg.hello.name), "%s", mesh->gate->start.name);
    snprintf(msg.hello.announced, sizeof(msg.hello.announced), "%s", mesh->announced);
    snprintf(msg.hello.dialed, sizeof(msg.hello.dialed), "%s", mesh->address);
    say(mesh, &msg);
}

static void say_registered(struct gate_mesh *mesh, const struct hvi_node_register *registered)
{
    struct hvi_mesh_msg msg = {.kind = HVI_MESH_NODE_REGISTER, .node_register = *registered};

    msg.node_register.node = malloc(registered->node_bytes);
    if (msg.node_register.node == NULL)
        return; /* its time runs out */
    memcpy(msg.node_register.node, registered->node, registered->node_bytes);
    say(mesh, &msg);
}

static void say_withdrawn(struct gate_mesh *mesh, const struct hvi_node_withdraw *withdrawn)
{
    struct hvi_mesh_msg msg = {.kind = HVI_MESH_NODE_WITHDRAW, .node_withdraw = *withdrawn};

    say(mesh, &msg);
}

static void own_free(struct gate_mesh *mesh, struct mesh_own *own)
{
    DL_DELETE(mesh->own, own);
    free(own->registered.node);
    free(own);
}

static void say_everything(struct gate_mesh *mesh)
{
    struct mesh_own *own, *spare;

    say_hello(mesh);
    DL_FOREACH_SAFE(mesh->own, own, spare)
    {
        if (!own->answered)
            say_registered(mesh, &own->registered);
        if (!own->gone)
            continue;
        say_withdrawn(mesh, &own->withdrawn);
        own_free(mesh, own);
    }
    if (mesh->ended != NULL)
        say_withdrawn(mesh, mesh->ended);
}

/* ---- what hvdd's engines register ---- */

/* A job id is one user's on a node. NULL: not there. */
static struct mesh_own *own_find(const struct gate_mesh *mesh, const char *job,
                                 uint64_t registration)
{
    struct mesh_own *own;

    DL_FOREACH(mesh->own, own)
    {
        if (own->registered.registration == registration && strcmp(own->registered.job, job) == 0)
            return own;
    }
    return NULL;
}

void mesh_join_register(struct gate_mesh *mesh, struct hvi_node_register *registered)
{
    struct mesh_own *own, *spare;

    DL_FOREACH_SAFE(mesh->own, own, spare)
    {
        if (strcmp(own->registered.job, registered->job) == 0 &&
            (own->gone || own->registered.registration == registered->registration))
            own_free(mesh, own);
    }
    own = calloc(1, sizeof(*own));
    if (own == NULL) {
        mesh_tell_error(mesh, registered, HVI_ERR_DAEMON, "the gate is out of memory");
        return;
    }
    own->registered = *registered;
    own->since_ns = hvi_clock_ns();
    registered->node = NULL;
    registered->node_bytes = 0;
    DL_APPEND(mesh->own, own);
    if (has_said_hello(mesh))
        say_registered(mesh, &own->registered);
    flush(mesh);
}

static void keep_ended(struct gate_mesh *mesh, const struct hvi_node_withdraw *ended)
{
    if (mesh->ended == NULL)
        mesh->ended = malloc(sizeof(*mesh->ended));
    if (mesh->ended != NULL)
        *mesh->ended = *ended;
}

void mesh_join_withdraw(struct gate_mesh *mesh, const struct hvi_node_withdraw *withdrawn)
{
    struct mesh_own *own = own_find(mesh, withdrawn->job, withdrawn->registration);

    if (withdrawn->rank >= 0)
        keep_ended(mesh, withdrawn);
    if (own != NULL && withdrawn->status != HVI_OK && !has_said_hello(mesh)) {
        own->gone = true;
        own->withdrawn = *withdrawn;
        return;
    }
    if (own != NULL)
        own_free(mesh, own);
    if (has_said_hello(mesh))
        say_withdrawn(mesh, withdrawn);
    flush(mesh);
}

static void answer_all(struct gate_mesh *mesh, int status, const char *text)
{
    struct mesh_own *own;

    DL_FOREACH(mesh->own, own)
    {
        if (own->answered)
            continue;
        own->answered = true;
        mesh_tell_error(mesh, &own->registered, status, text);
    }
}

/* ---- messages ---- */

static void say_failure(struct gate_mesh *mesh)
{
    mesh->unsaid_ns = 0;
    HVI_LOG(HVI_LOG_WARN, "mesh", "mesh-not-joined",
            "this node cannot talk with the rendezvous of the mesh", "address=%s error=\"%s\"",
            mesh->gate->start.mesh_join, mesh->failure);
}

static void note_failure(struct gate_mesh *mesh, const char *text, bool known)
{
    if (strcmp(mesh->failure, text) == 0)
        return;
    snprintf(mesh->failure, sizeof(mesh->failure), "%s", text);
    if (known)
        say_failure(mesh);
    else
        mesh->unsaid_ns = hvi_clock_ns() + UNSAID_NS;
}

static void handle_roster(struct gate_mesh *mesh, const struct hvi_node_roster *roster)
{
    struct mesh_own *own = own_find(mesh, roster->job, roster->registration);

    if (own == NULL)
        return;
    own->answered = true;
    mesh_tell_roster(mesh, roster); /* hvdd tells the same again from news */
}

static void tell_joined(struct gate_mesh *mesh)
{
    struct hvi_gate_msg msg = {.kind = HVI_GATE_STATE, .state = {.joined = true}};

    HVI_LOG(HVI_LOG_INFO, "mesh", "mesh-joined", "this node has joined the mesh",
            "rendezvous=%s address=%s announced=%s", mesh->gate->start.mesh_join, mesh->address,
            mesh->announced);
    gate_link_send(mesh->gate, &msg);
}

static void take(struct gate_mesh *mesh, const struct hvi_mesh_msg *msg)
{
    char text[HVI_TEXT_MAX + 1];
    unsigned news;

    if (msg->status != HVI_OK ||
        !mesh_speaks(mesh, msg, mesh->gate->start.mesh_join, text, sizeof(text))) {
        const char *why = msg->status != HVI_OK ? msg->text : text;
        note_failure(mesh, why, true);
        answer_all(mesh, HVI_ERR_VERSION, why);
        return;
    }
    if (mesh->heard_ns == 0 || mesh->failure[0] != '\0')
        tell_joined(mesh);
    mesh->heard_ns = hvi_clock_ns();
    mesh->failure[0] = '\0';
    mesh->unsaid_ns = 0;
    news = gate_talk_take(&mesh->talk, msg, mesh_random());
    if ((news & GATE_TALK_ANEW) != 0)
        say_everything(mesh);
    if ((news & GATE_TALK_BODY) != 0 && msg->kind == HVI_MESH_NODE_ROSTER)
        handle_roster(mesh, &msg->node_roster);
    flush(mesh);
}

static void received(void *user, const struct gate_sender *from, const unsigned char *bytes,
                     size_t length)
{
    struct gate_mesh *mesh = user;
    struct hvi_mesh_msg msg;

    (void)from;
    if (hvi_mesh_msg_decode(bytes, length, &msg, NULL, 0) != HVI_OK) {
        mesh_log_refused(mesh, "a message of the mesh cannot be read", mesh->address);
        return;
    }
    take(mesh, &msg);
    hvi_mesh_msg_free(&msg);
}

/* The hello tells where the listener was found, so it waits for the first connection. */
static void connected(void *user, const char *address)
{
    struct gate_mesh *mesh = user;

    if (address[0] != '\0')
        snprintf(mesh->address, sizeof(mesh->address), "%s", address);
    if (!has_said_hello(mesh))
        say_everything(mesh);
    gate_talk_hurry(&mesh->talk);
    flush(mesh);
}

static void failed(void *user, const char *text, bool known)
{
    struct gate_mesh *mesh = user;

    if (known || mesh->failure[0] == '\0')
        note_failure(mesh, text, known);
}

/* ---- life ---- */

static const struct gate_socket_calls socket_calls = {
    .received = received, .connected = connected, .failed = failed};

int mesh_join_open(struct gate_mesh *mesh, char *text_p, size_t text_size)
{
    char route[GATE_ROUTE_TEXT];
    int status;

    mesh_route(mesh->gate->start.node, route);
    status = gate_socket_join(mesh->gate->event, &mesh->keys, mesh->gate->start.mesh_join, route,
                              &socket_calls, mesh, &mesh->socket, text_p, text_size);
    if (status == HVI_OK)
        gate_talk_init(&mesh->talk, mesh_random(), true);
    return status;
}

static void give_up(struct gate_mesh *mesh, struct mesh_own *own)
{
    char text[HVI_TEXT_MAX + 1];

    snprintf(text, sizeof(text),
             "node %s has no answer about job '%s' from the rendezvous at %s (%s): %.300s",
             mesh->gate->start.name, own->registered.job, mesh->gate->start.mesh_join,
             mesh->address[0] != '\0' ? mesh->address : "never reached",
             mesh->failure[0] != '\0' ? mesh->failure : "it is silent");
    own->answered = true;
    mesh_tell_error(mesh, &own->registered, HVI_ERR_ATTACH_TIMEOUT, text);
}

static void give_up_late(struct gate_mesh *mesh, uint64_t now_ns)
{
    uint64_t timeout_ns = mesh->gate->start.start_timeout_ns;
    struct mesh_own *own, *spare;

    DL_FOREACH_SAFE(mesh->own, own, spare)
    {
        if (now_ns - own->since_ns < timeout_ns + GRACE_NS)
            continue;
        if (own->gone)
            own_free(mesh, own);
        else if (!own->answered && timeout_ns != 0)
            give_up(mesh, own);
    }
}

void mesh_join_tick(struct gate_mesh *mesh, uint64_t now_ns)
{
    flush(mesh);
    if (mesh->unsaid_ns != 0 && now_ns >= mesh->unsaid_ns)
        say_failure(mesh);
    give_up_late(mesh, now_ns);
}

void mesh_join_rows(const struct gate_mesh *mesh, uint64_t now_ns, struct hvi_admin_reply *reply)
{
    const struct mesh_own *own;
    struct hvi_mesh_row *row = mesh_add_row(reply);
    size_t used = 0;

    if (row != NULL) {
        mesh_route(mesh->gate->start.node, row->node);
        snprintf(row->name, sizeof(row->name), "%s", mesh->gate->start.name);
        snprintf(row->address, sizeof(row->address), "%s", mesh->announced);
        snprintf(row->state, sizeof(row->state), "%s",
                 mesh->failure[0] != '\0' ? "apart" : "joins");
        DL_FOREACH(mesh->own, own)
        {
            if (!own->gone && used < sizeof(row->jobs))
                used += (size_t)snprintf(row->jobs + used, sizeof(row->jobs) - used, "%s%s",
                                         used > 0 ? ", " : "", own->registered.job);
        }
    }
    snprintf(reply->text, sizeof(reply->text), "%s", mesh->failure);
    row = mesh_add_row(reply);
    if (row == NULL)
        return;
    snprintf(row->name, sizeof(row->name), "%.63s", mesh->gate->start.mesh_join);
    snprintf(row->address, sizeof(row->address), "%s", mesh->address);
    snprintf(row->state, sizeof(row->state), "%s", mesh->heard_ns != 0 ? "listens" : "unreached");
    row->heard_ns = mesh->heard_ns != 0 ? now_ns - mesh->heard_ns : 0;
}

void mesh_join_close(struct gate_mesh *mesh)
{
    gate_talk_fini(&mesh->talk);
    while (mesh->own != NULL)
        own_free(mesh, mesh->own);
    free(mesh->ended);
}

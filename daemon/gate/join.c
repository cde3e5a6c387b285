/* SPDX-License-Identifier: Apache-2.0
 * The side of the mesh that joins: it tells a rendezvous what hvdd's engines register, until it has an
 * answer, and everything again when that rendezvous has begun anew. Where none can be
 * reached, the engines get an error a little after the start timeout.
 *
 * With mesh-seeds there are several, which may come and go. All nodes have the same list, and a job meets at the first seed of
 * it that is up: one that has said something in the last two seconds, or this node itself. What has no answer yet goes from
 * one to the other:
 *
 *   nowhere --a seed is up--> registered there --answered--> for good
 *      ^                        |            |
 *      |                        |            +--another is the first now: taken back; confirmed, or it is down--> registered at that
 *      +------------------------+
 *
 * The old rendezvous confirms before the new one is told, so no job meets at both. A seed that speaks another version of the mesh is
 * not up for this node: where no other seed is, what is nowhere yet is refused: at once if all seeds have said so,
 * else two seconds after it was registered, for another seed may be about to be heard.
 *
 * While the mesh is not open there is no seed, and all is nowhere. A gate that listens alone hands it to its rendezvous when it is. */
#include "daemon/gate/mesh.h"

#include "base/interface.h"
#include "base/place.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#define GRACE_NS (5 * HVI_NS_SEC) /* for the answer of a rendezvous whose own time is over */
#define SHUT_NS  (5 * HVI_NS_SEC) /* a mesh that is not open is tried ten times meanwhile */
/* hvdds that serve one job end together, some a moment before others. */
#define UNSAID_NS (2 * HVI_NS_SEC)
#define UP_NS     (2 * HVI_NS_SEC) /* signs of life come each 500 ms */
#define LOST_MAX  1024u            /* losses that no rendezvous has confirmed yet */

struct mesh_own {
    struct mesh_own *prev, *next;
    struct hvi_node_register registered;
    uint64_t since_ns, timeout_ns; /* 0: it waits for ever */
    struct mesh_seed *at;          /* where it is registered; NULL: nowhere yet */
    uint64_t leaving;              /* number of the message there that takes it back; 0: none */
    bool answered;
    /* The rendezvous is told why, and another one or the same anew, until it has confirmed that. Of a node that was never
     * complete nothing is registered. */
    bool gone;
    struct hvi_node_withdraw withdrawn;
    uint64_t told; /* number of the message at `at` that says so; 0: none */
};

/* ---- seeds ---- */

static bool is_up(const struct mesh_seed *seed)
{
    return seed->here || (seed->heard_ns != 0 && hvi_clock_ns() - seed->heard_ns < UP_NS);
}

/* Where jobs meet now; of one seed alone it does not matter whether it is up. NULL: nowhere. */
static struct mesh_seed *first_up(struct gate_mesh *mesh)
{
    for (size_t i = 0; i < mesh->seed_count; i++)
        if (mesh->seed_count == 1 || is_up(&mesh->seeds[i]))
            return &mesh->seeds[i];
    return NULL;
}

struct mesh_seed *mesh_join_seed(struct gate_mesh *mesh)
{
    struct mesh_seed *seed = first_up(mesh);

    if (seed == NULL || !is_up(seed) || seed->failure[0] != '\0')
        return NULL;
    return seed;
}

struct gate_hosts *mesh_join_hosts(struct gate_mesh *mesh)
{
    struct mesh_seed *seed = mesh_join_seed(mesh);

    return seed != NULL ? &seed->hosts : NULL;
}

/* ---- saying ---- */

static void transmit(void *user, struct hvi_mesh_msg *msg)
{
    struct mesh_seed *seed = user;

    mesh_send(seed->mesh, seed->socket, "", msg);
}

/* It is the first of all. */
static bool has_said_hello(const struct mesh_seed *seed)
{
    return seed->talk.said > 0;
}

static void flush(struct mesh_seed *seed)
{
    if (seed->socket != NULL && has_said_hello(seed))
        gate_talk_flush(&seed->talk, hvi_clock_ns(), transmit, seed);
}

static bool say(struct mesh_seed *seed, struct hvi_mesh_msg *msg)
{
    if (gate_talk_say(&seed->talk, msg) == HVI_OK)
        return true;
    mesh_log_refused(seed->mesh, "the rendezvous confirms nothing of what it is told",
                     seed->address);
    return false;
}

/* What the rendezvous has to know sooner or later. */
static void say_surely(struct mesh_seed *seed, struct hvi_mesh_msg *msg)
{
    if (!say(seed, msg))
        seed->behind = true;
}

/* That it has confirmed the message of that number, and nothing was left out before it. */
static bool has_heard(const struct mesh_seed *seed, uint64_t number)
{
    return !seed->behind && gate_talk_has_heard(&seed->talk, number);
}

void mesh_join_say(struct mesh_seed *seed, struct hvi_mesh_msg *msg)
{
    if (!has_said_hello(seed)) { /* its connection has just been given up */
        hvi_mesh_msg_free(msg);
        return;
    }
    (void)say(seed, msg);
    flush(seed);
}

static void say_hello(struct mesh_seed *seed)
{
    const struct gate_mesh *mesh = seed->mesh;
    struct hvi_mesh_msg msg = {.kind = HVI_MESH_HELLO};

    snprintf(msg.hello.name, sizeof(msg.hello.name), "%s", mesh->gate->start.name);
    snprintf(msg.hello.announced, sizeof(msg.hello.announced), "%s", mesh->announced);
    snprintf(msg.hello.dialed, sizeof(msg.hello.dialed), "%s", seed->address);
    snprintf(msg.hello.version, sizeof(msg.hello.version), "%s", HVD_VERSION_TEXT);
    say_surely(seed, &msg);
}

static void say_registered(struct mesh_seed *seed, const struct hvi_node_register *registered)
{
    struct hvi_mesh_msg msg = {.kind = HVI_MESH_NODE_REGISTER, .node_register = *registered};

    msg.node_register.node = malloc(registered->node_bytes);
    if (msg.node_register.node == NULL)
        return; /* its time runs out */
    memcpy(msg.node_register.node, registered->node, registered->node_bytes);
    say_surely(seed, &msg);
}

static void say_withdrawn(struct mesh_seed *seed, const struct hvi_node_withdraw *withdrawn)
{
    struct hvi_mesh_msg msg = {.kind = HVI_MESH_NODE_WITHDRAW, .node_withdraw = *withdrawn};

    if (seed->here)
        mesh_listen_withdraw(seed->mesh, withdrawn);
    else if (has_said_hello(seed))
        say_surely(seed, &msg);
}

static void own_free(struct gate_mesh *mesh, struct mesh_own *own)
{
    DL_DELETE(mesh->own, own);
    free(own->registered.node);
    free(own);
}

/* May free it. */
static void tell_gone(struct mesh_seed *seed, struct mesh_own *own)
{
    say_withdrawn(seed, &own->withdrawn);
    own->told = seed->talk.said;
    if (seed->here)
        own_free(seed->mesh, own);
}

static bool is_told(const struct mesh_own *own)
{
    return own->told != 0 && has_said_hello(own->at) && has_heard(own->at, own->told);
}

/* What is registered at that seed, which may answer at once where it is here, and then may free it. */
static void say_own(struct mesh_seed *seed, struct mesh_own *own)
{
    const bool registers = !own->answered && own->registered.node != NULL;

    own->leaving = own->told = 0;
    if (!seed->here && !has_said_hello(seed))
        return; /* everything is said then */
    if (registers && seed->here)
        mesh_listen_register(seed->mesh, &own->registered);
    else if (registers)
        say_registered(seed, &own->registered);
    if (own->gone)
        tell_gone(seed, own);
}

static void say_everything(struct mesh_seed *seed)
{
    struct gate_mesh *mesh = seed->mesh;
    struct mesh_own *own, *spare;

    say_hello(seed);
    DL_FOREACH_SAFE(mesh->own, own, spare)
    {
        if (own->at == seed)
            say_own(seed, own);
    }
    if (mesh->ended != NULL)
        say_withdrawn(seed, mesh->ended);
}

/* It hears by the new number of the conversation that this node begins anew. */
static void begin_anew(struct mesh_seed *seed)
{
    gate_talk_fini(&seed->talk);
    gate_talk_init(&seed->talk, mesh_random(), true);
    gate_hosts_begin(&seed->hosts, hvi_clock_ns());
    say_everything(seed);
    seed->behind = false; /* what does not fit even now runs into its time */
}

/* ---- from one seed to another ---- */

/* True: nobody meets it there any more. A seed that is down hears it when it is back. */
static bool leave(struct mesh_own *own)
{
    struct hvi_node_withdraw back = {
        .uid = own->registered.uid, .registration = own->registered.registration, .rank = -1};
    struct mesh_seed *seed = own->at;

    if (own->leaving == 0) {
        snprintf(back.job, sizeof(back.job), "%s", own->registered.job);
        say_withdrawn(seed, &back);
        own->leaving = seed->talk.said;
    }
    return seed->here || !is_up(seed) || has_heard(seed, own->leaving);
}

/* In the last two seconds it has said that its version is another one. */
static bool has_refused(const struct mesh_seed *seed, uint64_t now_ns)
{
    return seed->refused_ns != 0 && now_ns - seed->refused_ns < UP_NS;
}

/* No seed can be spoken with, and one is there that speaks another version. Others may be heard in a moment. */
static void refuse_version(struct gate_mesh *mesh, struct mesh_own *own)
{
    const struct mesh_seed *first = NULL;
    const uint64_t now_ns = hvi_clock_ns();
    size_t count = 0;

    for (size_t i = 0; i < mesh->seed_count; i++) {
        const struct mesh_seed *seed = &mesh->seeds[i];
        if (!has_refused(seed, now_ns))
            continue;
        first = first != NULL ? first : seed;
        count++;
    }
    if (own->answered || own->at != NULL || own->gone || first == NULL ||
        (count < mesh->seed_count && now_ns - own->since_ns < UP_NS))
        return;
    own->answered = true;
    mesh_tell_error(mesh, &own->registered, HVI_ERR_VERSION, first->failure);
}

/* May free it. */
static void place(struct gate_mesh *mesh, struct mesh_own *own)
{
    struct mesh_seed *best = first_up(mesh);

    const bool is_back = own->at == best && own->leaving != 0; /* before it had left */

    if (is_told(own)) {
        own_free(mesh, own);
        return;
    }
    if (best == NULL)
        refuse_version(mesh, own);
    if (best == NULL || own->answered || (own->at == best && !is_back))
        return;
    if (own->at != NULL && !is_back && !leave(own))
        return;
    own->at = best;
    say_own(best, own);
}

static void place_all(struct gate_mesh *mesh)
{
    struct mesh_own *own, *spare;

    DL_FOREACH_SAFE(mesh->own, own, spare)
    {
        place(mesh, own);
    }
}

/* ---- what hvdd's engines register ---- */

/* A job id is one user's on a node. NULL: not there. */
static struct mesh_own *own_find(const struct gate_mesh *mesh, const char *job,
                                 uint64_t registration)
{
    struct mesh_own *own;

    DL_FOREACH(mesh->own, own)
    {
        if (!own->gone && own->registered.registration == registration &&
            strcmp(own->registered.job, job) == 0)
            return own;
    }
    return NULL;
}

static void flush_all(struct gate_mesh *mesh)
{
    for (size_t i = 0; i < mesh->seed_count; i++)
        flush(&mesh->seeds[i]);
}

/* As the ranks say, else as this hvdd does. */
static uint64_t timeout_of(const struct gate_mesh *mesh, const struct hvi_node_register *registered)
{
    uint64_t timeout_ns = mesh->gate->start.start_timeout_ns;
    struct hvi_packet_msg msg;

    if (hvi_packet_msg_decode(registered->node, registered->node_bytes, &msg, NULL, 0) != HVI_OK)
        return timeout_ns;
    if (msg.kind == HVI_PACKET_ENGINE_NODE && msg.engine_node.start_timeout_ns != 0)
        timeout_ns = msg.engine_node.start_timeout_ns;
    hvi_packet_msg_free(&msg);
    return timeout_ns;
}

void mesh_join_register(struct gate_mesh *mesh, struct hvi_node_register *registered)
{
    struct mesh_own *own, *spare;

    DL_FOREACH_SAFE(mesh->own, own, spare)
    {
        if (strcmp(own->registered.job, registered->job) == 0 &&
            own->registered.uid == registered->uid &&
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
    own->timeout_ns = timeout_of(mesh, registered);
    registered->node = NULL;
    registered->node_bytes = 0;
    DL_APPEND(mesh->own, own);
    place(mesh, own);
    flush_all(mesh);
}

static void keep_ended(struct gate_mesh *mesh, const struct hvi_node_withdraw *ended)
{
    if (mesh->ended == NULL)
        mesh->ended = malloc(sizeof(*mesh->ended));
    if (mesh->ended != NULL)
        *mesh->ended = *ended;
}

/* NULL: it is not known. */
static struct mesh_own *own_withdrawn(const struct gate_mesh *mesh,
                                      const struct hvi_node_withdraw *withdrawn)
{
    struct mesh_own *own;

    DL_FOREACH(mesh->own, own)
    {
        const struct hvi_node_register *said = &own->registered;
        if (said->registration == withdrawn->registration &&
            (said->registration != 0 || said->uid == withdrawn->uid) &&
            strcmp(said->job, withdrawn->job) == 0)
            return own;
    }
    return NULL;
}

/* Of a node that has lost a rank before it was complete; NULL: out of memory, or too many are kept already. */
static struct mesh_own *own_new_lost(struct gate_mesh *mesh,
                                     const struct hvi_node_withdraw *withdrawn)
{
    struct mesh_own *own;
    size_t count = 0;

    DL_FOREACH(mesh->own, own)
    {
        count += own->gone ? 1 : 0;
    }
    own = count < LOST_MAX ? calloc(1, sizeof(*own)) : NULL;
    if (own == NULL)
        return NULL; /* those that wait for it have their time run out */
    snprintf(own->registered.job, sizeof(own->registered.job), "%s", withdrawn->job);
    own->registered.uid = withdrawn->uid;
    own->since_ns = hvi_clock_ns();
    own->timeout_ns = mesh->gate->start.start_timeout_ns;
    DL_APPEND(mesh->own, own);
    return own;
}

/* A job begins anew: what was lost before is none of its losses. */
static void forget_gone(struct gate_mesh *mesh, const struct hvi_node_withdraw *of)
{
    struct mesh_own *own, *spare;

    DL_FOREACH_SAFE(mesh->own, own, spare)
    {
        if (own->gone && own->registered.uid == of->uid &&
            strcmp(own->registered.job, of->job) == 0)
            own_free(mesh, own);
    }
}

/* May free it. */
static void lose(struct gate_mesh *mesh, struct mesh_own *own,
                 const struct hvi_node_withdraw *withdrawn)
{
    struct mesh_seed *seed = own->at;

    own->gone = true;
    own->withdrawn = *withdrawn;
    own->since_ns = hvi_clock_ns();
    if (seed == NULL)
        place(mesh, own);
    else if (own->leaving == 0 && (seed->here || has_said_hello(seed)))
        tell_gone(seed, own);
}

void mesh_join_withdraw(struct gate_mesh *mesh, const struct hvi_node_withdraw *withdrawn)
{
    const bool is_rank = withdrawn->rank >= 0; /* which no engine has had */
    struct mesh_own *own;
    struct mesh_seed *seed;

    if (withdrawn->registration == 0 && withdrawn->status == HVI_OK) {
        forget_gone(mesh, withdrawn);
        return;
    }
    own = is_rank ? NULL : own_withdrawn(mesh, withdrawn);
    if (own != NULL && own->gone && withdrawn->status == HVI_OK)
        return; /* its engine has ended for what is still to be told */
    seed = own != NULL ? own->at : first_up(mesh);
    if (is_rank)
        keep_ended(mesh, withdrawn);
    else if (own == NULL && withdrawn->status != HVI_OK)
        own = own_new_lost(mesh, withdrawn);
    if (own != NULL && withdrawn->status != HVI_OK) {
        lose(mesh, own, withdrawn);
    } else {
        if (own != NULL)
            own_free(mesh, own);
        if (seed != NULL)
            say_withdrawn(seed, withdrawn);
    }
    flush_all(mesh);
}

bool mesh_join_orphaned(struct gate_mesh *mesh)
{
    struct hvi_node_withdraw withdrawn = {.rank = -1, .status = HVI_ERR_NODE_LOST};
    struct mesh_own *own, *spare;
    bool any = false;

    DL_FOREACH_SAFE(mesh->own, own, spare)
    {
        if (own->answered)
            continue;
        any = true;
        if (own->gone)
            continue; /* hvdd has said why, and it is not heard yet */
        withdrawn.uid = own->registered.uid;
        withdrawn.registration = own->registered.registration;
        snprintf(withdrawn.job, sizeof(withdrawn.job), "%s", own->registered.job);
        snprintf(withdrawn.text, sizeof(withdrawn.text),
                 "hvdd on %s has ended before the nodes of job '%s' had met, and none takes its "
                 "place",
                 mesh->name, own->registered.job);
        lose(mesh, own, &withdrawn);
    }
    flush_all(mesh);
    return any;
}

bool mesh_join_is_heard(const struct gate_mesh *mesh)
{
    const struct mesh_own *own;

    DL_FOREACH(mesh->own, own)
    {
        if (own->gone && (own->at == NULL || !is_told(own)))
            return false;
    }
    return true;
}

static void answer_all(struct mesh_seed *seed, int status, const char *text)
{
    struct mesh_own *own;

    DL_FOREACH(seed->mesh->own, own)
    {
        if (own->answered || own->gone || own->at != seed)
            continue;
        own->answered = true;
        mesh_tell_error(seed->mesh, &own->registered, status, text);
    }
}

void mesh_join_answered(struct gate_mesh *mesh, const struct hvi_node_roster *roster)
{
    struct mesh_own *own = own_find(mesh, roster->job, roster->registration);

    if (own != NULL)
        own->answered = true;
}

/* ---- messages ---- */

static void say_failure(struct mesh_seed *seed)
{
    seed->unsaid_ns = 0;
    HVI_LOG(HVI_LOG_WARN, "mesh", "mesh-not-joined",
            "this node cannot talk with the rendezvous of the mesh", "address=%s error=\"%s\"",
            seed->endpoint, seed->failure);
}

static void note_failure(struct mesh_seed *seed, const char *text, bool known)
{
    if (strcmp(seed->failure, text) == 0)
        return;
    snprintf(seed->failure, sizeof(seed->failure), "%s", text);
    if (known)
        say_failure(seed);
    else
        seed->unsaid_ns = hvi_clock_ns() + UNSAID_NS;
}

static bool is_roster(const struct hvi_node_roster *roster)
{
    struct hvi_packet_msg msg;
    bool good;

    if (hvi_packet_msg_decode(roster->roster, roster->roster_bytes, &msg, NULL, 0) != HVI_OK)
        return false;
    good = msg.kind == HVI_PACKET_ENGINE_ROSTER;
    hvi_packet_msg_free(&msg);
    return good;
}

/* Of a rendezvous that is wrong, or of another version. hvdd would take it for its gate's own. */
static void refuse_roster(struct mesh_seed *seed, const struct mesh_own *own)
{
    char text[HVI_TEXT_MAX + 1];

    snprintf(text, sizeof(text),
             "the rendezvous of job '%s' at %s has answered with what is no list of nodes; install "
             "the same hvdd on all nodes",
             own->registered.job, seed->endpoint);
    mesh_log_refused(seed->mesh, text, seed->address);
    mesh_tell_error(seed->mesh, &own->registered, HVI_ERR_PROTOCOL, text);
}

static void handle_roster(struct mesh_seed *seed, const struct hvi_node_roster *roster)
{
    struct mesh_own *own = own_find(seed->mesh, roster->job, roster->registration);

    if (own == NULL || own->at != seed)
        return;
    own->answered = true;
    if (!is_roster(roster)) {
        refuse_roster(seed, own);
        return;
    }
    mesh_tell_roster(seed->mesh, roster); /* hvdd tells the same again from news */
}

static void tell_joined(struct mesh_seed *seed)
{
    struct gate_mesh *mesh = seed->mesh;
    struct hvi_gate_msg msg = {.kind = HVI_GATE_STATE,
                               .state = {.port = mesh->port, .joined = true}};

    HVI_LOG(HVI_LOG_INFO, "mesh", "mesh-joined", "this node has joined the mesh",
            "rendezvous=%s address=%s announced=%s", seed->endpoint, seed->address,
            mesh->announced);
    gate_link_send(mesh->gate, &msg);
}

/* A rendezvous need not know where it was found. */
static void handle_hosts(struct mesh_seed *seed, uint64_t from, struct hvi_mesh_hosts *said)
{
    if (said->anew)
        gate_hosts_begin(&seed->hosts, hvi_clock_ns());
    seed->hosts.told = seed->hosts.news = true;
    for (size_t i = 0; i < said->host_count; i++) {
        struct hvi_mesh_host *host = &said->hosts[i];
        if (host->node == seed->mesh->gate->start.node)
            continue;
        if (host->node == from)
            snprintf(seed->called, sizeof(seed->called), "%s", host->name);
        if (host->node == from && host->text[0] == '\0')
            snprintf(host->text, sizeof(host->text), "%s", seed->address);
        if (host->gone)
            gate_hosts_drop(&seed->hosts, host->node, host->text);
        else if (!gate_hosts_put(&seed->hosts, host))
            mesh_log_refused(seed->mesh, "the rendezvous tells of more nodes than there may be",
                             seed->address);
    }
}

static void handle_body(struct mesh_seed *seed, struct hvi_mesh_msg *msg)
{
    if (msg->kind == HVI_MESH_NODE_ROSTER)
        handle_roster(seed, &msg->node_roster);
    else if (msg->kind == HVI_MESH_QUESTION)
        mesh_query_take(seed->mesh, seed, 0, &msg->question);
    else if (msg->kind == HVI_MESH_REPLY)
        mesh_query_reply(seed->mesh, seed, 0, &msg->reply);
    else if (msg->kind == HVI_MESH_HOSTS)
        handle_hosts(seed, msg->node, &msg->hosts);
}

/* What waits there goes to the next seed; where there is no other, it is answered. */
static void note_refusal(struct mesh_seed *seed, const char *why)
{
    struct mesh_own *own;

    seed->refused_ns = hvi_clock_ns();
    note_failure(seed, why, true);
    if (seed->mesh->seed_count == 1) {
        answer_all(seed, HVI_ERR_VERSION, why);
        return;
    }
    seed->heard_ns = 0;
    DL_FOREACH(seed->mesh->own, own)
    {
        if (own->answered || own->at != seed)
            continue;
        (void)leave(own);
        own->at = NULL;
        own->leaving = own->told = 0;
    }
    place_all(seed->mesh);
}

static void take(struct mesh_seed *seed, struct hvi_mesh_msg *msg)
{
    char text[HVI_TEXT_MAX + 1];
    unsigned news;

    if (msg->status != HVI_OK ||
        !mesh_speaks(seed->mesh, msg, seed->endpoint, text, sizeof(text))) {
        note_refusal(seed, msg->status != HVI_OK ? msg->text : text);
        return;
    }
    if (seed->heard_ns == 0 || seed->failure[0] != '\0')
        tell_joined(seed);
    if (!is_up(seed))
        seed->hosts.since_ns = hvi_clock_ns();
    seed->heard_ns = hvi_clock_ns();
    seed->others_wait = msg->others_wait;
    seed->company = msg->company;
    seed->failure[0] = '\0';
    seed->unsaid_ns = 0;
    news = gate_talk_take(&seed->talk, msg, mesh_random());
    if ((news & GATE_TALK_ANEW) != 0) {
        gate_hosts_begin(&seed->hosts, hvi_clock_ns());
        seed->behind = false;
        say_everything(seed);
    }
    if ((news & GATE_TALK_BODY) != 0)
        handle_body(seed, msg);
    flush(seed);
}

static void received(void *user, const struct gate_sender *from, const unsigned char *bytes,
                     size_t length)
{
    struct mesh_seed *seed = user;
    struct hvi_mesh_msg msg;

    (void)from;
    if (hvi_mesh_msg_decode(bytes, length, &msg, NULL, 0) != HVI_OK) {
        mesh_log_refused(seed->mesh, "a message of the mesh cannot be read", seed->address);
        return;
    }
    take(seed, &msg);
    hvi_mesh_msg_free(&msg);
}

/* The hello tells where the listener was found, so it waits for the first connection. */
static void connected(void *user, const char *address)
{
    struct mesh_seed *seed = user;

    if (address[0] != '\0')
        snprintf(seed->address, sizeof(seed->address), "%s", address);
    if (!has_said_hello(seed))
        say_everything(seed);
    gate_talk_hurry(&seed->talk);
    flush(seed);
}

static void failed(void *user, const char *text, bool known)
{
    struct mesh_seed *seed = user;

    if (known || seed->failure[0] == '\0')
        note_failure(seed, text, known);
}

/* ---- life ---- */

static const struct gate_socket_calls socket_calls = {
    .received = received, .connected = connected, .failed = failed};

/* One HOST:PORT of `length` bytes. That of mesh-join is looked at when it is connected to. */
static int add_seed(struct gate_mesh *mesh, const char *text, size_t length, char *text_p,
                    size_t text_size)
{
    struct mesh_seed *seed = &mesh->seeds[mesh->seed_count];
    uint32_t port = 0;

    if (mesh->seed_count == MESH_SEEDS_MAX) {
        snprintf(text_p, text_size, "mesh-seeds names more than %u nodes", MESH_SEEDS_MAX);
        return HVI_ERR_INVALID;
    }
    *seed = (struct mesh_seed){.mesh = mesh};
    snprintf(seed->endpoint, sizeof(seed->endpoint), "%.*s", (int)length, text);
    if ((!hvi_place_split(seed->endpoint, seed->name, sizeof(seed->name), &port) || port == 0) &&
        mesh->of_nodes) {
        snprintf(text_p, text_size, "mesh-seeds: \"%s\" is no HOST:PORT", seed->endpoint);
        return HVI_ERR_INVALID;
    }
    mesh->seed_count++;
    return HVI_OK;
}

/* A seed that is this node: it listens at the port of its entry. */
static void set_here(struct gate_mesh *mesh, struct mesh_seed *seed)
{
    const char *wanted = mesh->gate->start.mesh_listen, *port = strrchr(seed->endpoint, ':');
    const char *key = gate_keys_of(&mesh->keys, seed->name);

    seed->here = key != NULL && strcmp(key, mesh->keys.server) == 0;
    if (!seed->here)
        return;
    mesh->listens = true;
    if (wanted[0] != '\0')
        snprintf(mesh->endpoint, sizeof(mesh->endpoint), "%s", wanted);
    else
        snprintf(mesh->endpoint, sizeof(mesh->endpoint), "*%.32s", port);
}

int mesh_join_seeds(struct gate_mesh *mesh, char *text_p, size_t text_size)
{
    const struct hvi_gate_start *start = &mesh->gate->start;
    const char *at = mesh->of_nodes ? start->mesh_seeds : start->mesh_join;
    int status = HVI_OK;

    mesh->seed_count = 0;
    if (mesh->of_nodes)
        mesh->listens = false;
    while (status == HVI_OK && *at != '\0') {
        size_t length = strcspn(at, mesh->of_nodes ? ", " : "");
        if (length > 0)
            status = add_seed(mesh, at, length, text_p, text_size);
        at += length + (at[length] != '\0');
    }
    for (size_t i = 0; mesh->of_nodes && i < mesh->seed_count; i++)
        set_here(mesh, &mesh->seeds[i]);
    if (status == HVI_OK && mesh->of_nodes && mesh->seed_count == 0) {
        snprintf(text_p, text_size, "mesh-seeds names no node");
        status = HVI_ERR_INVALID;
    }
    return status;
}

static int open_seed(struct mesh_seed *seed, const struct gate_keys *keys, char *text_p,
                     size_t text_size)
{
    struct gate_mesh *mesh = seed->mesh;
    char route[GATE_ROUTE_TEXT];
    int status;

    mesh_route(mesh->gate->start.node, route);
    status = gate_socket_join(mesh->gate->event, keys, seed->endpoint, route, &socket_calls, seed,
                              &seed->socket, text_p, text_size);
    if (status == HVI_OK)
        gate_talk_init(&seed->talk, mesh_random(), true);
    return status;
}

/* Of mesh-seeds: as soon as its key is known. */
static void try_seed(struct mesh_seed *seed)
{
    const struct gate_keys *keys = &seed->mesh->keys;
    const char *key = gate_keys_of(keys, seed->name);
    char text[HVI_TEXT_MAX + 1];

    if (key == NULL) {
        snprintf(text, sizeof(text),
                 "the allow-list has no key of %s; say here: hvdctl key allow %s KEY, with the KEY "
                 "that `hvdctl key show` prints there",
                 seed->name, seed->name);
        note_failure(seed, text, true);
        return;
    }
    seed->keys = (struct gate_keys){.of_node = true};
    memcpy(seed->keys.server, key, sizeof(seed->keys.server));
    memcpy(seed->keys.secret, keys->secret, sizeof(seed->keys.secret));
    if (open_seed(seed, &seed->keys, text, sizeof(text)) == HVI_OK)
        return;
    note_failure(seed, text, true);
    seed->keys.server[0] = '\0'; /* mesh_join_allowed tries again */
}

/* This gate listens alone. What was registered before it did goes to its rendezvous. */
static void hand_over(struct gate_mesh *mesh)
{
    while (mesh->own != NULL) {
        struct mesh_own *own = mesh->own;
        if (!own->answered && own->registered.node != NULL)
            mesh_listen_register(mesh, &own->registered);
        if (own->gone)
            mesh_listen_withdraw(mesh, &own->withdrawn);
        own_free(mesh, own);
    }
    if (mesh->ended != NULL)
        mesh_listen_withdraw(mesh, mesh->ended);
}

int mesh_join_open(struct gate_mesh *mesh, char *text_p, size_t text_size)
{
    if (mesh->seed_count == 0)
        hand_over(mesh);
    if (!mesh->of_nodes)
        return mesh->seed_count == 0 ? HVI_OK
                                     : open_seed(&mesh->seeds[0], &mesh->keys, text_p, text_size);
    for (size_t i = 0; i < mesh->seed_count; i++)
        if (!mesh->seeds[i].here)
            try_seed(&mesh->seeds[i]);
    place_all(mesh);
    return HVI_OK;
}

static void shut_seed(struct mesh_seed *seed)
{
    gate_talk_fini(&seed->talk);
    gate_hosts_fini(&seed->hosts);
    gate_socket_close(seed->socket);
    gate_keys_fini(&seed->keys);
    seed->socket = NULL;
    seed->talk = (struct gate_talk){.own = 0};
    seed->behind = false;
    seed->heard_ns = 0;
}

void mesh_join_allowed(struct gate_mesh *mesh)
{
    for (size_t i = 0; i < mesh->seed_count; i++) {
        struct mesh_seed *seed = &mesh->seeds[i];
        const char *key = gate_keys_of(&mesh->keys, seed->name);
        if (seed->here || strcmp(seed->keys.server, key != NULL ? key : "") == 0)
            continue;
        shut_seed(seed);
        seed->keys.server[0] = '\0';
        try_seed(seed);
    }
}

#define OWN_ROOM (HVI_WIRE_NODE_NAME + HVI_WIRE_NODE_ADDRESS + sizeof(" ()"))

/* "gamma (10.0.0.3)": this node, with its address towards the rendezvous. */
static void name_own(const struct mesh_seed *seed, char text_p[OWN_ROOM])
{
    char address[HVI_WIRE_NODE_ADDRESS];

    hvi_interface_from(seed->address[0] != '\0' ? seed->address : seed->endpoint, address,
                       sizeof(address));
    if (address[0] != '\0')
        snprintf(text_p, OWN_ROOM, "%s (%s)", seed->mesh->name, address);
    else
        snprintf(text_p, OWN_ROOM, "%s", seed->mesh->name);
}

static void say_no_answer(const struct gate_mesh *mesh, const struct mesh_own *own, char *text_p,
                          size_t text_size)
{
    const struct mesh_seed *seed = own->at != NULL ? own->at : &mesh->seeds[0];
    char name[OWN_ROOM];

    name_own(seed, name);
    snprintf(
        text_p, text_size,
        "node %s has no answer about job '%s' from the rendezvous at %s (%s): %.300s; %s names it",
        name, own->registered.job, seed->endpoint,
        seed->address[0] != '\0' ? seed->address : "never reached",
        seed->failure[0] != '\0' ? seed->failure : "it is silent",
        mesh->of_nodes ? "mesh-seeds" : "HVD_RENDEZVOUS or mesh-join");
}

static void give_up(struct gate_mesh *mesh, struct mesh_own *own)
{
    char text[HVI_TEXT_MAX + 1];

    if (mesh->open)
        say_no_answer(mesh, own, text, sizeof(text));
    else
        snprintf(text, sizeof(text),
                 "node %s has not met the others of job '%s', for the mesh could not be opened: "
                 "%.300s",
                 mesh->name, own->registered.job, mesh->failure);
    own->answered = true;
    mesh_tell_error(mesh, &own->registered, HVI_ERR_ATTACH_TIMEOUT, text);
}

/* What waits for a mesh that is not open does so for SHUT_NS. */
static bool is_late(const struct gate_mesh *mesh, const struct mesh_own *own, uint64_t now_ns)
{
    const uint64_t limit_ns = own->timeout_ns + GRACE_NS;
    const uint64_t shut_ns = own->since_ns > mesh->shut_ns ? own->since_ns : mesh->shut_ns;

    if (!mesh->open && !own->gone && now_ns >= shut_ns + SHUT_NS)
        return true;
    return (own->gone || own->timeout_ns != 0) && now_ns >= own->since_ns + limit_ns;
}

static void give_up_late(struct gate_mesh *mesh, uint64_t now_ns)
{
    struct mesh_own *own, *spare;

    DL_FOREACH_SAFE(mesh->own, own, spare)
    {
        if (!is_late(mesh, own, now_ns))
            continue;
        if (own->gone)
            own_free(mesh, own);
        else if (!own->answered)
            give_up(mesh, own);
    }
}

/* The rendezvous has said so last. An older one says it of the node alone. */
static bool has_company(const struct mesh_own *own)
{
    const struct mesh_seed *seed = own->at;

    return seed->heard_ns >= own->since_ns && seed->others_wait &&
           (seed->company == 0 || (seed->company >> own->registered.registration % 64 & 1) != 0);
}

/* For so long the rendezvous may be silent. One that has not heard of the registration, or where nobody else waits, has more
 * time, and that of a service is waited for. */
static uint64_t patience_ns(const struct gate_mesh *mesh, const struct mesh_own *own)
{
    if (has_company(own))
        return mesh_missing_ns(mesh);
    return mesh->gate->start.one_job ? MESH_GONE_NS : UINT64_MAX;
}

/* The rendezvous that has the registration is not heard any more, and there is no other one. */
static bool has_lost_seed(const struct gate_mesh *mesh, const struct mesh_own *own, uint64_t now_ns)
{
    const struct mesh_seed *seed = own->at;

    if (own->answered || own->gone || seed == NULL || seed->here || seed->heard_ns == 0)
        return false;
    for (size_t i = 0; i < mesh->seed_count; i++)
        if (&mesh->seeds[i] != seed && is_up(&mesh->seeds[i]))
            return false;
    uint64_t since_ns = seed->heard_ns > own->since_ns ? seed->heard_ns : own->since_ns;
    since_ns = mesh_silent_since(mesh, since_ns);
    return now_ns > since_ns && now_ns - since_ns >= patience_ns(mesh, own);
}

/* Its engine is told now. The others are when the rendezvous is heard again, where they still wait. */
static void lose_seed(struct gate_mesh *mesh, struct mesh_own *own, uint64_t now_ns)
{
    const struct hvi_node_register *said = &own->registered;
    const struct mesh_seed *seed = own->at;
    struct hvi_node_withdraw withdrawn = {.uid = said->uid,
                                          .registration = said->registration,
                                          .rank = -1,
                                          .status = HVI_ERR_NODE_LOST};
    char name[OWN_ROOM];

    name_own(seed, name);
    snprintf(withdrawn.job, sizeof(withdrawn.job), "%s", said->job);
    snprintf(withdrawn.text, sizeof(withdrawn.text),
             "node %s (%s), where the nodes of job '%s' meet, is lost before they have: for %.1f s "
             "node %s has heard nothing of it",
             seed->called[0] != '\0' ? seed->called : seed->name, seed->endpoint, said->job,
             (double)(now_ns - seed->heard_ns) / (double)HVI_NS_SEC, name);
    mesh_tell_error(mesh, said, HVI_ERR_NODE_LOST, withdrawn.text);
    lose(mesh, own, &withdrawn);
}

static void lose_seeds(struct gate_mesh *mesh, uint64_t now_ns)
{
    struct mesh_own *own, *spare;

    DL_FOREACH_SAFE(mesh->own, own, spare)
    {
        if (has_lost_seed(mesh, own, now_ns))
            lose_seed(mesh, own, now_ns);
    }
}

void mesh_join_hurry(struct gate_mesh *mesh)
{
    for (size_t i = 0; i < mesh->seed_count; i++)
        gate_talk_hurry(&mesh->seeds[i].talk);
}

void mesh_join_tick(struct gate_mesh *mesh, uint64_t now_ns)
{
    place_all(mesh);
    lose_seeds(mesh, now_ns);
    for (size_t i = 0; i < mesh->seed_count; i++) {
        struct mesh_seed *seed = &mesh->seeds[i];
        if (seed->socket != NULL)
            gate_socket_tick(seed->socket, now_ns);
        if (seed->behind && gate_talk_has_heard(&seed->talk, seed->talk.said))
            begin_anew(seed);
        flush(seed);
        if (mesh->view.followed != &seed->hosts)
            gate_hosts_prune(&seed->hosts);
        if (seed->unsaid_ns != 0 && now_ns >= seed->unsaid_ns)
            say_failure(seed);
    }
    give_up_late(mesh, now_ns);
}

/* ---- rows ---- */

static void add_own_row(const struct gate_mesh *mesh, const struct mesh_seed *apart,
                        struct hvi_admin_reply *reply)
{
    struct hvi_mesh_row *row = mesh_add_row(reply);
    const struct mesh_own *own;
    size_t used = 0;

    if (row == NULL)
        return;
    mesh_route(mesh->gate->start.node, row->node);
    snprintf(row->name, sizeof(row->name), "%s", mesh->name);
    snprintf(row->address, sizeof(row->address), "%s", mesh->announced);
    snprintf(row->state, sizeof(row->state), "%s", apart != NULL ? "apart" : "joins");
    snprintf(row->version, sizeof(row->version), "%s", HVD_VERSION_TEXT);
    DL_FOREACH(mesh->own, own)
    {
        if (!own->gone && used < sizeof(row->jobs))
            used += (size_t)snprintf(row->jobs + used, sizeof(row->jobs) - used, "%s%s",
                                     used > 0 ? ", " : "", own->registered.job);
    }
}

void mesh_join_rows(const struct gate_mesh *mesh, uint64_t now_ns, struct hvi_admin_reply *reply)
{
    const struct mesh_seed *apart = &mesh->seeds[0];

    for (size_t i = 0; i < mesh->seed_count && apart != NULL; i++)
        apart = mesh->seeds[i].failure[0] != '\0' ? apart : NULL;
    add_own_row(mesh, apart, reply);
    if (apart != NULL)
        snprintf(reply->text, sizeof(reply->text), "%s", apart->failure);
    for (size_t i = 0; i < mesh->seed_count; i++) {
        const struct mesh_seed *seed = &mesh->seeds[i];
        struct hvi_mesh_row *row = mesh_add_row(reply);
        if (row == NULL)
            continue;
        snprintf(row->name, sizeof(row->name), "%.63s",
                 mesh->of_nodes ? seed->name : seed->endpoint);
        snprintf(row->address, sizeof(row->address), "%s", seed->address);
        snprintf(row->state, sizeof(row->state), "%s",
                 seed->heard_ns != 0         ? "listens"
                 : has_refused(seed, now_ns) ? "refused"
                                             : "unreached");
        row->heard_ns = seed->heard_ns != 0 ? now_ns - seed->heard_ns : 0;
    }
}

/* ---- the end ---- */

void mesh_join_shut(struct gate_mesh *mesh)
{
    struct mesh_own *own;

    for (size_t i = 0; i < mesh->seed_count; i++)
        if (!mesh->seeds[i].here)
            shut_seed(&mesh->seeds[i]);
    DL_FOREACH(mesh->own, own)
    {
        own->at = NULL;
        own->leaving = own->told = 0;
    }
    mesh->seed_count = 0;
}

void mesh_join_close(struct gate_mesh *mesh)
{
    while (mesh->own != NULL)
        own_free(mesh, mesh->own);
    free(mesh->ended);
}

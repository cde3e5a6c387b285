/* SPDX-License-Identifier: Apache-2.0
 * The side of the mesh that listens and has the rendezvous. A node is known by the random number of its
 * hvdd's start. With its first message that number is bound to the key that it came with: a message
 * with another key, or over a connection whose routing id says another node, is refused. With mesh-seeds the
 * allow-list says what the node of a key is called; else the node does. */
#include "daemon/gate/mesh.h"

#include "daemon/gate/agree.h"

#include "base/interface.h"
#include "base/place.h"
#include "base/status.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <utlist.h>

#define HVDD_STILL    "its hvdd has said nothing: it was stopped, or is stuck"
#define HOSTS_AT_ONCE 128u             /* in one message; at most HVI_MESH_HOSTS_MAX */
#define KEY_PEERS_MAX 4u               /* of a node's key */
#define KEY_HEARD_NS  (2 * HVI_NS_SEC) /* one of these that lives says something twice a second */

struct mesh_peer {
    struct gate_mesh *mesh;
    struct mesh_peer *prev, *next;
    uint64_t node;
    char route[GATE_ROUTE_TEXT], key[GATE_KEY_TEXT];
    char name[HVI_WIRE_NODE_NAME], version[HVI_WIRE_SHORT_TEXT];
    char announced[HVI_WIRE_NODE_ADDRESS], seen[HVI_WIRE_NODE_ADDRESS];
    bool greeted; /* it has said hello */
    bool told;    /* in this conversation: all hosts there are */
    bool behind;  /* a change could not be queued: all are to be told anew */
    uint64_t since_ns;
    struct gate_talk talk;
    int connection; /* its last message's */
    uint64_t heard_ns;
    bool refused; /* its version was: said once */
    bool still;   /* its hvdd stands still */
    uint64_t still_since_ns;
};

/* Where hvdrun has started the hvdds, each host that was there is one of the job, whether its ranks have come or not. */
struct mesh_gone {
    struct mesh_gone *prev, *next;
    uint64_t node, since_ns;
    char name[HVI_WIRE_NODE_NAME], address[HVI_WIRE_NODE_ADDRESS];
    const char *why;
};

/* ---- peers ---- */

static struct mesh_peer *peer_find(const struct gate_mesh *mesh, uint64_t node)
{
    struct mesh_peer *peer;

    DL_FOREACH(mesh->peers, peer)
    {
        if (peer->node == node)
            return peer;
    }
    return NULL;
}

static void note_gone(struct gate_mesh *mesh, const struct mesh_peer *peer, const char *why)
{
    struct mesh_gone *gone = NULL;

    if (mesh->gate->start.one_job && peer->greeted)
        gone = calloc(1, sizeof(*gone));
    if (gone == NULL)
        return; /* those that wait for it have their time run out */
    gone->node = peer->node;
    gone->since_ns = mesh_silent_since(mesh, peer->heard_ns);
    gone->why = why;
    snprintf(gone->name, sizeof(gone->name), "%s", peer->name);
    snprintf(gone->address, sizeof(gone->address), "%s", peer->seen);
    DL_APPEND(mesh->gone, gone);
}

/* It is back, or there will be no rendezvous any more: `node` 0 is any. */
static void forget_gone(struct gate_mesh *mesh, uint64_t node)
{
    struct mesh_gone *gone, *spare;

    DL_FOREACH_SAFE(mesh->gone, gone, spare)
    {
        if (node != 0 && gone->node != node)
            continue;
        DL_DELETE(mesh->gone, gone);
        free(gone);
    }
}

/* `why` it is not there any more. */
static void peer_free(struct gate_mesh *mesh, struct mesh_peer *peer, const char *why)
{
    note_gone(mesh, peer, why);
    gate_rendezvous_missing(&mesh->rendezvous, peer->node, why,
                            mesh_silent_since(mesh, peer->heard_ns), false);
    DL_DELETE(mesh->peers, peer);
    mesh->peer_count--;
    mesh_query_gone(mesh, peer->node);
    gate_talk_fini(&peer->talk);
    free(peer);
}

static struct mesh_peer *peer_new(struct gate_mesh *mesh, uint64_t node,
                                  const struct gate_sender *from)
{
    struct mesh_peer *peer = mesh->peer_count < MESH_PEERS_MAX ? calloc(1, sizeof(*peer)) : NULL;
    const char *name = gate_keys_name(&mesh->keys, from->key);

    if (peer == NULL)
        return NULL;
    peer->mesh = mesh;
    peer->node = node;
    peer->since_ns = hvi_clock_ns();
    snprintf(peer->route, sizeof(peer->route), "%s", from->route);
    snprintf(peer->key, sizeof(peer->key), "%s", from->key);
    snprintf(peer->name, sizeof(peer->name), "%s", name != NULL ? name : from->route);
    gate_talk_init(&peer->talk, mesh_random(), false);
    DL_APPEND(mesh->peers, peer);
    mesh->peer_count++;
    forget_gone(mesh, node);
    return peer;
}

/* Its engines', as others reach them. */
static const char *address_of(const struct mesh_peer *peer)
{
    return peer->announced[0] != '\0' ? peer->announced : peer->seen;
}

static void transmit(void *user, struct hvi_mesh_msg *msg)
{
    struct mesh_peer *peer = user;

    msg->company = gate_rendezvous_company(&peer->mesh->rendezvous, peer->node);
    msg->others_wait = msg->company != 0;
    mesh_send(peer->mesh, peer->mesh->socket, peer->route, msg);
}

/* ---- the rendezvous ---- */

static void log_met(const struct gate_registrant *to, const struct hvi_engine_roster *roster)
{
    char nodes[1024];
    size_t used = 0;

    nodes[0] = '\0';
    for (size_t i = 0; i < roster->node_count && used < sizeof(nodes); i++)
        used += (size_t)snprintf(nodes + used, sizeof(nodes) - used,
                                 strchr(roster->nodes[i].address, ':') != NULL ? "%s%s=[%s]:%u"
                                                                               : "%s%s=%s:%u",
                                 i > 0 ? "," : "", roster->nodes[i].name, roster->nodes[i].address,
                                 roster->nodes[i].port);
    HVI_LOG(HVI_LOG_INFO, "mesh", "job-met", "the nodes of a job have met",
            "job=%s epoch=%llu wire=%u nodes=%s", to->job, (unsigned long long)roster->epoch,
            roster->wire, nodes);
}

static void log_not_met(const struct gate_registrant *to, const char *why)
{
    HVI_LOG(HVI_LOG_WARN, "mesh", "job-not-met", why, "job=%s registration=%llu", to->job,
            (unsigned long long)to->registration);
}

/* Of a job that has met the engines know more. */
static void log_answer(const struct gate_registrant *to, const struct hvi_engine_roster *roster,
                       int fits)
{
    if (to->met)
        return;
    if (roster->status != HVI_OK)
        log_not_met(to, roster->text);
    else if (roster->node == 0 && fits == HVI_OK)
        log_met(to, roster);
    else if (roster->node == 0 && fits == HVI_ERR_LIMIT)
        log_not_met(to, "the list of its nodes and ranks does not fit into a message");
}

/* Owns the body's memory. Where there is no room, the node has confirmed none of thousands: what waits for it is forgotten, and it
 * is to say everything again, so that it is answered again. */
static void say(struct mesh_peer *peer, struct hvi_mesh_msg *msg)
{
    if (gate_talk_say(&peer->talk, msg) == HVI_OK)
        return;
    mesh_log_refused(peer->mesh, "a node confirms nothing of what it is told, and is told it anew",
                     peer->seen);
    gate_talk_fini(&peer->talk);
    gate_talk_init(&peer->talk, mesh_random(), false);
    peer->told = peer->behind = false;
}

static void say_roster(struct mesh_peer *peer, struct hvi_mesh_msg *msg)
{
    if (peer == NULL)
        hvi_mesh_msg_free(msg);
    else
        say(peer, msg);
}

static void answer(void *user, const struct gate_registrant *to,
                   const struct hvi_engine_roster *roster)
{
    struct gate_mesh *mesh = user;
    struct hvi_mesh_msg msg = {.kind = HVI_MESH_NODE_ROSTER};

    int status = mesh_fill_roster(mesh, to, roster, &msg.node_roster);
    log_answer(to, roster, status);
    if (status != HVI_OK && status != HVI_ERR_LIMIT)
        return; /* out of memory: it is asked for again, or its time runs out */
    if (to->node == mesh->gate->start.node) {
        mesh_tell_roster(mesh, &msg.node_roster);
        mesh_join_answered(mesh, &msg.node_roster);
        hvi_mesh_msg_free(&msg);
    } else {
        say_roster(peer_find(mesh, to->node), &msg);
    }
}

/* What a node has registered is no EngineNode of this version: its engine would wait. A node may say so as often as it likes, so
 * nothing is logged here. */
static void answer_nonsense(struct mesh_peer *peer, const struct hvi_node_register *registered)
{
    struct gate_mesh *mesh = peer->mesh;
    const bool same = strcmp(peer->version, HVD_VERSION_TEXT) == 0;
    const struct gate_registrant to = {.node = peer->node,
                                       .job = registered->job,
                                       .uid = registered->uid,
                                       .registration = registered->registration};
    struct hvi_engine_roster roster = {.status = same ? HVI_ERR_PROTOCOL : HVI_ERR_VERSION};
    struct hvi_mesh_msg msg = {.kind = HVI_MESH_NODE_ROSTER};

    snprintf(roster.text, sizeof(roster.text),
             "node %s (hvdd %s), where the nodes of job '%s' meet, cannot read what the engine of "
             "node %s (hvdd %s) says of it; install the same hvdd on both",
             mesh->name, HVD_VERSION_TEXT, registered->job, peer->name, peer->version);
    if (mesh_fill_roster(mesh, &to, &roster, &msg.node_roster) == HVI_OK)
        say_roster(peer, &msg);
}

static void throw_dice(void *user, void *bytes_p, size_t length)
{
    (void)user;
    while (getrandom(bytes_p, length, 0) != (ssize_t)length)
        ;
}

/* It is told now: its next sign of life may not come any more. */
static void company(void *user, uint64_t node)
{
    struct mesh_peer *peer = peer_find(user, node);

    if (peer != NULL)
        gate_talk_hurry(&peer->talk);
}

static const struct gate_rendezvous_calls rendezvous_calls = {
    .answer = answer, .random = throw_dice, .company = company};

/* A private hvdd serves one user, who may have other numbers on other nodes. */
static uint32_t owner(const struct gate_mesh *mesh, uint32_t uid)
{
    return mesh->gate->start.private_mode ? mesh->gate->start.uid : uid;
}

/* The sender's machine may be older than this one. */
static uint64_t ago(uint64_t ns)
{
    const uint64_t now_ns = hvi_clock_ns();

    return ns < now_ns ? now_ns - ns : 0;
}

/* Its hvdd has said nothing for `silent_ns`. False: it is no EngineNode. */
static bool bring(struct gate_mesh *mesh, uint64_t node, const char *name, const char *address,
                  const struct hvi_node_register *registered, uint64_t silent_ns)
{
    struct gate_registration said = {.node = node,
                                     .registration = registered->registration,
                                     .missing = silent_ns > 0 ? HVDD_STILL : NULL,
                                     .missing_since_ns = ago(silent_ns)};
    struct hvi_packet_msg msg;
    bool good;

    if (hvi_packet_msg_decode(registered->node, registered->node_bytes, &msg, NULL, 0) != HVI_OK)
        return false;
    good = msg.kind == HVI_PACKET_ENGINE_NODE;
    if (good) {
        said.uid = owner(mesh, registered->uid);
        said.engine = msg.engine_node;
        snprintf(said.name, sizeof(said.name), "%s", name);
        snprintf(said.address, sizeof(said.address), "%s", address);
        snprintf(said.job, sizeof(said.job), "%s", registered->job);
        snprintf(said.key_digest, sizeof(said.key_digest), "%s", registered->key_digest);
        gate_rendezvous_register(&mesh->rendezvous, &said, hvi_clock_ns());
    }
    hvi_packet_msg_free(&msg);
    return good;
}

/* False: a rank is to be over for good, which only the hvdds of one job can know. */
static bool take_back(struct gate_mesh *mesh, uint64_t node,
                      const struct hvi_node_withdraw *withdrawn)
{
    const struct gate_registrant registrant = {.node = node,
                                               .job = withdrawn->job,
                                               .uid = owner(mesh, withdrawn->uid),
                                               .registration = withdrawn->registration};

    if (withdrawn->rank >= 0 && !mesh->gate->start.one_job)
        return false;
    if (withdrawn->rank >= 0)
        gate_rendezvous_ended(&mesh->rendezvous, &registrant, withdrawn->rank, withdrawn->text);
    else
        gate_rendezvous_withdraw(&mesh->rendezvous, &registrant, withdrawn->status, withdrawn->text,
                                 hvi_clock_ns());
    return true;
}

static void flush_all(struct gate_mesh *mesh)
{
    uint64_t now_ns = hvi_clock_ns();
    struct mesh_peer *peer;

    DL_FOREACH(mesh->peers, peer)
    gate_talk_flush(&peer->talk, now_ns, transmit, peer);
}

void mesh_listen_register(struct gate_mesh *mesh, const struct hvi_node_register *registered)
{
    /* note_still() says later that it is back. */
    const uint64_t silent_ns = mesh->still ? mesh_hvdd_silent_ns(mesh, hvi_clock_ns()) : 0;

    if (!bring(mesh, mesh->gate->start.node, mesh->name, mesh->announced, registered, silent_ns))
        mesh_tell_error(mesh, registered, HVI_ERR_PROTOCOL, "the engine's EngineNode is none");
    flush_all(mesh);
}

void mesh_listen_withdraw(struct gate_mesh *mesh, const struct hvi_node_withdraw *withdrawn)
{
    (void)take_back(mesh, mesh->gate->start.node, withdrawn);
    flush_all(mesh);
}

bool mesh_listen_orphaned(struct gate_mesh *mesh)
{
    char text[HVI_TEXT_MAX + 1];

    snprintf(text, sizeof(text),
             "hvdd on %s has ended, by which the nodes of the job would have met, and none takes "
             "its place",
             mesh->name);
    const bool any = gate_rendezvous_end(&mesh->rendezvous, HVI_ERR_NODE_LOST, text);
    flush_all(mesh);
    return any || !mesh_listen_is_heard(mesh);
}

bool mesh_listen_is_heard(const struct gate_mesh *mesh)
{
    const struct mesh_peer *peer;

    DL_FOREACH(mesh->peers, peer)
    {
        if (!gate_talk_has_heard(&peer->talk, peer->talk.said))
            return false;
    }
    return true;
}

/* ---- which nodes there are ---- */

static void put_host(struct mesh_peer *peer)
{
    struct hvi_mesh_host host = {.node = peer->node};

    snprintf(host.name, sizeof(host.name), "%s", peer->name);
    snprintf(host.text, sizeof(host.text), "%s", peer->seen);
    (void)gate_hosts_put(&peer->mesh->hosts, &host); /* there is room for all peers */
}

/* A node that misses one change would never know it: nothing more is said until all can be, anew. */
static void say_hosts(struct mesh_peer *peer, const struct hvi_mesh_host *hosts, size_t count,
                      bool anew)
{
    struct hvi_mesh_msg msg = {.kind = HVI_MESH_HOSTS,
                               .hosts = {.host_count = count, .anew = anew}};

    if (peer->behind && !anew)
        return;
    msg.hosts.hosts = malloc(count * sizeof(*hosts));
    if (msg.hosts.hosts != NULL)
        memcpy(msg.hosts.hosts, hosts, count * sizeof(*hosts));
    peer->behind = msg.hosts.hosts == NULL || gate_talk_say(&peer->talk, &msg) != HVI_OK;
    if (peer->behind)
        mesh_log_refused(peer->mesh, "a node cannot be told now which hosts there are", peer->seen);
}

/* This node, and those of which all that were there before have been told. */
static void say_all_hosts(struct mesh_peer *peer)
{
    const struct gate_mesh *mesh = peer->mesh;
    struct hvi_mesh_host some[HOSTS_AT_ONCE] = {{.node = mesh->gate->start.node}};
    const struct gate_host *host;
    size_t count = 1;
    bool anew = true;

    snprintf(some[0].name, sizeof(some[0].name), "%s", mesh->name);
    snprintf(some[0].text, sizeof(some[0].text), "%s", mesh->rendezvous.own_address);
    DL_FOREACH(mesh->view.known.all, host)
    {
        if (count == HOSTS_AT_ONCE) {
            say_hosts(peer, some, count, anew);
            anew = false;
            count = 0;
        }
        some[count++] = host->is;
    }
    say_hosts(peer, some, count, anew);
}

void mesh_listen_hosts(struct gate_mesh *mesh, const struct hvi_mesh_host *hosts, size_t count)
{
    struct mesh_peer *peer;

    DL_FOREACH(mesh->peers, peer)
    {
        if (peer->greeted && !peer->refused)
            say_hosts(peer, hosts, count, false);
    }
    flush_all(mesh);
}

/* ---- messages ---- */

/* It may have a network for its engines alone; or others will not reach what it announces. */
static bool is_elsewhere(const struct mesh_peer *peer)
{
    return peer->announced[0] != '\0' && strcmp(peer->announced, peer->seen) != 0;
}

static void handle_hello(struct mesh_peer *peer, const struct hvi_mesh_hello *hello)
{
    struct gate_rendezvous *rendezvous = &peer->mesh->rendezvous;

    if (!peer->mesh->of_nodes)
        snprintf(peer->name, sizeof(peer->name), "%s", hello->name);
    snprintf(peer->version, sizeof(peer->version), "%s", hello->version);
    peer->greeted = true;
    if (!peer->told) /* of an earlier conversation: it says everything now */
        gate_rendezvous_anew(rendezvous, peer->node, hvi_clock_ns());
    snprintf(peer->announced, sizeof(peer->announced), "%s", hello->announced);
    /* Where others have found us; a node beside us may have found the loopback. */
    if (!peer->mesh->own_fixed && hello->dialed[0] != '\0' &&
        (rendezvous->own_address[0] == '\0' ||
         gate_rendezvous_is_loopback(rendezvous->own_address)))
        snprintf(rendezvous->own_address, sizeof(rendezvous->own_address), "%s", hello->dialed);
    HVI_LOG(HVI_LOG_INFO, "mesh", "node-joined",
            is_elsewhere(peer) ? "a node has joined the mesh, and announces another address than "
                                 "the one that it comes from"
                               : "a node has joined the mesh",
            "node=%s name=%s address=%s announced=%s dialed=%s version=%s", peer->route, peer->name,
            peer->seen, peer->announced, hello->dialed, peer->version);
    put_host(peer);
    if (!peer->told)
        say_all_hosts(peer);
    peer->told = true;
}

/* False: it is no EngineNode. */
static bool bring_remote(struct mesh_peer *peer, const struct hvi_node_register *registered,
                         uint64_t silent_ns)
{
    const bool good =
        bring(peer->mesh, peer->node, peer->name, address_of(peer), registered, silent_ns);

    if (!good)
        answer_nonsense(peer, registered);
    return good;
}

static void handle_body(struct mesh_peer *peer, struct hvi_mesh_msg *msg)
{
    struct gate_mesh *mesh = peer->mesh;
    bool good = true;

    if (msg->kind == HVI_MESH_HELLO)
        handle_hello(peer, &msg->hello);
    else if (msg->kind == HVI_MESH_NODE_REGISTER)
        good = bring_remote(peer, &msg->node_register, msg->hvdd_silent_ns);
    else if (msg->kind == HVI_MESH_NODE_WITHDRAW)
        good = take_back(mesh, peer->node, &msg->node_withdraw);
    else if (msg->kind == HVI_MESH_QUESTION)
        mesh_query_take(mesh, NULL, peer->node, &msg->question);
    else if (msg->kind == HVI_MESH_REPLY)
        mesh_query_reply(mesh, NULL, peer->node, &msg->reply);
    else
        good = false;
    if (!good)
        mesh_log_refused(mesh, "a node says what it may not say", peer->seen);
}

/* The connection of a node that has left the allow-list is still there. */
static bool is_allowed(const struct gate_mesh *mesh, const char *key)
{
    return !mesh->of_nodes || gate_keys_name(&mesh->keys, key) != NULL;
}

/* Of a node that has said its name. */
static void tell_lost(const struct mesh_peer *peer, const char *why)
{
    if (peer->greeted)
        gate_hosts_drop(&peer->mesh->hosts, peer->node, why);
}

/* A hvdd that was started anew has another number. A node that claims many takes no room from those of other keys. */
static bool make_room(struct gate_mesh *mesh, const char *key)
{
    struct mesh_peer *peer, *oldest = NULL;
    size_t count = 0;

    DL_FOREACH(mesh->peers, peer)
    {
        if (strcmp(peer->key, key) != 0)
            continue;
        count++;
        if (oldest == NULL || peer->heard_ns < oldest->heard_ns)
            oldest = peer;
    }
    if (!mesh->of_nodes || count < KEY_PEERS_MAX)
        return true;
    if (hvi_clock_ns() - oldest->heard_ns < KEY_HEARD_NS) {
        mesh_log_refused(mesh, "a key has too many hvdds: one more was refused", oldest->seen);
        return false;
    }
    mesh_log_refused(mesh, "a key has too many hvdds: the one not heard for longest is forgotten",
                     oldest->seen);
    tell_lost(oldest, "other hvdds with its key have taken its place");
    peer_free(mesh, oldest, "other hvdds with its key have taken its place");
    return true;
}

/* NULL: refused. */
static struct mesh_peer *peer_of(struct gate_mesh *mesh, const struct hvi_mesh_msg *msg,
                                 const struct gate_sender *from)
{
    struct mesh_peer *peer = peer_find(mesh, msg->node);
    char expected[GATE_ROUTE_TEXT];

    mesh_route(msg->node, expected);
    if (strcmp(expected, from->route) != 0 || (peer != NULL && strcmp(peer->key, from->key) != 0)) {
        mesh_log_refused(mesh, "a node claims to be another one", from->address);
        return NULL;
    }
    if (peer == NULL && !is_allowed(mesh, from->key)) {
        mesh_log_refused(mesh, "a node that is no longer in the allow-list was refused",
                         from->address);
        return NULL;
    }
    if (peer == NULL && !make_room(mesh, from->key))
        return NULL;
    if (peer == NULL)
        peer = peer_new(mesh, msg->node, from);
    if (peer == NULL)
        mesh_log_refused(mesh, "there is no room for one more node", from->address);
    return peer;
}

static void refuse_version(struct mesh_peer *peer, const char *text)
{
    struct hvi_mesh_msg msg = {.status = HVI_ERR_VERSION, .talk = peer->talk.own};

    if (!peer->refused)
        HVI_LOG(HVI_LOG_WARN, "mesh", "mesh-version", text, "address=%s", peer->seen);
    peer->refused = true;
    snprintf(msg.text, sizeof(msg.text), "%s", text);
    mesh_send(peer->mesh, peer->mesh->socket, peer->route, &msg);
}

/* A hvdd that stands still hears nothing of a roster. */
static void note_still(struct gate_mesh *mesh, uint64_t node, uint64_t silent_ns, bool *still)
{
    if (silent_ns > 0)
        gate_rendezvous_missing(&mesh->rendezvous, node, HVDD_STILL, ago(silent_ns), true);
    else if (*still)
        gate_rendezvous_back(&mesh->rendezvous, node);
    *still = silent_ns > 0;
}

static void take(struct gate_mesh *mesh, struct hvi_mesh_msg *msg, const struct gate_sender *from)
{
    struct mesh_peer *peer = peer_of(mesh, msg, from);
    char text[HVI_TEXT_MAX + 1];
    unsigned news;

    if (peer == NULL)
        return;
    peer->heard_ns = hvi_clock_ns();
    peer->connection = from->connection;
    snprintf(peer->seen, sizeof(peer->seen), "%s", from->address);
    if (!mesh_speaks(mesh, msg, msg->kind == HVI_MESH_HELLO ? msg->hello.name : peer->name, text,
                     sizeof(text))) {
        refuse_version(peer, text);
        return;
    }
    news = gate_talk_take(&peer->talk, msg, mesh_random());
    if ((news & GATE_TALK_ANEW) != 0) {
        gate_rendezvous_anew(&mesh->rendezvous, peer->node, hvi_clock_ns());
        peer->told = peer->behind = false;
    }
    if ((news & GATE_TALK_BODY) != 0)
        handle_body(peer, msg);
    if (!peer->still)
        peer->still_since_ns = ago(msg->hvdd_silent_ns);
    note_still(mesh, peer->node, msg->hvdd_silent_ns, &peer->still);
    flush_all(mesh);
}

static void received(void *user, const struct gate_sender *from, const unsigned char *bytes,
                     size_t length)
{
    struct gate_mesh *mesh = user;
    struct hvi_mesh_msg msg;

    if (hvi_mesh_msg_decode(bytes, length, &msg, NULL, 0) != HVI_OK) {
        mesh_log_refused(mesh, "a message of the mesh cannot be read", from->address);
        return;
    }
    take(mesh, &msg, from);
    hvi_mesh_msg_free(&msg);
}

/* A node that was killed must not wait on. One whose connection was cut comes back as a stranger and
 * says everything again. */
static void disconnected(void *user, int connection)
{
    struct gate_mesh *mesh = user;
    struct mesh_peer *peer, *spare;

    DL_FOREACH_SAFE(mesh->peers, peer, spare)
    {
        if (peer->connection != connection)
            continue;
        HVI_LOG(HVI_LOG_INFO, "mesh", "node-left", "the connection of a node has ended",
                "node=%s name=%s address=%s", peer->route, peer->name, peer->seen);
        tell_lost(peer, "its connection has ended");
        peer_free(mesh, peer, "it has not been heard: its connection has ended, or was cut");
    }
}

/* ---- life ---- */

static const struct gate_socket_calls socket_calls = {.received = received,
                                                      .disconnected = disconnected};

/* One that engines of other nodes can connect to, also with a zone; no interface's name, and none that stands for all. */
static bool is_address(const char *text)
{
    char bare[HVI_WIRE_NODE_ADDRESS];
    struct in6_addr six;
    struct in_addr four;

    if (inet_pton(AF_INET, text, &four) == 1)
        return four.s_addr != htonl(INADDR_ANY);
    snprintf(bare, sizeof(bare), "%.*s", (int)strcspn(text, "%"), text);
    return inet_pton(AF_INET6, bare, &six) == 1 && !IN6_IS_ADDR_UNSPECIFIED(&six);
}

/* Of an interface's name libzmq would take an address of IPv6 alone. */
static void find_interface(struct gate_mesh *mesh)
{
    char host[HVI_WIRE_NODE_ADDRESS], text[HVI_TEXT_MAX + 1];
    struct hvi_interface chosen;
    uint32_t port = UINT32_MAX; /* there has to be one */

    if (!hvi_place_split(mesh->endpoint, host, sizeof(host), &port) || port == UINT32_MAX ||
        strcmp(host, "*") == 0 || is_address(host) ||
        hvi_interface_find(host, AF_UNSPEC, &chosen, text, sizeof(text)) != HVI_OK)
        return; /* whoever binds it says what is wrong */
    hvi_place_join(chosen.address, port, mesh->endpoint, sizeof(mesh->endpoint));
}

/* The address of --mesh-listen. */
static void set_own_address(struct gate_mesh *mesh)
{
    char *own = mesh->rendezvous.own_address;
    const size_t size = sizeof(mesh->rendezvous.own_address);
    uint32_t port;

    if (mesh->announced[0] != '\0')
        snprintf(own, size, "%s", mesh->announced);
    else if (!hvi_place_split(mesh->endpoint, own, size, &port) || !is_address(own))
        own[0] = '\0';
    mesh->own_fixed = own[0] != '\0';
}

int mesh_listen_open(struct gate_mesh *mesh, char *text_p, size_t text_size)
{
    const struct hvi_gate_start *start = &mesh->gate->start;
    int status;

    find_interface(mesh);
    status = gate_socket_listen(mesh->gate->event, &mesh->keys, mesh->endpoint, start->port_first,
                                start->port_last, &socket_calls, mesh, &mesh->socket, &mesh->port,
                                text_p, text_size);
    if (status != HVI_OK)
        return status;
    gate_rendezvous_init(&mesh->rendezvous, &rendezvous_calls, mesh, start->start_timeout_ns,
                         mesh_missing_ns(mesh));
    gate_hosts_begin(&mesh->hosts, hvi_clock_ns());
    mesh->hosts.told = true;
    set_own_address(mesh);
    HVI_LOG(HVI_LOG_INFO, "mesh", "mesh-listens", "the mesh listens", "address=%s port=%u keys=%zu",
            mesh->endpoint, (unsigned)mesh->port, mesh->keys.client_count);
    return HVI_OK;
}

void mesh_listen_allowed(struct gate_mesh *mesh)
{
    struct mesh_peer *peer, *spare;

    DL_FOREACH_SAFE(mesh->peers, peer, spare)
    {
        const char *name = gate_keys_name(&mesh->keys, peer->key);
        if (name != NULL) {
            snprintf(peer->name, sizeof(peer->name), "%s", name);
            if (peer->greeted)
                put_host(peer);
            continue;
        }
        HVI_LOG(HVI_LOG_WARN, "mesh", "node-not-allowed",
                "a node that is no longer in the allow-list is forgotten",
                "node=%s name=%s address=%s", peer->route, peer->name, peer->seen);
        tell_lost(peer, "it is no longer in the allow-list");
        peer_free(mesh, peer, "it is no longer in the allow-list of the node where they meet");
    }
}

int mesh_listen_ask(struct gate_mesh *mesh, const struct hvi_mesh_question *question,
                    uint64_t **nodes_p, size_t *count_p)
{
    uint64_t *nodes = calloc(mesh->peer_count + 1u, sizeof(*nodes));
    struct mesh_peer *peer;
    size_t count = 0;

    if (nodes == NULL)
        return HVI_ERR_NO_MEMORY;
    DL_FOREACH(mesh->peers, peer)
    {
        struct hvi_mesh_msg msg = {.kind = HVI_MESH_QUESTION, .question = *question};
        if (peer->greeted && !peer->refused && gate_talk_say(&peer->talk, &msg) == HVI_OK)
            nodes[count++] = peer->node;
    }
    flush_all(mesh);
    *nodes_p = nodes;
    *count_p = count;
    return HVI_OK;
}

void mesh_listen_say(struct gate_mesh *mesh, uint64_t node, struct hvi_mesh_msg *msg)
{
    struct mesh_peer *peer = peer_find(mesh, node);

    if (peer == NULL) {
        hvi_mesh_msg_free(msg);
        return;
    }
    say(peer, msg);
    gate_talk_flush(&peer->talk, hvi_clock_ns(), transmit, peer);
}

const char *mesh_listen_name(const struct gate_mesh *mesh, uint64_t node)
{
    const struct mesh_peer *peer = peer_find(mesh, node);

    return peer != NULL ? peer->name : "";
}

/* They wait for a host that does not come any more. */
static void tell_gone(struct gate_mesh *mesh, const char *name, const char *address,
                      uint64_t silent_ns, const char *why)
{
    struct gate_sentence sentence = {.text = ""};

    gate_say_lost(&sentence, name, address, "", silent_ns, why);
    gate_rendezvous_end(&mesh->rendezvous, HVI_ERR_NODE_LOST, sentence.text);
}

static void look_for_gone(struct gate_mesh *mesh, uint64_t now_ns)
{
    const uint64_t own_ns = mesh_hvdd_silent_ns(mesh, now_ns);
    const struct mesh_gone *gone;
    const struct mesh_peer *peer;

    if (!mesh->gate->start.one_job)
        return;
    if (own_ns >= MESH_GONE_NS)
        tell_gone(mesh, mesh->name, mesh->rendezvous.own_address, own_ns, HVDD_STILL);
    DL_FOREACH(mesh->gone, gone)
    {
        if (now_ns >= mesh_silent_since(mesh, gone->since_ns) + MESH_GONE_NS)
            tell_gone(mesh, gone->name, gone->address, now_ns - gone->since_ns, gone->why);
    }
    DL_FOREACH(mesh->peers, peer)
    {
        if (peer->still && now_ns >= mesh_silent_since(mesh, peer->still_since_ns) + MESH_GONE_NS)
            tell_gone(mesh, peer->name, peer->seen, now_ns - peer->still_since_ns, HVDD_STILL);
    }
}

void mesh_listen_tick(struct gate_mesh *mesh, uint64_t now_ns)
{
    struct mesh_peer *peer, *spare;

    note_still(mesh, mesh->gate->start.node, mesh_hvdd_silent_ns(mesh, now_ns), &mesh->still);
    mesh->rendezvous.awake_ns = mesh->awake_ns;
    gate_rendezvous_tick(&mesh->rendezvous, now_ns);
    look_for_gone(mesh, now_ns);
    DL_FOREACH_SAFE(mesh->peers, peer, spare)
    {
        if (peer->behind && gate_talk_has_heard(&peer->talk, peer->talk.said))
            say_all_hosts(peer);
        if (now_ns <= peer->heard_ns || now_ns - peer->heard_ns < MESH_SILENT_NS)
            continue;
        HVI_LOG(HVI_LOG_INFO, "mesh", "node-silent", "a node has not been heard and is forgotten",
                "node=%s name=%s address=%s", peer->route, peer->name, peer->seen);
        tell_lost(peer, "it has not been heard");
        peer_free(mesh, peer, "it has not been heard");
    }
    flush_all(mesh);
}

/* ---- rows ---- */

static void add_peer_row(const struct mesh_peer *peer, uint64_t now_ns,
                         struct hvi_admin_reply *reply)
{
    struct hvi_mesh_row *row = mesh_add_row(reply);

    if (row == NULL)
        return;
    snprintf(row->node, sizeof(row->node), "%s", peer->route);
    snprintf(row->name, sizeof(row->name), "%s", peer->name);
    snprintf(row->address, sizeof(row->address), "%s", address_of(peer));
    snprintf(row->state, sizeof(row->state), "%s", peer->refused ? "refused" : "joined");
    snprintf(row->version, sizeof(row->version), "%s", peer->version);
    row->heard_ns = now_ns - peer->heard_ns;
    row->joined_ns = now_ns - peer->since_ns;
    gate_rendezvous_jobs_of(&peer->mesh->rendezvous, peer->node, row->jobs, sizeof(row->jobs));
}

static bool is_there(const struct gate_mesh *mesh, const char *key)
{
    const struct mesh_peer *peer;

    DL_FOREACH(mesh->peers, peer)
    {
        if (strcmp(peer->key, key) == 0)
            return true;
    }
    return false;
}

/* Of the nodes of the allow-list that are not there. */
static void add_absent(const struct gate_mesh *mesh, struct hvi_admin_reply *reply)
{
    const struct gate_keys *keys = &mesh->keys;

    for (size_t i = 0; mesh->of_nodes && i < keys->client_count; i++) {
        const char *key = keys->clients[i];
        struct hvi_mesh_row *row = NULL;
        if (strcmp(key, keys->server) != 0 && !is_there(mesh, key))
            row = mesh_add_row(reply);
        if (row == NULL)
            continue;
        snprintf(row->name, sizeof(row->name), "%s", keys->names[i]);
        snprintf(row->state, sizeof(row->state), "absent");
    }
}

void mesh_listen_rows(const struct gate_mesh *mesh, uint64_t now_ns, struct hvi_admin_reply *reply)
{
    const struct mesh_peer *peer;
    struct hvi_mesh_row *row = mesh_add_row(reply);

    if (row != NULL) {
        mesh_route(mesh->gate->start.node, row->node);
        snprintf(row->name, sizeof(row->name), "%s", mesh->name);
        snprintf(row->address, sizeof(row->address), "%s", mesh->rendezvous.own_address);
        snprintf(row->state, sizeof(row->state), "listens");
        snprintf(row->version, sizeof(row->version), "%s", HVD_VERSION_TEXT);
        row->port = mesh->port;
        gate_rendezvous_jobs_of(&mesh->rendezvous, mesh->gate->start.node, row->jobs,
                                sizeof(row->jobs));
    }
    DL_FOREACH(mesh->peers, peer)
    {
        add_peer_row(peer, now_ns, reply);
    }
    add_absent(mesh, reply);
}

void mesh_listen_close(struct gate_mesh *mesh)
{
    while (mesh->peers != NULL)
        peer_free(mesh, mesh->peers, "");
    forget_gone(mesh, 0);
    gate_hosts_fini(&mesh->hosts);
    gate_rendezvous_fini(&mesh->rendezvous);
}

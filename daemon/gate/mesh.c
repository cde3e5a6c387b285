/* SPDX-License-Identifier: Apache-2.0
 * The mesh of one gate: it listens, or it joins, or with mesh-seeds perhaps both; or it has none, and then there is no socket
 * and no libzmq at work. A mesh that cannot be opened is reported to hvdd and tried again. A gate that takes another one's
 * place may find the port taken: what is registered meanwhile is kept by the side that joins, and goes to the rendezvous when
 * there is one.
 *
 * With mesh-seeds (ADR 0026) each node has a key of its own and a list of those that it allows. The list is read again each few
 * seconds: a node that has left it is forgotten and refused, one that is new may come in. */
#include "daemon/gate/mesh.h"

#include "base/interface.h"
#include "base/status.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#define TICK_US  100000u
#define LATE_NS  (500 * HVI_NS_MS) /* a tick that comes so late: this process stood still */
#define STILL_NS HVI_NS_SEC        /* hvdd says something four times a second */
#define OPEN_NS  (500 * HVI_NS_MS) /* well within MESH_MISSING_NS */
#define LOOK_NS  (2 * HVI_NS_SEC)
#define LAST_NS  HVI_NS_SEC

uint64_t mesh_random(void)
{
    uint64_t number = 0;

    while (number == 0)
        if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number))
            number = 0;
    return number;
}

uint64_t mesh_hvdd_silent_ns(const struct gate_mesh *mesh, uint64_t now_ns)
{
    const uint64_t since_ns = mesh_silent_since(mesh, mesh->gate->heard_ns);

    if (mesh->orphan_ns != 0 || now_ns < since_ns + STILL_NS)
        return 0;
    return now_ns - since_ns;
}

uint64_t mesh_missing_ns(const struct gate_mesh *mesh)
{
    return mesh->gate->start.one_job ? MESH_MISSING_NS : MESH_MISSING_SERVICE_NS;
}

uint64_t mesh_silent_since(const struct gate_mesh *mesh, uint64_t heard_ns)
{
    const uint64_t now_ns = hvi_clock_ns();

    if (now_ns > mesh->tick_ns + LATE_NS)
        return now_ns;
    return heard_ns > mesh->awake_ns ? heard_ns : mesh->awake_ns;
}

void mesh_route(uint64_t node, char route_p[GATE_ROUTE_TEXT])
{
    snprintf(route_p, GATE_ROUTE_TEXT, "%016" PRIx64, node);
}

void mesh_send(struct gate_mesh *mesh, struct gate_socket *socket, const char *route,
               struct hvi_mesh_msg *msg)
{
    size_t length;

    msg->oldest = msg->newest = HVI_MESH_VERSION;
    msg->node = mesh->gate->start.node;
    msg->hvdd_silent_ns = mesh_hvdd_silent_ns(mesh, hvi_clock_ns());
    mesh->said_still = msg->hvdd_silent_ns > 0;
    if (hvi_mesh_msg_encode(msg, mesh->encoded, sizeof(mesh->encoded), &length) == HVI_OK)
        gate_socket_send(socket, route, mesh->encoded, length);
    else
        HVI_LOG(HVI_LOG_ERROR, "mesh", "no-message", "a message of the mesh cannot be written",
                "kind=%d", (int)msg->kind);
}

bool mesh_speaks(const struct gate_mesh *mesh, const struct hvi_mesh_msg *msg, const char *name,
                 char *text_p, size_t text_size)
{
    if (msg->oldest <= HVI_MESH_VERSION && HVI_MESH_VERSION <= msg->newest)
        return true;
    snprintf(text_p, text_size,
             "node %s speaks versions %u to %u of the mesh, node %s (hvdd %s) speaks %u to %u; "
             "install the same hvdd on both",
             name, msg->oldest, msg->newest, mesh->gate->start.name, HVD_VERSION_TEXT,
             HVI_MESH_VERSION, HVI_MESH_VERSION);
    return false;
}

void mesh_log_refused(struct gate_mesh *mesh, const char *why, const char *address)
{
    uint64_t now = hvi_clock_ns();

    if (mesh->logged_ns != 0 && now - mesh->logged_ns < HVI_NS_SEC)
        return;
    mesh->logged_ns = now;
    HVI_LOG(HVI_LOG_WARN, "mesh", "mesh-message-refused", why, "address=%s", address);
}

/* ---- rosters ---- */

void mesh_tell_roster(struct gate_mesh *mesh, const struct hvi_node_roster *roster)
{
    struct hvi_gate_msg msg = {.kind = HVI_GATE_NODE_ROSTER, .node_roster = *roster};

    gate_link_send(mesh->gate, &msg);
}

static int pack(struct gate_mesh *mesh, const struct hvi_engine_roster *roster,
                struct hvi_node_roster *answer_p)
{
    const struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_ROSTER, .engine_roster = *roster};
    int status = hvi_packet_msg_encode(&msg, mesh->gate->encoded, HVI_MESH_PACKET_MAX,
                                       &answer_p->roster_bytes);

    if (status != HVI_OK)
        return status;
    answer_p->roster = malloc(answer_p->roster_bytes);
    if (answer_p->roster == NULL)
        return HVI_ERR_NO_MEMORY;
    memcpy(answer_p->roster, mesh->gate->encoded, answer_p->roster_bytes);
    return HVI_OK;
}

int mesh_fill_roster(struct gate_mesh *mesh, const struct gate_registrant *to,
                     const struct hvi_engine_roster *roster, struct hvi_node_roster *answer_p)
{
    struct hvi_engine_roster instead = {.status = HVI_ERR_LIMIT};
    size_t ranks = 0;

    *answer_p = (struct hvi_node_roster){.uid = to->uid, .registration = to->registration};
    snprintf(answer_p->job, sizeof(answer_p->job), "%s", to->job);
    int status = pack(mesh, roster, answer_p);
    if (status != HVI_ERR_LIMIT)
        return status;
    for (size_t i = 0; i < roster->node_count; i++)
        ranks += roster->nodes[i].rank_count;
    snprintf(instead.text, sizeof(instead.text),
             "the list of the job's %zu nodes with %zu ranks does not fit into the %u KiB of a "
             "message: use fewer ranks or nodes, or shorter names of hosts",
             roster->node_count, ranks, HVI_MESH_PACKET_MAX / 1024);
    status = pack(mesh, &instead, answer_p);
    return status == HVI_OK ? HVI_ERR_LIMIT : status;
}

void mesh_tell_error(struct gate_mesh *mesh, const struct hvi_node_register *registered, int status,
                     const char *text)
{
    struct hvi_engine_roster error = {.status = status};
    struct hvi_node_roster roster = {.uid = registered->uid,
                                     .registration = registered->registration};

    snprintf(error.text, sizeof(error.text), "%s", text);
    snprintf(roster.job, sizeof(roster.job), "%s", registered->job);
    if (pack(mesh, &error, &roster) == HVI_OK)
        mesh_tell_roster(mesh, &roster);
    free(roster.roster);
}

/* ---- hvdd's requests ---- */

static const char no_mesh[] =
    "this hvdd has no mesh to other nodes; start it with --mesh-seeds, --mesh-listen or "
    "--mesh-join, or the job with hvdrun -H";

static bool is_wanted(const struct gate *gate)
{
    return gate->start.mesh_listen[0] != '\0' || gate->start.mesh_join[0] != '\0' ||
           gate->start.mesh_seeds[0] != '\0';
}

void gate_mesh_register(struct gate *gate, struct hvi_node_register *registered)
{
    struct gate_mesh *mesh = gate->mesh;

    if (!is_wanted(gate))
        mesh_tell_error(mesh, registered, HVI_ERR_UNSUPPORTED, no_mesh);
    else if (mesh->open && mesh->seed_count == 0)
        mesh_listen_register(mesh, registered);
    else
        mesh_join_register(mesh, registered);
}

void gate_mesh_withdraw(struct gate *gate, const struct hvi_node_withdraw *withdrawn)
{
    struct gate_mesh *mesh = gate->mesh;

    if (!is_wanted(gate))
        return;
    if (mesh->open && mesh->seed_count == 0)
        mesh_listen_withdraw(mesh, withdrawn);
    else
        mesh_join_withdraw(mesh, withdrawn);
}

bool gate_mesh_orphaned(struct gate *gate)
{
    struct gate_mesh *mesh = gate->mesh;

    if (mesh == NULL || !mesh->open || mesh->of_nodes)
        return false;
    mesh->orphan_ns = hvi_clock_ns() + LAST_NS;
    return mesh->listens ? mesh_listen_orphaned(mesh) : mesh_join_orphaned(mesh);
}

/* A seed has said something to others, and registered with another one. */
static bool is_heard(const struct gate_mesh *mesh)
{
    return (!mesh->listens || mesh_listen_is_heard(mesh)) && mesh_join_is_heard(mesh);
}

bool gate_mesh_is_heard(struct gate *gate)
{
    struct gate_mesh *mesh = gate->mesh;

    if (mesh == NULL || !mesh->open)
        return true;
    mesh->orphan_ns = hvi_clock_ns() + LAST_NS;
    return is_heard(mesh);
}

static bool has_said_its_last(const struct gate_mesh *mesh, uint64_t now_ns)
{
    return mesh->orphan_ns != 0 && (now_ns >= mesh->orphan_ns || is_heard(mesh));
}

struct hvi_mesh_row *mesh_add_row(struct hvi_admin_reply *reply)
{
    struct hvi_mesh_row *rows = NULL;

    if (reply->node_count < HVI_WIRE_ROWS_MAX)
        rows = realloc(reply->nodes, (reply->node_count + 1) * sizeof(*rows));
    if (rows == NULL) {
        reply->rows_left_out++;
        return NULL;
    }
    reply->nodes = rows;
    rows[reply->node_count] = (struct hvi_mesh_row){.port = 0};
    return &rows[reply->node_count++];
}

void gate_mesh_rows(struct gate *gate, struct hvi_admin_reply *reply)
{
    const struct gate_mesh *mesh = gate->mesh;
    uint64_t now_ns = hvi_clock_ns();

    if (!mesh->open)
        snprintf(reply->text, sizeof(reply->text), "%s",
                 mesh->failure[0] != '\0' ? mesh->failure : no_mesh);
    else if (mesh->listens)
        mesh_listen_rows(mesh, now_ns, reply);
    else
        mesh_join_rows(mesh, now_ns, reply);
}

/* ---- life ---- */

static int choose_address(struct gate_mesh *mesh, char *text_p, size_t text_size)
{
    const char *wanted = mesh->gate->start.interface;
    struct hvi_interface chosen;
    int status;

    if (wanted[0] == '\0')
        return HVI_OK;
    status = hvi_interface_find(wanted, AF_UNSPEC, &chosen, text_p, text_size);
    if (status != HVI_OK)
        return status;
    if (strcmp(mesh->announced, chosen.address) == 0)
        return HVI_OK; /* it is opened again */
    snprintf(mesh->announced, sizeof(mesh->announced), "%s", chosen.address);
    HVI_LOG(HVI_LOG_INFO, "mesh", "mesh-interface",
            "this node announces the address of an interface", "interface=%s address=%s wanted=%s",
            chosen.name, chosen.address, wanted);
    return HVI_OK;
}

/* Of a folder. */
static int read_node_keys(struct gate_mesh *mesh, char *text_p, size_t text_size)
{
    const char *dir = mesh->gate->start.mesh_key, *name;
    int status = gate_keys_read_node(dir, &mesh->keys, text_p, text_size);

    if (status != HVI_OK)
        return status;
    if (!gate_socket_public(mesh->keys.secret, mesh->keys.server)) {
        snprintf(text_p, text_size, "%s/node.key has no secret key of CURVE", dir);
        gate_keys_fini(&mesh->keys);
        return HVI_ERR_REFUSED;
    }
    name = gate_keys_name(&mesh->keys, mesh->keys.server);
    if (name != NULL)
        snprintf(mesh->name, sizeof(mesh->name), "%s", name);
    return HVI_OK;
}

static int read_keys(struct gate_mesh *mesh, char *text_p, size_t text_size)
{
    const struct hvi_gate_start *start = &mesh->gate->start;

    snprintf(mesh->name, sizeof(mesh->name), "%s", start->name);
    if (mesh->of_nodes)
        return read_node_keys(mesh, text_p, text_size);
    mesh->listens = start->mesh_listen[0] != '\0';
    snprintf(mesh->endpoint, sizeof(mesh->endpoint), "%s", start->mesh_listen);
    return gate_keys_read(start->mesh_key, mesh->listens, &mesh->keys, text_p, text_size);
}

/* Closes what try_open has opened. */
static void shut(struct gate_mesh *mesh)
{
    mesh_query_close(mesh);
    mesh_join_shut(mesh);
    if (mesh->socket != NULL)
        mesh_listen_close(mesh);
    gate_socket_close(mesh->socket);
    mesh->socket = NULL;
    gate_keys_fini(&mesh->keys);
    if (mesh->open)
        mesh->shut_ns = hvi_clock_ns();
    mesh->open = false;
    mesh->port = 0;
}

static int try_open(struct gate_mesh *mesh, char *text_p, size_t text_size)
{
    int status = choose_address(mesh, text_p, text_size);

    if (status == HVI_OK)
        status = read_keys(mesh, text_p, text_size);
    if (status != HVI_OK)
        return status;
    status = mesh_join_seeds(mesh, text_p, text_size);
    if (status == HVI_OK && mesh->listens)
        status = mesh_listen_open(mesh, text_p, text_size);
    if (status == HVI_OK)
        status = mesh_join_open(mesh, text_p, text_size);
    mesh->open = status == HVI_OK;
    if (status != HVI_OK)
        shut(mesh);
    return status;
}

static void open_and_tell(struct gate_mesh *mesh)
{
    struct hvi_gate_msg msg = {.kind = HVI_GATE_STATE};
    struct hvi_gate_state *state = &msg.state;

    state->status = try_open(mesh, state->text, sizeof(state->text));
    state->port = mesh->port;
    state->joined = mesh->open && mesh->listens;
    mesh->look_ns = hvi_clock_ns() + LOOK_NS;
    if (state->status != HVI_OK) {
        mesh->open_ns = hvi_clock_ns() + OPEN_NS;
        if (strcmp(mesh->failure, state->text) == 0)
            return; /* hvdd knows */
        snprintf(mesh->failure, sizeof(mesh->failure), "%s", state->text);
    } else {
        mesh->failure[0] = state->text[0] = '\0';
    }
    gate_link_send(mesh->gate, &msg);
}

/* ---- what subscribers are told of nodes ---- */

/* Changes of one moment that are told together: HOSTS_CHANGED here, and to the other nodes where this one listens. */
struct change {
    struct gate_mesh *mesh;
    struct hvi_event_host names[2][HVI_EVENT_HOSTS_MAX]; /* added, removed */
    size_t counts[2];
    struct hvi_mesh_host hosts[2 * HVI_EVENT_HOSTS_MAX];
    size_t host_count;
};

static void tell_change(struct change *change)
{
    struct gate_mesh *mesh = change->mesh;
    struct hvi_event_row row = {.kind = HVI_EVENT_HOSTS_CHANGED,
                                .count = mesh->view.known.count + 1u, /* this node */
                                .added = change->names[0],
                                .added_count = change->counts[0],
                                .removed = change->names[1],
                                .removed_count = change->counts[1]};

    gate_admin_mesh_event(mesh->gate, &row);
    if (mesh->listens)
        mesh_listen_hosts(mesh, change->hosts, change->host_count);
    change->counts[0] = change->counts[1] = change->host_count = 0;
}

static void host_changed(void *user, const struct hvi_mesh_host *host)
{
    struct change *change = user;
    struct hvi_event_row row = {.kind = host->gone ? HVI_EVENT_NODE_LOST : HVI_EVENT_NODE_JOINED};
    size_t *count = &change->counts[host->gone];
    struct hvi_event_host *name = &change->names[host->gone][(*count)++];

    snprintf(row.node, sizeof(row.node), "%s", host->name);
    snprintf(row.text, sizeof(row.text), "%s", host->text);
    gate_admin_mesh_event(change->mesh->gate, &row);
    snprintf(name->name, sizeof(name->name), "%s", host->name);
    change->hosts[change->host_count++] = *host;
    if (*count == HVI_EVENT_HOSTS_MAX)
        tell_change(change);
}

/* What a gate that listens knows itself counts there; elsewhere what the seed says at which jobs meet. */
static void follow_hosts(struct gate_mesh *mesh, uint64_t now_ns)
{
    struct gate_hosts *list = NULL;
    struct change change;

    if (mesh->open)
        list = mesh->listens ? &mesh->hosts : mesh_join_hosts(mesh);
    change.mesh = mesh;
    change.counts[0] = change.counts[1] = change.host_count = 0;
    if (gate_view_follow(&mesh->view, list, now_ns, host_changed, &change) && change.host_count > 0)
        tell_change(&change);
}

/* ---- the allow-list ---- */

static void log_left_out(struct gate_mesh *mesh, const char *text)
{
    if (text[0] != '\0' && strcmp(mesh->left_out, text) != 0)
        HVI_LOG(HVI_LOG_WARN, "mesh", "mesh-allow-list", text, "");
    snprintf(mesh->left_out, sizeof(mesh->left_out), "%s", text);
}

/* Whether this node is a seed has changed with its name. */
static bool is_another(const struct gate_mesh *mesh)
{
    const char *name = gate_keys_name(&mesh->keys, mesh->keys.server);

    return strcmp(name != NULL ? name : mesh->gate->start.name, mesh->name) != 0;
}

static void look_at_allowed(struct gate_mesh *mesh)
{
    char text[HVI_TEXT_MAX + 1];
    bool changed = false;

    mesh->look_ns = hvi_clock_ns() + LOOK_NS;
    (void)gate_keys_read_allowed(mesh->gate->start.mesh_key, &mesh->keys, &changed, text,
                                 sizeof(text));
    log_left_out(mesh, text);
    if (!changed)
        return;
    HVI_LOG(HVI_LOG_INFO, "mesh", "mesh-allowed", "the allow-list of the mesh has changed",
            "keys=%zu", mesh->keys.client_count);
    if (is_another(mesh)) {
        shut(mesh);
        open_and_tell(mesh);
        return;
    }
    if (mesh->listens)
        mesh_listen_allowed(mesh);
    mesh_join_allowed(mesh);
}

static int on_tick(sd_event_source *source, uint64_t usec, void *user)
{
    struct gate_mesh *mesh = user;
    uint64_t now_ns = hvi_clock_ns();

    (void)usec;
    sd_event_source_set_time_relative(source, TICK_US);
    sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
    if (now_ns > mesh->tick_ns + LATE_NS)
        mesh->awake_ns = now_ns;
    mesh->tick_ns = now_ns;
    if (!mesh->open && now_ns >= mesh->open_ns)
        open_and_tell(mesh);
    else if (mesh->open && mesh->of_nodes && now_ns >= mesh->look_ns)
        look_at_allowed(mesh);
    if (mesh->open && mesh->listens) {
        gate_socket_tick(mesh->socket, now_ns);
        mesh_listen_tick(mesh, now_ns);
    }
    if (mesh->said_still && mesh_hvdd_silent_ns(mesh, now_ns) == 0)
        mesh_join_hurry(mesh); /* a rendezvous would hold it against this node for 500 ms more */
    mesh_join_tick(mesh, now_ns);
    follow_hosts(mesh, now_ns);
    mesh_query_tick(mesh, now_ns);
    if (has_said_its_last(mesh, now_ns))
        sd_event_exit(mesh->gate->event, 0);
    return 0;
}

int gate_mesh_open(struct gate *gate)
{
    struct gate_mesh *mesh = calloc(1, sizeof(*mesh));

    if (mesh == NULL)
        return HVI_ERR_NO_MEMORY;
    gate->mesh = mesh;
    mesh->gate = gate;
    mesh->of_nodes = gate->start.mesh_seeds[0] != '\0';
    mesh->last_ticket = mesh_random() >> 2; /* an earlier gate's answers are none of ours */
    if (!is_wanted(gate))
        return HVI_OK;
    open_and_tell(mesh);
    if (sd_event_add_time_relative(gate->event, &mesh->tick, CLOCK_MONOTONIC, TICK_US, 1000,
                                   on_tick, mesh) >= 0)
        return HVI_OK;
    HVI_LOG(HVI_LOG_ERROR, "mesh", "no-event", "the mesh has no timer", "");
    return HVI_ERR_NO_MEMORY;
}

void gate_mesh_close(struct gate *gate)
{
    struct gate_mesh *mesh = gate->mesh;

    if (mesh == NULL)
        return;
    sd_event_source_disable_unref(mesh->tick);
    shut(mesh);
    mesh_join_close(mesh);
    gate_view_fini(&mesh->view);
    gate->mesh = NULL;
    free(mesh);
}

/* SPDX-License-Identifier: Apache-2.0
 * Jobs that span nodes, as hvdd sees them: what an engine says of its node goes to the gate, and what
 * the rendezvous answers goes to that engine. hvdd keeps what an engine said until it has its answer,
 * and tells each new gate again. A second answer says why a job that has met cannot begin: a rank may be
 * gone before the engines are connected. */
#include "daemon/node/node.h"

#include "base/fate.h"
#include "base/interface.h"
#include "base/place.h"
#include "base/status.h"
#include "proto/gate.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <utlist.h>

#define START_TIMEOUT_NS (600 * HVI_NS_SEC) /* as the engine's: frameworks load meanwhile */
#define PORT_FILE        "mesh.port"
#define KEY_FILE         "mesh.key"
#define KEY_FOLDER       "/etc/hvdd/keys"

/* ---- options ---- */

bool node_mesh_wanted(const struct node *node)
{
    return node->mesh.listen[0] != '\0' || node->mesh.join[0] != '\0' ||
           node->config.mesh_seeds[0] != '\0';
}

/* The option, else the environment's, else "". */
static const char *option_or(const char *option, const char *name, const char *other_name)
{
    const char *value = option[0] != '\0' ? option : getenv(name);

    if (value == NULL && other_name != NULL)
        value = getenv(other_name);
    return value == NULL ? "" : value;
}

static bool parse_lanes(const char *text, uint32_t *lanes_p)
{
    unsigned lanes;
    char end;

    if (sscanf(text, "%2u%c", &lanes, &end) != 1 || lanes == 0 || lanes > HVI_WIRE_LANES_MAX)
        return false;
    *lanes_p = lanes;
    return true;
}

static bool parse_switch(const char *text, bool *on_p)
{
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        return false;
    *on_p = text[0] == '1';
    return true;
}

static bool parse_seconds(const char *text, uint64_t *ns_p)
{
    char *end;
    double seconds = strtod(text, &end);

    if (end == text || *end != '\0' || !(seconds >= 0 && seconds <= 86400))
        return false;
    *ns_p = (uint64_t)(seconds * (double)HVI_NS_SEC);
    return true;
}

static const char *net_transport(const struct node *node)
{
    const char *name = option_or(node->config.net_transport, "HVD_NET_TRANSPORT", NULL);

    return name[0] != '\0' ? name : "tcp";
}

static const char *trusted_networks(const struct node *node)
{
    return option_or(node->config.trusted_networks, "HVD_TRUSTED_NETWORKS", NULL);
}

/* NULL, or what is wrong with them. */
static const char *check_transport(const struct node *node, char *text_p, size_t size)
{
    char why[128];

    if (strcmp(net_transport(node), "tcp") != 0 && strcmp(net_transport(node), "ucx") != 0)
        return "net-transport (HVD_NET_TRANSPORT) is neither tcp nor ucx";
    if (hvi_networks_check(trusted_networks(node), why, sizeof(why)) == HVI_OK &&
        strlen(trusted_networks(node)) < HVI_WIRE_PATH)
        return NULL;
    snprintf(text_p, size, "trusted-networks (HVD_TRUSTED_NETWORKS): %s",
             strlen(trusted_networks(node)) < HVI_WIRE_PATH ? why : "the list is too long");
    return text_p;
}

/* Where nobody has chosen a port, a new gate listens where the last one did. */
static void fill_listen(const struct node *node, char *listen_p, size_t size)
{
    const char *wanted = node->mesh.listen, *colon = strrchr(wanted, ':');

    if (node->mesh.port != 0 && colon != NULL && strcmp(colon, ":0") == 0)
        snprintf(listen_p, size, "%.*s:%u", (int)(colon - wanted), wanted,
                 (unsigned)node->mesh.port);
    else
        snprintf(listen_p, size, "%s", wanted);
}

static void fill_key(const struct node *node, char *key_p, size_t size)
{
    const bool is_folder = node->config.mesh_seeds[0] != '\0';
    const char *given =
        is_folder ? node->config.mesh_key : option_or(node->config.mesh_key, "HVD_KEY_FILE", NULL);

    if (is_folder && given[0] == '\0')
        given = KEY_FOLDER;
    if (given[0] != '\0')
        snprintf(key_p, size, "%s", given);
    else
        snprintf(key_p, size, "%.200s/" KEY_FILE, node->rundir.path);
}

/* hvdrun has started this hvdd for one job, and starts no other one when it is gone. */
static bool is_of_one_job(const struct node *node)
{
    return node->config.parent_fd >= 0;
}

/* Of this node, for people. The longest name of a host has one byte more than that of a node: the last one is left out. */
static void fill_name(char *name_p, size_t size)
{
    char host[HOST_NAME_MAX + 1] = "";

    if (gethostname(host, sizeof(host)) != 0 || host[0] == '\0')
        snprintf(host, sizeof(host), "node");
    snprintf(name_p, size, "%s", host);
}

void node_mesh_fill_start(const struct node *node, struct hvi_gate_start *start_p)
{
    start_p->node = node->mesh.node;
    fill_name(start_p->name, sizeof(start_p->name));
    if (!node_mesh_wanted(node))
        return;
    fill_listen(node, start_p->mesh_listen, sizeof(start_p->mesh_listen));
    snprintf(start_p->mesh_join, sizeof(start_p->mesh_join), "%s", node->mesh.join);
    snprintf(start_p->mesh_seeds, sizeof(start_p->mesh_seeds), "%s", node->config.mesh_seeds);
    fill_key(node, start_p->mesh_key, sizeof(start_p->mesh_key));
    snprintf(start_p->interface, sizeof(start_p->interface), "%s",
             option_or(node->config.interface, "HVD_INTERFACE", "HOROVOD_GLOO_IFACE"));
    start_p->port_first = node->mesh.port_first;
    start_p->port_last = node->mesh.port_last;
    start_p->one_job = is_of_one_job(node);
    start_p->start_timeout_ns = node->mesh.start_timeout_ns;
}

/* HVI_OK, or with a sentence why there can be no mesh at that place. */
static int take_rendezvous(struct node *node, char *text_p, size_t text_size)
{
    const char *place = node->config.rendezvous;
    struct node_mesh *mesh = &node->mesh;
    uint32_t port = mesh->port_first;
    char host[200];
    bool here;

    if (!hvi_place_split(place, host, sizeof(host), &port) || port == 0) {
        snprintf(text_p, text_size, "rendezvous: \"%.200s\" is no HOST or HOST:PORT", place);
        return HVI_ERR_INVALID;
    }
    int status = hvi_interface_is_here(host, &here, text_p, text_size);
    if (status != HVI_OK)
        return status;
    if (here)
        snprintf(mesh->listen, sizeof(mesh->listen), "*:%u", (unsigned)port);
    else
        hvi_place_join(host, port, mesh->join, sizeof(mesh->join));
    return HVI_OK;
}

/* NULL, or what is wrong with the options that say how hvdd takes part in a mesh. */
static const char *check_part(const struct node *node)
{
    const struct node_config *config = &node->config;
    const bool listens = config->mesh_listen[0] != '\0', joins = config->mesh_join[0] != '\0',
               meets = config->rendezvous[0] != '\0';

    if (listens + joins + meets > 1)
        return "a hvdd listens for other nodes or joins one that does: give one of --mesh-listen, "
               "--mesh-join and --rendezvous";
    if (config->mesh_seeds[0] != '\0' && (joins || meets))
        return "with --mesh-seeds a hvdd knows whom to join: leave --mesh-join and --rendezvous "
               "out";
    if (meets && !node->private_mode)
        return "rendezvous is for the private hvdd of a job; a hvdd for all users has mesh-seeds";
    return NULL;
}

/* The rest of the options and of the environment. NULL, or what is wrong with it. */
static const char *take_settings(struct node *node)
{
    const char *ports = option_or(node->config.port_range, "HVD_PORT_RANGE", NULL);
    const char *lanes = option_or("", "HVD_NET_LANES", NULL);
    const char *encrypt = option_or("", "HVD_ENCRYPT", NULL);
    const char *timeout = option_or("", "HVD_START_TIMEOUT", "HOROVOD_START_TIMEOUT");
    struct node_mesh *mesh = &node->mesh;

    if (ports[0] != '\0' && !hvi_place_ports(ports, &mesh->port_first, &mesh->port_last))
        return "port-range (HVD_PORT_RANGE) is no range of ports as 9600-9631";
    if (lanes[0] != '\0' && !parse_lanes(lanes, &mesh->net_lanes))
        return "HVD_NET_LANES is no number from 1 to 8";
    if (encrypt[0] != '\0' && !parse_switch(encrypt, &mesh->encrypt))
        return "HVD_ENCRYPT is neither 0 nor 1";
    if (node->config.start_timeout != 0)
        mesh->start_timeout_ns = (uint64_t)node->config.start_timeout;
    else if (timeout[0] != '\0' && !parse_seconds(timeout, &mesh->start_timeout_ns))
        return "HVD_START_TIMEOUT is no number of seconds";
    return NULL;
}

static void set_defaults(struct node *node)
{
    struct node_mesh *mesh = &node->mesh;

    snprintf(mesh->listen, sizeof(mesh->listen), "%s", node->config.mesh_listen);
    snprintf(mesh->join, sizeof(mesh->join), "%s", node->config.mesh_join);
    mesh->port_first = HVI_PORT_FIRST;
    mesh->port_last = HVI_PORT_LAST;
    mesh->net_lanes = 1;
    mesh->encrypt = false;
    mesh->start_timeout_ns = START_TIMEOUT_NS;
    while (mesh->node == 0)
        if (getrandom(&mesh->node, sizeof(mesh->node), 0) != (ssize_t)sizeof(mesh->node))
            mesh->node = 0;
}

int node_mesh_init(struct node *node)
{
    char text[HVI_TEXT_MAX + 1];
    const char *wrong;
    int status = HVI_ERR_INVALID;

    set_defaults(node);
    wrong = check_part(node);
    if (wrong == NULL)
        wrong = take_settings(node);
    if (wrong == NULL)
        wrong = check_transport(node, text, sizeof(text));
    if (wrong == NULL)
        status =
            node->config.rendezvous[0] != '\0' ? take_rendezvous(node, text, sizeof(text)) : HVI_OK;
    if (status == HVI_OK)
        return HVI_OK;
    HVI_LOG(HVI_LOG_ERROR, "mesh", "bad-mesh", wrong != NULL ? wrong : text, "");
    return status;
}

void node_mesh_fill_engine(const struct node *node, struct hvi_engine_start *start_p)
{
    start_p->port_first = node->mesh.port_first;
    start_p->port_last = node->mesh.port_last;
    start_p->one_job = is_of_one_job(node);
    start_p->net_lanes =
        node->config.net_lanes > 0 ? (uint32_t)node->config.net_lanes : node->mesh.net_lanes;
    start_p->encrypt = node->config.encrypt >= 0 ? node->config.encrypt > 0 : node->mesh.encrypt;
    snprintf(start_p->net_transport, sizeof(start_p->net_transport), "%.31s", net_transport(node));
    snprintf(start_p->trusted_networks, sizeof(start_p->trusted_networks), "%s",
             trusted_networks(node));
}

/* ---- the port ---- */

static void port_path(const struct node *node, const char *suffix, char path_p[PATH_MAX])
{
    snprintf(path_p, PATH_MAX, "%s/" PORT_FILE "%s", node->rundir.path, suffix);
}

static void write_port(const struct node *node)
{
    char path[PATH_MAX], fresh[PATH_MAX];
    FILE *out;

    port_path(node, "", path);
    port_path(node, ".new", fresh);
    out = fopen(fresh, "we");
    if (out != NULL && fprintf(out, "%u\n", (unsigned)node->mesh.port) > 0 && fclose(out) == 0 &&
        rename(fresh, path) == 0)
        return;
    HVI_LOG(HVI_LOG_WARN, "mesh", "no-port-file",
            "the port of the mesh cannot be written to a file", "path=%s error=\"%s\"", path,
            strerror(errno));
}

void node_mesh_state(struct node *node, const struct hvi_gate_state *state)
{
    if (state->status != HVI_OK) {
        HVI_LOG(HVI_LOG_ERROR, "mesh", "no-mesh", state->text, "");
        if (!node->ready)
            sd_event_exit(node->event, 1);
        return;
    }
    node->mesh.port = state->port;
    if (state->port != 0)
        write_port(node);
    if (!node->ready)
        node_notify_ready(node);
    if (state->joined)
        node_notify_joined(node);
}

void node_mesh_close(struct node *node)
{
    char path[PATH_MAX];

    free(node->mesh.ended);
    node->mesh.ended = NULL;
    free(node->mesh.lost);
    node->mesh.lost = NULL;
    if (node->mesh.port == 0)
        return;
    port_path(node, "", path);
    unlink(path);
}

/* ---- what engines say and are told ---- */

static void fill_register(const struct node_engine *engine, struct hvi_gate_msg *msg_p)
{
    const struct node_generation *generation = engine->generation;
    struct hvi_node_register *registered = &msg_p->node_register;

    msg_p->kind = HVI_GATE_NODE_REGISTER;
    snprintf(registered->job, sizeof(registered->job), "%s", generation->job->name.id);
    snprintf(registered->key_digest, sizeof(registered->key_digest), "%s",
             generation->job->key_digest);
    registered->uid = generation->job->name.uid;
    registered->registration = engine->registration;
    registered->node = engine->node_packet;
    registered->node_bytes = engine->node_packet_bytes;
}

static void send_register(struct node_engine *engine)
{
    struct hvi_gate_msg msg;

    memset(&msg, 0, sizeof(msg));
    fill_register(engine, &msg);
    node_gate_send(engine->node, &msg);
}

static void refuse(struct node_engine *engine, int status, const char *text)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_ROSTER};

    msg.engine_roster.status = status;
    snprintf(msg.engine_roster.text, sizeof(msg.engine_roster.text), "%s", text);
    node_link_send(engine, &msg, NULL, 0);
}

/* It waits for a host that never comes. What the rendezvous answers is late. */
static void refuse_lost(struct node_engine *engine)
{
    engine->met = engine->refused = true;
    refuse(engine, HVI_ERR_NODE_LOST, engine->node->mesh.lost);
}

void node_mesh_lost(struct node *node, const char *how)
{
    struct node_engine *engine;

    if (node->mesh.lost == NULL)
        node->mesh.lost = strdup(how); /* NULL: their time runs out */
    if (node->mesh.lost == NULL)
        return;
    HVI_LOG(HVI_LOG_INFO, "mesh", "host-lost", how, ""); /* engines that wait for it warn */
    DL_FOREACH(node->engines, engine)
    {
        if (engine->node_packet != NULL && !engine->met)
            refuse_lost(engine);
    }
}

void node_mesh_engine_node(struct node_engine *engine, const unsigned char *bytes, size_t length)
{
    char text[HVI_TEXT_MAX + 1];

    if (!node_mesh_wanted(engine->node)) {
        snprintf(text, sizeof(text),
                 "hvdd cannot bring job '%s' together, for it has no mesh to other nodes; start "
                 "the job with hvdrun -H, or hvdd with --mesh-seeds, --mesh-listen or --mesh-join",
                 engine->generation->job->name.id);
        refuse(engine, HVI_ERR_UNSUPPORTED, text);
        return;
    }
    unsigned char *copy = length <= HVI_MESH_PACKET_MAX ? malloc(length) : NULL;
    if (copy == NULL) {
        refuse(engine, HVI_ERR_DAEMON, "hvdd is out of memory, or the engine's ranks are too many");
        return;
    }
    memcpy(copy, bytes, length);
    free(engine->node_packet);
    engine->node_packet = copy;
    engine->node_packet_bytes = length;
    engine->met = false;
    if (engine->node->mesh.lost != NULL) {
        refuse_lost(engine);
        return;
    }
    if (engine->registration == 0)
        engine->registration = ++engine->node->mesh.registrations;
    HVI_LOG(HVI_LOG_INFO, "mesh", "node-complete",
            "all ranks of a job on this node are there; the other nodes are waited for",
            "job=%s generation=%llu", engine->generation->job->name.id,
            (unsigned long long)engine->generation->number);
    send_register(engine);
}

/* With a status: why the job cannot go on. */
static void send_withdraw(const struct node_engine *engine, int status, const char *text)
{
    struct hvi_gate_msg msg;

    memset(&msg, 0, sizeof(msg));
    msg.kind = HVI_GATE_NODE_WITHDRAW;
    snprintf(msg.node_withdraw.job, sizeof(msg.node_withdraw.job), "%s",
             engine->generation->job->name.id);
    msg.node_withdraw.uid = engine->generation->job->name.uid;
    msg.node_withdraw.registration = engine->registration;
    msg.node_withdraw.rank = -1;
    msg.node_withdraw.status = status;
    snprintf(msg.node_withdraw.text, sizeof(msg.node_withdraw.text), "%s", text);
    node_gate_send(engine->node, &msg);
}

/* No other node knows of the engine. One that comes back to a new hvdd after its job has met has said nothing of its node,
 * either: all of its ranks have come. */
static bool is_unknown(const struct node_engine *engine)
{
    const int32_t *counts = engine->generation->counts;

    return engine->node_packet == NULL && node_mesh_wanted(engine->node) &&
           node_generation_spans(engine->generation) &&
           (!engine->back || counts[NODE_SLOT_ABSENT] + counts[NODE_SLOT_ATTACHING] > 0);
}

/* Why its job cannot go on, as a status, and a sentence for the other nodes. HVI_OK: for nothing, or they know it. */
static int why_gone(const struct node_engine *engine, bool clean, const char *fate, char *text_p,
                    size_t size)
{
    char name[HVI_WIRE_NODE_NAME];

    text_p[0] = '\0';
    fill_name(name, sizeof(name));
    if (engine->lost != NULL) {
        snprintf(text_p, size, "%s", engine->lost);
        return HVI_ERR_RANK_LOST;
    }
    if (engine->failed != NULL && !engine->refused) {
        snprintf(text_p, size, "on %s: %s", name, engine->failed);
        return engine->failed_status;
    }
    if (engine->stopped != NULL) {
        snprintf(text_p, size, "on %s: %s", name, engine->stopped);
        return HVI_ERR_JOB_STOPPED;
    }
    if (clean)
        return HVI_OK;
    snprintf(text_p, size, "the engine of job '%s' on %s (pid %d) %s",
             engine->generation->job->name.id, name, (int)engine->pid, fate);
    return HVI_ERR_NODE_LOST;
}

void node_mesh_engine_gone(struct node_engine *engine, bool clean, const char *fate)
{
    char text[HVI_TEXT_MAX + 1];
    const int status = why_gone(engine, clean, fate, text, sizeof(text));

    /* Of one that nobody knows, the lost rank was told at once. */
    if (engine->node_packet != NULL ||
        (status != HVI_OK && engine->lost == NULL && is_unknown(engine)))
        send_withdraw(engine, status, text);
}

void node_mesh_engine_new(struct node_engine *engine)
{
    if (node_mesh_wanted(engine->node) && node_generation_spans(engine->generation))
        send_withdraw(engine, HVI_OK, "");
}

void node_mesh_rank_lost(struct node_engine *engine)
{
    if (engine->lost != NULL && is_unknown(engine))
        send_withdraw(engine, HVI_ERR_RANK_LOST, engine->lost);
}

/* The job's nodes can never meet without that rank, and only the rendezvous knows whether they have. */
void node_mesh_process_exited(struct node *node, const struct hvi_admin_request *request, uid_t uid)
{
    const struct hvi_fate fate = {.kind = request->signaled ? HVI_FATE_SIGNALED : HVI_FATE_EXITED,
                                  .code = request->code};
    char how[128], name[HVI_WIRE_NODE_NAME];

    if (!node_mesh_wanted(node) || !is_of_one_job(node) || node->mesh.ended != NULL)
        return;
    node->mesh.ended = calloc(1, sizeof(*node->mesh.ended));
    if (node->mesh.ended == NULL)
        return; /* the others' time runs out */
    struct hvi_node_withdraw *ended = &node->mesh.ended->node_withdraw;
    node->mesh.ended->kind = HVI_GATE_NODE_WITHDRAW;
    snprintf(ended->job, sizeof(ended->job), "%s", request->job);
    ended->uid = uid;
    ended->rank = request->rank;
    ended->status = HVI_ERR_RANK_LOST;
    hvi_fate_describe(fate, how, sizeof(how));
    fill_name(name, sizeof(name));
    snprintf(
        ended->text, sizeof(ended->text),
        "rank %d (pid %d) on %s %s before all ranks of job '%s' had called hvd.init (hvd_open): "
        "the job cannot start without it",
        request->rank, request->pid, name, how, request->job);
    node_gate_send(node, node->mesh.ended);
}

void node_mesh_tell_all(struct node *node)
{
    struct node_engine *engine;

    DL_FOREACH(node->engines, engine)
    {
        if (engine->node_packet != NULL && !engine->met)
            send_register(engine);
    }
    if (node->mesh.ended != NULL)
        node_gate_send(node, node->mesh.ended);
}

static struct node_engine *engine_of(struct node *node, const struct hvi_node_roster *roster)
{
    struct node_engine *engine;

    DL_FOREACH(node->engines, engine)
    {
        const struct node_generation *generation = engine->generation;
        if (engine->registration == roster->registration &&
            strcmp(generation->job->name.id, roster->job) == 0)
            return engine;
    }
    return NULL;
}

static void log_roster(const struct node_engine *engine, const struct hvi_engine_roster *roster)
{
    if (roster->status == HVI_OK)
        HVI_LOG(HVI_LOG_INFO, "mesh", "job-met", "the nodes of a job have met",
                "job=%s generation=%llu epoch=%llu node=%u nodes=%zu address=%s",
                engine->generation->job->name.id, (unsigned long long)engine->generation->number,
                (unsigned long long)roster->epoch, roster->node, roster->node_count,
                roster->node < roster->node_count ? roster->nodes[roster->node].address : "");
    else
        HVI_LOG(HVI_LOG_INFO, "mesh", "job-not-met", roster->text, /* its engine warns */
                "job=%s generation=%llu status=%s", engine->generation->job->name.id,
                (unsigned long long)engine->generation->number, hvi_status_name(roster->status));
}

bool node_mesh_roster(struct node *node, const struct hvi_node_roster *roster)
{
    struct node_engine *engine = engine_of(node, roster);
    struct hvi_packet_msg msg;
    bool good;

    if (hvi_packet_msg_decode(roster->roster, roster->roster_bytes, &msg, NULL, 0) != HVI_OK)
        return false;
    good = msg.kind == HVI_PACKET_ENGINE_ROSTER;
    if (good && engine != NULL && engine->node_packet != NULL &&
        (!engine->met || msg.engine_roster.status != HVI_OK)) {
        if (!engine->met)
            log_roster(engine, &msg.engine_roster);
        engine->met = true;
        engine->refused = engine->refused || msg.engine_roster.status != HVI_OK;
        node_link_send(engine, &msg, NULL, 0);
    }
    hvi_packet_msg_free(&msg);
    return good;
}

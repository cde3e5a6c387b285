/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/contract/hvt_cluster.h"

#include "base/clock.h"
#include "base/seal.h"
#include "base/status.h"
#include "base/types.h"
#include "tests/unit/engine/hvt_reference.h"
#include "tests/unit/hvt_main.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define DEADLINE_NS (60ll * 1000 * 1000 * 1000)
#define GUARD       0xa5

/* ---- nodes ---- */

static void on_post(void *user, struct engine_batch *batch)
{
    struct hvt_op_part *part =
        (struct hvt_op_part *)(void *)((char *)batch - offsetof(struct hvt_op_part, batch));

    (void)user;
    ck_assert_msg(!atomic_load(&part->posted), "a batch is posted twice");
    atomic_store_explicit(&part->posted, true, memory_order_release);
}

static void on_lane_wanted(void *user, uint32_t node, uint32_t lane)
{
    struct hvt_cluster_node *self = user;

    if (!self->cluster->alone)
        hvt_cluster_connect(self->cluster, self->number, node, lane);
}

const char *hvt_transport(void)
{
    const char *name = getenv("HVT_TRANSPORT");

    return name ? name : "tcp";
}

void hvt_cluster_open(struct hvt_cluster *cluster, const struct engine_backend *backend,
                      uint32_t nodes, uint32_t lanes, bool tcp)
{
    *cluster = (struct hvt_cluster){
        .backend = backend, .nodes = nodes, .lanes = lanes > 0 ? lanes : 1, .tcp = tcp};
    memset(cluster->fd, 0xff, sizeof cluster->fd);
    for (uint32_t i = 0; i < nodes; i++) {
        struct hvt_cluster_node *node = &cluster->node[i];
        struct engine_backend_config config = {.threads = 1,
                                               .post = on_post,
                                               .user = node,
                                               .owner = node,
                                               .lane_wanted = on_lane_wanted,
                                               .lanes = lanes};
        *node = (struct hvt_cluster_node){.cluster = cluster, .number = i};
        ck_assert_int_eq(backend->open(&config, &node->context), HVI_OK);
        char text[ENGINE_TEXT_BYTES] = "";
        int status =
            engine_wire_backend_set_transport(node->context, hvt_transport(), "127.0.0.1", text);
        ck_assert_msg(status == HVI_OK, "%s", text);
    }
}

void hvt_cluster_close(struct hvt_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->nodes; i++)
        ck_assert(cluster->backend->close(cluster->node[i].context) || cluster->loses_threads);
    for (uint32_t a = 0; a < HVT_NODES; a++) {
        for (uint32_t b = 0; b < HVT_NODES; b++) {
            for (uint32_t lane = 0; lane < ENGINE_WIRE_LANES_MAX; lane++) {
                if (cluster->fd[a][b][lane] >= 0)
                    close(cluster->fd[a][b][lane]);
            }
        }
    }
}

static void make_tcp(int *ends_p)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    ends_p[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(ends_p[0], (struct sockaddr *)&address, sizeof address), 0);
    ends_p[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(ends_p[1], 0);
    close(listener);
}

static void make_ends(const struct hvt_cluster *cluster, int *ends_p)
{
    if (cluster->tcp)
        make_tcp(ends_p);
    else
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_p), 0);
    ck_assert_int_eq(fcntl(ends_p[0], F_SETFL, O_NONBLOCK), 0);
    ck_assert_int_eq(fcntl(ends_p[1], F_SETFL, O_NONBLOCK), 0);
}

/* Of a's end of the lane to b. */
static struct hvi_seal_keys keys_of(uint32_t a, uint32_t b, uint32_t lane)
{
    struct hvi_seal_keys keys;

    memset(&keys, (int)lane, sizeof keys);
    keys.send[0] = keys.receive[1] = (unsigned char)a;
    keys.send[1] = keys.receive[0] = (unsigned char)b;
    return keys;
}

static void give(struct hvt_cluster *cluster, uint32_t a, uint32_t b, uint32_t lane, int fd)
{
    const struct hvi_seal_keys keys = keys_of(a, b, lane);
    char name[32];

    snprintf(name, sizeof name, "node %u (%c)", b, (int)('a' + b));
    engine_wire_backend_lane(cluster->node[a].context, b, lane, fd, cluster->sealed ? &keys : NULL,
                             name);
}

void hvt_cluster_connect(struct hvt_cluster *cluster, uint32_t a, uint32_t b, uint32_t lane)
{
    int ends[2];

    if (cluster->fd[a][b][lane] >= 0)
        return;
    make_ends(cluster, ends);
    cluster->fd[a][b][lane] = dup(ends[0]);
    cluster->fd[b][a][lane] = dup(ends[1]);
    give(cluster, a, b, lane, ends[0]);
    give(cluster, b, a, lane, ends[1]);
}

int hvt_cluster_pretend(struct hvt_cluster *cluster, uint32_t a, uint32_t b, uint32_t lane)
{
    int ends[2];

    make_ends(cluster, ends);
    give(cluster, a, b, lane, ends[0]);
    ck_assert_int_eq(fcntl(ends[1], F_SETFL, 0), 0);
    return ends[1];
}

/* ---- an op ---- */

static void find_nodes(struct hvt_op *op)
{
    uint32_t places[HVT_NODES] = {0};
    bool present[HVT_NODES] = {false};

    for (uint32_t i = 0; i < op->members; i++) {
        struct hvt_member *member = &op->member[i];
        member->place = places[member->node]++;
        present[member->node] = present[member->node] || !member->joined;
    }
    for (uint32_t n = 0; n < op->cluster->nodes; n++) {
        if (!present[n])
            continue;
        op->node[op->nodes] = n;
        op->places[op->nodes++] = places[n];
    }
    for (uint32_t i = 0; i < op->members; i++) {
        op->home[i] = UINT32_MAX;
        op->place[i] = op->member[i].place;
        op->joined[i] = op->member[i].joined;
        for (uint32_t n = 0; n < op->nodes; n++) {
            if (op->node[n] == op->member[i].node)
                op->home[i] = n;
        }
    }
}

void hvt_op_init(struct hvt_op *op, struct hvt_cluster *cluster, const char *members, uint32_t kind)
{
    memset(op, 0, sizeof *op);
    op->cluster = cluster;
    op->members = (uint32_t)strlen(members);
    ck_assert_uint_le(op->members, HVT_MEMBERS);
    for (uint32_t i = 0; i < op->members; i++) {
        bool joined = members[i] >= 'A';
        op->member[i].joined = joined;
        op->member[i].node = (uint32_t)(members[i] - (joined ? 'A' : '0'));
        ck_assert_uint_lt(op->member[i].node, cluster->nodes);
    }
    find_nodes(op);
    op->model = (struct engine_work){.kind = kind,
                                     .dtype = HVI_DTYPE_FLOAT32,
                                     .reduce_op = HVI_REDUCE_SUM,
                                     .root = -1,
                                     .prescale = 1,
                                     .postscale = 1};
    op->process = (struct engine_process){.pid = getpid(), .pid_fd = -1};
}

static uint32_t size_of(const struct hvt_op *op)
{
    return hvi_dtype_bytes(op->model.dtype);
}

/* Bytes of one element may be in several parts. */
static uint64_t some(const struct hvt_op *op, uint64_t count, uint64_t *random)
{
    return (hvt_random(random) % 4 == 0 ? 0 : hvt_random(random) % (count + 1)) * size_of(op);
}

static void choose_sizes(struct hvt_op *op, uint64_t count, uint64_t *random)
{
    uint64_t all = 0;

    op->model.count = count;
    op->model.bytes = count * size_of(op);
    for (uint32_t i = 0; i < op->members; i++) {
        bool joined = op->member[i].joined;
        if (op->model.kind == HVI_KIND_ALLGATHER)
            op->sizes[i] = joined ? 0 : some(op, count, random);
        if (op->model.kind == HVI_KIND_REDUCESCATTER)
            op->sizes[i] = some(op, count, random);
        for (uint32_t to = 0; to < op->members && op->model.kind == HVI_KIND_ALLTOALL; to++)
            op->sizes[i * op->members + to] = joined ? 0 : some(op, count, random);
        all += op->sizes[i];
    }
    if (op->model.kind == HVI_KIND_ALLGATHER || op->model.kind == HVI_KIND_REDUCESCATTER) {
        op->model.bytes = all;
        op->model.count = all / size_of(op);
    }
}

static uint64_t in_bytes(const struct hvt_op *op, uint32_t i)
{
    uint64_t bytes = 0;

    if (op->member[i].joined)
        return 0;
    if (op->model.kind == HVI_KIND_ALLGATHER)
        return op->sizes[i];
    if (op->model.kind == HVI_KIND_BROADCAST || op->model.kind == HVI_KIND_SEND)
        return (int32_t)i == op->model.root ? op->model.bytes : 0;
    if (op->model.kind != HVI_KIND_ALLTOALL)
        return op->model.bytes;
    for (uint32_t to = 0; to < op->members; to++)
        bytes += op->sizes[i * op->members + to];
    return bytes;
}

static uint64_t out_bytes(const struct hvt_op *op, uint32_t i)
{
    uint64_t bytes = 0;

    if (op->member[i].joined)
        return 0;
    if (op->model.kind == HVI_KIND_REDUCESCATTER)
        return op->sizes[i];
    if (op->model.kind == HVI_KIND_SEND && (int32_t)i == op->model.root)
        return 0;
    if (op->model.kind != HVI_KIND_ALLTOALL)
        return op->model.bytes;
    for (uint32_t from = 0; from < op->members; from++)
        bytes += op->sizes[from * op->members + i];
    return bytes;
}

static uint64_t offset(const uint64_t *sizes, uint32_t i)
{
    uint64_t at = 0;

    while (i-- > 0)
        at += sizes[i];
    return at;
}

static void make_member(struct hvt_op *op, uint32_t i, uint64_t *random)
{
    struct hvt_member *member = &op->member[i];
    bool shares =
        op->in_place && op->model.kind != HVI_KIND_ALLTOALL && op->model.kind != HVI_KIND_SEND;
    uint64_t in_at = 0, out_at = 0;

    member->in_bytes = in_bytes(op, i);
    member->out_bytes = out_bytes(op, i);
    if (op->model.kind == HVI_KIND_ALLGATHER)
        in_at = offset(op->sizes, i);
    if (op->model.kind == HVI_KIND_REDUCESCATTER)
        out_at = offset(op->sizes, i);
    uint64_t most = member->in_bytes > member->out_bytes ? member->in_bytes : member->out_bytes;
    unsigned char *memory = malloc(most + 1);
    ck_assert_ptr_nonnull(memory);
    member->in = shares ? memory + in_at : memory;
    member->out = shares ? memory + out_at : malloc(member->out_bytes + 1);
    memset(member->out, 0x5a, member->out_bytes);
    if (!shares || out_at == 0)
        member->out[member->out_bytes] = GUARD;
    hvt_reference_fill(op->model.dtype, member->in, member->in_bytes / size_of(op), random);
}

/* ---- what has to come out ---- */

/* The sum of a node's members, as one node gives it, but for the end. */
static unsigned char *sum_of_node(const struct hvt_op *op, uint32_t node)
{
    const void *in[HVT_MEMBERS];
    bool sums = op->model.reduce_op == HVI_REDUCE_AVERAGE;
    struct hvi_reduction reduction = {.dtype = op->model.dtype,
                                      .reduce_op = sums ? HVI_REDUCE_SUM : op->model.reduce_op,
                                      .ranks = op->members,
                                      .in = in,
                                      .prescale = op->model.prescale,
                                      .postscale = 1};
    unsigned char *result = malloc(op->model.bytes + 1);

    if (op->nodes == 1) {
        reduction.reduce_op = op->model.reduce_op;
        reduction.postscale = op->model.postscale;
    }
    for (uint32_t i = 0; i < op->members; i++) {
        if (op->home[i] == node && !op->member[i].joined)
            in[reduction.ins++] = op->member[i].in;
    }
    for (uint64_t i = 0; i < op->model.count; i++)
        hvt_reference_element(&reduction, i, result + i * size_of(op));
    return result;
}

static void reduce_element(const struct hvt_op *op, const void *const *in, uint32_t ins, bool last,
                           uint64_t index, void *to)
{
    bool sums = op->model.reduce_op == HVI_REDUCE_AVERAGE && !last;
    const struct hvi_reduction reduction = {.dtype = op->model.dtype,
                                            .reduce_op =
                                                sums ? HVI_REDUCE_SUM : op->model.reduce_op,
                                            .ranks = op->members,
                                            .ins = ins,
                                            .in = in,
                                            .prescale = 1,
                                            .postscale = last ? op->model.postscale : 1};

    hvt_reference_element(&reduction, index, to);
}

/* The ring begins at node `first`. */
static void add_round(const struct hvt_op *op, unsigned char *const *sums, uint32_t first,
                      uint64_t index, unsigned char *to)
{
    uint64_t at = index * size_of(op);
    unsigned char so_far[8];

    memcpy(so_far, sums[first] + at, size_of(op));
    for (uint32_t i = 1; i < op->nodes; i++) {
        const void *in[2] = {sums[(first + i) % op->nodes] + at, so_far};
        reduce_element(op, in, 2, i + 1 == op->nodes, 0, i + 1 == op->nodes ? to : so_far);
    }
}

static bool is_small(const struct hvt_op *op)
{
    return op->model.kind == HVI_KIND_ALLREDUCE && op->model.bytes <= 64u * 1024;
}

/* Elements of the block that contains this one begin their way at the node with the block's number. */
static uint32_t block_of(const struct hvt_op *op, uint64_t index)
{
    uint64_t each = op->model.count / op->nodes, more = op->model.count % op->nodes;
    uint32_t block = 0;

    while (index >= each * (block + 1) + (block + 1 < more ? block + 1 : more))
        block++;
    return block;
}

static unsigned char *reduce_all(const struct hvt_op *op)
{
    unsigned char *sums[HVT_NODES], *result = malloc(op->model.bytes + 1);
    uint32_t size = size_of(op);

    for (uint32_t n = 0; n < op->nodes; n++)
        sums[n] = sum_of_node(op, n);
    for (uint64_t i = 0; i < op->model.count; i++) {
        if (op->nodes == 1)
            memcpy(result + i * size, sums[0] + i * size, size);
        else if (is_small(op))
            reduce_element(op, (const void *const *)sums, op->nodes, true, i, result + i * size);
        else if (op->model.kind == HVI_KIND_ALLREDUCE)
            add_round(op, sums, block_of(op, i), i, result + i * size);
    }
    for (uint32_t r = 0; r < op->members && op->nodes > 1; r++) {
        uint64_t first = offset(op->sizes, r) / size;
        for (uint64_t i = 0; op->model.kind == HVI_KIND_REDUCESCATTER &&
                             op->home[r] != UINT32_MAX && i < op->sizes[r] / size;
             i++)
            add_round(op, sums, (op->home[r] + 1) % op->nodes, first + i,
                      result + (first + i) * size);
    }
    for (uint32_t n = 0; n < op->nodes; n++)
        free(sums[n]);
    return result;
}

static void note_post(void *user, struct engine_batch *batch)
{
    (void)batch;
    atomic_store((_Atomic bool *)user, true);
}

/* As one node does it: the members have to come to the same bits wherever they are. */
static void combine_all(const struct hvt_op *op, unsigned char *result)
{
    _Atomic bool posted = false;
    const struct engine_backend_config config = {.threads = 1, .post = note_post, .user = &posted};
    struct engine_operand in[HVT_MEMBERS] = {0}, out[HVT_MEMBERS] = {0};
    struct engine_work work = op->model;
    struct engine_batch batch = {.works = {&work}, .count = 1, .bytes = work.bytes};
    uint32_t first = 0;
    void *host = NULL;

    for (uint32_t i = 0; i < op->members; i++) {
        if (!op->member[i].joined)
            in[i] =
                (struct engine_operand){.kind = ENGINE_OPERAND_MAPPED, .address = op->member[i].in};
    }
    while (op->member[first].joined)
        first++;
    out[first] = (struct engine_operand){.kind = ENGINE_OPERAND_MAPPED, .address = result};
    work.kind = HVI_KIND_ALLREDUCE;
    work.ranks = op->members;
    work.in = in;
    work.out = out;
    work.kinds = 1u << ENGINE_OPERAND_MAPPED;
    ck_assert_int_eq(engine_backend_host.open(&config, &host), HVI_OK);
    engine_backend_host.start(host, &batch);
    while (!atomic_load(&posted))
        engine_backend_host.help(host);
    ck_assert_int_eq(batch.status, HVI_OK);
    ck_assert(engine_backend_host.close(host));
}

static void *piece(const unsigned char *from, uint64_t bytes)
{
    void *copy = malloc(bytes + 1);

    memcpy(copy, from, bytes);
    return copy;
}

static void expect_reduction(struct hvt_op *op)
{
    unsigned char *result = NULL;

    if (op->model.reduce_op == HVI_REDUCE_ADASUM) {
        result = malloc(op->model.bytes + 1);
        combine_all(op, result);
    } else {
        result = reduce_all(op);
    }
    for (uint32_t i = 0; i < op->members; i++) {
        uint64_t at = op->model.kind == HVI_KIND_REDUCESCATTER ? offset(op->sizes, i) : 0;
        op->member[i].expected = piece(result + at, op->member[i].out_bytes);
    }
    free(result);
}

static void expect_alltoall(struct hvt_op *op)
{
    for (uint32_t i = 0; i < op->members; i++) {
        uint64_t at = 0;
        op->member[i].expected = malloc(op->member[i].out_bytes + 1);
        for (uint32_t from = 0; from < op->members && !op->member[i].joined; from++) {
            const uint64_t *sizes = op->sizes + from * op->members;
            memcpy(op->member[i].expected + at, op->member[from].in + offset(sizes, i), sizes[i]);
            at += sizes[i];
        }
    }
}

static void expect_copies(struct hvt_op *op)
{
    unsigned char *result = malloc(op->model.bytes + 1);

    if (op->model.kind == HVI_KIND_ALLGATHER) {
        for (uint32_t i = 0; i < op->members; i++)
            memcpy(result + offset(op->sizes, i), op->member[i].in, op->sizes[i]);
    } else {
        memcpy(result, op->member[op->model.root].in, op->model.bytes);
    }
    for (uint32_t i = 0; i < op->members; i++)
        op->member[i].expected = piece(result, op->member[i].out_bytes);
    free(result);
}

/* ---- what each node is told ---- */

static void make_part(struct hvt_op *op, uint32_t index, uint64_t sequence)
{
    struct hvt_op_part *part = &op->part[index];
    uint32_t places = op->places[index];

    part->span = (struct engine_span){.sequence = sequence,
                                      .nodes = op->nodes,
                                      .here = index,
                                      .node = op->node,
                                      .places = op->places,
                                      .members = op->members,
                                      .home = op->home,
                                      .place = op->place,
                                      .joined = op->joined};
    part->work = op->model;
    part->work.ranks = places;
    part->work.span = &part->span;
    part->work.in = part->in;
    part->work.out = part->out;
    part->work.sizes = op->model.kind == HVI_KIND_ALLTOALL ? part->sizes : op->sizes;
    part->work.kinds = 1u << ENGINE_OPERAND_MAPPED;
    for (uint32_t i = 0; i < op->members; i++) {
        struct hvt_member *member = &op->member[i];
        bool reads = op->model.root < 0 || op->model.root == (int32_t)i;
        bool writes = op->model.kind != HVI_KIND_SEND || op->model.root != (int32_t)i;
        for (uint32_t to = 0; to < op->members && op->home[i] == index; to++) {
            part->sizes[member->place * op->members + to] = op->sizes[i * op->members + to];
            part->sizes[(places + member->place) * op->members + to] =
                op->sizes[to * op->members + i];
        }
        if (op->home[i] != index || member->joined)
            continue;
        if (reads)
            part->in[member->place] =
                (struct engine_operand){.kind = ENGINE_OPERAND_MAPPED, .address = member->in};
        if (writes)
            part->out[member->place] =
                (struct engine_operand){.kind = ENGINE_OPERAND_MAPPED, .address = member->out};
    }
    part->batch.works[0] = &part->work;
    part->batch.count = 1;
    part->batch.bytes = part->work.bytes;
    part->batch.answer_ns = UINT64_MAX;
}

void hvt_op_make(struct hvt_op *op, uint64_t count, uint64_t sequence, uint64_t *random)
{
    choose_sizes(op, count, random);
    for (uint32_t i = 0; i < op->members; i++)
        make_member(op, i, random);
    if (op->model.kind == HVI_KIND_ALLREDUCE || op->model.kind == HVI_KIND_REDUCESCATTER)
        expect_reduction(op);
    else if (op->model.kind == HVI_KIND_ALLTOALL)
        expect_alltoall(op);
    else
        expect_copies(op);
    if (op->model.kind == HVI_KIND_ALLTOALL) { /* the largest of all, as every node has something */
        op->model.bytes = 0;
        for (uint32_t i = 0; i < op->members; i++) {
            if (op->member[i].in_bytes > op->model.bytes)
                op->model.bytes = op->member[i].in_bytes;
            if (op->member[i].out_bytes > op->model.bytes)
                op->model.bytes = op->member[i].out_bytes;
        }
    }
    for (uint32_t n = 0; n < op->nodes; n++)
        make_part(op, n, sequence);
}

void hvt_op_free(struct hvt_op *op)
{
    for (uint32_t i = 0; i < op->members; i++) {
        struct hvt_member *member = &op->member[i];
        bool shares =
            op->in_place && op->model.kind != HVI_KIND_ALLTOALL && op->model.kind != HVI_KIND_SEND;
        if (shares && member->out < member->in)
            free(member->out);
        else
            free(member->in);
        if (!shares)
            free(member->out);
        free(member->expected);
    }
}

void hvt_op_make_remote(struct hvt_op *op, uint32_t member, bool in, bool out)
{
    struct hvt_op_part *part = &op->part[op->home[member]];
    struct engine_operand *operands[2] = {&part->in[op->place[member]],
                                          &part->out[op->place[member]]};
    const bool wanted[2] = {in, out};

    for (int i = 0; i < 2; i++) {
        if (!wanted[i] || operands[i]->kind == ENGINE_OPERAND_NONE)
            continue;
        operands[i]->kind = ENGINE_OPERAND_PROCESS;
        operands[i]->process = &op->process;
        part->work.kinds |= 1u << ENGINE_OPERAND_PROCESS;
    }
}

/* ---- running it ---- */

void hvt_op_start(struct hvt_op *op, uint32_t index)
{
    struct hvt_op_part *part = &op->part[index];

    ck_assert(op->cluster->backend->accepts(&part->batch));
    part->started = true;
    op->cluster->backend->start(op->cluster->node[op->node[index]].context, &part->batch);
}

void hvt_op_start_all(struct hvt_op *op)
{
    for (uint32_t n = 0; n < op->nodes; n++)
        hvt_op_start(op, n);
}

void hvt_op_wait(struct hvt_op *op, uint32_t index)
{
    uint64_t deadline_ns = hvi_deadline_after(DEADLINE_NS);

    while (!atomic_load_explicit(&op->part[index].posted, memory_order_acquire)) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "kind %u is not posted on node %u",
                      op->model.kind, op->node[index]);
        bool helped = false;
        for (uint32_t n = 0; n < op->cluster->nodes; n++) {
            op->cluster->backend->watch(op->cluster->node[n].context);
            helped = op->cluster->backend->help(op->cluster->node[n].context) || helped;
        }
        if (!helped)
            usleep(20);
    }
}

void hvt_op_wait_all(struct hvt_op *op)
{
    for (uint32_t n = 0; n < op->nodes; n++) {
        if (op->part[n].started)
            hvt_op_wait(op, n);
    }
}

static void expect_output(const struct hvt_op *op, uint32_t i)
{
    const struct hvt_member *member = &op->member[i];
    uint64_t at = 0;

    if (member->joined || member->out_bytes == 0)
        return;
    while (at < member->out_bytes && member->out[at] == member->expected[at])
        at++;
    ck_assert_msg(at == member->out_bytes,
                  "kind %u dtype %u op %u: member %u on node %u has byte %lu of %lu wrong",
                  op->model.kind, op->model.dtype, op->model.reduce_op, i, member->node,
                  (unsigned long)at, (unsigned long)member->out_bytes);
    if (!op->in_place)
        ck_assert_int_eq(member->out[member->out_bytes], GUARD);
}

void hvt_op_expect_outputs(const struct hvt_op *op)
{
    for (uint32_t i = 0; i < op->members; i++)
        expect_output(op, i);
}

void hvt_op_check(struct hvt_op *op)
{
    hvt_op_wait_all(op);
    for (uint32_t n = 0; n < op->nodes; n++)
        ck_assert_msg(op->part[n].batch.status == HVI_OK, "kind %u on node %u: %s (%s)",
                      op->model.kind, op->node[n], hvi_status_text(op->part[n].batch.status),
                      op->part[n].batch.text);
    hvt_op_expect_outputs(op);
}

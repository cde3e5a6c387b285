/* SPDX-License-Identifier: Apache-2.0
 * Random programs (tests/property/program.c), and what must come of them (model.c): status, sentence, culprit and
 * rows of each op on each rank. The network jitters, and sends segments again; in every fourth program a node dies in
 * between, and every rank that lives has to hear of it.
 *
 * A rank submits the ops of a phase in an order of its own, waits for all of them, and goes on. No data moves, so bytes
 * are not compared; ops are not taken back, and nothing is misused. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/status.h"
#include "daemon/engine/order/negotiate.h"
#include "tests/property/prop.h"
#include "tests/sim/scenario.h"
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#define LABEL_BYTES 64
#define PARTS       (HVT_OPS * HVT_GROUP + 1)
#define APART_NS    (300 * UINT64_C(1000)) /* between two ops of a rank, at most */
#define LIMIT_NS    (60 * HVI_NS_SEC)

struct piece {
    struct hvt_part part;    /* first */
    int rank, index, member; /* index -1: the join */
    bool asked, over;
    int status;
    int32_t culprit;
    uint64_t room; /* of an output that is asked for */
    int64_t integers[HVT_RANKS];
    char text[HVI_TEXT_MAX + 1];
};

struct player {
    int rank;
    struct hvt_node *node;
    int phase, turn, left; /* left: pieces that are not over */
    struct hvt_world world;
    uint32_t set_ids[HVT_SETS];
    uint64_t unnamed[HVT_SETS][HVT_KINDS + 1];
    int order[HVT_OPS], count, at; /* ops of the turn */
    bool joins, meets, ended;
    struct engine_group group;
    struct piece pieces[PARTS];
    int piece_count;
};

static struct hvt_sim job;
static struct player players[HVT_RANKS];
static struct hvt_program *program;
static int playing, meeting;
static bool all_ended, has_failed, has_death;
static uint64_t ops;

static void begin_turn(struct player *player);

static void complain(const struct player *player, const char *what, const char *have,
                     const char *want)
{
    has_failed = true;
    all_ended = true;
    fprintf(stderr, "hvt-sim: rank %d, phase %d, turn %d: %s\n  %s\nand should be\n  %s\n",
            player->rank, player->phase, player->turn, what, have, want);
}

static const struct hvt_phase *phase_of(const struct player *player)
{
    return &program->phase[player->phase];
}

/* ---- what is compared ---- */

/* HVT_DIGITS in the pattern stands for a number. */
static bool is_alike(const char *text, const char *pattern)
{
    while (*pattern) {
        if (*pattern == HVT_DIGITS && *text >= '0' && *text <= '9') {
            text += strspn(text, "0123456789");
            pattern++;
        } else if (*text++ != *pattern++) {
            return false;
        }
    }
    return *text == '\0';
}

/* Each node looks at the outputs of its own ranks: which of those that are too small is named is chance. */
static void expect_any_small(const struct player *player, const struct piece *piece,
                             struct hvt_outcome *outcome)
{
    struct hvt_request request;

    hvt_model_request(&player->world, phase_of(player), piece->index, piece->member,
                      piece->culprit >= 0 ? piece->culprit : 0, &request);
    if (piece->culprit >= 0 && request.small)
        outcome->culprit = piece->culprit;
    snprintf(outcome->text, sizeof outcome->text,
             "the output of rank %c has room for %c bytes, the result has %c", HVT_DIGITS,
             HVT_DIGITS, HVT_DIGITS);
}

static void check_text(const struct player *player, const struct piece *piece,
                       struct hvt_outcome *outcome, int failed_member)
{
    char expected[HVT_TEXT + LABEL_BYTES], label[LABEL_BYTES];
    const char *name =
        hvt_model_name(&phase_of(player)->op[piece->index], failed_member, label, sizeof label);

    /* Of a group a node compares what its own ranks say, and names those. */
    if (outcome->status == HVD_ERR_MISMATCH && phase_of(player)->op[piece->index].group > 0)
        return;
    if (outcome->room)
        expect_any_small(player, piece, outcome);
    snprintf(expected, sizeof expected, "%s '%s': %s", outcome->label_kind, name ? name : "",
             outcome->text);
    if (name && program->ranks <= 16 && !is_alike(piece->text, expected)) /* more are "0-16" */
        complain(player, "the sentence is", piece->text, expected);
    if (piece->culprit != outcome->culprit)
        complain(player, "the culprit is another", piece->text, expected);
}

static bool has_rows(int kind)
{
    return kind == HVT_ALLGATHER || kind == HVT_ALLTOALL || kind == HVT_REDUCESCATTER;
}

static void take_set(struct player *player, int set, uint32_t id)
{
    player->set_ids[set] = id;
    memset(player->unnamed[set], 0, sizeof player->unnamed[set]);
}

static void check_piece(struct player *player, const struct piece *piece)
{
    const struct hvt_phase *phase = phase_of(player);
    struct hvt_outcome own, whole, *outcome = &whole;
    int failed = hvt_model_group_outcome(&player->world, phase, piece->index, &whole);
    struct hvt_request request;
    char have[64], want[64];

    hvt_model_request(&player->world, phase, piece->index, piece->member, player->rank, &request);
    hvt_model_outcome(&player->world, phase, piece->index, piece->member, &own);
    if (!hvt_model_is_whole(&player->world, phase, piece->index)) {
        outcome = &own;
        failed = piece->member;
    }
    snprintf(have, sizeof have, "%s, %lld rows", hvi_status_name(piece->status),
             (long long)piece->part.part.rows);
    snprintf(want, sizeof want, "%s, %lld rows", hvi_status_name(outcome->status),
             (long long)own.rows[player->rank]);
    if (piece->status != outcome->status)
        complain(player, piece->text, have, want);
    else if (outcome->status != HVD_OK)
        check_text(player, piece, outcome, failed);
    else if (has_rows(request.kind) && piece->part.part.rows != own.rows[player->rank])
        complain(player, "the result has", have, want);
    else if (phase->op[piece->index].kind == HVT_SET_ADD)
        take_set(player, phase->op[piece->index].set, (uint32_t)piece->part.part.rows);
}

/* ---- turns ---- */

static int turns_of(const struct hvt_phase *phase)
{
    for (int i = 0; i < phase->ops; i++) {
        if (phase->op[i].kind >= HVT_SET_ADD)
            return 1;
    }
    return phase->repeat < 1 ? 1 : phase->repeat;
}

static void next_turn(struct player *player)
{
    if (++player->turn < turns_of(phase_of(player))) {
        begin_turn(player);
        return;
    }
    player->turn = 0;
    hvt_world_change(&player->world, phase_of(player));
    if (++player->phase < program->phases) {
        begin_turn(player);
        return;
    }
    player->ended = true;
    if (--playing == 0)
        all_ended = true;
}

static void go_on(struct hvt_node *node, void *user, uint64_t value)
{
    (void)node, (void)value;
    next_turn(user);
}

static void meet(struct player *player)
{
    if (!hvt_model_meets(phase_of(player))) {
        next_turn(player);
        return;
    }
    if (++meeting < program->ranks)
        return;
    meeting = 0;
    for (int i = 0; i < program->ranks; i++)
        hvt_clock_post(players[i].node, hvt_clock_now(), go_on, &players[i], 0);
}

/* Every op of the turn is over. */
static void end_turn(struct hvt_node *node, void *user, uint64_t value)
{
    struct player *player = user;

    (void)node, (void)value;
    for (int i = 0; i < player->piece_count && !has_failed; i++) {
        if (player->pieces[i].index >= 0)
            check_piece(player, &player->pieces[i]);
    }
    if (player->joins)
        memset(player->unnamed[phase_of(player)->join], 0, sizeof player->unnamed[0]);
    if (!has_failed)
        meet(player);
}

static void answered(struct hvt_part *part, int status, const char *text, int32_t culprit)
{
    struct piece *piece = (struct piece *)(void *)part;
    struct player *player = &players[piece->rank];

    HVI_ASSERT(!piece->over);
    piece->over = true;
    piece->status = status;
    piece->culprit = culprit;
    snprintf(piece->text, sizeof piece->text, "%s", text);
    ops++;
    if (--player->left == 0 && !has_death)
        hvt_clock_post(player->node, hvt_clock_now(), end_turn, player, 0);
    if (player->left == 0 && has_death && !player->ended) {
        player->ended = true;
        all_ended = all_ended || --playing == 0;
    }
}

static void give_output(struct hvt_node *node, void *user, uint64_t value)
{
    struct piece *piece = user;
    struct engine_part *part = &piece->part.part;

    (void)value;
    if (piece->over)
        return;
    part->copy.out_region = 2;
    part->copy.out_capacity = part->out_bytes;
    node->order.now_ns = hvt_clock_now();
    engine_negotiate_output(&node->order, part);
}

static void asked(struct hvt_part *part)
{
    hvt_clock_post(part->node, hvt_clock_now(), give_output, part, 0);
}

static const struct hvt_part_calls part_calls = {answered, asked};

/* ---- submissions ---- */

static uint16_t kind_of(int kind)
{
    static const uint16_t kinds[HVT_KINDS] = {
        HVI_KIND_ALLREDUCE,     HVI_KIND_ALLGATHER, HVI_KIND_BROADCAST, HVI_KIND_ALLTOALL,
        HVI_KIND_REDUCESCATTER, HVI_KIND_BARRIER,   HVI_KIND_SET_ADD,   HVI_KIND_SET_REMOVE};

    return kinds[kind];
}

static void fill_integers(struct piece *piece, const struct player *player,
                          const struct hvt_request *request)
{
    int size = hvt_set_size(player->world.members[phase_of(player)->op[piece->index].set]);
    uint32_t count = 0;

    for (int i = 0; i < size && request->kind == HVT_ALLTOALL; i++)
        piece->integers[count++] = request->splits[i];
    for (int i = 0; i < HVT_RANKS && request->kind == HVT_SET_ADD; i++) {
        if (request->ranks >> i & 1)
            piece->integers[count++] = i;
    }
    piece->part.part.integers = count > 0 ? piece->integers : NULL;
    piece->part.part.integer_count = count;
}

/* Where the result goes; none is given now and then, where a rank may do so. */
static void fill_output(struct piece *piece, const struct player *player,
                        const struct hvt_request *request)
{
    struct engine_part *part = &piece->part.part;
    struct hvt_outcome own;

    part->copy.out_region = 2;
    part->copy.out_capacity = part->in_bytes;
    if (!has_rows(request->kind))
        return;
    hvt_model_outcome(&player->world, phase_of(player), piece->index, piece->member, &own);
    int64_t rows =
        own.status != HVD_OK && !own.room ? request->dims[0] + 1 : own.rows[player->rank];
    if (request->small && rows > 0)
        rows--;
    part->copy.out_capacity =
        (uint64_t)rows * (uint64_t)hvt_row_elements(request) * hvt_bytes_of(request->dtype);
    if (!request->small && hvt_clock_random(3) == 0) {
        part->copy.out_region = HVI_REGION_NONE;
        part->copy.out_capacity = 0;
    }
}

static void fill_copy(struct piece *piece, struct player *player, const struct hvt_request *r)
{
    const struct hvt_op *op = &phase_of(player)->op[piece->index];
    struct engine_part *part = &piece->part.part;
    struct hvi_submission *copy = &part->copy;
    bool bare = r->kind > HVT_REDUCESCATTER;

    *copy = (struct hvi_submission){.kind = kind_of(r->kind),
                                    .root = -1,
                                    .process_set =
                                        op->kind >= HVT_SET_ADD ? 0 : player->set_ids[op->set],
                                    .prescale = 1,
                                    .postscale = 1,
                                    .in_region = HVI_REGION_NONE,
                                    .out_region = HVI_REGION_NONE};
    if (r->kind == HVT_SET_REMOVE)
        copy->root = (int32_t)player->set_ids[r->root];
    if (op->name < 0)
        copy->anon_seq = ++player->unnamed[op->kind >= HVT_SET_ADD ? 0 : op->set][r->kind];
    if (bare)
        return;
    copy->dtype = (uint8_t)r->dtype;
    copy->reduce_op = (uint8_t)r->reduce;
    copy->ndim = (uint8_t)r->ndim;
    memcpy(copy->dims, r->dims, (size_t)r->ndim * sizeof r->dims[0]);
    copy->root = r->kind == HVT_BROADCAST ? r->root : -1;
    copy->prescale = r->pre;
    copy->postscale = r->post;
    copy->in_region = 1;
    copy->count = (uint64_t)hvt_elements(r);
    copy->group = r->group > 0;
    copy->group_size = (uint32_t)r->group;
    copy->group_index = (uint32_t)(r->group > 0 ? r->member : 0);
    part->in_bytes = copy->count * hvt_bytes_of(r->dtype);
    fill_output(piece, player, r);
}

static struct piece *new_piece(struct player *player, int index, int member)
{
    struct piece *piece = &player->pieces[player->piece_count++];

    *piece = (struct piece){.rank = player->rank, .index = index, .member = member};
    piece->part.node = player->node;
    piece->part.calls = &part_calls;
    piece->part.part.rank = player->rank;
    engine_roster_seat(&player->node->roster, player->rank, &piece->part.part.seat);
    return piece;
}

static void submit_piece(struct player *player, int index, int member)
{
    struct piece *piece = new_piece(player, index, member);
    const struct hvt_op *op = &phase_of(player)->op[index];
    struct hvt_request request;
    char label[LABEL_BYTES];

    hvt_model_request(&player->world, phase_of(player), index, member, player->rank, &request);
    fill_copy(piece, player, &request);
    fill_integers(piece, player, &request);
    hvt_node_submit(player->node, &piece->part, hvt_model_name(op, member, label, sizeof label),
                    request.group > 0 ? &player->group : NULL);
}

static void submit_join(struct player *player)
{
    struct piece *piece = new_piece(player, -1, 0);

    piece->part.part.copy =
        (struct hvi_submission){.kind = HVI_KIND_JOIN,
                                .root = -1,
                                .process_set = player->set_ids[phase_of(player)->join],
                                .prescale = 1,
                                .postscale = 1,
                                .anon_seq = 1,
                                .in_region = HVI_REGION_NONE,
                                .out_region = HVI_REGION_NONE};
    hvt_node_submit(player->node, &piece->part, NULL, NULL);
}

/* The next op of the turn; behind the last one the join. */
static void submit(struct hvt_node *node, void *user, uint64_t value)
{
    struct player *player = user;
    int at = player->at++;

    (void)value;
    if (has_death && node->order.broken_status != HVI_OK)
        return;
    if (at < player->count) {
        int index = player->order[at], members = hvt_model_members(&phase_of(player)->op[index]);
        for (int member = 0; member < members; member++)
            submit_piece(player, index, member);
    } else if (player->joins) {
        submit_join(player);
    }
    if (player->at < player->count + player->joins)
        hvt_clock_post(node, hvt_clock_now() + hvt_clock_random(APART_NS), submit, player, 0);
}

/* Any order, but what goes by number stays in the program's. */
static void shuffle(struct player *player)
{
    const struct hvt_phase *phase = phase_of(player);
    int unnamed[HVT_OPS], count = 0, next = 0;

    for (int i = 0; i < player->count; i++) {
        if (phase->op[player->order[i]].name < 0)
            unnamed[count++] = player->order[i];
    }
    for (int i = player->count - 1; i > 0; i--) {
        int at = (int)hvt_clock_random((uint64_t)i + 1), index = player->order[i];
        player->order[i] = player->order[at];
        player->order[at] = index;
    }
    for (int i = 0; i < player->count; i++) {
        if (phase->op[player->order[i]].name < 0)
            player->order[i] = unnamed[next++];
    }
}

static void begin_turn(struct player *player)
{
    const struct hvt_phase *phase = phase_of(player);
    struct hvt_outcome outcome;

    player->count = player->at = player->left = player->piece_count = 0;
    for (int i = 0; i < phase->ops; i++) {
        if (!hvt_model_is_op(&player->world, phase, i) ||
            !(hvt_model_who(&player->world, phase, i) >> player->rank & 1))
            continue;
        hvt_model_group_outcome(&player->world, phase, i, &outcome);
        if (outcome.local)
            continue;
        player->order[player->count++] = i;
        player->left += hvt_model_members(&phase->op[i]);
    }
    player->joins = phase->join >= 0 && phase->join < HVT_SETS &&
                    player->world.members[phase->join] >> player->rank & 1;
    player->left += player->joins;
    if (phase->shuffle)
        shuffle(player);
    if (player->left > 0)
        hvt_clock_post(player->node, hvt_clock_now() + hvt_clock_random(APART_NS), submit, player,
                       0);
    else
        hvt_clock_post(player->node, hvt_clock_now(), end_turn, player, 0);
}

/* ---- programs ---- */

/* What this rank's library does is not simulated. */
static void simplify(void)
{
    for (int i = 0; i < program->phases; i++) {
        struct hvt_phase *phase = &program->phase[i];
        phase->join_cancel = 0;
        phase->first = -1;
        for (int op = 0; op < phase->ops; op++)
            phase->op[op].cancel = phase->op[op].misuse = 0;
    }
}

static void begin_players(uint32_t each)
{
    memset(players, 0, sizeof players);
    playing = program->ranks;
    meeting = 0;
    all_ended = has_failed = has_death = false;
    for (int i = 0; i < program->ranks; i++) {
        players[i].rank = i;
        players[i].node = &job.node[(uint32_t)i / each];
        hvt_world_init(&players[i].world, program->ranks);
        begin_turn(&players[i]);
    }
}

static const char *unanswered(const struct piece *piece)
{
    static char text[96];
    const struct engine_op *op = piece->part.part.op;

    snprintf(text, sizeof text, "op %d, member %d, in state %d, sequence %llu: not answered",
             piece->index, piece->member, op ? (int)op->state : -1,
             (unsigned long long)(op ? op->sequence : 0));
    return text;
}

/* Of what is not answered where nobody has died. */
static void complain_of_all(const char *what)
{
    for (int i = 0; i < program->ranks; i++) {
        for (int k = 0; k < players[i].piece_count && !players[i].node->dead; k++) {
            if (players[i].pieces[k].part.part.set && !players[i].pieces[k].over)
                complain(&players[i], what, unanswered(&players[i].pieces[k]), "answered");
        }
    }
}

static void kill_one(void)
{
    uint32_t victim = (uint32_t)hvt_clock_random(job.nodes);

    hvt_clock_run(&all_ended, hvt_clock_now() + hvt_clock_random(20 * HVI_NS_MS));
    if (all_ended)
        return;
    has_death = true;
    for (int i = 0; i < program->ranks; i++)
        players[i].ended = players[i].ended || players[i].node->number == victim;
    hvt_node_kill(&job.node[victim], hvt_clock_random(2) ? HVT_POWER : HVT_PROCESS);
    uint64_t killed_ns = hvt_clock_now();
    if (!hvt_clock_run(&job.all_told, killed_ns + 2 * HVI_NS_SEC))
        complain(&players[0], "a node dies", "not every node is told", "all are, within 2 s");
    hvt_clock_run(NULL, hvt_clock_now() + HVI_NS_SEC);
    complain_of_all("a node dies");
}

static bool play(uint64_t seed, uint64_t index, bool dies)
{
    const uint32_t each = 1 + (uint32_t)(seed % 3);
    const uint32_t ranks = each * (2 + (uint32_t)(hvt_mix(seed, 3) % (HVT_RANKS / each - 1)));

    program = hvt_program_random(seed, (int)ranks);
    simplify();
    hvt_clock_reset(seed);
    hvt_sim_begin(&job, ranks / each, each);
    job.work_ns = hvt_network.latency_ns;
    hvt_sim_meet(&job, hvt_clock_now(), 1000);
    if (!hvt_clock_run(&job.all_ready, hvt_clock_now() + LIMIT_NS))
        return false;
    begin_players(each);
    if (dies)
        kill_one();
    else if (!hvt_clock_run(&all_ended, hvt_clock_now() + LIMIT_NS))
        complain_of_all("the program is not over");
    if (job.overtaken)
        complain(&players[0], "the order of reports", "another", "each node's own");
    for (uint32_t i = 0; i < job.nodes && !dies && !has_failed; i++) {
        if (job.node[i].told)
            complain(&players[0], "the job is broken", job.node[i].text, "not");
    }
    if (has_failed) {
        fprintf(stderr, "hvt-sim: --first %llu --programs 1, %u ranks on %u nodes%s:\n",
                (unsigned long long)index, ranks, job.nodes, dies ? ", one of which dies" : "");
        hvt_program_print(program, stderr);
    }
    has_death = true; /* what is left over is not compared */
    hvt_sim_end(&job);
    hvt_program_free(program);
    return !has_failed;
}

bool hvt_scenario_random(const struct hvt_layout *layout, hvt_row_fn say)
{
    const struct hvt_network before = hvt_network;
    struct hvt_row row = {.what = "random programs that came out as the reference says",
                          .unit = ""};
    bool good = true;

    ops = 0;
    for (uint64_t i = layout->first; i < layout->first + layout->programs && good; i++) {
        hvt_network.jitter_ns = i % 2 ? 400000 : before.jitter_ns;
        hvt_network.loss_ppm = i % 8 == 5 ? 20000 : before.loss_ppm;
        good = play(layout->seed * 1000003 + i, i, i % 4 == 3);
        row.value += good;
    }
    hvt_network = before;
    say(&row);
    snprintf(row.what, sizeof row.what, "random programs: ops of a rank");
    row.value = (double)ops;
    say(&row);
    return good;
}

/* SPDX-License-Identifier: Apache-2.0
 * The stall table: negotiate.c's list of waiting ops, oldest first, as rows, and ops that execute and
 * do not move. Nothing is kept beside that list. A missing rank's process is looked at in /proc; what
 * it waits in is the oldest op that it itself waits for (two ranks that wait for each other's ops are
 * the usual deadlock), else what the kernel says. */
#include "daemon/engine/watch/stall.h"

#include "base/clock.h"
#include "base/fate.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/engine/exec/exec.h"
#include "daemon/engine/order/join.h"
#include "daemon/engine/order/partial.h"
#include "daemon/engine/order/root.h"
#include "daemon/engine/order/sentence.h"
#include "daemon/engine/sessions/liveness.h"
#include "daemon/engine/slots/slots.h"
#include "daemon/engine/watch/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LABEL_MAX 80 /* bytes of a tensor name in "waits in" */

bool engine_stall_misses(const struct engine_op *op, uint32_t member)
{
    const struct engine_part *part = op->parts[member];

    if (!part && op->partial)
        return engine_partial_awaits(op, member);
    if (!part)
        return !engine_join_has(op->set, member);
    return op->state == ENGINE_OP_SIZING && part->output_asked;
}

bool engine_stall_waits_elsewhere(const struct engine_op *op)
{
    return op->partial ? engine_partial_awaits_others(op) : op->state == ENGINE_OP_REPORTED;
}

const char *engine_stall_kind(const struct engine_op *op)
{
    const struct engine_part *part = engine_op_first_part(op);

    return hvi_kind_text(part ? part->copy.kind : HVI_KIND_BARRIER);
}

/* By seat: the oldest op that each rank has submitted and that still waits; NULL without memory. */
static const struct engine_op **oldest_ops(const struct engine_watch *watch)
{
    const struct engine_op **oldest = calloc(watch->sessions->seats, sizeof *oldest);

    for (const struct engine_op *op = watch->order->waiting_first; oldest && op; op = op->next) {
        uint32_t members = op->set->places;
        for (uint32_t i = 0; i < members; i++) {
            const struct engine_op **mine = &oldest[op->set->seats[i].n];
            if (op->parts[i] && !*mine)
                *mine = op;
        }
    }
    return oldest;
}

static void fill_waits_in(const struct engine_op *oldest, struct hvi_missing_rank *missing)
{
    char label[ENGINE_LABEL];

    if (!oldest) {
        hvi_process_waits_in(missing->pid, missing->waits_in, sizeof missing->waits_in);
        if (!hvi_utf8_valid(missing->waits_in, strlen(missing->waits_in)))
            missing->waits_in[0] = '\0';
        return;
    }
    engine_tensor_label(oldest->tensor, label);
    snprintf(missing->waits_in, sizeof missing->waits_in, "%s '%.*s'", engine_stall_kind(oldest),
             (int)hvi_utf8_cut(label, strlen(label), LABEL_MAX), label);
}

static void fill_missing(const struct engine_watch *watch, engine_seat seat,
                         const struct engine_op *oldest, struct hvi_missing_rank *missing)
{
    const struct engine_rank *slot = engine_rank_at(watch->sessions, seat);

    missing->rank = engine_rank_at(watch->sessions, seat)->rank;
    missing->pid = slot->session ? slot->pid : 0;
    if (!slot->session) {
        snprintf(missing->process, sizeof missing->process, "absent");
        return;
    }
    snprintf(missing->process, sizeof missing->process, "%c", hvi_process_state(slot->pid));
    fill_waits_in(oldest, missing);
}

/* At most ENGINE_STALL_RANKS of them are in ranks_p. 0: this node does not know, or it waits for none. */
static uint32_t missing_elsewhere(const struct engine_watch *watch, const struct engine_op *op,
                                  int32_t *ranks_p)
{
    const struct engine_order *order = watch->order;

    if (!engine_stall_waits_elsewhere(op))
        return 0;
    if (op->partial)
        return engine_partial_others(order, op, ranks_p, ENGINE_STALL_RANKS);
    if (!order->root)
        return 0;
    return engine_root_missing(order->root, order->roster->here, op, ranks_p, ENGINE_STALL_RANKS);
}

/* Who may be missing there, as far as this node knows: all of them. */
static uint32_t members_elsewhere(const struct engine_op *op, uint32_t here, int32_t *ranks_p)
{
    const struct engine_places *span = op->set->span;
    uint32_t count = 0;

    for (uint32_t i = 0; span && i < op->set->size && count < ENGINE_STALL_RANKS; i++) {
        if (span->node[span->home[i]] != here)
            ranks_p[count++] = engine_set_member(op->set, i);
    }
    return count;
}

static void fill_elsewhere(const struct engine_watch *watch, const struct engine_op *op,
                           struct hvi_stall_row *row)
{
    bool reported = op->state == ENGINE_OP_REPORTED, waits = op->state == ENGINE_OP_WAITING;
    int32_t ranks[ENGINE_STALL_RANKS];
    uint32_t count = missing_elsewhere(watch, op, ranks);

    if ((waits || (reported && !watch->order->root)) && !op->partial)
        count = members_elsewhere(op, watch->order->roster->here, ranks);
    for (uint32_t i = 0; i < count && i < ENGINE_STALL_RANKS; i++) {
        struct hvi_missing_rank *missing = &row->missing[row->missing_count++];
        missing->rank = ranks[i];
        snprintf(missing->process, sizeof missing->process, "elsewhere");
        snprintf(missing->waits_in, sizeof missing->waits_in, "on another node");
    }
}

static bool has_joined(const struct engine_watch *watch, engine_seat seat)
{
    const struct engine_set *all = engine_sets_find(&watch->order->sets, 0);

    return all && all->index[seat.n] >= 0 && engine_join_has(all, (uint32_t)all->index[seat.n]);
}

void engine_stall_standing(const struct engine_watch *watch, struct hvi_missing_rank **rows_p,
                           size_t *count_p)
{
    uint32_t seats = watch->sessions->seats;
    const struct engine_op **oldest = oldest_ops(watch);
    struct hvi_missing_rank *rows = oldest ? calloc(seats, sizeof *rows) : NULL;

    for (uint16_t i = 0; rows && i < seats; i++) {
        fill_missing(watch, (engine_seat){i}, oldest[i], &rows[i]);
        if (has_joined(watch, (engine_seat){i}))
            snprintf(rows[i].process, sizeof rows[i].process, "joined");
    }
    free(oldest);
    *rows_p = rows;
    *count_p = rows ? seats : 0;
}

/* With room for all members of the set, and for those elsewhere. */
static int begin_row(const struct engine_watch *watch, const struct engine_set *set,
                     const char *kind, uint64_t age_ns, struct hvi_stall_row *row)
{
    row->ready = calloc(set->places, sizeof *row->ready);
    row->missing = calloc(set->places + ENGINE_STALL_RANKS, sizeof *row->missing);
    snprintf(row->op, sizeof row->op, "%s", kind);
    snprintf(row->job, sizeof row->job, "%s", watch->start->job);
    row->process_set = set->id;
    row->age_ns = age_ns;
    return row->ready && row->missing ? HVI_OK : HVI_ERR_NO_MEMORY;
}

static void add_missing_in(const struct engine_watch *watch, engine_seat seat, const char *waits_in,
                           struct hvi_stall_row *row)
{
    struct hvi_missing_rank *missing = &row->missing[row->missing_count++];

    fill_missing(watch, seat, NULL, missing);
    snprintf(missing->waits_in, sizeof missing->waits_in, "%s", waits_in);
}

static int fill_row(const struct engine_watch *watch, const struct engine_op *op,
                    const struct engine_op *const *oldest, uint64_t now_ns,
                    struct hvi_stall_row *row)
{
    if (begin_row(watch, op->set, engine_stall_kind(op), now_ns - op->first_ns, row) != HVI_OK)
        return HVI_ERR_NO_MEMORY;
    engine_tensor_name(op->tensor, row->tensor);
    for (uint32_t i = 0; i < op->set->places; i++) {
        engine_seat seat = op->set->seats[i];
        if (engine_stall_misses(op, i))
            fill_missing(watch, seat, oldest[seat.n], &row->missing[row->missing_count++]);
        else if (op->parts[i])
            row->ready[row->ready_count++] = op->set->ranks[i];
    }
    fill_elsewhere(watch, op, row);
    return HVI_OK;
}

/* Everybody has submitted it, and some hold units of it. */
static int fill_held_row(const struct engine_watch *watch, const struct engine_held *held,
                         uint64_t now_ns, struct hvi_stall_row *row)
{
    const struct engine_set *set = held->slot->set;
    const char *kind = hvi_kind_text(held->slot->agreed.kind);

    if (begin_row(watch, set, kind, now_ns - held->since_ns, row) != HVI_OK)
        return HVI_ERR_NO_MEMORY;
    snprintf(row->tensor, sizeof row->tensor, "%s", held->name);
    for (uint32_t i = 0; i < set->places; i++) {
        if (held->holders >> set->seats[i].n & 1u)
            add_missing_in(watch, set->seats[i], "its part of the reduction", row);
        else
            row->ready[row->ready_count++] = set->ranks[i];
    }
    return HVI_OK;
}

/* It executes, and waits for the rank at this place. */
static int fill_executing_row(const struct engine_watch *watch, const struct engine_op *op,
                              uint32_t place, const char *waits_in, uint64_t now_ns,
                              struct hvi_stall_row *row)
{
    if (begin_row(watch, op->set, hvi_kind_text(op->kind), now_ns - op->first_ns, row) != HVI_OK)
        return HVI_ERR_NO_MEMORY;
    engine_tensor_name(op->tensor, row->tensor);
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (i == place)
            add_missing_in(watch, op->set->seats[i], waits_in, row);
        else if (op->parts[i])
            row->ready[row->ready_count++] = op->set->ranks[i];
    }
    return HVI_OK;
}

void engine_stall_rows_free(struct hvi_stall_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(rows[i].ready);
        free(rows[i].missing);
    }
    free(rows);
}

struct table {
    struct hvi_stall_row *rows;
    size_t count, limit;
    uint64_t left_out;
    uint64_t now_ns, min_age_ns;
};

/* The next row, of what waits since then; NULL: not long enough, or it is counted, and left out. */
static struct hvi_stall_row *next_row(struct table *table, uint64_t since_ns)
{
    if (since_ns > table->now_ns || table->now_ns - since_ns < table->min_age_ns)
        return NULL;
    if (table->count < table->limit)
        return &table->rows[table->count++];
    table->left_out++;
    return NULL;
}

static int add_waiting(const struct engine_watch *watch, struct table *table)
{
    const struct engine_op **oldest = oldest_ops(watch);
    int status = oldest ? HVI_OK : HVI_ERR_NO_MEMORY;

    for (const struct engine_op *op = watch->order->waiting_first; status == HVI_OK && op;
         op = op->next) {
        struct hvi_stall_row *row = next_row(table, op->first_ns);
        if (row)
            status = fill_row(watch, op, oldest, table->now_ns, row);
    }
    free(oldest);
    return status;
}

static int add_silent(struct engine_watch *watch, struct table *table)
{
    struct engine_exec_cursor cursor = {NULL};
    const struct engine_op *op;
    struct engine_fault fault;
    char text[sizeof((struct hvi_missing_rank *)0)->waits_in];
    int status = HVI_OK;

    while (status == HVI_OK &&
           (op = engine_dispatch_next_silent(watch->exec, &cursor, &fault)) != NULL) {
        struct hvi_stall_row *row = next_row(table, op->first_ns);
        snprintf(text, sizeof text,
                 "its memory, which does not answer while the op executes (%s, 0x%" PRIx64 ")",
                 fault.writing ? "output" : "input", fault.address);
        if (row)
            status = fill_executing_row(watch, op, (uint32_t)fault.rank, text, table->now_ns, row);
    }
    return status;
}

/* Ops on GPUs whose worker waits for what a rank has in its stream. */
static int add_gated(struct engine_watch *watch, struct table *table)
{
    struct engine_exec_cursor cursor = {NULL};
    const struct engine_op *op;
    uint32_t place;
    int status = HVI_OK;

    while (status == HVI_OK &&
           (op = engine_dispatch_next_gated(watch->exec, &cursor, &place)) != NULL) {
        struct hvi_stall_row *row = next_row(table, op->first_ns);
        if (row)
            status =
                fill_executing_row(watch, op, place, "its stream, which has not come to the op yet",
                                   table->now_ns, row);
    }
    return status;
}

static int add_held(struct engine_watch *watch, struct table *table)
{
    struct engine_held held;
    int status = HVI_OK;

    for (uint32_t cursor = 0;
         status == HVI_OK && engine_slots_next_held(watch->slots, &cursor, &held);) {
        struct hvi_stall_row *row = next_row(table, held.since_ns);
        if (row)
            status = fill_held_row(watch, &held, table->now_ns, row);
    }
    return status;
}

int engine_stall_rows(struct engine_watch *watch, uint64_t min_age_ns, size_t limit,
                      struct hvi_stall_row **rows_p, size_t *count_p, uint64_t *left_out_p)
{
    struct table table = {.rows = calloc(limit, sizeof *table.rows),
                          .limit = limit,
                          .now_ns = hvi_clock_ns(),
                          .min_age_ns = min_age_ns};
    int status = table.rows ? add_waiting(watch, &table) : HVI_ERR_NO_MEMORY;

    if (status == HVI_OK)
        status = add_silent(watch, &table);
    if (status == HVI_OK)
        status = add_gated(watch, &table);
    if (status == HVI_OK)
        status = add_held(watch, &table);
    if (status != HVI_OK) {
        engine_stall_rows_free(table.rows, table.count);
        return status;
    }
    *rows_p = table.rows;
    *count_p = table.count;
    *left_out_p = table.left_out;
    return HVI_OK;
}

/* " on node 1 (h2)"; nothing where the node is not known. */
static void append_node(const struct engine_watch *watch, struct engine_sentence *sentence,
                        uint32_t node)
{
    char text[96];

    if (node >= watch->order->roster->nodes)
        return;
    watch->calls->describe_node(watch->user, node, text, sizeof text);
    engine_sentence_append(sentence, " on %s", text);
}

void engine_stall_describe_ranks(const struct engine_watch *watch, const int32_t *ranks,
                                 uint32_t shown, uint32_t count, char *text_p, size_t size)
{
    struct engine_sentence sentence = {.text = text_p, .size = size};
    uint32_t nodes[ENGINE_STALL_RANKS];
    bool told[ENGINE_STALL_RANKS] = {false};
    char text[256];

    snprintf(text_p, size, "%s", count == 0 ? "outputs of its ranks" : "");
    for (uint32_t i = 0; i < shown; i++)
        nodes[i] = engine_roster_node(watch->order->roster, ranks[i]);
    for (uint32_t i = 0; i < shown; i++) {
        int32_t there[ENGINE_STALL_RANKS];
        uint32_t found = 0;
        for (uint32_t k = i; k < shown && !told[i]; k++) {
            if (nodes[k] != nodes[i])
                continue;
            there[found++] = ranks[k];
            told[k] = k > i;
        }
        if (found == 0)
            continue;
        engine_ranks_text(there, found, text, sizeof text);
        engine_sentence_append(&sentence, "%s%s", sentence.used > 0 ? ", " : "", text);
        append_node(watch, &sentence, nodes[i]);
    }
    if (count > shown)
        engine_sentence_append(&sentence, " and %u more", count - shown);
}

/* Of a job on two nodes it is the other one. */
static void describe_unknown(const struct engine_watch *watch, const struct engine_op *op,
                             char *text_p, size_t size)
{
    struct engine_sentence sentence = {.text = text_p, .size = size};
    const struct engine_roster *roster = watch->order->roster;

    engine_sentence_append(&sentence, "ranks");
    if (roster->nodes == 2)
        append_node(watch, &sentence, 1 - roster->here);
    else
        engine_sentence_append(&sentence, " on other nodes");
    if (!op->partial && !watch->order->root)
        engine_sentence_append(&sentence,
                               " (the log of rank 0's node and hvdctl stalls say which)");
}

void engine_stall_describe_elsewhere(const struct engine_watch *watch, const struct engine_op *op,
                                     char *text_p, size_t size)
{
    int32_t ranks[ENGINE_STALL_RANKS];
    uint32_t count = missing_elsewhere(watch, op, ranks);

    if (count == 0)
        describe_unknown(watch, op, text_p, size);
    else
        engine_stall_describe_ranks(watch, ranks,
                                    count < ENGINE_STALL_RANKS ? count : ENGINE_STALL_RANKS, count,
                                    text_p, size);
}

void engine_stall_describe(const struct engine_watch *watch, const struct engine_op *op,
                           char *text_p, size_t size)
{
    uint32_t members = op->set->places;
    size_t used = 0;
    uint32_t more = 0;

    text_p[0] = '\0';
    for (uint32_t i = 0; i < members; i++) {
        const struct engine_rank *slot = engine_rank_at(watch->sessions, op->set->seats[i]);
        char one[128], process[HVI_PROCESS_TEXT];
        if (!engine_stall_misses(op, i))
            continue;
        hvi_process_describe(slot->pid, slot->own_pid, process);
        if (slot->session)
            snprintf(one, sizeof one, "rank %d (%s, %s)", op->set->ranks[i], process,
                     hvi_process_state_text(hvi_process_state(slot->pid)));
        else
            snprintf(one, sizeof one, "rank %d (%s)", op->set->ranks[i],
                     slot->state == ENGINE_RANK_ABSENT ? "not attached" : "gone");
        if (more > 0 || used + strlen(one) + 32 > size)
            more++;
        else
            used += (size_t)snprintf(text_p + used, size - used, "%s%s", used > 0 ? ", " : "", one);
    }
    if (more > 0)
        snprintf(text_p + used, size - used, " and %u more", more);
    if (more > 0 || !engine_stall_waits_elsewhere(op))
        return;
    if (used > 0)
        used += (size_t)snprintf(text_p + used, size - used, ", ");
    engine_stall_describe_elsewhere(watch, op, text_p + used, size - used);
}

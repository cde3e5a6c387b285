/* SPDX-License-Identifier: Apache-2.0
 * The stall inspector: who is told that an op waits, and what is done about it.
 *
 * A timer looks at the list of waiting ops every 20 ms while it is not empty (and has liveness.c
 * watch the ranks). An op that is older than the check time is logged with the ranks that are
 * missing and what their processes do, and every rank that takes part is told by a Notice, again
 * and again a check time later, as Horovod does; ops that become due a little later are told in the
 * same round. At the policy's age it fails, or the job ends. Of a job on several nodes, each does this for what
 * its own ranks have brought, and the root for what none of its ranks has: other nodes know that they wait for
 * nodes, and not for which, and a rank that has not come at all is in no table but the root's.
 *
 * Settings (settings.c says whose):
 *   STALL_CHECK_DISABLE             no warnings and no policy
 *   STALL_CHECK_TIME_SECONDS        the check time; default: hvdd's stall-warn
 *   STALL_SHUTDOWN_TIME_SECONDS     the policy's age; 0: none; below the check time: ignored
 *   STALL_POLICY                    warn, fail-op, stop-job; default: stop-job with a shutdown time
 *                                   (as Horovod), else warn. Without one they act at the check time
 *   MEMORY_TIMEOUT_SECONDS          how long an op that executes waits for a rank's own memory; the
 *                                   timer looks at those too (exec/host_pool.c)
 */
#include "daemon/engine/watch/stall.h"

#include "base/clock.h"
#include "base/fate.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/exec/exec.h"
#include "daemon/engine/order/order.h"
#include "daemon/engine/order/root.h"
#include "daemon/engine/order/sentence.h"
#include "daemon/engine/sessions/complete.h"
#include "daemon/engine/sessions/intake.h"
#include "daemon/engine/sessions/liveness.h"
#include "daemon/engine/slots/slots.h"
#include "daemon/engine/watch/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUND_OPS   64u /* ops told in one round; the others are counted */
#define NAMES_SHOWN 6u  /* per missing rank, as in Horovod */
#define NAME_SHOWN  100u
#define LOOK_NS     (1 * HVI_NS_SEC) /* between looks at all rings, while ops wait */

/* The ops of one round. */
struct round {
    const struct engine_watch *watch;
    struct engine_op *ops[ROUND_OPS];
    uint32_t count, more;
};

/* Not in the middle of a character, of which at most three bytes are there. */
static void cut_whole(const struct engine_sentence *sentence)
{
    size_t length = strlen(sentence->text);
    size_t least = length > 3 ? length - 3 : 0;

    while (length > least && !hvi_utf8_valid(sentence->text, length))
        length--;
    sentence->text[length] = '\0';
}

/* ---- the warning ---- */

static void label_of(const struct engine_op *op, char label_p[ENGINE_LABEL])
{
    engine_tensor_label(op->tensor, label_p);
    label_p[hvi_utf8_cut(label_p, strlen(label_p), NAME_SHOWN)] = '\0';
}

/* "1: [w1, w2] (pid 4711, stopped)"; nothing for a rank that is not missing. */
static void append_missing(struct engine_sentence *sentence, const struct round *round,
                           uint64_t chosen, engine_seat seat)
{
    const struct engine_rank *slot = engine_rank_at(round->watch->sessions, seat);
    char process[HVI_PROCESS_TEXT];
    uint32_t found = 0;

    for (uint32_t i = 0; i < round->count; i++) {
        int32_t member = engine_set_place(round->ops[i]->set, seat);
        char label[ENGINE_LABEL];
        if ((chosen >> i & 1) == 0 || member < 0 ||
            !engine_stall_misses(round->ops[i], (uint32_t)member) || found > NAMES_SHOWN)
            continue;
        label_of(round->ops[i], label);
        if (found == 0)
            engine_sentence_append(sentence, "\n%d: [",
                                   engine_rank_at(round->watch->sessions, seat)->rank);
        engine_sentence_append(sentence, "%s%s", found > 0 ? ", " : "",
                               found < NAMES_SHOWN ? label : "...");
        found++;
    }
    if (found == 0)
        return;
    hvi_process_describe(slot->pid, slot->own_pid, process);
    if (slot->session)
        engine_sentence_append(sentence, "] (%s, %s)", process,
                               hvi_process_state_text(hvi_process_state(slot->pid)));
    else
        engine_sentence_append(sentence, "] (not attached)");
}

/* "ranks 1,3 on node 1 (h2): [w1]" */
static void append_elsewhere(struct engine_sentence *sentence, const struct round *round,
                             uint64_t chosen)
{
    for (uint32_t i = 0; i < round->count; i++) {
        char ranks[256], label[ENGINE_LABEL];
        if ((chosen >> i & 1) == 0 || !engine_stall_waits_elsewhere(round->ops[i]))
            continue;
        engine_stall_describe_elsewhere(round->watch, round->ops[i], ranks, sizeof ranks);
        label_of(round->ops[i], label);
        engine_sentence_append(sentence, "\n%s: [%s]", ranks, label);
    }
}

/* Horovod's words, which people search for. */
static void append_words(const struct engine_watch *watch, struct engine_sentence *sentence)
{
    engine_sentence_append(
        sentence,
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of "
        "ranks and are waiting for remainder of ranks for more than %g seconds. This may "
        "indicate that different ranks are trying to submit different tensors or that only "
        "subset of ranks is submitting tensors, which will cause deadlock. \nMissing ranks:",
        (double)watch->stall_warn_ns / (double)HVI_NS_SEC);
}

/* And what Horovod does not know. */
static void describe_round(const struct round *round, uint64_t chosen, char *text_p, size_t size)
{
    struct engine_sentence sentence = {.text = text_p, .size = size};

    append_words(round->watch, &sentence);
    for (uint16_t i = 0; i < round->watch->sessions->seats; i++)
        append_missing(&sentence, round, chosen, (engine_seat){i});
    append_elsewhere(&sentence, round, chosen);
    cut_whole(&sentence);
}

/* The ops of the round in which this seat takes part, a bit each. */
static uint64_t ops_of(const struct round *round, engine_seat seat)
{
    uint64_t chosen = 0;

    for (uint32_t i = 0; i < round->count; i++) {
        if (engine_set_place(round->ops[i]->set, seat) >= 0)
            chosen |= 1ull << i;
    }
    return chosen;
}

static void notify_ranks(struct engine_watch *watch, const struct round *round)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_NOTICE};
    uint64_t described = 0;

    msg.notice.status = HVI_INPROGRESS;
    msg.notice.rank = -1;
    for (uint16_t i = 0; i < watch->sessions->seats; i++) {
        const engine_seat seat = {i};
        const struct engine_session *session = engine_rank_at(watch->sessions, seat)->session;
        uint64_t chosen = ops_of(round, seat);
        if (!session || chosen == 0)
            continue;
        if (chosen != described)
            describe_round(round, chosen, msg.notice.text, sizeof msg.notice.text);
        described = chosen;
        /* A client that does not read its socket sees its op wait. */
        engine_sessions_send(watch->sessions, session->socket_fd, &msg, NULL, 0);
    }
}

/* For hvdd, which tells those who have asked for events: of each op once. */
static void tell_hvdd(const struct engine_watch *watch, const char *name, const char *sentence)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_NOTICE};
    struct engine_sentence text = {.text = msg.notice.text, .size = sizeof msg.notice.text};

    msg.notice.status = HVI_INPROGRESS;
    msg.notice.rank = -1;
    engine_sentence_append(&text, "tensor '%.*s': %s",
                           (int)hvi_utf8_cut(name, strlen(name), NAME_SHOWN), name, sentence);
    cut_whole(&text);
    watch->calls->send(watch->user, &msg); /* where it is lost, the log has it */
}

static void say_stalled(const struct engine_watch *watch, struct engine_op *op, uint64_t now_ns,
                        const char *sentence)
{
    bool first = op->warn_ns == 0;
    char name[HVI_NAME_MAX + 1];

    engine_tensor_name(op->tensor, name);
    HVI_LOG(HVI_LOG_WARN, "stall", "op-stalled", sentence, "job=%s tensor=%s age_ms=%llu",
            watch->start->job, name, (unsigned long long)((now_ns - op->first_ns) / HVI_NS_MS));
    op->warn_ns = now_ns + watch->stall_warn_ns;
    if (first)
        tell_hvdd(watch, name, sentence);
}

static void log_op(const struct engine_watch *watch, struct engine_op *op, uint64_t now_ns)
{
    char missing[512], sentence[640];

    engine_stall_describe(watch, op, missing, sizeof missing);
    snprintf(sentence, sizeof sentence, "%s waits for %s", engine_stall_kind(op), missing);
    say_stalled(watch, op, now_ns, sentence);
}

static void warn(struct engine_watch *watch, uint64_t now_ns)
{
    struct round round = {.watch = watch};
    bool due = false;

    for (struct engine_op *op = watch->order->waiting_first; op; op = op->next) {
        if (now_ns - op->first_ns < watch->stall_warn_ns)
            break;
        due = due || (now_ns >= op->warn_ns && op->kind != HVI_KIND_JOIN);
    }
    if (!due)
        return;
    for (struct engine_op *op = watch->order->waiting_first; op; op = op->next) {
        if (now_ns - op->first_ns < watch->stall_warn_ns)
            break;
        if (op->warn_ns > now_ns + watch->stall_warn_ns / 8 || op->kind == HVI_KIND_JOIN)
            continue;
        if (round.count < ROUND_OPS) {
            round.ops[round.count++] = op;
        } else {
            op->warn_ns = now_ns + watch->stall_warn_ns;
            round.more++;
        }
    }
    for (uint32_t i = 0; i < round.count; i++)
        log_op(watch, round.ops[i], now_ns);
    if (round.more > 0)
        HVI_LOG(HVI_LOG_WARN, "stall", "more-stalled", "and more ops wait as long",
                "job=%s count=%u", watch->start->job, round.more);
    notify_ranks(watch, &round);
}

/* ---- ops of other nodes, on the root ---- */

static bool is_brought_here(const struct engine_order *order, const struct engine_op *op)
{
    for (const struct engine_op *mine = order->waiting_first; mine; mine = mine->next) {
        if (!mine->partial && engine_root_is_same(op, mine))
            return true;
    }
    return false;
}

static void missing_text(const struct engine_watch *watch, const struct engine_op *op, char *text_p,
                         size_t size)
{
    int32_t ranks[ENGINE_STALL_RANKS];
    uint32_t count =
        engine_root_missing(watch->order->root, UINT32_MAX, op, ranks, ENGINE_STALL_RANKS);

    engine_stall_describe_ranks(
        watch, ranks, count < ENGINE_STALL_RANKS ? count : ENGINE_STALL_RANKS, count, text_p, size);
}

static void log_others(const struct engine_watch *watch, struct engine_op *op, uint64_t now_ns)
{
    char missing[512], sentence[640];

    missing_text(watch, op, missing, sizeof missing);
    snprintf(sentence, sizeof sentence, "%s of ranks on other nodes waits for %s",
             hvi_kind_text(op->kind), missing);
    say_stalled(watch, op, now_ns, sentence);
}

/* False: the rank takes part in none of them. */
static bool describe_others(const struct round *round, int32_t rank, char *text_p, size_t size)
{
    struct engine_sentence sentence = {.text = text_p, .size = size};
    char missing[512], label[ENGINE_LABEL];
    bool any = false;

    append_words(round->watch, &sentence);
    for (uint32_t i = 0; i < round->count; i++) {
        if (engine_set_rank(round->ops[i]->set, rank) < 0)
            continue;
        missing_text(round->watch, round->ops[i], missing, sizeof missing);
        label_of(round->ops[i], label);
        engine_sentence_append(&sentence, "\n%s: [%s]", missing, label);
        any = true;
    }
    cut_whole(&sentence);
    return any;
}

static void tell_late_ranks(struct engine_watch *watch, const struct round *round)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_NOTICE};

    msg.notice.status = HVI_INPROGRESS;
    msg.notice.rank = -1;
    for (uint16_t i = 0; i < watch->sessions->seats; i++) {
        const struct engine_rank *rank = engine_rank_at(watch->sessions, (engine_seat){i});
        if (rank->session &&
            describe_others(round, rank->rank, msg.notice.text, sizeof msg.notice.text))
            engine_sessions_send(watch->sessions, rank->session->socket_fd, &msg, NULL, 0);
    }
}

static void warn_of_others(struct engine_watch *watch, uint64_t now_ns)
{
    const struct engine_order *order = watch->order;
    struct round round = {.watch = watch};
    struct engine_op *op = NULL;

    while (round.count < ROUND_OPS &&
           (op = engine_root_next_without(order->root, order->roster->here, op)) != NULL) {
        if (now_ns - op->first_ns < watch->stall_warn_ns)
            break;
        if (op->kind == HVI_KIND_JOIN || now_ns < op->warn_ns || is_brought_here(order, op))
            continue;
        log_others(watch, op, now_ns);
        round.ops[round.count++] = op;
    }
    if (round.count > 0)
        tell_late_ranks(watch, &round);
}

/* ---- the policy ---- */

static int32_t first_missing(const struct engine_op *op)
{
    uint32_t members = op->set->places;

    for (uint32_t i = 0; i < members; i++) {
        if (engine_stall_misses(op, i))
            return op->set->ranks[i];
    }
    return -1;
}

static void act_on(struct engine_watch *watch, struct engine_op *op, uint64_t now_ns)
{
    char missing[512], label[ENGINE_LABEL], text[HVI_TEXT_MAX + 1];
    bool stop = watch->stall_policy == ENGINE_STALL_STOP_JOB;

    engine_stall_describe(watch, op, missing, sizeof missing);
    engine_tensor_label(op->tensor, label);
    snprintf(text, sizeof text,
             "%s '%s' has waited %.1f s for %s: more than the %g s that %s allows",
             engine_stall_kind(op), label, (double)(now_ns - op->first_ns) / (double)HVI_NS_SEC,
             missing, (double)watch->stall_act_ns / (double)HVI_NS_SEC,
             stop ? "HVD_STALL_SHUTDOWN_TIME_SECONDS" : "HVD_STALL_POLICY=fail-op");
    if (stop) {
        HVI_LOG(HVI_LOG_ERROR, "stall", "stall-stops-job", text, "job=%s", watch->start->job);
        engine_sessions_stop(watch->sessions, text);
        return;
    }
    watch->order->now_ns = now_ns;
    engine_op_fail(watch->order, op, HVI_ERR_STALLED, text, first_missing(op));
}

/* The oldest op at the policy's age. A join waits for as long as the others have data. */
static struct engine_op *overdue(const struct engine_watch *watch, uint64_t now_ns)
{
    struct engine_op *op = watch->order->waiting_first;

    while (op && (op->kind == HVI_KIND_JOIN || op->given_up))
        op = op->next;
    return op && now_ns >= op->first_ns + watch->stall_act_ns ? op : NULL;
}

/* Oldest first; an op that goes may take others of the list with it. */
static void act(struct engine_watch *watch, uint64_t now_ns)
{
    struct engine_op *op;

    if (watch->stall_policy == ENGINE_STALL_WARN || !overdue(watch, now_ns))
        return;
    engine_intake_drain_all(watch->sessions); /* what has come already is not missing */
    while (!watch->sessions->stopping && (op = overdue(watch, now_ns)))
        act_on(watch, op, now_ns);
    engine_complete_ring(watch->sessions);
}

void engine_stall_look(struct engine_watch *watch, uint64_t now_ns)
{
    if (watch->stall_warn_ns == 0)
        return;
    warn(watch, now_ns);
    if (watch->order->root && watch->order->broken_status == HVI_OK)
        warn_of_others(watch, now_ns);
    act(watch, now_ns);
}

/* ---- ops that ranks hold ---- */

static void describe_holders(const struct engine_watch *watch, const struct engine_held *held,
                             char *text_p, size_t size)
{
    struct engine_sentence sentence = {.text = text_p, .size = size};

    engine_sentence_append(&sentence, "%s '%.*s' waits for", hvi_kind_text(held->slot->agreed.kind),
                           (int)hvi_utf8_cut(held->name, strlen(held->name), NAME_SHOWN),
                           held->name);
    for (uint16_t i = 0; i < watch->sessions->seats; i++) {
        const struct engine_rank *slot = engine_rank_at(watch->sessions, (engine_seat){i});
        char process[HVI_PROCESS_TEXT];
        if ((held->holders >> i & 1u) == 0)
            continue;
        hvi_process_describe(slot->pid, slot->own_pid, process);
        engine_sentence_append(&sentence, " rank %d (%s, %s)", slot->rank, process,
                               hvi_process_state_text(hvi_process_state(slot->pid)));
    }
    engine_sentence_append(&sentence, ", in the middle of its part of the reduction");
    cut_whole(&sentence);
}

static void tell_members(struct engine_watch *watch, const struct engine_held *held,
                         const char *text)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_NOTICE};

    msg.notice.status = HVI_INPROGRESS;
    msg.notice.rank = -1;
    snprintf(msg.notice.text, sizeof msg.notice.text, "%s", text);
    for (uint32_t i = 0; i < held->slot->set->places; i++) {
        const struct engine_session *session =
            engine_rank_at(watch->sessions, held->slot->set->seats[i])->session;
        if (session)
            engine_sessions_send(watch->sessions, session->socket_fd, &msg, NULL, 0);
    }
}

/* Such an op cannot fail on its own: whoever holds a unit may still write. */
void engine_stall_look_at_held(struct engine_watch *watch, uint64_t now_ns)
{
    struct engine_held held;
    char text[HVI_TEXT_MAX + 1];

    for (uint32_t cursor = 0; watch->stall_warn_ns > 0 && !watch->sessions->stopping &&
                              engine_slots_next_held(watch->slots, &cursor, &held);) {
        uint64_t age_ns = held.since_ns < now_ns ? now_ns - held.since_ns : 0;
        if (age_ns < watch->stall_warn_ns)
            continue;
        describe_holders(watch, &held, text, sizeof text);
        if (watch->stall_policy == ENGINE_STALL_STOP_JOB && age_ns >= watch->stall_act_ns) {
            engine_sessions_stop(watch->sessions, text);
        } else if (now_ns >= held.slot->warn_ns) {
            held.slot->warn_ns = now_ns + watch->stall_warn_ns;
            HVI_LOG(HVI_LOG_WARN, "stall", "op-stalled", text, "job=%s tensor=%s age_ms=%llu",
                    watch->start->job, held.name, (unsigned long long)(age_ns / HVI_NS_MS));
            tell_members(watch, &held, text);
        }
    }
}

/* ---- the timer ---- */

static bool is_idle(const struct engine_watch *watch)
{
    const struct engine_order *order = watch->order;

    return !order->waiting_first && order->ready_count == 0 && watch->exec->remote == 0 &&
           watch->exec->devices == 0 &&
           !(order->root && order->root->first && order->broken_status == HVI_OK);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine_watch *watch = user;
    uint64_t now_ns = hvi_clock_ns();

    (void)source, (void)usec;
    engine_liveness_watch(watch->sessions);
    if (now_ns - watch->stall_looked_ns >= LOOK_NS) {
        watch->stall_looked_ns = now_ns;
        /* A client that scribbles over the bell must not keep its peers' submissions from being
         * seen. */
        engine_intake_drain_all(watch->sessions);
    }
    engine_stall_look(watch, hvi_clock_ns()); /* what was drained has come after `now_ns` */
    if (watch->exec->remote > 0 || watch->exec->devices > 0)
        engine_dispatch_watch(watch->exec);
    if (!is_idle(watch))
        engine_stall_arm(watch);
    return 0;
}

void engine_stall_arm(struct engine_watch *watch)
{
    int enabled = SD_EVENT_OFF;

    if (!watch->stall_source)
        watch->stall_looked_ns = hvi_clock_ns();
    else
        sd_event_source_get_enabled(watch->stall_source, &enabled);
    if (enabled == SD_EVENT_OFF)
        engine_event_after(watch->event, &watch->stall_source, ENGINE_WATCH_NS / 1000, 1000,
                           on_timer, watch);
}

/* ---- settings ---- */

static void complain(const char *sentence, const char *value)
{
    HVI_LOG(HVI_LOG_WARN, "stall", "bad-setting", sentence, "value=%s", value);
}

/* False, and the time stays, when the text is no time. */
static bool parse_seconds(const char *text, const char *complaint, uint64_t *ns_p)
{
    char *end = NULL;
    double value;

    if (!text)
        return false;
    value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0 && value <= 1e9)) {
        complain(complaint, text);
        return false;
    }
    *ns_p = (uint64_t)(value * (double)HVI_NS_SEC);
    return true;
}

/* stop-job when nothing is said and a time is given, because that is what Horovod would do. */
static enum engine_stall_policy parse_policy(const char *text, bool timed)
{
    static const char *const names[] = {"warn", "fail-op", "stop-job"};

    for (uint32_t i = 0; text && i < 3; i++) {
        if (strcmp(text, names[i]) == 0)
            return (enum engine_stall_policy)i;
    }
    if (text)
        complain("STALL_POLICY is none of warn, fail-op, stop-job", text);
    return timed ? ENGINE_STALL_STOP_JOB : ENGINE_STALL_WARN;
}

static void configure_memory(struct engine_watch *watch, const char *text)
{
    uint64_t answer_ns = 0;

    watch->exec->answer_ns = ENGINE_ANSWER_NS;
    if (!parse_seconds(text, "MEMORY_TIMEOUT_SECONDS is no number of seconds", &answer_ns))
        return;
    if (answer_ns == 0)
        complain("MEMORY_TIMEOUT_SECONDS is 0, which is no time, and is ignored", text);
    else
        watch->exec->answer_ns = answer_ns;
}

void engine_stall_configure(struct engine_watch *watch,
                            const struct engine_stall_settings *settings)
{
    const char *disable = settings->check_disable;
    const char *shutdown = settings->shutdown_time;
    uint64_t shutdown_ns = 0;

    configure_memory(watch, settings->memory_timeout);
    parse_seconds(settings->check_time, "STALL_CHECK_TIME_SECONDS is no number of seconds",
                  &watch->stall_warn_ns);
    parse_seconds(shutdown, "STALL_SHUTDOWN_TIME_SECONDS is no number of seconds", &shutdown_ns);
    if (disable && disable[0] != '\0' && strcmp(disable, "0") != 0)
        watch->stall_warn_ns = 0;
    if (shutdown_ns > 0 && shutdown_ns < watch->stall_warn_ns) {
        complain("STALL_SHUTDOWN_TIME_SECONDS is less than STALL_CHECK_TIME_SECONDS and is ignored",
                 shutdown);
        shutdown_ns = 0;
    }
    watch->stall_policy = parse_policy(settings->policy, shutdown_ns > 0);
    watch->stall_act_ns = shutdown_ns > 0 ? shutdown_ns : watch->stall_warn_ns;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/tree.h"

#include "base/clock.h"
#include "base/status.h"
#include "tools/hvdrun/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAN_OUT 32u
#define LEAVE_NS                                                                                   \
    (10 * HVI_NS_SEC) /* as in spread.c: for agents to go, beside the grace time of their ranks */
#define OBEY_NS    (1 * HVI_NS_SEC) /* for a relay to say that it has killed a process */
#define PARTED_NS  (5 * HVI_NS_SEC) /* for a relay without agents to go */
#define GREET_PART 3                /* of the start timeout: what is left is for its group */

struct run_relay {
    struct run_tree *tree;
    struct run_link link;
    struct run_link_way way; /* of the group's links */
    size_t first, end;       /* the group is among these hosts */
    uint64_t greet_by_ns;
    bool greeted, counted_out;
};

/* ---- to the relay ---- */

static void open_process(void *context, uint32_t number, char *const *argv)
{
    struct run_relay *relay = context;
    struct run_buffer words = {0};
    struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_OPEN,
                                 .open = {.number = number,
                                          .patience_ns = relay->tree->options->grace_ns + LEAVE_NS,
                                          .silence_ns = relay->tree->options->silence_ns}};
    if (run_words_pack(argv, NULL, &words) == HVI_OK) {
        msg.open.command = (unsigned char *)words.data;
        msg.open.command_bytes = words.used;
        run_link_send(&relay->link, &msg);
    }
    run_buffer_fini(&words);
}

static void send_down(void *context, uint32_t number, const unsigned char *bytes, size_t length)
{
    struct run_relay *relay = context;
    for (size_t at = 0; at < length; at += HVI_LAUNCH_DATA_MAX) {
        const size_t rest = length - at;
        const struct hvi_launch_msg msg = {
            .kind = HVI_LAUNCH_DOWN,
            .pass = {.number = number,
                     .data = (unsigned char *)(uintptr_t)bytes + at,
                     .bytes = rest < HVI_LAUNCH_DATA_MAX ? rest : HVI_LAUNCH_DATA_MAX}};
        run_link_send(&relay->link, &msg);
    }
}

static void hang_up(void *context, uint32_t number, bool kill)
{
    struct run_relay *relay = context;
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_HANG_UP,
                                       .hang_up = {.number = number, .kill = kill}};
    run_link_send(&relay->link, &msg);
}

/* ---- from the relay ---- */

/* The link that goes through this relay; NULL: none with this number. */
static struct run_link *link_of(const struct run_relay *relay, uint32_t number)
{
    struct run_link *link =
        number >= relay->first && number < relay->end ? relay->tree->links[number] : NULL;
    return link != NULL && link->way == &relay->way ? link : NULL;
}

static bool take_hello(struct run_relay *relay, const struct hvi_launch_hello *hello, char *text_p,
                       size_t text_size)
{
    relay->greeted = hello->launch_version == HVI_LAUNCH_VERSION &&
                     strcmp(hello->version, HVD_VERSION_TEXT) == 0;
    if (!relay->greeted)
        snprintf(text_p, text_size, "it is another version");
    return relay->greeted;
}

static bool take_of_process(const struct run_relay *relay, const struct hvi_launch_msg *msg)
{
    struct run_link *link = link_of(relay, msg->kind == HVI_LAUNCH_UP      ? msg->pass.number
                                           : msg->kind == HVI_LAUNCH_TAKEN ? msg->taken.number
                                                                           : msg->gone.number);
    if (link == NULL || link->state != RUN_LINK_OPEN)
        return false;
    if (msg->kind == HVI_LAUNCH_UP)
        run_link_feed(link, msg->pass.stream, (const char *)msg->pass.data, msg->pass.bytes);
    else if (msg->kind == HVI_LAUNCH_TAKEN)
        run_link_taken(link, msg->taken.bytes);
    else
        run_link_gone(link,
                      (struct hvi_fate){msg->gone.signaled ? HVI_FATE_SIGNALED : HVI_FATE_EXITED,
                                        msg->gone.code});
    return true;
}

static bool take(void *context, struct hvi_launch_msg *msg, char *text_p, size_t text_size)
{
    struct run_relay *relay = context;
    const bool of_process =
        msg->kind == HVI_LAUNCH_UP || msg->kind == HVI_LAUNCH_TAKEN || msg->kind == HVI_LAUNCH_GONE;
    if (msg->kind == HVI_LAUNCH_HELLO && !relay->greeted)
        return take_hello(relay, &msg->hello, text_p, text_size);
    if (relay->greeted && of_process && take_of_process(relay, msg))
        return true;
    snprintf(text_p, text_size, "message %d has no place here", (int)msg->kind);
    return false;
}

/* ---- groups ---- */

static size_t find_fan_out(const struct run_options *options)
{
    const long number = options->fan_out != NULL ? strtol(options->fan_out, NULL, 10) : FAN_OUT;
    return number > 0 ? (size_t)number : FAN_OUT;
}

static bool is_wanted(const struct run_tree *tree, size_t others)
{
    const char *fan_out = tree->options->fan_out;
    return others > tree->fan_out && (fan_out == NULL || strtol(fan_out, NULL, 10) > 0);
}

/* A group that begins with this host. */
static void make_relay(struct run_tree *tree, size_t first, size_t end, struct run_sink *err)
{
    struct run_relay *relay = &tree->relays[tree->relay_count++];
    const struct run_link *head = tree->links[first];
    *relay = (struct run_relay){
        .tree = tree,
        .first = first,
        .end = end,
        .greet_by_ns = hvi_deadline_after((int64_t)(tree->options->start_timeout_ns / GREET_PART))};
    relay->way = (struct run_link_way){
        .context = relay, .open = open_process, .send = send_down, .hang_up = hang_up};
    run_link_init(&relay->link, tree->options, head->heritage, head->host, err);
    relay->link.role = RUN_SSH_RELAY;
    relay->link.take = take;
    relay->link.context = relay;
    for (size_t host = first; host < end; host++) {
        struct run_link *link = tree->links[host];
        if (link->host->here)
            continue;
        link->way = &relay->way;
        link->number = (uint32_t)host;
        link->role = host == first ? RUN_SSH_BESIDE : RUN_SSH_AGENT;
    }
}

/* Of the hosts that are not this one, each group has as many as the others, or one more. */
static void make_groups(struct run_tree *tree, size_t others, struct run_sink *err)
{
    size_t seen = 0, first = 0, begun = 0;
    for (size_t host = 0; host < tree->hosts->count; host++) {
        if (tree->hosts->list[host].here)
            continue;
        if (seen * tree->fan_out / others != begun || seen == 0) {
            begun = seen * tree->fan_out / others;
            first = host;
        }
        seen++;
        const bool last = seen == others || seen * tree->fan_out / others != begun;
        if (last && first != host)
            make_relay(tree, first, host + 1, err);
    }
}

int run_tree_init(struct run_tree *tree, struct run_link *(*find)(void *context, size_t host),
                  struct run_sink *err)
{
    size_t others = 0;
    tree->fan_out = find_fan_out(tree->options);
    tree->links = calloc(tree->hosts->count, sizeof *tree->links);
    for (size_t i = 0; tree->links != NULL && i < tree->hosts->count; i++) {
        tree->links[i] = find(tree->context, i);
        others += !tree->hosts->list[i].here;
    }
    if (tree->links == NULL)
        return HVI_ERR_NO_MEMORY;
    if (!is_wanted(tree, others))
        return HVI_OK;
    tree->relays = calloc(tree->fan_out, sizeof *tree->relays);
    if (tree->relays == NULL)
        return HVI_ERR_NO_MEMORY;
    make_groups(tree, others, err);
    return HVI_OK;
}

/* ---- starting ---- */

static bool is_opening(const struct run_link *link)
{
    return link->state == RUN_LINK_OPEN && !link->channel.marked;
}

static void start(struct run_tree *tree, struct run_link *link, const char *through)
{
    char text[2 * RUN_HOST_NAME_MAX + 4300];
    run_link_start(link);
    if (!tree->options->verbose || link->state != RUN_LINK_OPEN)
        return;
    if (through != NULL)
        snprintf(text, sizeof text, "%s: through %s", link->host->name, through);
    else
        snprintf(text, sizeof text, "%s: %s is pid %d", link->host->name, link->ssh.argv[0],
                 (int)link->proc.pid);
    tree->say(tree->context, text);
}

static bool may_start(const struct run_link *link, uint64_t now_ns)
{
    return link->state == RUN_LINK_WAITING && now_ns >= link->retry_ns;
}

/* At most `fan_out` at a time: each host's sshd sees one, but a name server, a bastion or this
 * machine sees them all. */
static void start_group(struct run_tree *tree, const struct run_relay *relay, uint64_t now_ns)
{
    const size_t first = relay != NULL ? relay->first : 0;
    const size_t end = relay != NULL ? relay->end : tree->hosts->count;
    const struct run_link_way *way = relay != NULL ? &relay->way : NULL;
    size_t opening = 0;
    for (size_t i = first; i < end; i++)
        opening += tree->links[i]->way == way && is_opening(tree->links[i]);
    for (size_t i = 0; relay == NULL && i < tree->relay_count; i++)
        opening += is_opening(&tree->relays[i].link);
    for (size_t i = 0; relay == NULL && i < tree->relay_count && opening < tree->fan_out; i++)
        if (may_start(&tree->relays[i].link, now_ns)) {
            start(tree, &tree->relays[i].link, NULL);
            opening++;
        }
    for (size_t i = first; i < end && opening < tree->fan_out; i++)
        if (tree->links[i]->way == way && may_start(tree->links[i], now_ns)) {
            start(tree, tree->links[i], relay != NULL ? relay->link.host->name : NULL);
            opening++;
        }
}

void run_tree_start(struct run_tree *tree, uint64_t now_ns)
{
    start_group(tree, NULL, now_ns);
    for (size_t i = 0; i < tree->relay_count; i++)
        if (tree->relays[i].greeted && tree->relays[i].link.state == RUN_LINK_OPEN)
            start_group(tree, &tree->relays[i], now_ns);
}

/* ---- in the loop ---- */

void run_tree_settle(struct run_tree *tree)
{
    for (size_t i = 0; i < tree->relay_count; i++)
        if (tree->relays[i].link.state == RUN_LINK_OPEN)
            run_link_settle(&tree->relays[i].link);
}

void run_tree_poll(struct run_tree *tree, struct run_polls *polls, bool reading)
{
    for (size_t i = 0; i < tree->relay_count; i++)
        run_link_poll(&tree->relays[i].link, polls, reading);
}

/* Its group goes with it. */
static void cut_group(struct run_relay *relay)
{
    char how[128], text[1024];
    hvi_fate_describe(relay->link.fate, how, sizeof how);
    snprintf(text, sizeof text,
             "it was reached through %s, and hvdrun --relay there is lost: %s%.600s",
             relay->link.host->name, relay->link.text[0] != '\0' ? "" : "ssh ",
             relay->link.text[0] != '\0' ? relay->link.text : how);
    relay->counted_out = true;
    for (size_t host = relay->first; host < relay->end; host++) {
        struct run_link *link = link_of(relay, (uint32_t)host);
        if (link != NULL)
            run_link_cut(link, text);
    }
}

/* A relay that does not even say that it has killed a process stands still. */
static void check_obedience(struct run_relay *relay)
{
    struct run_link *own = &relay->link;
    bool overdue = false;
    if (own->state != RUN_LINK_OPEN || own->closed || own->channel.fd < 0)
        return;
    for (size_t host = relay->first; host < relay->end; host++) {
        const struct run_link *link = link_of(relay, (uint32_t)host);
        overdue |= link != NULL && link->state == RUN_LINK_OPEN && link->kill_at_ns == HVI_NEVER;
    }
    if (!overdue && own->kill_at_ns != HVI_NEVER)
        own->kill_at_ns = 0;
    else if (overdue && own->kill_at_ns == 0)
        own->kill_at_ns = hvi_deadline_after((int64_t)OBEY_NS);
}

/* Its group is then reached from here. */
static void check_greeting(struct run_relay *relay, uint64_t now_ns)
{
    if (!relay->greeted && !relay->link.closed && now_ns >= relay->greet_by_ns)
        run_link_close(&relay->link, 0);
}

static bool has_group(const struct run_relay *relay)
{
    for (size_t host = relay->first; host < relay->end; host++) {
        const struct run_link *link = link_of(relay, (uint32_t)host);
        if (link != NULL && link->state != RUN_LINK_GONE)
            return true;
    }
    return false;
}

void run_tree_tick(struct run_tree *tree, uint64_t now_ns)
{
    for (size_t i = 0; i < tree->relay_count; i++) {
        struct run_relay *relay = &tree->relays[i];
        check_greeting(relay, now_ns);
        check_obedience(relay);
        run_link_tick(&relay->link, now_ns);
        if (relay->link.state == RUN_LINK_GONE && !relay->counted_out)
            cut_group(relay);
        else if (relay->link.state != RUN_LINK_GONE && !relay->link.closed && !has_group(relay))
            run_link_close(&relay->link, relay->greeted ? PARTED_NS : 0);
    }
}

uint64_t run_tree_next_ns(const struct run_tree *tree)
{
    uint64_t next_ns = HVI_NEVER;
    for (size_t i = 0; i < tree->relay_count; i++) {
        const struct run_relay *relay = &tree->relays[i];
        next_ns = run_polls_earlier(next_ns, run_link_next_ns(&relay->link));
        if (!relay->greeted && !relay->link.closed && relay->link.state != RUN_LINK_GONE)
            next_ns = run_polls_earlier(next_ns, relay->greet_by_ns);
    }
    return next_ns;
}

bool run_tree_is_gone(const struct run_tree *tree)
{
    for (size_t i = 0; i < tree->relay_count; i++)
        if (tree->relays[i].link.state != RUN_LINK_GONE)
            return false;
    return true;
}

void run_tree_fini(struct run_tree *tree)
{
    for (size_t i = 0; i < tree->relay_count; i++)
        run_link_fini(&tree->relays[i].link);
    free(tree->relays);
    free(tree->links);
    tree->relays = NULL;
    tree->links = NULL;
    tree->relay_count = 0;
}

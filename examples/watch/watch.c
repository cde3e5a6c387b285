/* SPDX-License-Identifier: Apache-2.0
 * Watches a job from outside, as a scheduler would: when one of its ranks is lost, on whichever node, or the job is broken otherwise,
 * says which and why, and stops the rest at once. Ends with the job: exit status 0, or 1 when something was lost.
 *
 *     cc watch.c $(pkg-config --cflags --libs hvdadmin) -o watch && ./watch JOB
 *
 * Events may be lost; so after HVD_ADMIN_EVENT_LOST, and before the first one, it asks for what is true now. */
#include <hvd/hvd_admin.h>

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_NS INT64_C(5000000000)

static struct hvd_admin *admin;
static const char *job;
static bool was_lost;

static void give_up(void)
{
    fprintf(stderr, "watch: %s\n", hvd_admin_last_error());
    exit(2);
}

static void stop_job(const char *reason)
{
    struct hvd_admin_request request;
    struct hvd_admin_answer *answer;
    hvd_admin_request_init(&request, HVD_ADMIN_JOB_STOP);
    request.job = job;
    request.reason = reason;
    const int status = hvd_admin_ask(admin, &request, ANSWER_NS, &answer);
    if (status == HVD_OK)
        hvd_admin_answer_free(answer);
    else if (status != HVD_ERR_NOT_FOUND) /* it has ended already */
        give_up();
}

static void react(const char *what, const char *why)
{
    char sentence[1200];
    if (was_lost)
        return; /* the others follow the first */
    was_lost = true;
    snprintf(sentence, sizeof sentence, "%s was lost: %s", what, why);
    puts(sentence);
    fflush(stdout);
    stop_job(sentence);
}

/* Of a rank of another node the pid is not told. */
static void react_to_rank(int rank, int pid, const char *why)
{
    char name[64];
    snprintf(name, sizeof name, pid > 0 ? "rank %d (pid %d)" : "rank %d", rank, pid);
    react(name, why);
}

/* What is true now. False: there is no such job. */
static bool look(void)
{
    struct hvd_admin_request request;
    struct hvd_admin_answer *answer;
    hvd_admin_request_init(&request, HVD_ADMIN_RANKS);
    request.job = job;
    const int status = hvd_admin_ask(admin, &request, ANSWER_NS, &answer);
    if (status == HVD_ERR_NOT_FOUND)
        return false;
    if (status != HVD_OK)
        give_up();
    for (size_t i = 0; i < answer->rank_count; i++) {
        const struct hvd_admin_rank *rank = answer->ranks[i];
        if (strcmp(rank->state, "lost") == 0)
            react_to_rank(rank->rank, rank->pid, rank->text);
    }
    hvd_admin_answer_free(answer);
    return true;
}

/* False: the job has ended. */
static bool handle(const struct hvd_admin_event *event)
{
    if (event->kind == HVD_ADMIN_EVENT_LOST)
        return look();
    if (strcmp(event->job, job) != 0)
        return true;
    if (event->kind == HVD_ADMIN_EVENT_RANK_LOST)
        react_to_rank(event->rank, event->pid, event->text);
    else if (event->kind == HVD_ADMIN_EVENT_JOB_BROKEN)
        react("something", event->text);
    return event->kind != HVD_ADMIN_EVENT_GENERATION_ENDED;
}

/* Everything that waits. False: the job has ended. */
static bool handle_all(struct hvd_admin_events *events)
{
    const struct hvd_admin_event *event;
    int status;
    while ((status = hvd_admin_events_next(events, 0, &event)) == HVD_OK) {
        if (!handle(event))
            return false;
    }
    if (status != HVD_ERR_TIMEOUT)
        give_up();
    return true;
}

int main(int argc, char **argv)
{
    struct hvd_admin_events *events;
    bool goes_on;
    if (argc != 2) {
        fputs("usage: watch JOB\n", stderr);
        return 2;
    }
    job = argv[1];
    if (hvd_admin_open(NULL, &admin) != HVD_OK ||
        hvd_admin_subscribe(admin, ANSWER_NS, &events) != HVD_OK)
        give_up();
    goes_on = look();
    if (!goes_on)
        fprintf(stderr, "watch: there is no job %s\n", job);
    else
        printf("watching %s\n", job);
    fflush(stdout);
    while (goes_on) {
        /* An event loop of one descriptor; a scheduler has more. */
        struct pollfd item = {.fd = hvd_admin_events_fd(events), .events = POLLIN};
        poll(&item, 1, -1);
        goes_on = handle_all(events);
    }
    hvd_admin_events_close(events);
    hvd_admin_close(admin);
    return was_lost ? 1 : 0;
}

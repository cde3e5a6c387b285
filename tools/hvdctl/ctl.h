/* SPDX-License-Identifier: Apache-2.0
 * hvdctl inside: what its commands share. Main thread only. */
#ifndef HVI_TOOLS_HVDCTL_CTL_H
#define HVI_TOOLS_HVDCTL_CTL_H

#include "hvd/hvd_admin.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum ctl_exit { CTL_OK = 0, CTL_REFUSED = 1, CTL_USAGE = 2, CTL_NO_DAEMON = 3 };

struct ctl {
    const char *address; /* --address or NULL */
    bool of_owner;       /* --user */
    uint32_t owner;
    bool json, colours;
    uint64_t timeout_ns;
    uint64_t min_age_ns;
    const char *reason;
    int32_t rank;         /* --rank, or -1 */
    uint32_t last;        /* --last */
    uint64_t interval_ns; /* top */
    bool once, mark_cycles;
    const char *peer; /* doctor: HOST[:PORT], or NULL */
    bool peer_server; /* doctor */
    bool of_node;     /* key new --node */
    const char *dir;  /* key: --dir, or NULL */
    bool of_mesh;     /* jobs --mesh */
    FILE *out;        /* where tables and JSON go */
};

/* Prints "hvdctl: <sentence>" to stderr, with --json also {"error": {...}} to ctl->out. `status` is
 * an enum hvi_status. */
void ctl_complain(const struct ctl *ctl, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* What has been done: the sentence, with --json a document. */
void ctl_done(const struct ctl *ctl, const char *text);

/* ctl_show_*: one reply as tables for people. `now` values and names come from the reply alone,
 * except user names. */
void ctl_show_status(const struct ctl *ctl, const struct hvd_admin_answer *reply);
/* With ctl->of_mesh a row has its node, and nothing that only an engine knows. */
void ctl_show_jobs(const struct ctl *ctl, const struct hvd_admin_answer *reply);
void ctl_show_ranks(const struct ctl *ctl, const char *job, const struct hvd_admin_answer *reply);
void ctl_show_stalls(const struct ctl *ctl, const struct hvd_admin_answer *reply);
/* That node of the one job that the reply is about, or NULL. */
const struct hvd_admin_span *ctl_span_of(const struct hvd_admin_answer *reply, uint32_t node);
/* The node of a rank that the op waits for; NULL: the job is on one node, or it is not known. */
const struct hvd_admin_span *ctl_missing_node(const struct hvd_admin_answer *reply,
                                              const struct hvd_admin_stall *row, int32_t rank);

/* ctl_json_*: the same as one JSON document with raw numbers (ns, bytes). */
void ctl_json_status(const struct ctl *ctl, const struct hvd_admin_answer *reply);
void ctl_json_jobs(const struct ctl *ctl, const struct hvd_admin_answer *reply);
void ctl_json_ranks(const struct ctl *ctl, const char *job, const struct hvd_admin_answer *reply);
void ctl_show_nodes(const struct ctl *ctl, const struct hvd_admin_answer *reply);
/* `jobs`: the reply to a jobs request, for the links. */
void ctl_json_nodes(const struct ctl *ctl, const struct hvd_admin_answer *reply,
                    const struct hvd_admin_answer *jobs);
/* Workers of GPUs. What hvdd does not know of them NVML is asked, on this machine: the completed rows, for
 * free(3). */
struct hvd_admin_gpu *ctl_gpus_ask(const struct hvd_admin_answer *reply);
void ctl_show_gpus(const struct ctl *ctl, const struct hvd_admin_answer *reply,
                   const struct hvd_admin_gpu *gpus);
void ctl_json_gpus(const struct ctl *ctl, const struct hvd_admin_answer *reply,
                   const struct hvd_admin_gpu *gpus);
void ctl_show_limits(const struct ctl *ctl, const struct hvd_admin_answer *reply);
void ctl_json_limits(const struct ctl *ctl, const struct hvd_admin_answer *reply);
/* The connections between the nodes of jobs; nothing where there are none. */
void ctl_show_links(const struct ctl *ctl, const struct hvd_admin_answer *reply);
void ctl_json_stalls(const struct ctl *ctl, const struct hvd_admin_answer *reply);
/* The rows of a trace, gathered over as many replies as it took. Sorting: rank by rank, oldest
 * first, those in flight last. */
struct ctl_trace {
    const struct hvd_admin_trace **rows;
    size_t count;
    const struct hvd_admin_span **spans; /* one for each node */
    size_t span_count;
    const char *note; /* what keeps the rows from being all there is; "": nothing */
    uint64_t rows_left_out;
};
void ctl_sort_trace(const struct hvd_admin_trace **rows, size_t count);
void ctl_show_trace(const struct ctl *ctl, const struct ctl_trace *trace);
void ctl_json_trace(const struct ctl *ctl, const char *job, const struct ctl_trace *trace);

/* A rank and what it did in an interval. */
struct ctl_top_row {
    const char *job;
    struct hvd_admin_rank now;
    uint64_t ops_per_s, bytes_per_s;
    uint64_t lag_ns;    /* mean over the interval */
    uint64_t met, last; /* ops of several ranks; of these: where it came last */
};
/* Fills in what follows .now; `before` NULL: from nothing. */
void ctl_top_compare(struct ctl_top_row *row, const struct hvd_admin_rank *before,
                     uint64_t interval_ns);
void ctl_show_top(const struct ctl *ctl, const struct ctl_top_row *rows, size_t count);
/* `note`: what keeps it from being all there is; "": nothing. */
void ctl_json_top(const struct ctl *ctl, const struct ctl_top_row *rows, size_t count,
                  uint64_t interval_ns, const char *note);
/* One line each. `kind`: the event's name. */
void ctl_show_subscribed(const struct ctl *ctl);
void ctl_show_event(const struct ctl *ctl, const struct hvd_admin_event *event, const char *kind);
void ctl_json_subscribed(const struct ctl *ctl);
void ctl_json_event(const struct ctl *ctl, const struct hvd_admin_event *event, const char *kind);
void ctl_json_done(const struct ctl *ctl, const char *text);
void ctl_json_key(const struct ctl *ctl, const char *key);
void ctl_json_error(const struct ctl *ctl, int status, const char *text);
void ctl_json_version(const struct ctl *ctl, const char *daemon_version);

/* A request of this kind that says nothing else. */
struct hvd_admin_request ctl_request(enum hvd_admin_kind kind);
/* CTL_OK with an admin to close, or the exit code after a complaint. */
int ctl_open(const struct ctl *ctl, struct hvd_admin **admin_p);
/* Asks; CTL_OK with a reply to free, or the exit code after a complaint. */
int ctl_ask(const struct ctl *ctl, const struct hvd_admin_request *request,
            struct hvd_admin_answer **reply_p);
/* Complains of a failed call of hvd_admin.h; the exit code. */
int ctl_explain(const struct ctl *ctl, int status);
/* What keeps the answer from being all there is, a sentence for each node or engine, on stderr; with --json it is
 * in the document. */
void ctl_say_silent(const struct ctl *ctl, const struct hvd_admin_answer *reply);
/* Checks a job id from the command line, and puts it and its owner into the request; CTL_OK or CTL_USAGE
 * after a complaint. */
int ctl_copy_job(const struct ctl *ctl, const char *job, struct hvd_admin_request *request_p);

/* `hvdctl trace`: asks rank by rank, page by page. */
int ctl_trace(const struct ctl *ctl, char **args, int count);
/* `hvdctl timeline`. */
int ctl_timeline(const struct ctl *ctl, char **args, int count);
/* `hvdctl events`: until interrupted, or hvdd has gone. */
int ctl_events(const struct ctl *ctl, char **args, int count);
/* `hvdctl top`: until interrupted, or once. */
int ctl_top(const struct ctl *ctl, char **args, int count);

/* `hvdctl key new PREFIX` and `key new --node [NAME]`, `key show`, `key allow NAME KEY`. */
int ctl_key_new(const struct ctl *ctl, char **args, int count);
int ctl_key_show(const struct ctl *ctl, char **args, int count);
int ctl_key_allow(const struct ctl *ctl, char **args, int count);

/* Looks at this machine; with ctl->peer at its network and the way there. CTL_OK, or CTL_REFUSED when
 * something would keep hvdd from working. */
int ctl_doctor(const struct ctl *ctl);
/* `doctor gpu`: uses the first visible GPU for some seconds. */
int ctl_doctor_gpu(const struct ctl *ctl);
/* `hvdctl doctor --peer-server`: answers one `doctor --peer` that has the key that this prints. */
int ctl_peer_serve(const struct ctl *ctl);

/* Asks the daemon for its status for doctor and version: false when there is none (why_p says it).
 * *reply_p without a .daemon, or NULL: it answers with an error, which why_p says. */
bool ctl_ask_daemon(const struct ctl *ctl, struct hvd_admin_answer **reply_p, char *why_p,
                    size_t why_size);

#endif

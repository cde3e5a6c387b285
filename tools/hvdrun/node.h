/* SPDX-License-Identifier: Apache-2.0
 * A node's ranks: the hvdd that serves them, their processes and groups, their pipes, and what is
 * left when they have ended. hvdrun has one for a job on this machine; an agent has one for its
 * host. Which failure ends a job, and when, is not decided here. Main thread; waits nowhere but in
 * run_node_open. */
#ifndef HVI_TOOLS_HVDRUN_NODE_H
#define HVI_TOOLS_HVDRUN_NODE_H

#include "hvd/hvd_admin.h"
#include "tools/hvdrun/daemon.h"
#include "tools/hvdrun/guard.h"
#include "tools/hvdrun/output.h"
#include "tools/hvdrun/polls.h"
#include "tools/hvdrun/procs.h"

/* Where a rank stands in the job; its local rank is its index on the node. */
struct run_place {
    int rank, cross_rank, cross_size;
};

struct run_exit {
    int index; /* on the node; for the whole job, the rank */
    pid_t pid;
    struct hvi_fate fate;
    bool dying; /* killed, but its end is still to come */
};

struct run_node_calls {
    void *context;
    void (*say)(void *context, const char *text);
    /* These have ended together. */
    void (*exited)(void *context, const struct run_exit *exits, size_t count);
    /* The private hvdd is gone: `how`. NULL: nobody else has to know. */
    void (*daemon_gone)(void *context, const char *how);
};

/* What is to run. Lives as long as the node. */
struct run_node_plan {
    const struct run_options *options; /* ranks: those of this node */
    const struct run_heritage *heritage;
    const struct run_place *places;
    int size;
    const char *host; /* as the user has named it; NULL: not at all */
    const char *job, *key;
    const char *master_address; /* for torch.distributed; its port 0: none was free */
    int master_port;
    struct run_mesh mesh;       /* of a private hvdd */
    int interrupt_fd;           /* readable: stop waiting for hvdd */
    struct run_stream *streams; /* two for each rank */
    struct run_stream *results; /* one for each rank of hvd.run; NULL: it is another program */
    int call_fd;                /* what these are to call; a file */
    struct run_stream *log;     /* what hvdd writes to stderr */
    struct run_node_calls calls;
};

/* What a node is doing; only forward, see node.c. */
enum run_stage {
    RUN_RUNNING,  /* ranks run */
    RUN_LINGER,   /* all have ended; what they left running may finish its output */
    RUN_LEFTOVER, /* leftovers have got SIGTERM */
    RUN_DRAIN,    /* nothing runs any more; the last output is on its way */
    RUN_DONE,
};

struct run_node_rank {
    struct run_proc proc;
    bool signalled; /* its pidfd was ready */
    bool ended;
    bool untold;       /* hvdd is to be told of its end again: see tell_again */
    bool left_running; /* a process in its group, when it had ended well */
    bool group_gone;
};

struct run_node {
    const struct run_node_plan *plan;
    struct run_guard guard;
    int children_fd;          /* readable: a child has ended, perhaps an orphan */
    struct run_daemon daemon; /* dir "": not ours */
    bool daemon_gone;
    uint64_t silent_until_ns; /* it did not answer: it is not asked before */
    char address[HVD_ADMIN_DIR_MAX + 1];
    struct hvd_admin *admin;
    struct run_node_rank *ranks;
    int alive;
    uint64_t retell_ns; /* when hvdd is told again; 0: it knows all that it has to */
    enum run_stage stage;
    uint64_t stage_ends_ns; /* LINGER, LEFTOVER, DRAIN */
    bool killed;
    bool impatient; /* output that cannot be written is given up */
};

/* Guard and hvdd. 0, or -1 with a sentence; run_node_close in both cases. */
int run_node_open(struct run_node *node_p, const struct run_node_plan *plan, char *text_p,
                  size_t text_size);
/* Starts the ranks; rank 0 of the job gets `input_fd`. 0, or an exit code with a sentence; then some
 * may run all the same. */
int run_node_start(struct run_node *node, int input_fd, char *text_p, size_t text_size);

void run_node_poll(struct run_node *node, struct run_polls *polls);
/* Before run_node_start: that hvdd has ended, for .daemon_gone, which has to be there. */
void run_node_poll_daemon(struct run_node *node, struct run_polls *polls);
/* After the calls of a poll: what has ended, and what time alone brings. */
void run_node_tick(struct run_node *node, uint64_t now_ns);
/* The next time for run_node_tick; HVI_NEVER for none. */
uint64_t run_node_next_ns(const struct run_node *node);

/* A rank that is being killed and has not ended yet; false: there is none. */
bool run_node_find_dying(struct run_node *node, struct run_exit *exit_p);
/* To every process and what it has started. SIGKILL also ends every patience with what is left. */
void run_node_signal(struct run_node *node, int signal_number);
/* Every rank of the job has ended: leftovers may linger, or get SIGTERM at once. */
void run_node_end(struct run_node *node, bool linger);
/* Ends and frees; nothing that was started is left. */
void run_node_close(struct run_node *node);

#endif

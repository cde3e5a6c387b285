/* SPDX-License-Identifier: Apache-2.0
 * What the files of hvdd share. One thread, one sd-event loop; nothing here blocks. A function that
 * returns `int` returns an enum hvi_status unless it is an sd-event handler. Who decides an error
 * logs it. */
#ifndef HVD_NODE_NODE_H
#define HVD_NODE_NODE_H

#include "base/discard.h"
#include "base/pace.h"
#include "daemon/node/config.h"
#include "daemon/node/gpu.h"
#include "daemon/node/job.h"
#include "daemon/node/mps.h"
#include "daemon/node/rundir.h"
#include "proto/packet.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <systemd/sd-event.h>

#define NODE_ENGINE_GRACE_NS                                                                       \
    (5 * HVI_NS_SEC) /* an engine that does not read, or does not stop, is killed after it */

#define NODE_SILENT_NS                                                                             \
    (2 * HVI_NS_SEC) /* an engine that has not answered for so long is said to be silent */

/* How far hvdd is from its end; stop.c has the only setter. */
enum node_phase {
    NODE_PHASE_RUNNING,
    NODE_PHASE_DRAINING, /* no new sessions; running jobs may finish */
    NODE_PHASE_STOPPING, /* engines have been told to stop */
};

/* Who is at the other end, from the kernel. */
struct node_peer {
    pid_t pid;
    uid_t uid;
    gid_t gid;
};

/* A connection to attach.sock that is not attached yet (attach.c). */
struct node_pending {
    struct node *node;
    struct node_pending *prev, *next;
    int fd, pidfd;
    struct node_peer peer;
    sd_event_source *io, *timer;
    unsigned char *bytes; /* the AttachRequest as it came */
    size_t length;
    struct node_generation *generation; /* set: handed to its engine, which has not answered */
    int32_t rank;
    bool retried; /* an engine ended under it once */
    bool held;    /* decided again, when a rank goes, an engine comes or the time is over */
    uint64_t duplicate_until_ns; /* not 0: its rank seemed taken; may do so until then */
    bool has_file;     /* the first message has a descriptor, and is still in the socket */
    uint64_t timeline; /* EngineTimeline.request, which its engine is answering; 0: none */
    const struct node_engine *timeline_engine;
};

/* One message that did not fit the link's socket buffer. */
struct node_outgoing {
    struct node_outgoing *prev, *next;
    size_t length;
    int fds[2]; /* ours, closed after sending */
    uint32_t fd_count;
    unsigned char bytes[];
};

/* One engine process and our connection to it (link.c, spawn.c). */
struct node_engine {
    struct node *node;
    struct node_engine *prev, *next;
    struct node_generation *generation;
    pid_t pid;                  /* 0: started by its unit, and has not said who it is */
    int pidfd, link_fd;         /* pidfd -1: likewise; link_fd -1: broken */
    bool child;                 /* false: started by its unit, or by an earlier hvdd */
    bool back;                  /* the latter: it has said hello */
    sd_event_source *exit, *io; /* process end; link */
    sd_event_source *linger;    /* nobody attached */
    sd_event_source *kill;      /* told to stop, or link broken */
    sd_event_source *stuck;     /* outbox not empty */
    sd_event_source *unmet;     /* it has not said who it is */
    sd_event_source *forget;    /* hvdd may not kill it */
    bool beats;                 /* it is asked whether it lives (beat.c) */
    uint64_t beat;              /* EngineQuery.request since which it has said nothing; 0: none */
    uint64_t silent_ns;         /* for how long */
    struct node_outgoing *outbox;
    size_t outbox_count, outbox_bytes;
    unsigned char *node_packet; /* its EngineNode as it came; NULL: it has said none */
    size_t node_packet_bytes;
    uint64_t registration; /* at the rendezvous; no engine before it had this number */
    bool met;              /* the rendezvous has answered it */
    uint64_t region_bytes; /* as it has said last, with the next two: EngineReport */
    uint32_t regions, process_sets;
    uint64_t regions_granted; /* bytes that its ranks may register */
    char *lost;        /* how its first rank that is lost or ended has gone; NULL: none has */
    bool broken;       /* it has told that its job is broken by what is no rank of this node */
    char *failed;      /* why, if its nodes were not connected then; NULL: they were */
    int failed_status; /* the same */
    bool refused;      /* hvdd or the rendezvous has told it why there is no job */
    char *stopped;     /* why hvdd has stopped it while ranks were there; NULL: it has not */
};

/* A listening socket that the loop accepts from (listen.c). */
struct node_acceptor {
    struct node *node;
    void (*take)(struct node *node, int fd); /* owns the connection */
    sd_event_source *io, *again;
    uint64_t logged_ns;
    struct hvi_pace pace;
};

/* How fast engines are started for a user. */
#define NODE_STARTS 64u
struct node_start {
    uid_t uid;
    uint64_t paid_ns; /* base/rate.h */
};

struct node_counters {
    uint64_t attaches, refused, ranks_lost;
};

struct hvi_gate_msg;
struct node_answer; /* answer.c: a question that engines are working on */

/* hvdd-gate, the process that strangers talk to (gate.c). */
struct node_gate {
    char path[HVI_WIRE_PATH * 2];
    int program_fd; /* of that file, open for all of hvdd's life */
    pid_t pid;      /* 0: not running, or its unit has not started it yet */
    int pidfd, link_fd;
    uint64_t started_ns, next_beat, backoff_ns;
    bool asked; /* the last beat has no answer yet */
    bool killed;
    uint64_t silent_ns; /* for how long it has not answered */
    sd_event_source *exit, *io, *beat, *again;
    struct node_outgoing *outbox;
    size_t outbox_bytes;
};

/* Jobs that span nodes (mesh.c). */
struct node_mesh {
    uint64_t node;                                   /* random: this hvdd's start */
    char listen[HVI_WIRE_PATH], join[HVI_WIRE_PATH]; /* at most one is not "" */
    uint32_t port;                                   /* that the gate listens on; 0: none */
    uint32_t port_first, port_last;
    uint32_t net_lanes; /* where the option says none */
    bool encrypt;       /* likewise */
    uint64_t start_timeout_ns;
    uint64_t registrations;     /* given out: a job's generations begin anew when it is forgotten */
    struct hvi_gate_msg *ended; /* the first rank whose process has ended; NULL: none has */
    char *lost;                 /* how a host went whose ranks cannot attach any more; NULL: none */
};

struct node {
    struct node_command command;
    struct node_config config;
    bool private_mode;
    uid_t uid;
    char engine_path[HVI_WIRE_PATH * 2];
    int engine_fd; /* of that file, open for all of hvdd's life */
    char gpu_path[HVI_WIRE_PATH * 2];
    uint64_t started_ns;
    uint64_t descriptors; /* that hvdd may have open */

    sd_event *event;
    char place[HVI_WIRE_PATH]; /* of the runtime directory */
    struct node_rundir rundir;
    enum node_phase phase;
    sd_event_source *signals[3], *parent, *drain, *idle, *status;
    bool status_dirty;

    int attach_fd; /* listening */
    char attach_path[HVI_WIRE_PATH];
    bool attach_inherited; /* from a socket unit: its file is not ours to remove */
    struct node_acceptor attach_acceptor;

    int admin_fd; /* listening, for the gate */
    char admin_path[HVI_WIRE_PATH];
    bool admin_inherited; /* from a socket unit: its file is not ours to remove */
    int root_fd;          /* the same for root and hvdd's user; -1: a private hvdd needs none */
    char root_path[HVI_WIRE_PATH];
    struct node_gate gate;
    struct node_mesh mesh;
    struct node_gpu gpu;
    struct node_mps mps;
    bool ready;  /* said so */
    bool joined; /* --ready-fd has been written to */
    struct node_answer *answers;
    uint32_t answer_count;

    struct node_pending *pendings;
    uint32_t pending_count;
    struct hvi_discard discard;
    struct node_jobs jobs;
    struct node_start
        starts[NODE_STARTS]; /* the one that was paid for first makes room for another user, who
                                takes over what is not paid for */
    struct node_engine *engines;
    sd_event_source *beat;
    uint64_t hellos_until_ns; /* engines of a killed hvdd may still say hello; 0: there was none */
    sd_event_source *hellos_over;
    uint64_t next_session, next_query;
    pid_t hello_refused_pid; /* so that its retries are logged once */
    struct node_counters counters;

    unsigned char encoded[HVI_PACKET_BYTES_MAX]; /* scratch for one message out, one in */
    struct hvi_packet packet;
};

/* ---- listen.c: attach.sock
 * ---------------------------------------------------------------------------------------- */

/* Binds attach.sock, or takes the inherited socket, and accepts. Logs. */
int node_listen_open(struct node *node);
void node_listen_close(struct node *node);
/* A bound and listening UNIX socket with exactly this file mode; removes what an earlier hvdd left.
 * -1 after logging. */
int node_listen_bind(const char *path, int type, mode_t mode);
/* Accepts from `fd` from now on and gives each connection to `take`. HVI_OK or HVI_ERR_DAEMON; logs. */
int node_acceptor_open(struct node_acceptor *acceptor, struct node *node, int fd,
                       void (*take)(struct node *node, int fd));
/* Harmless twice, and on one that was never opened. */
void node_acceptor_close(struct node_acceptor *acceptor);
/* Who has connected, from the kernel. False: it cannot be told. */
bool node_listen_peer(int fd, struct node_peer *peer_p);
/* The only supplementary group of the process that has connected is hvdd's own. hvdd and its unit give that group to
 * engines that become another user, and users have it not. */
bool node_listen_peer_is_service(int fd);

/* ---- attach.c: from a connection to an engine
 * --------------------------------------------------------------------- */

struct node_decision {
    int status; /* HVI_OK, or why not */
    char text[HVI_TEXT_MAX + 1];
    struct node_generation *generation; /* with HVI_OK: where to; NULL: a new one */
};

/* The rules of docs/design/spine.md, "Job, generation, rank", and the limits. Pure. */
void node_attach_decide(const struct node *node, const struct node_peer *peer,
                        const struct hvi_attach_request *request, struct node_decision *decision_p);

/* Whether `uid` may ask about the jobs of `owner`, and change them: its own, and root and hvdd's user those of all. */
bool node_decide_may_ask(const struct node *node, uid_t uid, uid_t owner);
/* The job `id` that `uid` asks about: that of `owner`, where it names one, else its own, else the only one. HVI_OK; with a
 * sentence HVI_ERR_NOT_FOUND, HVI_ERR_REFUSED (another user's), HVI_ERR_INVALID (several users have one). Pure. */
int node_decide_job(const struct node *node, uid_t uid, const uint32_t *owner, const char *id,
                    struct node_job **job_p, char *text_p, size_t size);

/* Bytes of region-bytes-per-user or region-bytes, also where they are left to hvdd. */
uint64_t node_regions_most(const struct node *node, bool of_user);
/* What is granted to the jobs of a user; NULL: of all. */
uint64_t node_regions_granted(const struct node *node, const uid_t *uid);
/* Whether the engine's ranks may register so much in all. False with a sentence. */
bool node_decide_regions(const struct node_engine *engine, uint64_t bytes, char *text_p,
                         size_t size);

/* How many ranks of its job are on this node, and which of these it is. The second only of an attach that was
 * not refused. */
int32_t node_attach_seats(const struct hvi_attach_request *request);
int32_t node_attach_seat(const struct hvi_attach_request *request);

/* How many connections may wait to be attached: `of_user` one user's. */
int64_t node_attach_pending_most(const struct node *node, bool of_user);
/* How many of a user's wait. */
uint32_t node_attach_pending_of(const struct node *node, uid_t uid);
/* Takes over an accepted connection; closes `fd` in the end whatever happens. */
void node_attach_accept(struct node *node, int fd);
/* What the engine said about a rank it was given: its connection is not ours any more. */
void node_attach_adopted(struct node *node, struct node_generation *generation, int32_t rank);
/* An engine's answer to an EngineTimeline. */
void node_attach_timeline_done(struct node *node, const struct node_engine *engine,
                               const struct hvi_ack *ack);
/* A rank has gone: attaches that are held because of it are decided again. */
void node_attach_wake_held(struct node *node);
/* The engine is gone: connections it had not answered are tried again once (`clean`) or get an
 * error. */
void node_attach_engine_gone(struct node *node, struct node_generation *generation, bool clean,
                             const char *fate);
/* Answers everybody that is left with `status` and closes. */
void node_attach_close_all(struct node *node, int status, const char *text);

/* ---- spawn.c: engine processes
 * ------------------------------------------------------------------------------------ */

/* Finds the programs of engine and gate, where no unit starts them. Logs. */
int node_spawn_find(struct node *node);
/* Starts a program with `link_fd` as descriptor 3, our stdout and stderr and no other descriptor, in
 * a process group of its own: by its path, so that it is named as people know it; by `program_fd` when the
 * package was removed or moved meanwhile. errno number. */
int node_spawn_program(const char *path, int program_fd, const char *name, int link_fd,
                       pid_t *pid_p);
/* Starts the engine of a generation, or has its unit do so, and sends EngineStart. The engine gets a copy of
 * `trainer_fd`, the connection of one of its ranks (-1: none), and runs as that one's user if it may. HVI_OK or
 * HVI_ERR_DAEMON with a sentence; logs. */
int node_spawn_engine(struct node *node, struct node_generation *generation, int trainer_fd,
                      char *text_p, size_t text_size);
/* Bytes of region-limit, also where it is left to hvdd. */
uint64_t node_spawn_region_limit(const struct node *node);
/* Watches the process of engine->pidfd, which may be our child. Negative: -errno, as from sd-event.
 */
int node_spawn_watch(struct node_engine *engine);
void node_spawn_log_started(const struct node_engine *engine);
void node_spawn_kill(struct node_engine *engine, const char *why);

/* ---- link.c: one engine's connection
 * ------------------------------------------------------------------------------ */

/* A new engine that talks over `link_fd`; on success owns both descriptors. With `pidfd` -1 its unit
 * starts it, and its first message says who it is. NULL: out of memory or descriptors; errno says why. */
struct node_engine *node_link_new(struct node *node, struct node_generation *generation,
                                  int link_fd, pid_t pid, int pidfd, bool child);
/* Sends now or queues; fds stay the caller's. HVI_OK, HVI_ERR_INVALID (does not fit a packet),
 * HVI_ERR_ENGINE_LOST. */
int node_link_send(struct node_engine *engine, const struct hvi_packet_msg *msg, const int *fds,
                   uint32_t fd_count);
/* Handles what the engine has said by now. Ends no engine, but may break the link. */
void node_link_poll(struct node_engine *engine);
/* The kernel does not let hvdd kill it: after a grace it is forgotten, as if it had ended. It may say hello again. */
void node_link_give_up(struct node_engine *engine);
/* EngineStop, and SIGKILL after a grace. */
void node_link_stop(struct node_engine *engine, const char *reason);
/* Takes what is still on the link, ends the generation, frees the engine. `fate`: how its process
 * ended. */
void node_link_end(struct node_engine *engine, bool clean, const char *fate);
/* Somebody came or went: arms or disarms the linger timer. */
void node_link_presence(struct node_engine *engine);
/* An EngineHello: rebuilds the generation. On HVI_OK owns fd and pidfd; logs. */
int node_link_hello(struct node *node, const struct node_peer *peer,
                    const struct hvi_engine_hello *hello, int fd, int pidfd);
/* A GpuReturn: engines that are back find the worker. As node_gpu_return. */
int node_link_return(struct node *node, const struct node_peer *peer,
                     const struct hvi_gpu_return *said, int fd, int pidfd, const char **why_p);
/* What workers of GPUs need of hvdd. Their user is the node. */
extern const struct node_gpu_calls node_link_gpu_calls;
/* Frees all engines without ending them: they outlive hvdd. */
void node_link_forget_all(struct node *node);

/* ---- beat.c: whether engines live
 * ----------------------------------------------------------------------------------- */

/* An engine has come: it is asked from now on. HVI_OK or HVI_ERR_NO_MEMORY. */
int node_beat_start(struct node_engine *engine);
/* It has said something. */
void node_beat_heard(struct node_engine *engine);
/* Tells every engine what engine-silence is now. */
void node_beat_reload(struct node *node);
void node_beat_close(struct node *node);

/* ---- gate.c: the process that strangers talk to; answer.c: what admin requests get
 * -------------------------------- */

/* Where a reply goes, and who asked. */
struct node_asker {
    uint64_t ticket; /* the gate's */
    uid_t uid;
    uint64_t request;
};

/* Binds admin.sock, or takes the inherited socket, and root.sock, and starts the gate. From then on the gate is kept
 * running. HVI_OK or HVI_ERR_DAEMON; logs. */
int node_gate_open(struct node *node);
/* Ends the gate and waits for its end, a quarter of a second at most before it is killed. */
void node_gate_close(struct node *node);
/* Fills in version and request number and sends; an asker that has gone gets nothing. */
void node_gate_reply(struct node *node, const struct node_asker *asker,
                     struct hvi_admin_reply *reply);

/* Answers now, or within a second when engines have to be asked first. */
void node_answer_request(struct node *node, const struct node_asker *asker,
                         const struct hvi_admin_request *request);
/* A reply of nothing but a status and a sentence. */
void node_answer_text(struct node *node, const struct node_asker *asker, int status,
                      const char *text);
/* What an engine reported; takes rows out of `report`. */
void node_answer_report(struct node *node, const struct node_engine *engine,
                        struct hvi_engine_report *report);
/* The engine will not answer any more. */
void node_answer_engine_gone(struct node *node, const struct node_engine *engine);
/* Drops all unanswered questions. */
void node_answer_close(struct node *node);

struct hvi_gate_start;
struct hvi_gate_state;
struct hvi_node_roster;

/* Sends now or queues; where there is no gate just now, nothing. */
void node_gate_send(struct node *node, const struct hvi_gate_msg *msg);

/* Something has happened to the generation, which the gate tells those who have asked for it. `kind` is an
 * enum hvi_event_kind; rank -1: it is not about one. Stalls, which a user can make as many as he likes, have a rate, and are
 * not told while the gate has not read what waits for it. */
void node_gate_event(struct node *node, uint32_t kind, struct node_generation *generation,
                     int32_t rank, pid_t pid, const char *text);

/* ---- mesh.c: jobs that span nodes ---- */

/* Reads the options of the mesh. HVI_OK; HVI_ERR_INVALID: one is wrong; with --rendezvous it may ask a name server, and then
 * HVI_ERR_NOT_FOUND. Logs. */
int node_mesh_init(struct node *node);
bool node_mesh_wanted(const struct node *node);
void node_mesh_fill_start(const struct node *node, struct hvi_gate_start *start_p);
/* What an engine has to know of it. */
void node_mesh_fill_engine(const struct node *node, struct hvi_engine_start *start_p);
/* What has become of the mesh; hvdd is ready when it is. */
void node_mesh_state(struct node *node, const struct hvi_gate_state *state);
/* An engine is started: what its job's last one has said, and no other node has heard, is over. */
void node_mesh_engine_new(struct node_engine *engine);
/* An engine's EngineNode, a Packet of `length` bytes. */
void node_mesh_engine_node(struct node_engine *engine, const unsigned char *bytes, size_t length);
/* Nodes that wait for this one are told, unless it was in order; else `fate` says how. */
void node_mesh_engine_gone(struct node_engine *engine, bool clean, const char *fate);
/* engine->lost says how. Before all ranks of this node have come, the other nodes are told now, for they would wait. */
void node_mesh_rank_lost(struct node_engine *engine);
/* hvdrun tells how a process ended, of the job for which it has started this hvdd. */
void node_mesh_process_exited(struct node *node, const struct hvi_admin_request *request,
                              uid_t uid);
/* hvdrun tells of another host, whose ranks cannot attach any more: `how`. Only the first one counts. */
void node_mesh_lost(struct node *node, const char *how);
/* A new gate: it is told what all engines wait for. */
void node_mesh_tell_all(struct node *node);
/* The rendezvous' answer goes to its engine. False: it is none. */
bool node_mesh_roster(struct node *node, const struct hvi_node_roster *roster);
void node_mesh_close(struct node *node);

/* ---- notify.c: systemd
 * -------------------------------------------------------------------------------------------- */

/* Sorts the descriptors that systemd passed into node->attach_fd and node->admin_fd.
 * Logs. */
int node_notify_inherit(struct node *node);
/* READY=1, the fd store, the watchdog; --ready-fd of a hvdd without a mesh, or with --rendezvous: ranks do not wait for
 * those of other nodes before they have a session. */
void node_notify_ready(struct node *node);
/* --ready-fd, once: of one with another mesh when it listens, or has reached the one that it joins. */
void node_notify_joined(struct node *node);
void node_notify_reloading(struct node *node);
void node_notify_reloaded(struct node *node);
void node_notify_stopping(struct node *node);
/* The numbers in STATUS= have changed; sent at most once a second. */
void node_notify_changed(struct node *node);

/* ---- stop.c: signals, reload, the end
 * ----------------------------------------------------------------------------- */

/* Blocks and handles SIGTERM, SIGINT, SIGHUP; watches --parent-fd. Before the first thread. Logs.
 */
int node_stop_watch(struct node *node);
/* Sessions, jobs or pending connections have changed: are we done, are we idle? Frees nothing. */
void node_stop_check(struct node *node);

#endif

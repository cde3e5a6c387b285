/* SPDX-License-Identifier: Apache-2.0
 * The property test's parts. A program is plain numbers; everything a rank does, and everything that
 * must come of it, follows from them, so that a program is its own test, whole or shrunk.
 *
 *   program.c   random programs, programs as text
 *   model.c     what each rank asks for, and what must come of it: status, sentence, shapes
 *   numbers.c   what must come of it: bytes
 *   rank.c      one rank runs a program and compares
 *   op.c        one op of one rank: memory, submission, comparison
 *   shared.c    what ranks of one job share besides hvdd: a barrier, notes, the first failure
 *   shrink.c    from a failing program to a small one
 *   worker.c    processes that run programs, and who looks after them
 *   main.c      hvdd, options, the end
 *
 * Independent of the engine on purpose: nothing of daemon/, reduce/, base/ or shm/ is included. */
#ifndef HVT_PROPERTY_PROP_H
#define HVT_PROPERTY_PROP_H

#include <hvd/hvd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#ifndef HVT_RANKS
#define HVT_RANKS 8
#endif
#define HVT_SETS    4 /* 0 is all ranks, the others come and go */
#define HVT_GROUP   4
#define HVT_OPS     24 /* of a phase */
#define HVT_PHASES  4096
#define HVT_TEXT    4096
#define HVT_SPLITS  HVT_RANKS
#define HVT_NOTES   (1u << 15)
#define HVT_UNNAMED (-1)
#define HVT_DIGITS  '\1'

/* ---- randomness ---- */

uint64_t hvt_mix(uint64_t a, uint64_t b);
uint64_t hvt_next(uint64_t *state);
/* 0 .. below - 1 */
uint32_t hvt_below(uint64_t *state, uint32_t below);
bool hvt_chance(uint64_t *state, uint32_t percent);

/* ---- programs ---- */

enum hvt_kind {
    HVT_ALLREDUCE,
    HVT_ALLGATHER,
    HVT_BROADCAST,
    HVT_ALLTOALL,
    HVT_REDUCESCATTER,
    HVT_BARRIER,
    HVT_SET_ADD,
    HVT_SET_REMOVE,
    HVT_KINDS
};

/* In what the ranks .wrong_ranks differ from the others. */
enum hvt_wrong {
    HVT_RIGHT,
    HVT_WRONG_KIND,
    HVT_WRONG_DTYPE,
    HVT_WRONG_SHAPE,
    HVT_WRONG_REDUCE,
    HVT_WRONG_ROOT,
    HVT_WRONG_SCALE,
    HVT_WRONG_GROUP,
    HVT_WRONG_RANKS,
    HVT_WRONG_ROOM, /* the output is a row too small */
    HVT_WRONGS
};

enum hvt_memory { HVT_MALLOC, HVT_SHARED, HVT_REGISTERED, HVT_ADOPTED, HVT_ANY_MEMORY };
enum hvt_out { HVT_OUT_EXACT, HVT_OUT_LARGE, HVT_OUT_LIBRARY, HVT_OUT_IN_PLACE, HVT_ANY_OUT };
enum hvt_cancel { HVT_NO_CANCEL, HVT_CANCEL_AND_REPEAT, HVT_CANCEL_ALL };

/* How a rank waits for the ops of a phase. */
enum hvt_style {
    HVT_ONE_BY_ONE, /* each is waited for before the next is submitted */
    HVT_IN_ORDER,
    HVT_BACKWARDS,
    HVT_SHUFFLED,
    HVT_ALL,
    HVT_FIRST_OF_ANY,
    HVT_POLLED,
    HVT_SHORT_WAITS,
    HVT_EVENTS,
    HVT_BLOCKING, /* like one by one, with the blocking forms where there are any */
    HVT_STYLES,
    HVT_ANY_STYLE = HVT_STYLES
};

struct hvt_op {
    int kind, name, set, dtype, reduce, ndim, dim0, dim1, dim2, pre, post, root, group, out, memory;
    int vary;  /* first dimensions, splits: each rank its own */
    int ranks; /* of a new set, as bits */
    int wrong, wrong_ranks, cancel, misuse, seed;
};

struct hvt_phase {
    int repeat, style, shuffle, threads;
    int first;       /* this rank submits before the others; -1 */
    int join;        /* the set that the ranks join during the phase; -1 */
    int join_cancel; /* a rank takes its join back once */
    int seed, ops;
    struct hvt_op op[HVT_OPS];
};

struct hvt_program {
    int ranks, processes, phases;
    struct hvt_phase *phase;
};

struct hvt_limits {
    int ranks_least, ranks_most;
};

struct hvt_program *hvt_program_new(int ranks, int phases);
void hvt_program_free(struct hvt_program *program);
struct hvt_program *hvt_program_copy(const struct hvt_program *program);
void hvt_program_append(struct hvt_program *program, const struct hvt_program *more);
/* A random one. Ends without process sets. */
struct hvt_program *hvt_program_random(uint64_t seed, int ranks);
void hvt_program_print(const struct hvt_program *program, FILE *file);
/* NULL, having said why on stderr, for what is no program. */
struct hvt_program *hvt_program_read(FILE *file);

struct hvt_field {
    const char *name;
    size_t at;
    int usual;                /* not printed; what shrinking tries */
    const char *const *words; /* NULL: a number */
};
extern const struct hvt_field hvt_op_fields[], hvt_phase_fields[]; /* end with a NULL name */

/* ---- what is asked for ---- */

/* One member of an op on one rank. */
struct hvt_request {
    int kind, dtype, ndim, reduce, root;
    int64_t dims[3];
    double pre, post;
    int group, member; /* 0: not grouped */
    unsigned ranks;    /* of a new set */
    int64_t splits[HVT_SPLITS];
    bool equal_splits;
    bool small; /* the output has a row too few */
};

/* What the sets are at some point of a program. */
struct hvt_world {
    int ranks;
    unsigned members[HVT_SETS]; /* 0: there is none */
};

void hvt_world_init(struct hvt_world *world, int ranks);
/* After the phase. */
void hvt_world_change(struct hvt_world *world, const struct hvt_phase *phase);
int hvt_set_size(unsigned members);
int hvt_set_place(unsigned members, int rank);

/* What of phase->op[index] is to be done at all: false for what shrinking has left meaningless. */
bool hvt_model_is_op(const struct hvt_world *world, const struct hvt_phase *phase, int index);
/* The ranks that submit it. */
unsigned hvt_model_who(const struct hvt_world *world, const struct hvt_phase *phase, int index);
/* How many ops of the phase's joined set the rank submits before it joins. */
int hvt_model_join_at(const struct hvt_world *world, const struct hvt_phase *phase, int rank);
/* Whether the rank takes its part of a cancelled op back, and then brings it again or leaves it. */
enum hvt_cancel hvt_model_cancel(const struct hvt_world *world, const struct hvt_phase *phase,
                                 int index, int rank);
/* Its members fail together; false: no rank says that they are a group. */
bool hvt_model_is_whole(const struct hvt_world *world, const struct hvt_phase *phase, int index);
/* Ranks must meet after the phase before they go on. */
bool hvt_model_meets(const struct hvt_phase *phase);
int hvt_model_members(const struct hvt_op *op);
void hvt_model_request(const struct hvt_world *world, const struct hvt_phase *phase, int index,
                       int member, int rank, struct hvt_request *request_p);
/* "w3", "w3_1of2"; NULL for unnamed. */
const char *hvt_model_name(const struct hvt_op *op, int member, char *text_p, size_t size);

struct hvt_outcome {
    int status, culprit;
    bool room;               /* an output is too small: found after everything else */
    bool local;              /* the library refuses it: nobody hears of it */
    char text[HVT_TEXT];     /* of the error, after the label; HVT_DIGITS stands for any number */
    char label_kind[32];     /* "allreduce", "op" */
    int64_t rows[HVT_RANKS]; /* of each rank's result */
    int64_t received[HVT_RANKS][HVT_RANKS];
};

/* What becomes of one member of an op. */
void hvt_model_outcome(const struct hvt_world *world, const struct hvt_phase *phase, int index,
                       int member, struct hvt_outcome *outcome_p);
/* Of the op as a whole: the first member that fails, else HVD_OK. Returns that member. */
int hvt_model_group_outcome(const struct hvt_world *world, const struct hvt_phase *phase, int index,
                            struct hvt_outcome *outcome_p);

/* ---- numbers ---- */

size_t hvt_bytes_of(int dtype);
const char *hvt_dtype_name(int dtype);
const char *hvt_reduce_name(int reduce);
const char *hvt_kind_name(int kind);
int64_t hvt_elements(const struct hvt_request *request);
int64_t hvt_row_elements(const struct hvt_request *request);
/* What a rank brings: a function of the arguments only. */
void hvt_numbers_fill(int dtype, bool moderate, uint64_t seed, int64_t count, void *data_p);
/* ins[count]: the present members' inputs in set order; members: for averages. */
void hvt_numbers_reduce(const struct hvt_request *request, const void *const *ins, int count,
                        int members, int64_t elements, void *out_p);

/* ---- what ranks share ---- */

struct hvt_shared {
    pthread_mutex_t mutex;
    pthread_cond_t turned;
    int waiting, turn;
    _Atomic int failed;
    _Atomic uint64_t index;    /* of the program that runs */
    _Atomic uint64_t begun_ns; /* when it began */
    _Atomic uint64_t ops, programs, errors;
    _Atomic uint64_t notes[HVT_NOTES];
    char text[HVT_TEXT];
};

struct hvt_shared *hvt_shared_new(void);
void hvt_shared_free(struct hvt_shared *shared);
/* Waits until `ranks` have come. */
void hvt_shared_meet(struct hvt_shared *shared, int ranks);
/* Keeps the first failure's text. */
void hvt_shared_fail(struct hvt_shared *shared, const char *text);
/* All ranks that note something under a number must note the same; what the first said comes back. */
uint64_t hvt_shared_note(struct hvt_shared *shared, uint32_t number, uint64_t value);

/* ---- running ---- */

/* What --selftest must find: a wrong result, and a rank that never comes. */
enum hvt_selftest { HVT_HONEST, HVT_LIES, HVT_LOSES_OPS };

struct hvt_setup {
    const char *address, *program_path; /* of hvdd's sockets; of hvdctl */
    char job[64];
    int64_t deadline_ns;
    enum hvt_selftest selftest;
    bool diagnoses; /* asks hvdctl when an op is not finished in time */
    struct hvt_shared *shared;
};

/* One rank's session and memory, kept over many programs. */
struct hvt_rank {
    const struct hvt_setup *setup;
    struct hvd_session *session;
    int rank, ranks;
    char *arena[HVT_ANY_MEMORY]; /* none for HVT_MALLOC */
    size_t used[HVT_ANY_MEMORY];
    int set_ids[HVT_SETS];
    /* Where in the program it is. */
    struct hvt_world world;
    const struct hvt_phase *phase;
    int phase_number, turn;
    uint32_t notes;
};

struct hvt_rank *hvt_rank_open(const struct hvt_setup *setup, int rank, int ranks);
void hvt_rank_close(struct hvt_rank *rank);
/* Ends the process when something is not as it must be, after hvt_shared_fail. */
void hvt_rank_run(struct hvt_rank *rank, const struct hvt_program *program);
/* Ends the process; says where in the program it happened. */
void hvt_rank_fail(const struct hvt_rank *rank, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));

/* ---- one op of one rank ---- */

struct hvt_piece {
    struct hvt_request request;
    struct hvd_tensor in, out;
    struct hvd_op *op;
    unsigned char *in_block, *out_block; /* with guards; from malloc if .in_owned, .out_owned */
    size_t in_bytes, out_bytes;
    bool in_owned, out_owned, in_place;
    uint64_t in_hash;
    int status;      /* as the call that waited said */
    char error[640]; /* of a blocking form */
};

struct hvt_work {
    struct hvt_rank *rank;
    const struct hvt_op *op; /* NULL: the join */
    int index, members;
    bool done, cancelled;
    struct hvt_piece piece[HVT_GROUP];
    struct hvt_outcome outcome;
    int failed_member;
};

/* Memory and inputs. Not by several threads of a rank. */
void hvt_op_prepare(struct hvt_rank *rank, int index, struct hvt_work *work_p);
void hvt_op_submit(struct hvt_work *work, bool blocking);
/* A second submission of the same name, which must be refused. */
void hvt_op_duplicate(const struct hvt_work *work);
/* Compares and releases. The ops are finished. */
void hvt_op_check(struct hvt_work *work);
int hvt_op_wait(const struct hvt_rank *rank, struct hvd_op *op, int64_t wait_ns);

/* ---- workers ---- */

struct hvt_job {
    struct hvt_setup setup;
    uint64_t seed;
    uint64_t from, to; /* indices of programs */
    int ranks_least, ranks_most;
    pid_t pid;
};

#define HVT_STRETCH 40u /* programs between two opens */

uint64_t hvt_program_seed(uint64_t seed, uint64_t index);
/* Program `index` of a seed: its ranks depend on the stretch. */
struct hvt_program *hvt_program_at(const struct hvt_job *job, uint64_t index);
/* A process group that runs the job's programs, or the given one. */
void hvt_worker_start(struct hvt_job *job, const struct hvt_program *program);
/* False: it goes on. True: it is over, has been waited for, and *failed_p says how; the reason is in
 * the job's shared text. Blocks up to wait_ms. */
bool hvt_worker_is_over(struct hvt_job *job, int wait_ms, int64_t limit_ns, bool *failed_p);
void hvt_worker_kill(struct hvt_job *job);

/* ---- shrinking ---- */

/* Whether the program fails; text_p[HVT_TEXT] gets why. */
typedef bool (*hvt_fails_fn)(void *user, const struct hvt_program *program, char *text_p);
/* A smaller program that fails, too; frees `program`. */
struct hvt_program *hvt_shrink(struct hvt_program *program, hvt_fails_fn fails, void *user,
                               int64_t until_ns, char *text_p);

int64_t hvt_now_ns(void);

#endif

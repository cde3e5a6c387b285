/* SPDX-License-Identifier: Apache-2.0
 * Random programs, and programs as text: one line per phase and op, "name=value" for what is not as
 * usual.
 *
 * Half of the ops come from a few templates that stay the same for sixteen seeds, so that names, and
 * unnamed ops, are repeated with the same parameters across phases and programs, and now and then are
 * not: what is remembered (replay, grants) is used, and must be forgotten in time. */
#include "tests/property/prop.h"

#include <stdlib.h>
#include <string.h>

/* ---- fields ---- */

static const char *const kind_words[] = {"allreduce", "allgather",     "broadcast",
                                         "alltoall",  "reducescatter", "barrier",
                                         "set_add",   "set_remove",    NULL};
static const char *const dtype_words[] = {
    "uint8",   "int8",    "uint16", "int16",    "int32",       "int64",       "float16",
    "float32", "float64", "bool",   "bfloat16", "float8_e4m3", "float8_e5m2", NULL};
static const char *const reduce_words[] = {"average", "sum",     "adasum", "min",
                                           "max",     "product", NULL};
static const char *const out_words[] = {"exact", "large", "library", "in_place", "any", NULL};
static const char *const memory_words[] = {"malloc",  "shared", "registered",
                                           "adopted", "any",    NULL};
static const char *const wrong_words[] = {"none",  "kind",  "dtype", "shape", "reduce", "root",
                                          "scale", "group", "ranks", "room",  NULL};
static const char *const cancel_words[] = {"none", "repeat", "all", NULL};
static const char *const style_words[] = {"one_by_one", "in_order", "backwards",    "shuffled",
                                          "all",        "any",      "polled",       "short",
                                          "events",     "blocking", "each_its_own", NULL};

#define OP(member, usual, words)                                                                   \
    {                                                                                              \
#member, offsetof(struct hvt_op, member), usual, words                                     \
    }
#define PHASE(member, usual, words)                                                                \
    {                                                                                              \
#member, offsetof(struct hvt_phase, member), usual, words                                  \
    }

const struct hvt_field hvt_op_fields[] = {OP(kind, -1, kind_words),
                                          OP(name, HVT_UNNAMED, NULL),
                                          OP(set, 0, NULL),
                                          OP(dtype, HVD_FLOAT32, dtype_words),
                                          OP(reduce, HVD_SUM, reduce_words),
                                          OP(ndim, 1, NULL),
                                          OP(dim0, 1, NULL),
                                          OP(dim1, 1, NULL),
                                          OP(dim2, 1, NULL),
                                          OP(pre, 0, NULL),
                                          OP(post, 0, NULL),
                                          OP(root, 0, NULL),
                                          OP(group, 0, NULL),
                                          OP(out, HVT_OUT_EXACT, out_words),
                                          OP(memory, HVT_MALLOC, memory_words),
                                          OP(vary, 0, NULL),
                                          OP(ranks, 0, NULL),
                                          OP(wrong, HVT_RIGHT, wrong_words),
                                          OP(wrong_ranks, 0, NULL),
                                          OP(cancel, HVT_NO_CANCEL, cancel_words),
                                          OP(misuse, 0, NULL),
                                          OP(seed, 0, NULL),
                                          {NULL, 0, 0, NULL}};

const struct hvt_field hvt_phase_fields[] = {
    PHASE(repeat, 1, NULL),      PHASE(style, HVT_IN_ORDER, style_words),
    PHASE(shuffle, 0, NULL),     PHASE(threads, 0, NULL),
    PHASE(first, -1, NULL),      PHASE(join, -1, NULL),
    PHASE(join_cancel, 0, NULL), PHASE(seed, 0, NULL),
    {NULL, 0, 0, NULL}};

/* ---- life ---- */

struct hvt_program *hvt_program_new(int ranks, int phases)
{
    struct hvt_program *program = calloc(1, sizeof *program);

    program->ranks = ranks;
    program->phases = phases;
    program->phase = calloc((size_t)phases + 1, sizeof *program->phase);
    return program;
}

void hvt_program_free(struct hvt_program *program)
{
    if (!program)
        return;
    free(program->phase);
    free(program);
}

struct hvt_program *hvt_program_copy(const struct hvt_program *program)
{
    struct hvt_program *copy = hvt_program_new(program->ranks, program->phases);

    copy->processes = program->processes;
    memcpy(copy->phase, program->phase, (size_t)program->phases * sizeof *program->phase);
    return copy;
}

void hvt_program_append(struct hvt_program *program, const struct hvt_program *more)
{
    int phases = program->phases + more->phases;

    program->phase = realloc(program->phase, ((size_t)phases + 1) * sizeof *program->phase);
    memcpy(program->phase + program->phases, more->phase,
           (size_t)more->phases * sizeof *more->phase);
    program->phases = phases;
}

/* ---- random ops ---- */

static int some_dtype(uint64_t *random)
{
    static const int often[] = {HVD_FLOAT32, HVD_FLOAT16, HVD_BFLOAT16, HVD_FLOAT64, HVD_INT64};

    if (hvt_chance(random, 40))
        return often[hvt_below(random, 5)];
    return (int)hvt_below(random, 13);
}

static void some_shape(uint64_t *random, struct hvt_op *op)
{
    uint32_t most = hvt_chance(random, 80) ? 12 : hvt_chance(random, 80) ? 200 : 2500;

    op->ndim = (int)hvt_below(random, 4);
    op->dim0 = hvt_chance(random, 7) ? 0 : 1 + (int)hvt_below(random, most);
    op->dim1 = hvt_chance(random, 4) ? 0 : 1 + (int)hvt_below(random, 5);
    op->dim2 = 1 + (int)hvt_below(random, 4);
    if (hvt_chance(random, 3)) { /* one that is not done in inline cells, or by the main thread */
        op->ndim = 2;
        op->dim1 = 1 + (int)hvt_below(random, 40);
    }
}

static struct hvt_op some_op(uint64_t *random)
{
    static const int kinds[] = {HVT_ALLREDUCE, HVT_ALLREDUCE,     HVT_ALLREDUCE,
                                HVT_ALLGATHER, HVT_BROADCAST,     HVT_BROADCAST,
                                HVT_ALLTOALL,  HVT_REDUCESCATTER, HVT_BARRIER};
    struct hvt_op op = {.kind = kinds[hvt_below(random, 9)], .name = HVT_UNNAMED};

    op.dtype = some_dtype(random);
    op.reduce = hvt_chance(random, 40) ? HVD_SUM : (int)hvt_below(random, 6);
    some_shape(random, &op);
    if (hvt_chance(random, 20))
        op.pre = (int)hvt_below(random, 6);
    if (hvt_chance(random, 20))
        op.post = (int)hvt_below(random, 6);
    op.root = (int)hvt_below(random, HVT_RANKS);
    if (hvt_chance(random, 15) && op.kind != HVT_BARRIER && op.kind != HVT_BROADCAST &&
        op.kind != HVT_ALLTOALL)
        op.group = 1 + (int)hvt_below(random, HVT_GROUP);
    op.out = (int)hvt_below(random, HVT_ANY_OUT + 1);
    op.memory = hvt_chance(random, 50) ? HVT_ANY_MEMORY : (int)hvt_below(random, HVT_ANY_MEMORY);
    op.vary = hvt_chance(random, 60);
    op.seed = (int)(hvt_next(random) & 0x7fffffff);
    return op;
}

static bool existing_set(const struct hvt_world *world, uint64_t *random, int *set_p)
{
    int set = 1 + (int)hvt_below(random, HVT_SETS - 1);

    if (!world->members[set])
        return false;
    *set_p = set;
    return true;
}

static void make_wrong(uint64_t *random, struct hvt_op *op)
{
    op->wrong = 1 + (int)hvt_below(random, HVT_WRONGS - 1);
    op->wrong_ranks = 1 + (int)hvt_below(random, 255);
    if (hvt_chance(random, 40)) { /* by what makes it wrong anyway */
        op->kind = hvt_chance(random, 50) ? HVT_ALLGATHER : HVT_ALLTOALL;
        op->wrong = HVT_WRONG_ROOM;
        op->group = 0;
    }
}

static bool is_named_already(const struct hvt_phase *phase, const struct hvt_op *op)
{
    for (int i = 0; i < phase->ops; i++) {
        if (phase->op[i].name == op->name && op->name != HVT_UNNAMED && phase->op[i].set == op->set)
            return true;
    }
    return false;
}

/* Whether a phase with it may be repeated dozens of times. */
static bool is_small(const struct hvt_op *op)
{
    return op->dim0 * (op->ndim > 1 ? op->dim1 : 1) <= 256;
}

static void add_op(uint64_t *random, uint64_t epoch, const struct hvt_world *world,
                   struct hvt_phase *phase, int *fresh)
{
    uint64_t name = hvt_below(random, 6), steady = hvt_mix(epoch, name);
    bool known = hvt_chance(random, 55);
    struct hvt_op op = some_op(known ? &steady : random);

    if (known) {
        op.name = hvt_chance(random, 35) ? HVT_UNNAMED : (int)name;
        op.memory = (int)hvt_below(random, HVT_ANY_MEMORY + 1);
        if (hvt_chance(random, 10))
            op.dim0++;
        if (hvt_chance(random, 5))
            op.dtype = some_dtype(random);
    } else if (hvt_chance(random, 70)) {
        op.name = 100 + (*fresh)++;
    }
    op.seed = (int)(hvt_next(random) & 0x7fffffff);
    if (hvt_chance(random, 35))
        existing_set(world, random, &op.set);
    if (hvt_chance(random, 9))
        make_wrong(random, &op);
    if (hvt_chance(random, 7))
        op.cancel = 1 + (int)hvt_below(random, 2);
    op.misuse = hvt_chance(random, 4);
    if (!is_named_already(phase, &op))
        phase->op[phase->ops++] = op;
}

static void change_sets(uint64_t *random, const struct hvt_world *world, struct hvt_phase *phase)
{
    for (int set = 1; set < HVT_SETS; set++) {
        if (!hvt_chance(random, 60))
            continue;
        struct hvt_op op = {.kind = world->members[set] ? HVT_SET_REMOVE : HVT_SET_ADD,
                            .name = HVT_UNNAMED,
                            .set = set};
        op.ranks = 1 + (int)hvt_below(random, 255);
        op.seed = (int)(hvt_next(random) & 0x7fffffff);
        if (hvt_chance(random, 15)) {
            op.wrong = op.kind == HVT_SET_ADD ? HVT_WRONG_RANKS : HVT_WRONG_ROOT;
            op.wrong_ranks = 1 + (int)hvt_below(random, 255);
        }
        phase->op[phase->ops++] = op;
    }
}

static void fill_phase(uint64_t *random, uint64_t epoch, const struct hvt_world *world,
                       struct hvt_phase *phase, int *fresh)
{
    int count = 1 + (int)hvt_below(random, hvt_chance(random, 15) ? 12 : 5);
    bool small = true;

    phase->repeat = 1;
    phase->style = hvt_chance(random, 70) ? HVT_ANY_STYLE : (int)hvt_below(random, HVT_STYLES);
    phase->shuffle = hvt_chance(random, 70);
    phase->first = phase->join = -1;
    phase->seed = (int)(hvt_next(random) & 0x7fffffff);
    if (hvt_chance(random, 20))
        change_sets(random, world, phase);
    for (int i = 0; i < count; i++)
        add_op(random, epoch, world, phase, fresh);
    for (int i = 0; i < phase->ops; i++)
        small = small && is_small(&phase->op[i]);
    if (phase->ops > 0 && phase->op[0].kind >= HVT_SET_ADD)
        return;
    if (hvt_chance(random, 25))
        phase->repeat = 2 + (int)hvt_below(random, small && hvt_chance(random, 25) ? 24 : 4);
    if (hvt_chance(random, 12)) {
        phase->join = 0;
        existing_set(world, random, &phase->join);
        phase->join_cancel = hvt_chance(random, 20);
        return;
    }
    if (hvt_chance(random, 8))
        phase->first = (int)hvt_below(random, (uint32_t)world->ranks);
    else
        phase->threads = hvt_chance(random, 8);
}

static void remove_sets(const struct hvt_world *world, struct hvt_phase *phase)
{
    phase->repeat = 1;
    phase->style = HVT_IN_ORDER;
    phase->first = phase->join = -1;
    for (int set = 1; set < HVT_SETS; set++) {
        if (world->members[set])
            phase->op[phase->ops++] =
                (struct hvt_op){.kind = HVT_SET_REMOVE, .name = HVT_UNNAMED, .set = set};
    }
}

struct hvt_program *hvt_program_random(uint64_t seed, int ranks)
{
    uint64_t random = hvt_mix(seed, 1), epoch = hvt_mix(seed / 16, 2);
    int phases = 1 + (int)hvt_below(&random, 6), fresh = 0;
    struct hvt_program *program = hvt_program_new(ranks, phases + 1);
    struct hvt_world world;

    hvt_world_init(&world, ranks);
    for (int i = 0; i < phases; i++) {
        fill_phase(&random, epoch, &world, &program->phase[i], &fresh);
        hvt_world_change(&world, &program->phase[i]);
    }
    remove_sets(&world, &program->phase[phases]);
    return program;
}

/* ---- text ---- */

static void print_fields(const struct hvt_field *fields, const void *base, FILE *file)
{
    for (; fields->name; fields++) {
        int value;
        memcpy(&value, (const char *)base + fields->at, sizeof value);
        if (value == fields->usual)
            continue;
        if (fields->words)
            fprintf(file, " %s=%s", fields->name, fields->words[value]);
        else
            fprintf(file, " %s=%d", fields->name, value);
    }
    fprintf(file, "\n");
}

void hvt_program_print(const struct hvt_program *program, FILE *file)
{
    fprintf(file, "ranks %d\n%s\n", program->ranks, program->processes ? "processes" : "threads");
    for (int i = 0; i < program->phases; i++) {
        fprintf(file, "phase");
        print_fields(hvt_phase_fields, &program->phase[i], file);
        for (int op = 0; op < program->phase[i].ops; op++) {
            fprintf(file, "  op");
            print_fields(hvt_op_fields, &program->phase[i].op[op], file);
        }
    }
}

static void set_usual(const struct hvt_field *fields, void *base)
{
    for (; fields->name; fields++)
        memcpy((char *)base + fields->at, &fields->usual, sizeof fields->usual);
}

static bool read_value(const struct hvt_field *field, const char *text, int *value_p)
{
    char *end;

    for (int i = 0; field->words && field->words[i]; i++) {
        *value_p = i;
        if (strcmp(field->words[i], text) == 0)
            return true;
    }
    *value_p = (int)strtol(text, &end, 10);
    return !field->words && end != text && *end == '\0';
}

static bool read_fields(const struct hvt_field *fields, char *text, void *base)
{
    char *rest = NULL;

    set_usual(fields, base);
    for (char *word = strtok_r(text, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        char *value = strchr(word, '=');
        const struct hvt_field *field = fields;
        int number;
        if (value)
            *value++ = '\0';
        while (field->name && strcmp(field->name, word) != 0)
            field++;
        if (!value || !field->name || !read_value(field, value, &number)) {
            fprintf(stderr, "hvt-property: '%s' is no field, or not of this value\n", word);
            return false;
        }
        memcpy((char *)base + field->at, &number, sizeof number);
    }
    return true;
}

static bool read_line(struct hvt_program *program, char *line)
{
    struct hvt_phase *phase = program->phases ? &program->phase[program->phases - 1] : NULL;
    char *text = line + strspn(line, " ");

    if (*text == '#' || *text == '\n')
        return true;
    if (sscanf(text, "ranks %d", &program->ranks) == 1)
        return program->ranks >= 1 && program->ranks <= HVT_RANKS;
    if (strncmp(text, "processes", 9) == 0 || strncmp(text, "threads", 7) == 0) {
        program->processes = *text == 'p';
        return true;
    }
    if (strncmp(text, "phase", 5) == 0 && program->phases < HVT_PHASES)
        return read_fields(hvt_phase_fields, text + 5, &program->phase[program->phases++]);
    if (strncmp(text, "op", 2) == 0 && phase && phase->ops < HVT_OPS)
        return read_fields(hvt_op_fields, text + 2, &phase->op[phase->ops++]);
    return false;
}

struct hvt_program *hvt_program_read(FILE *file)
{
    struct hvt_program *program = hvt_program_new(1, HVT_PHASES);
    char line[1024];

    program->phases = 0;
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        if (read_line(program, line))
            continue;
        fprintf(stderr, "hvt-property: line %d is no part of a program\n", number);
        hvt_program_free(program);
        return NULL;
    }
    return program;
}

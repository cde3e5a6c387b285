/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvd-perf/perf.h"

#include "base/clock.h"
#include "base/types.h"
#include "tools/common/text.h"

#include <getopt.h>
#include <string.h>

_Static_assert(HVI_RANKS_MAX == 1024 && PERF_OUTSTANDING_MAX == 1024 &&
                   PERF_ITERATIONS_MAX == 1000000,
               "the help text and the man page say these");

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct word {
    const char *text;
    int value;
};

/* The first word of a value is the one that is shown. */
static const struct word ops[] = {
    {"allreduce", PERF_ALLREDUCE},         {"allgather", PERF_ALLGATHER},
    {"broadcast", PERF_BROADCAST},         {"alltoall", PERF_ALLTOALL},
    {"reducescatter", PERF_REDUCESCATTER}, {"barrier", PERF_BARRIER},
    {"gradients", PERF_GRADIENTS},         {NULL, 0}};
static const struct word memories[] = {{"shared", PERF_SHARED},
                                       {"malloc", PERF_MALLOC},
                                       {"registered", PERF_REGISTERED},
                                       {"adopted", PERF_ADOPTED},
                                       {NULL, 0}};
static const struct word dtypes[] = {
    {"float32", HVD_FLOAT32},   {"float", HVD_FLOAT32},  {"fp32", HVD_FLOAT32},
    {"float64", HVD_FLOAT64},   {"double", HVD_FLOAT64}, {"fp64", HVD_FLOAT64},
    {"float16", HVD_FLOAT16},   {"half", HVD_FLOAT16},   {"fp16", HVD_FLOAT16},
    {"bfloat16", HVD_BFLOAT16}, {"bf16", HVD_BFLOAT16},  {"int64", HVD_INT64},
    {"int32", HVD_INT32},       {"int16", HVD_INT16},    {"int8", HVD_INT8},
    {"uint16", HVD_UINT16},     {"uint8", HVD_UINT8},    {NULL, 0}};
static const struct word reductions[] = {
    {"sum", HVD_SUM}, {"average", HVD_AVERAGE}, {"avg", HVD_AVERAGE},  {"min", HVD_MIN},
    {"max", HVD_MAX}, {"product", HVD_PRODUCT}, {"prod", HVD_PRODUCT}, {NULL, 0}};

static const char *word_text(const struct word *words, int value)
{
    for (; words->text != NULL; words++)
        if (words->value == value)
            return words->text;
    return "?";
}

const char *perf_op_text(enum perf_op op)
{
    return word_text(ops, (int)op);
}

const char *perf_memory_text(enum perf_memory memory)
{
    return word_text(memories, (int)memory);
}

const char *perf_dtype_text(enum hvd_dtype dtype)
{
    return word_text(dtypes, (int)dtype);
}

const char *perf_reduce_text(enum hvd_reduce_op reduce_op)
{
    return word_text(reductions, (int)reduce_op);
}

struct row {
    char letter; /* also getopt's value */
    const char *name, *arg, *help;
};

static const struct row rows[] = {
    {'o', "op", "OP",
     "allreduce (default), allgather, broadcast, alltoall, reducescatter, barrier, gradients"},
    {'n', "ranks", "N",
     "start N ranks with hvdrun (2; at most 1024); without effect in a rank of a launcher"},
    {'b', "min-bytes", "SIZE", "smallest size (4); 4, 64K, 1M, 2G"},
    {'e', "max-bytes", "SIZE", "largest size (64M)"},
    {'f', "factor", "F", "from one size to the next (4; 2 to 1,048,576)"},
    {'d', "dtype", "TYPE", "float32 (default), float64, float16, bfloat16, int64, int32, ..."},
    {'r', "reduce-op", "R", "sum (default), average, min, max or product"},
    {'m', "memory", "M", "shared (hvd_alloc, default), malloc, registered or adopted"},
    {'w', "warmup", "N", "unmeasured iterations per size (5; at most 1,000,000)"},
    {'i', "iterations", "N",
     "measured iterations per size, at most 1,000,000 (as many as fit in --seconds, 5 to 200,000)"},
    {'S', "seconds", "S", "how long to measure one size (1)"},
    {'G', "sizes", "FILE", "gradients: elements of each tensor, one per line"},
    {'c', "check", NULL, "check the results (a barrier has none); errors give exit status 1"},
    {'k', "outstanding", "K", "submit K ops at a time, and divide the time by K (1; at most 1024)"},
    {'O', "out-of-place", NULL, "separate input and output (allreduce, broadcast)"},
    {'B', "no-barrier", NULL, "no barrier between iterations"},
    {'U', "unnamed", NULL, "ops without names"},
    {'N', "new-names", NULL, "names of its own for each iteration, so that each op is negotiated"},
    {'M', "memcpy", NULL, "add reference rows: memcpy, and one pass over all ranks' buffers"},
    {'A', "attach", "N", "measure N cycles of open and close instead (at most 1,000,000)"},
    {'I', "idle", "S", "attach, say so, and do nothing for S seconds instead"},
    {'a', "address", "DIR", "the hvdd to use (default: HVD_ADDRESS, else a private one)"},
    {'t', "timeout", "S", "longest wait for one op, also for those between iterations (60)"},
    {'j', "json", NULL, "one JSON object per line"},
    {'h', "help", NULL, "this text"},
    {'v', "version", NULL, "version"},
};

static int fail(char *text_p, size_t size, const struct row *row, const char *value)
{
    snprintf(text_p, size, "--%s takes %s, not '%s'", row->name, row->help, value);
    return -1;
}

static bool set_number(const char *value, long min, long max, long *number_p)
{
    return text_parse_int(value, min, max, number_p) == 0;
}

/* Words: op, dtype, reduction, memory. */
static bool take_word(struct perf_options *options, char letter, const char *value)
{
    const struct word *word = letter == 'o'   ? ops
                              : letter == 'd' ? dtypes
                              : letter == 'r' ? reductions
                                              : memories;
    while (word->text != NULL && strcmp(word->text, value) != 0)
        word++;
    if (word->text == NULL)
        return false;
    if (letter == 'o')
        options->op = (enum perf_op)word->value;
    else if (letter == 'd')
        options->dtype = (enum hvd_dtype)word->value;
    else if (letter == 'r')
        options->reduce_op = (enum hvd_reduce_op)word->value;
    else
        options->memory = (enum perf_memory)word->value;
    return true;
}

static bool take_number(struct perf_options *options, char letter, const char *value)
{
    long number;
    switch (letter) {
    case 'n':
        if (!set_number(value, 1, HVI_RANKS_MAX, &number))
            return false;
        options->ranks = (int)number;
        return true;
    case 'b':
        return text_parse_size(value, &options->bytes_min) == 0;
    case 'e':
        return text_parse_size(value, &options->bytes_max) == 0;
    case 'f':
        return set_number(value, 2, 1 << 20, &options->factor);
    case 'w':
        return set_number(value, 0, PERF_ITERATIONS_MAX, &options->warmup);
    case 'i':
        return set_number(value, 1, PERF_ITERATIONS_MAX, &options->iterations);
    case 'k':
        return set_number(value, 1, PERF_OUTSTANDING_MAX, &options->outstanding);
    case 'A':
        return set_number(value, 1, PERF_ITERATIONS_MAX, &options->attach);
    case 'S':
        return text_parse_seconds(value, &options->budget_ns) == 0 && options->budget_ns > 0;
    case 'I':
        return text_parse_seconds(value, &options->idle_ns) == 0 && options->idle_ns > 0;
    default:
        return text_parse_seconds(value, &options->timeout_ns) == 0 && options->timeout_ns > 0;
    }
}

static void take_switch(struct perf_options *options, char letter)
{
    const struct {
        char letter;
        bool *set_p;
    } switches[] = {
        {'c', &options->check},   {'O', &options->out_of_place}, {'B', &options->no_barrier},
        {'U', &options->unnamed}, {'N', &options->new_names},    {'M', &options->reference},
        {'j', &options->json},    {'h', &options->help},         {'v', &options->version},
    };
    for (size_t i = 0; i < COUNT(switches); i++)
        if (switches[i].letter == letter)
            *switches[i].set_p = true;
}

static int take(struct perf_options *options, const struct row *row, const char *value,
                char *text_p, size_t size)
{
    if (row->arg == NULL) {
        take_switch(options, row->letter);
        return 0;
    }
    if (row->letter == 'a' || row->letter == 'G') {
        *(row->letter == 'a' ? &options->address : &options->sizes) = value;
        return 0;
    }
    const bool ok = strchr("odrm", row->letter) != NULL ? take_word(options, row->letter, value)
                                                        : take_number(options, row->letter, value);
    return ok ? 0 : fail(text_p, size, row, value);
}

/* getopt's tables out of ours; only small letters are also short options. */
static void build_getopt(struct option *longs, char *shorts)
{
    *shorts++ = ':';
    for (size_t i = 0; i < COUNT(rows); i++) {
        longs[i] = (struct option){.name = rows[i].name,
                                   .has_arg = rows[i].arg != NULL ? required_argument : no_argument,
                                   .val = rows[i].letter};
        if (strchr("ajtkhv", rows[i].letter) != NULL || rows[i].letter < 'a')
            continue;
        *shorts++ = rows[i].letter;
        if (rows[i].arg != NULL)
            *shorts++ = ':';
    }
    *shorts++ = 'h';
    *shorts = '\0';
    longs[COUNT(rows)] = (struct option){.name = NULL};
}

static const struct row *find_row(int letter)
{
    for (size_t i = 0; i < COUNT(rows); i++)
        if (rows[i].letter == letter)
            return &rows[i];
    return NULL;
}

/* What makes no sense together. */
static bool refuse_together(const struct perf_options *options, char *text_p, size_t size)
{
    const bool gradients = options->op == PERF_GRADIENTS;
    if (gradients && options->sizes == NULL)
        snprintf(text_p, size, "-o gradients takes --sizes FILE too: what sizes do they have?");
    else if (!gradients && options->sizes != NULL)
        snprintf(text_p, size, "--sizes is for -o gradients only");
    else if (gradients && options->outstanding > 1)
        snprintf(text_p, size,
                 "--outstanding and -o gradients do not go together: all the tensors "
                 "of the file are in flight at a time");
    else if (options->unnamed && options->new_names)
        snprintf(text_p, size, "--unnamed and --new-names do not go together");
    else
        return false;
    return true;
}

int perf_options_parse(int argc, char **argv, struct perf_options *options_p, char *text_p,
                       size_t text_size)
{
    struct option longs[COUNT(rows) + 1];
    char shorts[2 * COUNT(rows) + 4];
    struct perf_options options = {
        .bytes_min = 4,
        .bytes_max = 64u << 20,
        .factor = 4,
        .dtype = HVD_FLOAT32,
        .reduce_op = HVD_SUM,
        .warmup = 5,
        .outstanding = 1,
        .timeout_ns = 60 * HVI_NS_SEC,
        .budget_ns = HVI_NS_SEC,
    };
    build_getopt(longs, shorts);
    optind = 0;
    opterr = 0;
    int found;
    while ((found = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        const struct row *row = find_row(found);
        if (row == NULL) {
            snprintf(text_p, text_size, "%s %s",
                     found == ':' ? "a value is missing after" : "unknown option",
                     argv[optind - 1]);
            return -1;
        }
        if (take(&options, row, optarg, text_p, text_size) != 0)
            return -1;
    }
    if (optind < argc) {
        snprintf(text_p, text_size, "what is '%s'? The op is given with -o", argv[optind]);
        return -1;
    }
    if (refuse_together(&options, text_p, text_size))
        return -1;
    if (options.bytes_max < options.bytes_min)
        options.bytes_max = options.bytes_min;
    *options_p = options;
    return 0;
}

void perf_options_help(FILE *out)
{
    fputs(
        "Usage: hvd-perf [options]\n\n"
        "Measures one kind of collective op over a range of sizes, on ranks of its own (-n) or as\n"
        "one rank of a launcher (hvdrun -np 4 hvd-perf).\n\n",
        out);
    for (size_t i = 0; i < COUNT(rows); i++) {
        char words[64];
        const struct row *row = &rows[i];
        const bool is_short = row->letter >= 'a' && strchr("ajtkv", row->letter) == NULL;
        snprintf(words, sizeof words, "%c%c%s--%s%s%s", is_short ? '-' : ' ',
                 is_short ? row->letter : ' ', is_short ? ", " : "  ", row->name,
                 row->arg != NULL ? " " : "", row->arg != NULL ? row->arg : "");
        fprintf(out, "  %-24s %s\n", words, row->help);
    }
    fputs("\nTimes: per iteration the slowest rank; median, 99th percentile and minimum over the\n"
          "iterations. algbw is bytes per time, busbw as nccl-tests defines it: allreduce\n"
          "and gradients x 2(n-1)/n; allgather (bytes: the whole output), alltoall and "
          "reducescatter\n"
          "(bytes: the input of one rank) x (n-1)/n; broadcast x 1. GB are 1e9.\n",
          out);
}

/* SPDX-License-Identifier: Apache-2.0
 * Runs a fuzz target without libFuzzer, so that every build exercises the decoders.
 *
 *   replay_<name> FILE...                        each file once
 *   replay_<name> --inputs N [--seed S]          N mutated seeds
 *   replay_<name> --only I [--seed S]            input I of that run again: what a failure prints
 *   replay_<name> --write DIRECTORY              the seeds as files, for libFuzzer
 *
 * Input I depends on S and I alone. Mutations are the usual ones: bits, bytes, cuts, repeats,
 * splices of two seeds, and integers at borders. */
#include "fuzz.h"

#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define SEEDS_MAX   64
#define SEED_LARGE  8192 /* larger seeds are picked seldom: they cost time and find little */
#define LARGE_EVERY 64

struct seed {
    uint8_t *bytes;
    size_t size;
};

static struct seed seeds[SEEDS_MAX];
static unsigned seed_count;
static uint8_t buffer[HVT_FUZZ_BYTES];
static uint64_t random_state;
static volatile uint64_t running_input, running_seed;

/* splitmix64 */
static uint64_t next_random(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(size_t limit)
{
    return limit ? (size_t)(next_random() % limit) : 0;
}

static void load_seeds(void)
{
    for (; seed_count < SEEDS_MAX; seed_count++) {
        size_t size = hvt_fuzz_seed(seed_count, buffer, sizeof buffer);
        if (size == 0)
            return;
        uint8_t *copy = malloc(size);
        if (!copy)
            abort();
        memcpy(copy, buffer, size);
        seeds[seed_count] = (struct seed){copy, size};
    }
}

static void free_seeds(void)
{
    for (unsigned i = 0; i < seed_count; i++)
        free(seeds[i].bytes);
}

static struct seed pick_seed(void)
{
    for (int tries = 0; seed_count && tries < 16; tries++) {
        struct seed seed = seeds[below(seed_count)];
        if (seed.size < SEED_LARGE || below(LARGE_EVERY) == 0)
            return seed;
    }
    return (struct seed){NULL, 0};
}

static void put_border_integer(size_t size)
{
    static const uint64_t borders[] = {0,          1,         127,        128,         255,
                                       256,        0x7fff,    0xffff,     0x7fffffff,  0x80000000u,
                                       UINT32_MAX, INT64_MAX, UINT64_MAX, 0x100000000u};
    uint64_t value = borders[below(sizeof borders / sizeof borders[0])];
    size_t width = (size_t)1 << below(4);
    if (width <= size)
        memcpy(buffer + below(size - width + 1), &value, width);
}

/* Copies a stretch of `source` over or into the buffer; returns the new size. */
static size_t splice(struct seed source, size_t size, bool insert)
{
    if (source.size == 0)
        return size;
    size_t from = below(source.size), length = 1 + below(source.size - from);
    size_t at = below(size + 1);
    if (length > 64 && below(4))
        length = 1 + below(64);
    if (insert && size + length <= sizeof buffer) {
        memmove(buffer + at + length, buffer + at, size - at);
        memcpy(buffer + at, source.bytes + from, length);
        return size + length;
    }
    if (length > size - at)
        length = size - at;
    memcpy(buffer + at, source.bytes + from, length);
    return size;
}

static size_t cut_out(size_t size)
{
    size_t at = below(size), length = 1 + below(below(4) ? 8 : size);
    if (length > size - at)
        length = size - at;
    memmove(buffer + at, buffer + at + length, size - at - length);
    return size - length;
}

static size_t mutate(size_t size)
{
    size_t kind = below(8);
    if (size == 0 || kind == 0)
        return splice(pick_seed(), size, true);
    switch (kind) {
    case 1:
        buffer[below(size)] ^= (uint8_t)(1u << below(8));
        return size;
    case 2:
        buffer[below(size)] = (uint8_t)next_random();
        return size;
    case 3:
        buffer[below(size)] = (uint8_t)(buffer[below(size)] + 1);
        return size;
    case 4:
        put_border_integer(size);
        return size;
    case 5:
        return cut_out(size);
    case 6:
        return below(4) ? size : below(size);
    default:
        return splice(pick_seed(), size, false);
    }
}

static size_t make_input(uint64_t seed, uint64_t input)
{
    random_state = seed * 0xd1342543de82ef95u + input;
    struct seed start = pick_seed();
    size_t size = start.size;
    if (size)
        memcpy(buffer, start.bytes, size);
    for (size_t left = below(9); left > 0; left--)
        size = mutate(size);
    return size;
}

static void run_input(uint64_t seed, uint64_t input)
{
    running_seed = seed;
    running_input = input;
    size_t size = make_input(seed, input);
    uint8_t *exact = malloc(size ? size : 1); /* so that a sanitizer sees one byte too far */
    if (!exact)
        abort();
    memcpy(exact, buffer, size);
    (void)LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static size_t print_number(char *text_p, uint64_t value)
{
    char digits[20];
    size_t count = 0, used = 0;
    do
        digits[count++] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    while (count > 0)
        text_p[used++] = digits[--count];
    return used;
}

/* Async-signal-safe: says how to repeat the input, then dies of the same signal. */
static void on_crash(int number)
{
    char line[128] = "input ";
    size_t used = strlen(line);
    used += print_number(line + used, running_input);
    memcpy(line + used, " of seed ", 9);
    used += 9;
    used += print_number(line + used, running_seed);
    memcpy(line + used, " failed\n", 8);
    used += 8;
    ssize_t ignored = write(STDERR_FILENO, line, used);
    (void)ignored;
    signal(number, SIG_DFL);
    raise(number);
}

static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    size_t size = fread(buffer, 1, sizeof buffer, file);
    fclose(file);
    (void)LLVMFuzzerTestOneInput(buffer, size);
    return 0;
}

static int write_seeds(const char *directory)
{
    for (unsigned i = 0; i < seed_count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/seed-%03u", directory, i);
        FILE *file = fopen(path, "wb");
        bool written = file && fwrite(seeds[i].bytes, 1, seeds[i].size, file) == seeds[i].size;
        if (!file || fclose(file) != 0 || !written) {
            perror(path);
            return 1;
        }
    }
    return 0;
}

struct options {
    uint64_t inputs, seed, only;
    bool has_only;
    const char *directory;
};

/* Returns the index of the first argument that is no option. */
static int parse(int count, char **arguments, struct options *options)
{
    int at = 1;
    for (; at + 1 < count; at += 2) {
        if (strcmp(arguments[at], "--inputs") == 0)
            options->inputs = strtoull(arguments[at + 1], NULL, 10);
        else if (strcmp(arguments[at], "--seed") == 0)
            options->seed = strtoull(arguments[at + 1], NULL, 10);
        else if (strcmp(arguments[at], "--only") == 0)
            options->has_only = true, options->only = strtoull(arguments[at + 1], NULL, 10);
        else if (strcmp(arguments[at], "--write") == 0)
            options->directory = arguments[at + 1];
        else
            break;
    }
    return at;
}

static void run_inputs(const struct options *options)
{
    uint64_t first = options->has_only ? options->only : 0;
    uint64_t end = options->has_only ? first + 1 : options->inputs;
    for (uint64_t input = first; input < end; input++)
        run_input(options->seed, input);
    printf("%" PRIu64 " inputs from %u seeds\n", end - first, seed_count);
}

int main(int count, char **arguments)
{
    struct options options = {.seed = 1};
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        signal(signals[i], on_crash);
    int failed = 0, at = parse(count, arguments, &options);
    load_seeds();
    if (options.directory)
        failed |= write_seeds(options.directory);
    else if (at == count)
        run_inputs(&options);
    for (; at < count; at++)
        failed |= run_file(arguments[at]);
    free_seeds();
    return failed;
}

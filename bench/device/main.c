/* SPDX-License-Identifier: Apache-2.0
 * hvd-gpu-bench MEASURE [OPTION VALUE]...: one process of a measure of bench/gpu.py, which starts it, under hvdrun where it is a
 * rank. side.h says what it prints. --limit S ends it. */
#include "bench/device/side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    void (*run)(const struct side_options *options);
} measures[] = {
    {"op", bench_op},           {"alone", bench_alone}, {"reduce", bench_reduce},
    {"group", bench_group},     {"pack", bench_pack},   {"attach", bench_attach},
    {"kernels", bench_kernels},
};

static bool take(struct side_options *options, const char *name, const char *value)
{
    if (strcmp(name, "--bytes") == 0)
        options->bytes = strtoull(value, NULL, 10);
    else if (strcmp(name, "--load") == 0)
        options->load_bytes = strtoull(value, NULL, 10);
    else if (strcmp(name, "--chain") == 0)
        options->chain = atoi(value);
    else if (strcmp(name, "--repeats") == 0)
        options->repeats = atoi(value);
    else if (strcmp(name, "--calls") == 0)
        options->calls = atoi(value);
    else if (strcmp(name, "--busy") == 0)
        options->is_busy = atoi(value) != 0;
    else if (strcmp(name, "--grid") == 0)
        options->grid = (unsigned)atoi(value);
    else if (strcmp(name, "--kernels") == 0)
        options->kernels = value;
    else if (strcmp(name, "--sizes") == 0)
        options->sizes = value;
    else if (strcmp(name, "--limit") == 0)
        side_limit((unsigned)atoi(value));
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    struct side_options options = {.bytes = 1 << 20,
                                   .load_bytes = 1 << 20,
                                   .chain = 16,
                                   .repeats = 5,
                                   .calls = 100,
                                   .kernels = "",
                                   .sizes = ""};

    if (argc < 2)
        return 2;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (!take(&options, argv[i], argv[i + 1]))
            side_fail("there is no option %s", argv[i]);
    }
    if (options.chain < 1 || options.chain > SIDE_OPS || options.repeats < 1 || options.calls < 1)
        side_fail("--chain is 1 to %d, --repeats and --calls are 1 or more", SIDE_OPS);
    for (size_t i = 0; i < sizeof(measures) / sizeof(measures[0]); i++) {
        if (strcmp(argv[1], measures[i].name) == 0) {
            measures[i].run(&options);
            return 0;
        }
    }
    side_fail("there is no measure %s", argv[1]);
}

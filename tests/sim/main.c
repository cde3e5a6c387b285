/* SPDX-License-Identifier: Apache-2.0
 * hvt-sim: options, and the table. */
#include "base/clock.h"
#include "base/log.h"
#include "tests/sim/scenario.h"
#include "tests/sim/sim.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct hvt_layout layout;
static bool csv, measures, missed;

uint64_t __real_hvi_clock_ns(void);

/* ---- options ---- */

struct option_row {
    const char *name, *help;
    uint64_t *value; /* NULL: see below */
    uint64_t unit;
};

static uint64_t pause_ns = 10000000;
static uint64_t verbose = HVI_LOG_ERROR, nodes = 64, each = 8, tensors = 161, seed = 1, first = 0,
                programs = 100;

static const struct option_row rows[] = {
    {"nodes", "nodes of the job (64)", &nodes, 1},
    {"each", "ranks on each (8)", &each, 1},
    {"tensors", "allreduces of a step (161)", &tensors, 1},
    {"pause-ms", "that ranks compute between two steps (10)", &pause_ns, 1000000},
    {"seed", "of all randomness (1)", &seed, 1},
    {"programs", "random ones (100)", &programs, 1},
    {"first", "of them, to run one again (0)", &first, 1},
    {"log", "level of what the engines log: 0 errors (0), 4 all", &verbose, 1},
    {"latency-us", "one way, between two nodes (100)", &hvt_network.latency_ns, 1000},
    {"jitter-us", "on top of it, at most (20)", &hvt_network.jitter_ns, 1000},
    {"loss-ppm", "segments of a million that are sent again (0)", &hvt_network.loss_ppm, 1},
    {"again-ms", "after so long (200)", &hvt_network.again_ns, 1000000},
    {"byte-ps", "a byte on a node's link (800: 10 Gbit/s)", &hvt_network.byte_ps, 1},
    {"turn-ns", "the event loop goes round", &hvt_costs.turn_ns, 1},
    {"send-ns", "sendmsg", &hvt_costs.send_ns, 1},
    {"receive-ns", "recv", &hvt_costs.receive_ns, 1},
    {"copy-ps", "a byte in either", &hvt_costs.byte_ps, 1},
    {"submit-ns", "order/ takes in a part", &hvt_costs.submit_ns, 1},
    {"judge-ns", "the root takes in a report", &hvt_costs.judge_ns, 1},
    {"each-ns", "and of each further node that says the same", &hvt_costs.each_ns, 1},
    {"relay-ns", "a node passes a message on", &hvt_costs.relay_ns, 1},
    {"hear-ns", "a node carries out a verdict", &hvt_costs.hear_ns, 1},
    {"say-ns", "a report or a verdict is made", &hvt_costs.say_ns, 1},
    {"done-ns", "a work is over, its ranks are answered", &hvt_costs.done_ns, 1},
    {"connect-ns", "a connection and its handshake", &hvt_costs.connect_ns, 1},
    {"start-ns", "a roster is read, order/ and mesh/ begin", &hvt_costs.start_ns, 1},
};
#define ROWS (sizeof rows / sizeof rows[0])

static void help(void)
{
    printf("usage: hvt-sim [OPTION...] [SCENARIO...]\n"
           "Engines of a job over a simulated clock and network: docs/design/simulator.md.\n\n"
           "  steps    init, a first step, and steps until they are replayed\n"
           "  memory   what an engine holds\n"
           "  death    a node loses its power\n"
           "  rack     32 nodes are cut off\n"
           "  random   random programs on up to 24 nodes, against the reference of hvt-property\n"
           "All of them are run if none is named. The exit status is 1 if a bar is missed.\n\n"
           "  --csv               what, value, unit, most\n"
           "  --measure           what the code has cost here, in real time, at the end\n"
           "  --help\n");
    for (size_t i = 0; i < ROWS; i++)
        printf("  --%-18sN %s\n", rows[i].name, rows[i].help);
}

static void set_usual(void)
{
    hvt_network = (struct hvt_network){.latency_ns = 100000,
                                       .jitter_ns = 20000,
                                       .again_ns = 200 * HVI_NS_MS,
                                       .byte_ps = 800,
                                       .window = 4 << 20};
    hvt_costs = (struct hvt_costs){.turn_ns = 1500,
                                   .send_ns = 4000,
                                   .receive_ns = 3600,
                                   .byte_ps = 140,
                                   .submit_ns = 330,
                                   .judge_ns = 1900,
                                   .each_ns = 60,
                                   .relay_ns = 1600,
                                   .hear_ns = 2400,
                                   .say_ns = 680,
                                   .done_ns = 360,
                                   .connect_ns = 60000,
                                   .start_ns = 1000000};
}

/* Returns the place of the first scenario; 0: usage. */
static int read_options(int argc, char **argv)
{
    struct option options[ROWS + 4] = {{"csv", no_argument, NULL, 'c'},
                                       {"measure", no_argument, NULL, 'm'},
                                       {"help", no_argument, NULL, 'h'}};
    int found, index = 0;

    for (size_t i = 0; i < ROWS; i++)
        options[3 + i] = (struct option){rows[i].name, required_argument, NULL, 0};
    while ((found = getopt_long(argc, argv, "", options, &index)) != -1) {
        char *end = NULL;
        if (found == '?')
            return 0;
        csv = csv || found == 'c';
        measures = measures || found == 'm';
        if (found == 'h') {
            help();
            exit(0);
        }
        if (found != 0)
            continue;
        *rows[index - 3].value = strtoull(optarg, &end, 10) * rows[index - 3].unit;
        if (end == optarg || *end != '\0') {
            fprintf(stderr, "hvt-sim: --%s takes a number, not '%s'\n", rows[index - 3].name,
                    optarg);
            return 0;
        }
    }
    if (nodes < 2 || nodes > 65536 || each < 1 || each > ENGINE_SEATS_MAX || tensors < 1 ||
        tensors >= HVT_RUNNING) {
        fprintf(stderr, "hvt-sim: 2 to 65536 nodes, 1 to %u ranks on each, 1 to %u tensors\n",
                (unsigned)ENGINE_SEATS_MAX, HVT_RUNNING - 1);
        return 0;
    }
    layout = (struct hvt_layout){.nodes = (uint32_t)nodes,
                                 .each = (uint32_t)each,
                                 .tensors = (uint32_t)tensors,
                                 .pause_ns = pause_ns,
                                 .seed = seed,
                                 .first = first,
                                 .programs = programs};
    return optind;
}

/* ---- the table ---- */

static void say(const struct hvt_row *row)
{
    bool late = row->most > 0 && row->value > row->most;

    missed = missed || late;
    if (csv)
        printf("\"%s\",%.6g,%s,%.6g\n", row->what, row->value, row->unit, row->most);
    else if (row->most > 0)
        printf("%-60s %14.4g %-2s  %s %.6g\n", row->what, row->value, row->unit,
               late ? "ABOVE" : "at most", row->most);
    else
        printf("%-60s %14.8g %s\n", row->what, row->value, row->unit);
    fflush(stdout);
}

static void say_measured(void)
{
    static const char *const texts[HVT_COSTS] = {"submit", "judge", "relay", "hear", "say", "done"};

    fprintf(stderr, "nodes in the root's reports: %llu\n", (unsigned long long)hvt_ordered_heard());
    for (enum hvt_cost cost = 0; cost < HVT_COSTS; cost++) {
        uint64_t ns, times;
        hvt_node_measured(cost, &ns, &times);
        fprintf(stderr, "%-8s %10llu times, %8.0f ns each\n", texts[cost],
                (unsigned long long)times, times > 0 ? (double)ns / (double)times : 0);
    }
}

static const struct {
    const char *name;
    bool (*run)(const struct hvt_layout *layout, hvt_row_fn say);
} scenarios[] = {{"steps", hvt_scenario_steps},
                 {"memory", hvt_scenario_memory},
                 {"death", hvt_scenario_death},
                 {"rack", hvt_scenario_rack},
                 {"random", hvt_scenario_random}};
#define SCENARIOS (sizeof scenarios / sizeof scenarios[0])

static bool is_wanted(const char *name, int count, char **names)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return count == 0;
}

static bool run(int count, char **names)
{
    for (size_t i = 0; i < SCENARIOS; i++) {
        if (!is_wanted(scenarios[i].name, count, names))
            continue;
        uint64_t begun_ns = __real_hvi_clock_ns();
        bool done = scenarios[i].run(&layout, say);
        fprintf(stderr, "%s: %.1f s of real time, %llu events in its last run\n", scenarios[i].name,
                (double)(__real_hvi_clock_ns() - begun_ns) / 1e9,
                (unsigned long long)hvt_clock_events());
        if (!done)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    set_usual();
    int named = read_options(argc, argv);
    if (named == 0)
        return 2;
    hvi_log_init("hvt-sim", (enum hvi_log_level)verbose);
    bool done = run(argc - named, argv + named);
    if (measures) {
        say_measured();
        hvt_sockets_measure();
    }
    return done && !missed ? 0 : 1;
}

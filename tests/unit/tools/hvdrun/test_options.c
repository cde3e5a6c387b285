/* SPDX-License-Identifier: Apache-2.0
 * hvdrun's command line: horovodrun's words, refusals with a sentence, and the command left alone. */
#include "tools/hvdrun/options.h"

#include "tests/unit/hvt_main.h"
#include "tools/hvdrun/flags.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_MAX 40

static struct run_options options;
static char text[512];

/* Parses a line of words separated by blanks. */
static int parse(const char *line)
{
    static char copy[512];
    static char *argv[WORDS_MAX];
    int argc = 0;
    snprintf(copy, sizeof copy, "hvdrun %s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    text[0] = '\0';
    run_options_fini(&options);
    return run_options_parse(argc, argv, &options, text, sizeof text);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

#define EXPECT_ERROR(line, part)                                                                   \
    do {                                                                                           \
        ck_assert_int_eq(parse(line), -1);                                                         \
        ck_assert_msg(strstr(text, (part)) != NULL, "'%s' says '%s'", (line), text);               \
    } while (0)

START_TEST(the_number_of_ranks_has_four_spellings)
{
    ck_assert_int_eq(parse("-np 4 true"), 0);
    ck_assert_int_eq(options.ranks, 4);
    ck_assert_int_eq(parse("--num-proc 5 true"), 0);
    ck_assert_int_eq(options.ranks, 5);
    ck_assert_int_eq(parse("--num-proc=6 true"), 0);
    ck_assert_int_eq(options.ranks, 6);
    ck_assert_int_eq(parse("--np=7 true"), 0);
    ck_assert_int_eq(options.ranks, 7);
    ck_assert_int_eq(parse("-n 8 true"), 0);
    ck_assert_int_eq(options.ranks, 8);
}
END_TEST

START_TEST(values_may_follow_a_letter_at_once)
{
    ck_assert_int_eq(parse("-n3 -p2222 -i/x/key -Hh1:4 true"), 0);
    ck_assert_int_eq(options.ranks, 3);
    ck_assert_str_eq(options.ssh_port, "2222");
    ck_assert_str_eq(options.ssh_identity, "/x/key");
    ck_assert_str_eq(options.hosts, "h1:4");
    ck_assert_str_eq(options.command[0], "true");
    EXPECT_ERROR("-n 2 -pssh true", "--ssh-port takes a whole number");
    EXPECT_ERROR("-p", "-p needs a value");
    EXPECT_ERROR("-np2 true", "'p2'");
}
END_TEST

START_TEST(an_abbreviation_of_horovodruns_is_none_of_hvdruns_own_options)
{
    ck_assert_int_eq(parse("-np 2 --disable --bin --map-by true"), 0);
    ck_assert_uint_eq(options.idle_count, 2);
    ck_assert_str_eq(options.idle[0]->name, "disable-cache");
    ck_assert_str_eq(options.idle[1]->name, "binding-args");
    ck_assert_int_eq(parse("-np 2 --bin=--map-by --hel true"), 0);
    ck_assert_str_eq(options.idle[0]->name, "binding-args");
    ck_assert(options.help && !options.help_man);
    EXPECT_ERROR("-np 2 --disable=1 true", "unknown or ambiguous option --disable=1");
    EXPECT_ERROR("-np 2 --bin", "--bin needs a value");
    EXPECT_ERROR("-np 2 --host h1 true", "unknown or ambiguous option --host");
    ck_assert_int_eq(parse("-np 2 --bind-t core true"), 0);
    ck_assert(options.bind_to_core);
}
END_TEST

START_TEST(everything_after_the_command_is_the_commands)
{
    ck_assert_int_eq(parse("-np 2 python -np 3 --verbose -- x"), 0);
    ck_assert_int_eq(options.ranks, 2);
    ck_assert(!options.verbose);
    ck_assert_str_eq(options.command[0], "python");
    ck_assert_str_eq(options.command[1], "-np");
    ck_assert_str_eq(options.command[4], "--");
    ck_assert_str_eq(options.command[5], "x");
    ck_assert_ptr_null(options.command[6]);
    ck_assert_int_eq(parse("-np 2 -- --odd-name"), 0);
    ck_assert_str_eq(options.command[0], "--odd-name");
}
END_TEST

START_TEST(options_reach_their_members)
{
    ck_assert_int_eq(
        parse(
            "-np 1 --address /a --hvdd /h --output-filename o --verbose --grace 0.5 "
            "--report-time 0.25 --start-timeout 7 --log-level DEBUG --no-prefix --hostfile f -h x"),
        0);
    ck_assert_str_eq(options.address, "/a");
    ck_assert_str_eq(options.hvdd, "/h");
    ck_assert_str_eq(options.output_dir, "o");
    ck_assert_str_eq(options.hostfile, "f");
    ck_assert_str_eq(options.log_level, "debug");
    ck_assert(options.verbose && options.no_prefix && options.help);
    ck_assert(options.grace_ns == 500000000 && options.start_timeout_ns == 7000000000ull);
    ck_assert(options.report_ns == 250000000);
    ck_assert_int_eq(parse("-np 1 --prefix-output-with-timestamp --disable-prefix x"), 0);
    ck_assert(options.timestamps && options.no_prefix);
    ck_assert_int_eq(parse("-np 1 -prefix-timestamp x"), 0);
    ck_assert(options.timestamps && !options.no_prefix);
}
END_TEST

START_TEST(defaults_are_one_five_and_thirty_seconds)
{
    ck_assert_int_eq(parse("-np 1 x"), 0);
    ck_assert(options.grace_ns == 5000000000ull && options.start_timeout_ns == 30000000000ull);
    ck_assert(options.report_ns == 1000000000ull);
    ck_assert_ptr_null(options.address);
    ck_assert(!options.timestamps && options.export_count == 0 && options.idle_count == 0);
}
END_TEST

START_TEST(the_environment_may_give_the_time_for_the_start)
{
    setenv("HOROVOD_START_TIMEOUT", "12", 1);
    ck_assert_int_eq(parse("-np 1 x"), 0);
    ck_assert(options.start_timeout_ns == 12000000000ull);
    ck_assert_int_eq(parse("-np 1 --start-timeout 3 x"), 0);
    ck_assert(options.start_timeout_ns == 3000000000ull);
    setenv("HVD_START_TIMEOUT", "7", 1);
    ck_assert_int_eq(parse("-np 1 x"), 0);
    ck_assert(options.start_timeout_ns == 7000000000ull);
    unsetenv("HVD_START_TIMEOUT");
    setenv("HOROVOD_START_TIMEOUT", "soon", 1);
    EXPECT_ERROR("-np 1 x", "HOROVOD_START_TIMEOUT is no number of seconds: 'soon'");
    unsetenv("HOROVOD_START_TIMEOUT");
}
END_TEST

/* What the ranks are told, in alphabetical order. */
static const char *exports(const char *line)
{
    static char all[1024];
    const char *sorted[RUN_EXPORTS_MAX];
    ck_assert_msg(parse(line) == 0, "'%s' says '%s'", line, text);
    memcpy(sorted, options.exports, sizeof sorted);
    qsort(sorted, options.export_count, sizeof *sorted, compare_texts);
    all[0] = '\0';
    for (size_t i = 0; i < options.export_count; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i > 0 ? " " : "",
                 sorted[i] + strlen("HOROVOD_"));
    return all;
}

START_TEST(knobs_become_horovods_variables)
{
    ck_assert_str_eq(exports("-np 1 --fusion-threshold-mb 64 --cycle-time-ms 3.5 --cache-capacity "
                             "0 --num-nccl-streams 2 --thread-affinity 1 --gloo-timeout-seconds 9 "
                             "--timeline-filename t.json --log-level INFO x"),
                     "CACHE_CAPACITY=0 CYCLE_TIME=3.5 FUSION_THRESHOLD=67108864 "
                     "GLOO_TIMEOUT_SECONDS=9 LOG_LEVEL=INFO NUM_NCCL_STREAMS=2 "
                     "THREAD_AFFINITY=1 TIMELINE=t.json");
    ck_assert_str_eq(exports("-np 1 --stall-check-warning-time-seconds 3 "
                             "--stall-check-shutdown-time-seconds 0.5 --no-stall-check x"),
                     "STALL_CHECK_DISABLE=1 STALL_CHECK_TIME_SECONDS=3 "
                     "STALL_SHUTDOWN_TIME_SECONDS=0.5");
}
END_TEST

START_TEST(of_a_switch_and_its_opposite_the_last_one_counts)
{
    ck_assert_str_eq(exports("-np 1 --no-stall-check --stall-check x"), "STALL_CHECK_DISABLE=0");
    ck_assert_str_eq(exports("-np 1 --stall-check --no-stall-check x"), "STALL_CHECK_DISABLE=1");
    ck_assert_str_eq(exports("-np 1 --log-with-timestamp --log-without-timestamp x"),
                     "LOG_HIDE_TIME=1");
    ck_assert_str_eq(exports("-np 1 --log-hide-timestamp --no-log-hide-timestamp x"),
                     "LOG_HIDE_TIME=0");
    ck_assert_str_eq(exports("-np 1 --timeline-mark-cycles --no-hierarchical-allreduce "
                             "--hierarchical-allgather --torus-allreduce --mpi-threads-disable x"),
                     "HIERARCHICAL_ALLGATHER=1 HIERARCHICAL_ALLREDUCE=0 MPI_THREADS_DISABLE=1 "
                     "TIMELINE_MARK_CYCLES=1 TORUS_ALLREDUCE=1");
}
END_TEST

START_TEST(how_to_tune_is_only_told_when_tuning_is_on)
{
    static const char rest[] = "--autotune-log-file l --autotune-warmup-samples 1 "
                               "--autotune-steps-per-sample 2 --autotune-bayes-opt-max-samples 3 "
                               "--autotune-gaussian-process-noise 0.5 x";
    char line[400];
    snprintf(line, sizeof line, "-np 1 --autotune %s", rest);
    ck_assert_str_eq(exports(line), "AUTOTUNE=1 AUTOTUNE_BAYES_OPT_MAX_SAMPLES=3 "
                                    "AUTOTUNE_GAUSSIAN_PROCESS_NOISE=0.5 AUTOTUNE_LOG=l "
                                    "AUTOTUNE_STEPS_PER_SAMPLE=2 AUTOTUNE_WARMUP_SAMPLES=1");
    snprintf(line, sizeof line, "-np 1 %s", rest);
    ck_assert_str_eq(exports(line), "");
    snprintf(line, sizeof line, "-np 1 --no-autotune %s", rest);
    ck_assert_str_eq(exports(line), "AUTOTUNE=0");
}
END_TEST

START_TEST(values_are_checked_with_horovods_words)
{
    EXPECT_ERROR("-np 1 --cycle-time-ms -1 x", "cycle_time_ms=-1 must be >= 0");
    EXPECT_ERROR("-np 1 --fusion-threshold-mb -3 x", "fusion_threshold_mb=-3 must be >= 0");
    EXPECT_ERROR("-np 1 --cache-capacity=-3 x", "cache_capacity=-3 must be >= 0");
    EXPECT_ERROR("-np 1 --stall-check-warning-time-seconds -2 x",
                 "stall_check_warning_time_seconds=-2 must be >= 0");
    EXPECT_ERROR("-np 1 --autotune-gaussian-process-noise 1.5 x",
                 "autotune_gaussian_process_noise=1.5 must be in [0, 1]");
    EXPECT_ERROR("-np 1 --autotune-gaussian-process-noise -0.5 x", "must be in [0, 1]");
    EXPECT_ERROR("-np 1 --num-nccl-streams many x", "whole number up to 1000000000000, not 'many'");
    EXPECT_ERROR("-np 1 --cycle-time-ms nan x", "takes a number, not 'nan'");
    EXPECT_ERROR("-np 1 --cycle-time-ms inf x", "takes a number, not 'inf'");
    EXPECT_ERROR("-np 1 --fusion-threshold-mb 99999999999999999999 x", "up to 953674");
    EXPECT_ERROR("-np 1 --start-timeout 1e9 x", "seconds up to a year");
}
END_TEST

START_TEST(long_options_may_be_abbreviated)
{
    ck_assert_str_eq(exports("--num-p 2 --stall-check-w 4 --fus=1 --timeline-f t x"),
                     "FUSION_THRESHOLD=1048576 STALL_CHECK_TIME_SECONDS=4 TIMELINE=t");
    ck_assert_int_eq(options.ranks, 2);
    EXPECT_ERROR("-np 1 --stall x", "unknown or ambiguous option --stall");
    EXPECT_ERROR("-np 1 --slots 3 x", "--slots-per-host is not available");
}
END_TEST

START_TEST(a_number_of_ranks_must_make_sense)
{
    EXPECT_ERROR("-np 0 true", "'0'");
    EXPECT_ERROR("-np -1 true", "'-1'");
    EXPECT_ERROR("-np four true", "'four'");
    EXPECT_ERROR("-np 2x true", "'2x'");
    EXPECT_ERROR("-np 1025 true", "1 to 1024 on one host, not 1025");
    EXPECT_ERROR("-np 1048577 true", "1 to 1048576, not '1048577'");
    EXPECT_ERROR("-H h1:1024,h2:1025 true", "1 to 1024 processes, and h2 would have 1025");
    EXPECT_ERROR("-np", "needs a value");
    EXPECT_ERROR("true", "-np N");
    EXPECT_ERROR("-np 2", "which command");
}
END_TEST

START_TEST(hosts_give_the_slots)
{
    ck_assert_int_eq(parse("-H localhost:3 true"), 0);
    ck_assert_int_eq(options.ranks, 3);
    ck_assert(!run_hosts_are_spread(&options.places));
    ck_assert_int_eq(parse("-np 2 --hosts 127.0.0.1:4 true"), 0);
    ck_assert_int_eq(options.ranks, 2);
    ck_assert_int_eq(options.places.list[0].ranks, 2);
    EXPECT_ERROR("-np 2 -H localhost true",
                 "Requested more processes (2) than there are available slots (1)");
    EXPECT_ERROR("-np 2 -H localhost:x true", "Invalid host input");
    EXPECT_ERROR("-np 5 -H localhost:4 true",
                 "Requested more processes (5) than there are available slots (4)");
    EXPECT_ERROR("-np 2 -H localhost:2 -hostfile f true", "--hosts and --hostfile");
    EXPECT_ERROR("-H localhost:0 true", "how many processes?");
}
END_TEST

/* Writes a configuration file and gives its --config-file option. */
static const char *with_config(const char *content, const char *rest)
{
    static char line[256];
    static char path[64];
    snprintf(path, sizeof path, "/tmp/hvt-config-XXXXXX");
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
    close(fd);
    snprintf(line, sizeof line, "-np 1 --config-file %s %s", path, rest);
    return line;
}

START_TEST(a_job_of_lsf_on_several_hosts_is_not_started_on_one_in_silence)
{
    const char *line = with_config("# by LSF\nh1\nh1\nh2\n", "");
    char *path = strstr(line, "/tmp/");
    path[strcspn(path, " ")] = '\0';
    setenv("LSB_JOBID", "471", 1);
    ck_assert_int_eq(parse("-np 2 true"), 0);
    setenv("LSB_HOSTS", "h1 h1", 1);
    ck_assert_int_eq(parse("-np 2 true"), 0);
    setenv("LSB_HOSTS", "h1 h2 h1", 1);
    EXPECT_ERROR("-np 3 true",
                 "LSF has given job 471 2 hosts, and no option names one: give -H with "
                 "slots for each (-H h1:2,h2:1 by LSF's, without the host that only launches, "
                 "if there is one), or -H localhost:3 for this host alone");
    EXPECT_ERROR("true", "-H h1:2,h2:1 ");
    ck_assert_int_eq(parse("-np 2 -H localhost:2 true"), 0);
    ck_assert_int_eq(parse("-H h1:1,h2:1 true"), 0);
    ck_assert_int_eq(parse("-np 1 true"), 0);
    ck_assert_int_eq(parse("--help"), 0);
    setenv("LSB_MCPU_HOSTS", "h1 40 h2 2 ", 1);
    EXPECT_ERROR("-np 2 true", "-H h1:40,h2:2 ");
    setenv("LSB_DJOB_HOSTFILE", path, 1);
    EXPECT_ERROR("-np 2 true", "-H h1:2,h2:1 ");
    unsetenv("LSB_JOBID");
    ck_assert_int_eq(parse("-np 2 true"), 0);
    unlink(path);
}
END_TEST

START_TEST(other_hosts_are_reached_as_asked_for)
{
    ck_assert_int_eq(parse("-H h1:2,h2:1500 -np 4 -p 2222 -i key --ssh-command rsh --remote-hvdrun "
                           "/r --remote-dir /d --network-interface ib0 --network-interfaces "
                           "ib1,eth0 true"),
                     0);
    ck_assert(run_hosts_are_spread(&options.places));
    ck_assert_uint_eq(options.places.count, 2);
    ck_assert_int_eq(options.places.list[1].first_rank, 2);
    ck_assert_int_eq(options.places.list[1].ranks, 2);
    ck_assert_str_eq(options.ssh_port, "2222");
    ck_assert_str_eq(options.ssh_identity, "key");
    ck_assert_str_eq(options.ssh_command, "rsh");
    ck_assert_str_eq(options.remote_hvdrun, "/r");
    ck_assert_str_eq(options.remote_dir, "/d");
    ck_assert_str_eq(options.interfaces, "ib0,ib1,eth0");
    EXPECT_ERROR("-H h1:2 -p ssh true", "--ssh-port takes a whole number");
}
END_TEST

START_TEST(variables_for_the_ranks_are_given_or_taken_from_here)
{
    setenv("HVT_HERE", "value here", 1);
    ck_assert_int_eq(parse("-np 1 -x A=b=c -x HVT_HERE --export E= true"), 0);
    ck_assert_uint_eq(options.variable_count, 3);
    ck_assert_str_eq(options.variables[0], "A=b=c");
    ck_assert_str_eq(options.variables[1], "HVT_HERE=value here");
    ck_assert_str_eq(options.variables[2], "E=");
    unsetenv("HVT_HERE");
    EXPECT_ERROR("-np 1 -x HVT_HERE true", "there is no such variable; give -x HVT_HERE=VALUE");
    EXPECT_ERROR("-np 1 -x =b true", "-x takes NAME or NAME=VALUE, not '=b'");
}
END_TEST

START_TEST(every_other_option_of_horovodrun_is_accepted)
{
    static const char *const words[] = {"--disable-cache",
                                        "--start-timeout 9",
                                        "--network-interfaces a,b",
                                        "--network-interface a",
                                        "--output-filename d",
                                        "--verbose",
                                        "-p 22",
                                        "--ssh-port 22",
                                        "-i key",
                                        "--ssh-identity-file key",
                                        "--fusion-threshold-mb 1",
                                        "--cycle-time-ms 1",
                                        "--cache-capacity 1",
                                        "--hierarchical-allreduce",
                                        "--no-hierarchical-allreduce",
                                        "--hierarchical-allgather",
                                        "--no-hierarchical-allgather",
                                        "--torus-allreduce",
                                        "--no-torus-allreduce",
                                        "--autotune",
                                        "--no-autotune",
                                        "--autotune-log-file f",
                                        "--autotune-warmup-samples 1",
                                        "--autotune-steps-per-sample 1",
                                        "--autotune-bayes-opt-max-samples 1",
                                        "--autotune-gaussian-process-noise 1",
                                        "--timeline-filename f",
                                        "--timeline-mark-cycles",
                                        "--no-timeline-mark-cycles",
                                        "--no-stall-check",
                                        "--stall-check",
                                        "--stall-check-warning-time-seconds 1",
                                        "--stall-check-shutdown-time-seconds 1",
                                        "--mpi-threads-disable",
                                        "--no-mpi-threads-disable",
                                        "--mpi-args=--map-by=slot",
                                        "--binding-args=-x",
                                        "--tcp",
                                        "--num-nccl-streams 1",
                                        "--thread-affinity 1",
                                        "--gloo-timeout-seconds 1",
                                        "--log-level FATAL",
                                        "--log-with-timestamp",
                                        "--log-without-timestamp",
                                        "--log-hide-timestamp",
                                        "--no-log-hide-timestamp",
                                        "-prefix-timestamp",
                                        "--prefix-output-with-timestamp",
                                        "-H localhost:1",
                                        "--hosts localhost:1",
                                        "--gloo",
                                        "--mpi",
                                        "--jsrun"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char line[128];
        snprintf(line, sizeof line, "-np 1 %s true", words[i]);
        ck_assert_msg(parse(line) == 0, "'%s' says '%s'", line, text);
        ck_assert_str_eq(options.command[0], "true");
    }
}
END_TEST

START_TEST(elastic_jobs_are_refused_with_what_to_do)
{
    static const char *const lines[] = {
        "-np 2 --min-np 1 true",         "-np 2 --min-num-proc 1 true",
        "-np 2 --max-np 1 true",         "-np 2 --host-discovery-script s true",
        "-np 2 --reset-limit 3 true",    "-np 2 --blacklist-cooldown-range 1 2 true",
        "-np 2 --slots-per-host 3 true", "-np 2 --elastic-timeout 3 true"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        EXPECT_ERROR(lines[i], "jobs have a fixed size; leave it out and give -np N");
}
END_TEST

/* What is said about options without effect. */
static char *idle_words(const char *line)
{
    static char said[2048];
    ck_assert_msg(parse(line) == 0, "'%s' says '%s'", line, text);
    said[0] = '\0';
    FILE *stream = fmemopen(said, sizeof said, "w");
    run_options_tell_idle(&options, stream);
    fclose(stream);
    return said;
}

START_TEST(what_has_no_effect_is_told_once_per_reason)
{
    ck_assert_str_eq(idle_words("-np 2 --gloo true"),
                     "hvdrun: --gloo: accepted without effect: there is one controller, hvdd\n");
    ck_assert_str_eq(
        idle_words("-np 2 --disable-cache -p 22 --network-interface lo --network-interface eth0 "
                   "-i key true"),
        "hvdrun: --disable-cache: accepted without effect: nothing is checked before the start, "
        "and nothing is cached\n"
        "hvdrun: --ssh-port, --network-interfaces, --ssh-identity-file: accepted "
        "without effect: every process runs on this machine\n");
    ck_assert_str_eq(idle_words("-np 2 -H h1:2 -p 22 --network-interface lo -i key true"), "");
    ck_assert_str_eq(idle_words("-np 2 -H localhost:2 -p 22 true"),
                     "hvdrun: --ssh-port: accepted without effect: every process runs on this "
                     "machine\n");
    ck_assert_str_eq(idle_words("-np 2 --no-autotune --no-torus-allreduce "
                                "--no-mpi-threads-disable --cache-capacity 9 true"),
                     "");
    ck_assert_str_eq(idle_words("-np 2 --torus-allreduce --no-torus-allreduce true"), "");
    EXPECT_ERROR("-np 2 --gloo --mpi true", "exclude each other");
}
END_TEST

START_TEST(a_configuration_file_has_every_key_of_horovodruns)
{
    const char *line = with_config(
        "controller: mpi\n"
        "params: {fusion_threshold_mb: 1, cycle_time_ms: 2.5, cache_capacity: 3,\n"
        "  hierarchical_allreduce: true, hierarchical_allgather: no, torus_allreduce: on}\n"
        "autotune: {enabled: yes, log_file: l, warmup_samples: 1, steps_per_sample: 2,\n"
        "  bayes_opt_max_samples: 3, gaussian_process_noise: 0.5}\n"
        "timeline: {filename: t, mark_cycles: true}\n"
        "stall_check: {enabled: false, warning_time_seconds: 4, shutdown_time_seconds: 5}\n"
        "library_options: {mpi_threads_disable: true, num_nccl_streams: 6, thread_affinity: 7,\n"
        "  gloo_timeout_seconds: 8}\n"
        "logging: {level: DEBUG, with_timestamp: false}\n",
        "x");
    ck_assert_str_eq(
        exports(line),
        "AUTOTUNE=1 AUTOTUNE_BAYES_OPT_MAX_SAMPLES=3 AUTOTUNE_GAUSSIAN_PROCESS_NOISE=0.5 "
        "AUTOTUNE_LOG=l AUTOTUNE_STEPS_PER_SAMPLE=2 AUTOTUNE_WARMUP_SAMPLES=1 CACHE_CAPACITY=3 "
        "CYCLE_TIME=2.5 FUSION_THRESHOLD=1048576 GLOO_TIMEOUT_SECONDS=8 HIERARCHICAL_ALLGATHER=0 "
        "HIERARCHICAL_ALLREDUCE=1 LOG_HIDE_TIME=1 LOG_LEVEL=DEBUG MPI_THREADS_DISABLE=1 "
        "NUM_NCCL_STREAMS=6 STALL_CHECK_DISABLE=1 STALL_CHECK_TIME_SECONDS=4 "
        "STALL_SHUTDOWN_TIME_SECONDS=5 THREAD_AFFINITY=7 TIMELINE=t TIMELINE_MARK_CYCLES=1 "
        "TORUS_ALLREDUCE=1");
    ck_assert(options.mpi && options.autotune);
    ck_assert_str_eq(options.log_level, "debug");
    unlink(options.config_file);
}
END_TEST

START_TEST(the_command_line_wins_over_the_file)
{
    const char *line =
        with_config("controller: mpi\nparams: {cycle_time_ms: 2, cache_capacity: 3}\n"
                    "autotune: {enabled: true, log_file: l}\n"
                    "stall_check: {enabled: false}\nlogging: {level: debug}\n",
                    "--no-autotune --stall-check --cycle-time-ms 9 --gloo "
                    "--log-level error x");
    ck_assert_str_eq(exports(line), "AUTOTUNE=0 CACHE_CAPACITY=3 CYCLE_TIME=9 LOG_LEVEL=error "
                                    "STALL_CHECK_DISABLE=0");
    ck_assert_str_eq(options.log_level, "error");
    unlink(options.config_file);
}
END_TEST

/* The sentence that a file gets, which must begin with its name. */
static const char *config_error(const char *content)
{
    const char *line = with_config(content, "x");
    const char *path = strstr(line, "/tmp/");
    const size_t length = strcspn(path, " ");
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)length, path);
    ck_assert_int_eq(parse(line), -1);
    unlink(name);
    ck_assert_msg(strncmp(text, name, length) == 0, "%s", text);
    return text + length;
}

START_TEST(what_is_wrong_in_the_file_is_named_with_its_line)
{
    ck_assert_str_eq(config_error("params:\n  cycle_time_ms: fast\n"),
                     ":2: --cycle-time-ms takes a number, not 'fast'");
    ck_assert_str_eq(config_error("params:\n  cycle_time_ms: -1\n"),
                     ":2: cycle_time_ms=-1 must be >= 0");
    ck_assert_str_eq(config_error("\nautotune: {enabled: perhaps}\n"),
                     ":2: autotune.enabled cannot be 'perhaps'");
    ck_assert_str_eq(config_error("controller: smoke-signals\n"),
                     ":1: controller cannot be 'smoke-signals'");
}
END_TEST

START_TEST(unknown_keys_are_told_and_passed_over)
{
    const char *line =
        with_config("logging:\n  hide_timestamp: true\n  level: info\nautotune: true\n", "x");
    char wanted[256];
    ck_assert_str_eq(exports(line), "LOG_LEVEL=info");
    snprintf(wanted, sizeof wanted,
             "hvdrun: %s has what means nothing to hvdrun and is ignored: logging.hide_timestamp "
             "(line 2), autotune (line 4)\n",
             options.config_file);
    ck_assert_str_eq(idle_words(line), wanted);
    unlink(options.config_file);
}
END_TEST

START_TEST(other_words_are_unknown)
{
    EXPECT_ERROR("-np 2 --nonsense true", "--nonsense");
    EXPECT_ERROR("-np 2 --grace soon true", "'soon'");
    EXPECT_ERROR("-np 2 --log-level loud true", "'loud'");
}
END_TEST

START_TEST(help_version_and_check_build_need_no_command)
{
    ck_assert_int_eq(parse("--help"), 0);
    ck_assert(options.help);
    ck_assert_int_eq(parse("-v"), 0);
    ck_assert(options.version);
    ck_assert_int_eq(parse("-cb"), 0);
    ck_assert(options.check_build);
}
END_TEST

static char *printed_help(void (*print)(FILE *out))
{
    static char help[32768];
    memset(help, 0, sizeof help);
    FILE *stream = fmemopen(help, sizeof help, "w");
    print(stream);
    fclose(stream);
    return help;
}

static void print_help(FILE *out)
{
    run_flags_help(out, "hvdrun");
}

/* Both pages name every option once. */
START_TEST(help_and_man_page_name_every_option_once)
{
    const char *help = printed_help(print_help);
    ck_assert_ptr_nonnull(strstr(help, "\n  -np, --num-proc N           How many"));
    ck_assert_ptr_nonnull(strstr(help, "\n  --gloo, --mpi, --jsrun      there is one controller"));
    for (int man = 0; man < 2; man++) {
        help = printed_help(man ? run_flags_help_man : print_help);
        for (size_t i = 0; i < run_flag_count; i++) {
            char name[64];
            if (run_flags[i].kind == RUN_FLAG_GROUP)
                continue;
            snprintf(name, sizeof name, man ? "*--%s*" : "--%s", run_flags[i].name);
            ck_assert_msg(strstr(help, name) != NULL, "%s is not explained", name);
            const char *again = man ? strstr(strstr(help, name) + 1, name) : NULL;
            ck_assert_msg(again == NULL, "%s is explained twice", name);
        }
    }
}
END_TEST

START_TEST(it_goes_by_the_name_it_was_called)
{
    char *as_horovodrun[] = {(char[]){"/usr/bin/horovodrun"}, (char[]){"-v"}, NULL};
    ck_assert_int_eq(parse("-v"), 0);
    ck_assert_str_eq(run_options_program(&options), "hvdrun");
    ck_assert_int_eq(run_options_parse(2, as_horovodrun, &options, text, sizeof text), 0);
    ck_assert_str_eq(run_options_program(&options), "horovodrun");
}
END_TEST

START_TEST(words_before_the_command_are_variables_for_horovodrun_alone)
{
    char *argv[] = {(char[]){"horovodrun"}, (char[]){"-np"},   (char[]){"1"},   (char[]){"A_1=b"},
                    (char[]){"C="},         (char[]){"./d=e"}, (char[]){"F=g"}, NULL};
    ck_assert_int_eq(run_options_parse(7, argv, &options, text, sizeof text), 0);
    ck_assert_uint_eq(options.variable_count, 2);
    ck_assert_str_eq(options.variables[0], "A_1=b");
    ck_assert_str_eq(options.variables[1], "C=");
    ck_assert_str_eq(options.command[0], "./d=e");
    ck_assert_str_eq(options.command[1], "F=g");
    run_options_fini(&options);
    argv[5] = NULL;
    ck_assert_int_eq(run_options_parse(5, argv, &options, text, sizeof text), -1);
    ck_assert_str_eq(text, "which command? horovodrun -np 1 command...");
    ck_assert_int_eq(parse("-np 1 A=b true"), 0);
    ck_assert_str_eq(options.command[0], "A=b");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/options");
    TCase *tests = tcase_create("options");
    tcase_add_test(tests, the_number_of_ranks_has_four_spellings);
    tcase_add_test(tests, values_may_follow_a_letter_at_once);
    tcase_add_test(tests, an_abbreviation_of_horovodruns_is_none_of_hvdruns_own_options);
    tcase_add_test(tests, everything_after_the_command_is_the_commands);
    tcase_add_test(tests, options_reach_their_members);
    tcase_add_test(tests, words_before_the_command_are_variables_for_horovodrun_alone);
    tcase_add_test(tests, defaults_are_one_five_and_thirty_seconds);
    tcase_add_test(tests, the_environment_may_give_the_time_for_the_start);
    tcase_add_test(tests, knobs_become_horovods_variables);
    tcase_add_test(tests, of_a_switch_and_its_opposite_the_last_one_counts);
    tcase_add_test(tests, how_to_tune_is_only_told_when_tuning_is_on);
    tcase_add_test(tests, values_are_checked_with_horovods_words);
    tcase_add_test(tests, long_options_may_be_abbreviated);
    tcase_add_test(tests, a_number_of_ranks_must_make_sense);
    tcase_add_test(tests, hosts_give_the_slots);
    tcase_add_test(tests, a_job_of_lsf_on_several_hosts_is_not_started_on_one_in_silence);
    tcase_add_test(tests, other_hosts_are_reached_as_asked_for);
    tcase_add_test(tests, variables_for_the_ranks_are_given_or_taken_from_here);
    tcase_add_test(tests, every_other_option_of_horovodrun_is_accepted);
    tcase_add_test(tests, elastic_jobs_are_refused_with_what_to_do);
    tcase_add_test(tests, what_has_no_effect_is_told_once_per_reason);
    tcase_add_test(tests, a_configuration_file_has_every_key_of_horovodruns);
    tcase_add_test(tests, the_command_line_wins_over_the_file);
    tcase_add_test(tests, what_is_wrong_in_the_file_is_named_with_its_line);
    tcase_add_test(tests, unknown_keys_are_told_and_passed_over);
    tcase_add_test(tests, other_words_are_unknown);
    tcase_add_test(tests, help_version_and_check_build_need_no_command);
    tcase_add_test(tests, help_and_man_page_name_every_option_once);
    tcase_add_test(tests, it_goes_by_the_name_it_was_called);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

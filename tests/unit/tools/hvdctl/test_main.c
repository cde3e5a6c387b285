/* SPDX-License-Identifier: Apache-2.0
 * hvdctl's command line: words and options, what is asked of hvdd, and how hvdctl ends when the answer is an error, makes
 * no sense or does not come. */
#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvdctl/hvt_program.h"

static struct hvi_job_row digits = {.job = "digits", .size = 4, .attached = 4, .state = "running"};
static struct hvi_rank_row rank_0 = {.rank = 0, .pid = 4711, .state = "attached", .process = "S"};
static struct hvi_stall_row waits = {.job = "digits", .tensor = "w", .op = "barrier"};

/* ---- words ---- */

static const struct {
    const char *words, *complaint;
} wrong[] = {
    {"", "which command? See hvdctl help."},
    {"--json", "which command? See hvdctl help."},
    {"dance", "no such command: dance. See hvdctl help."},
    {"job dance x", "no such command: job dance. See hvdctl help job."},
    {"job", "no such command: job. See hvdctl help job."},
    {"status x", "usage: hvdctl status"},
    {"ranks", "usage: hvdctl ranks JOB"},
    {"job stop", "usage: hvdctl job stop JOB"},
    {"stalls a b", "usage: hvdctl stalls [JOB]"},
    {"key new", "usage: hvdctl key new PREFIX, or key new --node [NAME]"},
    {"key new a b", "usage: hvdctl key new PREFIX"},
    {"key allow n1", "usage: hvdctl key allow NAME KEY"},
    {"key allow .n1 x", "'.n1' is no name of a node: 1 to 63 letters, digits or any of . - _ :"},
    {"key allow n1 x", "'x' is no key: it has the 40 characters that `hvdctl key show` prints"},
    {"trace", "usage: hvdctl trace JOB"},
    {"timeline x", "usage: hvdctl timeline JOB start FILE"},
    {"help dance", "no such command: dance. See hvdctl help."},
    {"status --timeout soon", "--timeout takes a number of seconds, not 'soon'"},
    {"ranks x --user no:user", "--user takes a user's name or number, not 'no:user'"},
    {"ranks x --user 4294967295", "--user takes a user's name or number, not '4294967295'"},
    {"stalls --min-age -1", "--min-age takes a number of seconds, not '-1'"},
    {"top --interval 1x", "--interval takes a number of seconds, not '1x'"},
    {"trace x --rank -1", "--rank takes a number from 0 to "},
    {"trace x --last 0", "--last takes a number from 1 to 1024, not '0'"},
    {"trace x --last 1025", "--last takes a number from 1 to 1024, not '1025'"},
    {"status --loud", "unrecognized option '--loud'"},
    {"trace x --rank 1048576", "--rank takes a number from 0 to 1048575"},
    {"status --timeout", "option '--timeout' requires an argument"},
    {"-x status", "unrecognized option '-x'"},
    {"status --json=yes", "unrecognized option '--json=yes'"},
    {"--timeout x status --interval y", "--timeout takes a number of seconds, not 'x'"},
    {"ranks ../x", "'../x' is no job id: 1 to 127 letters, digits or any of . _ : @ -"},
    {"stalls a/b", "'a/b' is no job id"},
    {"job stop \033[2J", "'\\x1b[2J' is no job id"},
};

START_TEST(wrong_words_are_told_and_end_with_2)
{
    hvt_run(wrong[_i].words);
    hvt_expect_end(2, wrong[_i].complaint);
    if (strcmp(wrong[_i].words, "--json") == 0)
        hvt_expect_error(HVI_ERR_INVALID);
    else
        ck_assert_str_eq(hvt_out, "");
}
END_TEST

/* Of a complaint about an option, too, whether it stands before --json or after it. */
START_TEST(wrong_words_are_a_document_of_one_line)
{
    char words[128];
    for (int first = 0; first < 2; first++) {
        if (first == 0 && strcmp(wrong[_i].words, "status --timeout") == 0)
            continue; /* there --json would be the argument */
        snprintf(words, sizeof words, first ? "--json %s" : "%s --json", wrong[_i].words);
        hvt_run(words);
        hvt_expect_end(2, wrong[_i].complaint);
        cJSON *document = hvt_document();
        const cJSON *error = cJSON_GetObjectItem(document, "error");
        ck_assert_ptr_nonnull(cJSON_GetStringValue(cJSON_GetObjectItem(error, "text")));
        ck_assert_str_eq(strchr(hvt_out, '\n'), "\n");
        cJSON_Delete(document);
    }
}
END_TEST

static void expect_out(const char *text)
{
    ck_assert_msg(strstr(hvt_out, text) != NULL, "'%s' is not in '%s'", text, hvt_out);
}

START_TEST(help_names_every_command_and_option)
{
    static const char *const ways[] = {"help", "--help", "-h", "--help dance"};
    hvt_run(ways[_i]);
    hvt_expect_end(0, "");
    ck_assert_ptr_eq(strstr(hvt_out, "Usage: hvdctl [options] command\n\nCommands:\n"), hvt_out);
    expect_out("\n  status           the daemon: ");
    expect_out("\n  timeline JOB start FILE write a Chrome trace");
    expect_out("\n  --min-age S     stalls: ");
    expect_out("\nExit status: 0 ok, 1 refused or a problem found, 2 usage, 3 no daemon.\n");
}
END_TEST

START_TEST(help_of_one_word_has_its_commands_alone)
{
    hvt_run("help job");
    hvt_expect_end(0, "");
    expect_out("  job list         the same\n");
    expect_out("  job stop JOB     end a job ");
    ck_assert_ptr_null(strstr(hvt_out, "trace JOB"));
    ck_assert_ptr_null(strstr(hvt_out, "Usage:"));
}
END_TEST

/* ---- questions ---- */

START_TEST(status_is_asked_for_and_shown)
{
    const struct hvt_line lines[] = {{
        .kind = HVI_ADMIN_STATUS,
        .reply = {.has_daemon = true, .daemon = HVT_DAEMON("9.8.7")},
    }};
    HVT_RUN(lines, "--address @ status");
    hvt_expect_end(0, "");
    expect_out("hvdd         9.8.7, pid 17, ");
    HVT_RUN(lines, "status --json");
    hvt_expect_end(0, "");
    cJSON *document = hvt_document();
    const cJSON *daemon = cJSON_GetObjectItem(document, "daemon");
    ck_assert_int_eq((int)cJSON_GetNumberValue(cJSON_GetObjectItem(daemon, "pid")), 17);
    cJSON_Delete(document);
}
END_TEST

START_TEST(jobs_ranks_and_stalls_have_two_forms)
{
    const struct hvt_line jobs[] = {
        {.kind = HVI_ADMIN_JOBS, .reply = {.jobs = &digits, .job_count = 1}}};
    const struct hvt_line ranks[] = {
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = &rank_0, .rank_count = 1}}};
    const struct hvt_line stalls[] = {
        {.kind = HVI_ADMIN_STALLS, .reply = {.stalls = &waits, .stall_count = 1}}};
    const struct {
        const struct hvt_line *lines;
        const char *words, *array, *text;
    } forms[] = {
        {jobs, "jobs", "jobs", "digits"},
        {jobs, "job list", "jobs", "digits"},
        {ranks, "ranks digits", "ranks", "4711"},
        {ranks, "job ranks digits", "ranks", "4711"},
        {stalls, "stalls digits", "stalls", "barrier"},
    };
    char words[64];
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        hvt_run_played(forms[i].lines, 1, forms[i].words);
        hvt_expect_end(0, "");
        expect_out(forms[i].text);
        snprintf(words, sizeof words, "-j %s", forms[i].words);
        hvt_run_played(forms[i].lines, 1, words);
        hvt_expect_end(0, "");
        cJSON *document = hvt_document();
        const cJSON *array = cJSON_GetObjectItem(document, forms[i].array);
        ck_assert_int_eq(cJSON_GetArraySize(array), 1);
        cJSON_Delete(document);
    }
}
END_TEST

START_TEST(stalls_are_asked_for_with_an_age_and_without_a_job)
{
    const struct hvt_line lines[] = {{.kind = HVI_ADMIN_STALLS}};
    HVT_RUN(lines, "stalls --min-age 1.5");
    hvt_expect_end(0, "");
    ck_assert_str_eq(hvt_out, "nothing waits\n");
    ck_assert_uint_eq(hvt_asked[0].min_age_ns, 1500 * HVI_NS_MS);
    ck_assert_str_eq(hvt_asked[0].job, "");
}
END_TEST

START_TEST(nodes_take_two_questions)
{
    struct hvi_mesh_row row = {
        .name = "a", .address = "192.0.2.1", .port = 9600, .state = "listens"};
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_NODES, .reply = {.nodes = &row, .node_count = 1}},
        {.kind = HVI_ADMIN_JOBS, .reply = {.jobs = &digits, .job_count = 1}},
    };
    const struct hvt_line refused[] = {
        {.kind = HVI_ADMIN_NODES, .reply = {.nodes = &row, .node_count = 1}},
        {.kind = HVI_ADMIN_JOBS, .reply = {.status = HVI_ERR_LIMIT}},
    };
    HVT_RUN(lines, "nodes");
    hvt_expect_end(0, "");
    expect_out("192.0.2.1");
    HVT_RUN(lines, "nodes --json");
    hvt_expect_end(0, "");
    cJSON *document = hvt_document();
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(document, "nodes")), 1);
    cJSON_Delete(document);
    HVT_RUN(refused, "nodes");
    hvt_expect_end(1, hvi_status_text(HVI_ERR_LIMIT));
    ck_assert_str_eq(hvt_out, "");
}
END_TEST

static const struct {
    const char *nodes, *jobs, *note;
} node_notes[] = {{"", "silent", "silent"}, {"cut", "", "cut"}, {"cut", "silent", "cut; silent"}};

START_TEST(what_either_answer_of_nodes_says_is_in_the_document)
{
    struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_NODES, .reply = {.rows_left_out = 1}},
        {.kind = HVI_ADMIN_JOBS, .reply = {.rows_left_out = 2}},
    };
    strcpy(lines[0].reply.text, node_notes[_i].nodes);
    strcpy(lines[1].reply.text, node_notes[_i].jobs);
    HVT_RUN(lines, "nodes --json");
    hvt_expect_end(0, "");
    cJSON *document = hvt_document();
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(document, "note")),
                     node_notes[_i].note);
    ck_assert_int_eq((int)cJSON_GetNumberValue(cJSON_GetObjectItem(document, "rows_left_out")), 3);
    cJSON_Delete(document);
}
END_TEST

START_TEST(gpus_are_asked_for)
{
    struct hvi_gpu_row row = {.uuid = "GPU-1", .name = "Fake", .job = "x", .state = "idle"};
    const struct hvt_line line = {.kind = HVI_ADMIN_GPUS, .reply = {.gpus = &row, .gpu_count = 1}};
    hvt_run_played(&line, 1, "gpus");
    hvt_expect_end(0, "");
    expect_out("idle");
    hvt_run_played(&line, 1, "gpus --json");
    cJSON *document = hvt_document();
    const cJSON *gpu = cJSON_GetArrayItem(cJSON_GetObjectItem(document, "gpus"), 0);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(gpu, "gpu")), "GPU-1");
    cJSON_Delete(document);
}
END_TEST

START_TEST(limits_take_two_questions)
{
    struct hvi_limit_row row = {
        .limit = "max-jobs", .of = "user", .uid = 7, .counted = true, .used = 3, .most = 256};
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_LIMITS, .reply = {.limits = &row, .limit_count = 1}},
        {.kind = HVI_ADMIN_LIMITS, .reply = {.limits = &row, .limit_count = 1}},
    };
    const struct hvt_line refused[] = {
        {.kind = HVI_ADMIN_LIMITS},
        {.kind = HVI_ADMIN_LIMITS, .reply = {.status = HVI_ERR_REFUSED}}};
    HVT_RUN(lines, "limits --user 7 --json");
    hvt_expect_end(0, "");
    ck_assert(!hvt_asked[0].of_gate && hvt_asked[0].of_owner && hvt_asked[0].owner == 7);
    ck_assert(hvt_asked[1].of_gate && hvt_asked[1].of_owner && hvt_asked[1].owner == 7);
    cJSON *document = hvt_document();
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(document, "limits")), 2);
    cJSON_Delete(document);
    HVT_RUN(lines, "limits");
    expect_out("max-jobs");
    HVT_RUN(refused, "limits");
    hvt_expect_end(1, hvi_status_text(HVI_ERR_REFUSED));
    ck_assert_str_eq(hvt_out, "");
}
END_TEST

static double number_of(const cJSON *object, const char *name)
{
    const cJSON *number = cJSON_GetObjectItem(object, name);
    ck_assert_msg(cJSON_IsNumber(number), "%s", name);
    return number->valuedouble;
}

/* The second device of the fake NVML, on which a process has 600 MiB. */
START_TEST(nvml_is_asked_for_what_a_worker_does_not_know)
{
    struct hvi_gpu_row row = {.uuid = "GPU-66616b65-2067-7075-206f-66206e6f0001",
                              .job = "x",
                              .pid = 4711,
                              .state = "idle",
                              .imports = 1,
                              .import_bytes = 4096,
                              .staging_bytes = 80u << 20,
                              .comms = 3};
    const struct hvt_line line = {.kind = HVI_ADMIN_GPUS, .reply = {.gpus = &row, .gpu_count = 1}};
    setenv("FAKEGPU", "devices=3;memory=1000;used=700;process=4711:600", 1);
    hvt_run_played(&line, 1, "gpus --json");
    cJSON *document = hvt_document();
    const cJSON *gpu = cJSON_GetArrayItem(cJSON_GetObjectItem(document, "gpus"), 0);
    ck_assert_double_eq(number_of(gpu, "own_bytes"), 520 << 20);
    ck_assert_double_eq(number_of(gpu, "free_bytes"), 300 << 20);
    ck_assert_double_eq(number_of(gpu, "import_bytes"), 4096);
    ck_assert_double_eq(number_of(gpu, "communicators"), 3);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(gpu, "nvlink")), "NV2");
    cJSON_Delete(document);
    hvt_run_played(&line, 1, "gpus");
    expect_out("520.0 MiB");
    expect_out("NV2");
    setenv("FAKEGPU", "devices=3;nvml-holes=1", 1);
    hvt_run_played(&line, 1, "gpus");
    hvt_expect_end(0, "");
    expect_out("80.0 MiB");
}
END_TEST

START_TEST(a_job_is_stopped_with_a_reason)
{
    const struct hvt_line says[] = {
        {.kind = HVI_ADMIN_JOB_STOP, .reply = {.text = "on 2 nodes\a"}}};
    const struct hvt_line silent[] = {{.kind = HVI_ADMIN_JOB_STOP}};
    HVT_RUN(says, "job stop digits --reason enough");
    hvt_expect_end(0, "");
    ck_assert_str_eq(hvt_asked[0].job, "digits");
    ck_assert_str_eq(hvt_asked[0].reason, "enough");
    ck_assert_str_eq(hvt_out, "on 2 nodes\\x07\n");
    HVT_RUN(silent, "job stop digits --json");
    hvt_expect_end(0, "");
    ck_assert_str_eq(hvt_asked[0].reason, "");
    cJSON *document = hvt_document();
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(document, "done")),
                     "job digits is being stopped");
    cJSON_Delete(document);
}
END_TEST

START_TEST(version_is_told_with_and_without_a_hvdd)
{
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_STATUS, .reply = {.has_daemon = true, .daemon = HVT_DAEMON("9.8.7")}}};
    const struct hvt_line silent[] = {{.kind = HVI_ADMIN_STATUS, .silent = true}};
    HVT_RUN(lines, "version");
    hvt_expect_end(0, "");
    ck_assert_str_eq(hvt_out, "hvdctl " HVD_VERSION_TEXT "\nhvdd 9.8.7\n");
    HVT_RUN(silent, "--version --timeout 0.02");
    hvt_expect_end(0, "");
    ck_assert_str_eq(hvt_out, "hvdctl " HVD_VERSION_TEXT "\nhvdd (none running)\n");
    hvt_run("version --json");
    hvt_expect_end(0, "");
    cJSON *document = hvt_document();
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(document, "hvdd")));
    cJSON_Delete(document);
}
END_TEST

/* ---- what is missing ---- */

static struct hvi_span_row parts[] = {
    {.job = "digits", .node = 0, .name = "a", .address = "192.0.2.1", .port = 9600, .here = true},
    {.job = "digits",
     .node = 1,
     .name = "b",
     .address = "192.0.2.1",
     .port = 9600,
     .text = "node 1, b, does not \033answer"},
};

START_TEST(a_node_that_is_silent_is_told_beside_the_table)
{
    const struct hvt_line lines[] = {{
        .kind = HVI_ADMIN_RANKS,
        .reply =
            {.text = "not all", .ranks = &rank_0, .rank_count = 1, .spans = parts, .span_count = 2},
    }};
    HVT_RUN(lines, "ranks digits");
    hvt_expect_end(0, "hvdctl: job 'digits': node 1, b, does not \\x1banswer\n");
    ck_assert_ptr_null(strstr(hvt_err, "not all"));
    expect_out("4711");
    HVT_RUN(lines, "ranks digits --json");
    hvt_expect_end(0, ""); /* in the document */
    expect_out("does not ");
}
END_TEST

START_TEST(an_engine_that_is_silent_is_told_beside_the_table)
{
    const struct hvt_line lines[] = {{
        .kind = HVI_ADMIN_JOBS,
        .reply = {.text = "an engine is silent", .spans = parts, .span_count = 1},
    }};
    HVT_RUN(lines, "jobs");
    hvt_expect_end(0, "hvdctl: an engine is silent\n");
}
END_TEST

/* ---- no answer ---- */

START_TEST(a_refusal_is_told_in_hvdds_words_or_in_the_words_of_its_status)
{
    const struct hvt_line says[] = {
        {.kind = HVI_ADMIN_RANKS, .reply = {.status = HVI_ERR_NOT_FOUND, .text = "no job \033 x"}}};
    const struct hvt_line silent[] = {
        {.kind = HVI_ADMIN_STALLS, .reply = {.status = HVI_ERR_REFUSED}}};
    HVT_RUN(says, "ranks x");
    hvt_expect_end(1, "hvdctl: no job \\x1b x\n");
    ck_assert_str_eq(hvt_out, "");
    HVT_RUN(silent, "stalls --json");
    hvt_expect_end(1, hvi_status_text(HVI_ERR_REFUSED));
    hvt_expect_error(HVI_ERR_REFUSED);
}
END_TEST

START_TEST(a_refusal_of_any_command_ends_with_1)
{
    static const struct {
        enum hvi_admin_kind kind;
        const char *words;
    } all[] = {
        {HVI_ADMIN_STATUS, "status"},      {HVI_ADMIN_JOBS, "jobs"},
        {HVI_ADMIN_RANKS, "ranks x"},      {HVI_ADMIN_JOB_STOP, "job stop x"},
        {HVI_ADMIN_NODES, "nodes"},        {HVI_ADMIN_TRACE, "trace x --rank 0"},
        {HVI_ADMIN_RANKS, "top x --once"}, {HVI_ADMIN_GPUS, "gpus"},
        {HVI_ADMIN_LIMITS, "limits"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const struct hvt_line line = {.kind = all[i].kind,
                                      .reply = {.status = HVI_ERR_REFUSED, .text = "not you"}};
        hvt_run_played(&line, 1, all[i].words);
        hvt_expect_end(1, "hvdctl: not you\n");
        ck_assert_str_eq(hvt_out, "");
    }
}
END_TEST

START_TEST(whose_job_is_meant_is_asked_for_by_name_or_number)
{
    static const struct {
        const char *words;
        uint32_t owner;
    } rows[] = {{"ranks x --user root", 0},
                {"trace x --user 4294967294 --rank 0", UINT32_MAX - 1},
                {"stalls x --user 7", 7},
                {"job stop x --user 7", 7},
                {"top x --user 7", 7}};
    static const enum hvi_admin_kind kinds[] = {HVI_ADMIN_RANKS, HVI_ADMIN_TRACE, HVI_ADMIN_STALLS,
                                                HVI_ADMIN_JOB_STOP, HVI_ADMIN_RANKS};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct hvt_line line = {.kind = kinds[i],
                                      .reply = {.status = HVI_ERR_REFUSED, .text = "not you"}};
        hvt_run_played(&line, 1, rows[i].words);
        hvt_expect_end(1, "hvdctl: not you\n");
        ck_assert(hvt_asked[0].of_owner);
        ck_assert_uint_eq(hvt_asked[0].owner, rows[i].owner);
    }
}
END_TEST

START_TEST(an_answer_that_is_cut_off_makes_no_sense)
{
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_JOBS, .reply = {.jobs = &digits, .job_count = 1}, .cut = 1}};
    HVT_RUN(lines, "jobs --json");
    hvt_expect_end(1, "makes no sense: AdminReply: malformed, cut short");
    hvt_expect_error(HVI_ERR_PROTOCOL);
}
END_TEST

START_TEST(silence_ends_after_the_timeout)
{
    const struct hvt_line lines[] = {{.kind = HVI_ADMIN_STATUS, .silent = true}};
    HVT_RUN(lines, "status --timeout 0.02 --json");
    hvt_expect_end(3, "did not answer within 20.0 ms. It may be stopped or stuck");
    hvt_expect_error(HVI_ERR_TIMEOUT);
}
END_TEST

START_TEST(a_hvdd_that_goes_is_no_daemon)
{
    const struct hvt_line lines[] = {{.kind = HVI_ADMIN_STATUS, .gone = true}};
    HVT_RUN(lines, "status --timeout 20");
    hvt_expect_end(3, "no hvdd is running. Tried: /tmp/hvt-ctl-");
}
END_TEST

START_TEST(without_a_hvdd_every_place_is_named)
{
    hvt_run("status --json");
    hvt_expect_end(3, "no hvdd is running. Tried: /tmp/hvt-ctl-");
    hvt_expect_error(HVI_ERR_NO_DAEMON);
    hvt_run("status --address @/none");
    hvt_expect_end(3, "/none (nothing there). Start one (hvdd, or systemctl start hvdd)");
}
END_TEST

START_TEST(a_directory_whose_path_is_too_long_is_a_wrong_argument)
{
    char words[400] = "status --address /";
    memset(words + strlen(words), 'x', 300);
    hvt_run(words);
    hvt_expect_end(2, "bad address: the path is longer than ");
}
END_TEST

START_TEST(a_table_that_cannot_be_written_is_no_success)
{
    hvt_out_path = "/dev/full";
    hvt_run("help");
    hvt_expect_end(1, "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdctl/main");
    TCase *tests = tcase_create("main");
    tcase_add_checked_fixture(tests, hvt_program_setup, hvt_program_teardown);
    tcase_add_loop_test(tests, wrong_words_are_a_document_of_one_line, 0,
                        sizeof wrong / sizeof wrong[0]);
    tcase_add_loop_test(tests, wrong_words_are_told_and_end_with_2, 0,
                        sizeof wrong / sizeof wrong[0]);
    tcase_add_loop_test(tests, help_names_every_command_and_option, 0, 4);
    tcase_add_test(tests, help_of_one_word_has_its_commands_alone);
    tcase_add_test(tests, status_is_asked_for_and_shown);
    tcase_add_test(tests, jobs_ranks_and_stalls_have_two_forms);
    tcase_add_test(tests, stalls_are_asked_for_with_an_age_and_without_a_job);
    tcase_add_test(tests, nodes_take_two_questions);
    tcase_add_loop_test(tests, what_either_answer_of_nodes_says_is_in_the_document, 0, 3);
    tcase_add_test(tests, gpus_are_asked_for);
    tcase_add_test(tests, limits_take_two_questions);
    tcase_add_test(tests, nvml_is_asked_for_what_a_worker_does_not_know);
    tcase_add_test(tests, a_job_is_stopped_with_a_reason);
    tcase_add_test(tests, version_is_told_with_and_without_a_hvdd);
    tcase_add_test(tests, a_node_that_is_silent_is_told_beside_the_table);
    tcase_add_test(tests, an_engine_that_is_silent_is_told_beside_the_table);
    tcase_add_test(tests, a_refusal_is_told_in_hvdds_words_or_in_the_words_of_its_status);
    tcase_add_test(tests, a_refusal_of_any_command_ends_with_1);
    tcase_add_test(tests, whose_job_is_meant_is_asked_for_by_name_or_number);
    tcase_add_test(tests, an_answer_that_is_cut_off_makes_no_sense);
    tcase_add_test(tests, silence_ends_after_the_timeout);
    tcase_add_test(tests, a_hvdd_that_goes_is_no_daemon);
    tcase_add_test(tests, without_a_hvdd_every_place_is_named);
    tcase_add_test(tests, a_directory_whose_path_is_too_long_is_a_wrong_argument);
    tcase_add_test(tests, a_table_that_cannot_be_written_is_no_success);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * hvdctl --json: one document that a parser takes, with numbers that lose nothing. */
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvdctl/reply.h"

#include <cjson/cJSON.h>
#include <string.h>

/* The document that was written; to be deleted by the caller. */
static cJSON *parse(struct ctl *ctl)
{
    const char *end = NULL;
    fclose(ctl->out);
    cJSON *document = cJSON_ParseWithOpts(hvt_text, &end, 0);
    ck_assert_msg(document != NULL, "no JSON: %s", hvt_text);
    ck_assert_str_eq(end, "\n");
    return document;
}

static const char *string(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItem(object, name));
}

static double number(const cJSON *object, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(object, name));
}

START_TEST(status_has_raw_numbers)
{
    struct ctl ctl = hvt_ctl();
    ctl_json_status(&ctl, &hvt_reply);
    cJSON *document = parse(&ctl);
    const cJSON *daemon = cJSON_GetObjectItem(document, "daemon");
    ck_assert_str_eq(string(daemon, "runtime_dir"), "/run/hvdd");
    ck_assert_str_eq(string(daemon, "gpu_program"), "/usr/libexec/hvdd/hvdd-gpu");
    ck_assert_str_eq(string(daemon, "gpu_library_path"), "/opt/site-packages");
    ck_assert(number(daemon, "pid") == 17);
    ck_assert_ptr_nonnull(strstr(hvt_text, "18446744073709551615")); /* not 1.8e19 */
    cJSON_Delete(document);
    free(hvt_text);
}
END_TEST

START_TEST(jobs_and_ranks_are_arrays)
{
    struct ctl ctl = hvt_ctl();
    ctl_json_jobs(&ctl, &hvt_reply);
    cJSON *document = parse(&ctl);
    const cJSON *jobs = cJSON_GetObjectItem(document, "jobs");
    ck_assert_int_eq(cJSON_GetArraySize(jobs), 2);
    ck_assert(number(cJSON_GetArrayItem(jobs, 0), "age_ns") == 65e9);
    ck_assert(number(cJSON_GetArrayItem(jobs, 0), "bytes") == 1610612736);
    ck_assert_str_eq(string(cJSON_GetArrayItem(jobs, 1), "state"), "failed");
    cJSON_Delete(document);
    free(hvt_text);

    ctl = hvt_ctl();
    ctl_json_ranks(&ctl, "digits", &hvt_reply);
    document = parse(&ctl);
    ck_assert_str_eq(string(document, "job"), "digits");
    const cJSON *ranks = cJSON_GetObjectItem(document, "ranks");
    ck_assert_int_eq(cJSON_GetArraySize(ranks), 3);
    ck_assert_str_eq(string(cJSON_GetArrayItem(ranks, 0), "process"), "S");
    ck_assert(number(cJSON_GetArrayItem(ranks, 0), "lag_max_ns") == 2e6);
    ck_assert_str_eq(string(cJSON_GetArrayItem(ranks, 1), "text"),
                     "was killed by signal 9 (SIGKILL)");
    cJSON_Delete(document);
    free(hvt_text);
}
END_TEST

START_TEST(nodes_of_a_job_have_their_ranks_and_links)
{
    static const int32_t ranks[] = {2, 3};
    const struct hvd_admin_link control = {
        .to = 1, .purpose = HVD_ADMIN_LINK_CONTROL, .messages_sent = 5, .transport = "tcp"};
    const struct hvd_admin_link data = {.to = 1,
                                        .lane = 2,
                                        .bytes_sent = 1 << 20,
                                        .retransmits = 3,
                                        .rtt_ns = 7,
                                        .transport = "ucx"};
    const struct hvd_admin_link *const links[] = {&control, &data};
    const struct hvd_admin_span span = {.job = "x",
                                        .name = "a",
                                        .address = "192.0.2.1",
                                        .port = 9601,
                                        .here = 1,
                                        .text = "",
                                        .ranks = ranks,
                                        .rank_count = 2,
                                        .links = links,
                                        .link_count = 2};
    const struct hvd_admin_span *const spans[] = {&span};
    struct hvd_admin_answer reply = hvt_reply;
    struct ctl ctl = hvt_ctl();
    reply.spans = spans;
    reply.span_count = 1;
    ctl_json_jobs(&ctl, &reply);
    cJSON *document = parse(&ctl);
    const cJSON *node = cJSON_GetArrayItem(cJSON_GetObjectItem(document, "job_nodes"), 0);
    ck_assert_str_eq(string(node, "name"), "a");
    ck_assert(number(node, "port") == 9601);
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(node, "answered")));
    ck_assert(cJSON_GetNumberValue(cJSON_GetArrayItem(cJSON_GetObjectItem(node, "ranks"), 1)) == 3);
    const cJSON *rows = cJSON_GetObjectItem(node, "links");
    ck_assert_int_eq(cJSON_GetArraySize(rows), 2);
    ck_assert_str_eq(string(cJSON_GetArrayItem(rows, 0), "kind"), "control");
    ck_assert(number(cJSON_GetArrayItem(rows, 0), "messages_sent") == 5);
    ck_assert_str_eq(string(cJSON_GetArrayItem(rows, 1), "kind"), "data");
    ck_assert_str_eq(string(cJSON_GetArrayItem(rows, 1), "transport"), "ucx");
    ck_assert(number(cJSON_GetArrayItem(rows, 1), "lane") == 2);
    ck_assert(number(cJSON_GetArrayItem(rows, 1), "bytes_sent") == 1048576);
    ck_assert(number(cJSON_GetArrayItem(rows, 1), "retransmits") == 3);
    ck_assert(number(cJSON_GetArrayItem(rows, 1), "rtt_ns") == 7);
    cJSON_Delete(document);
    free(hvt_text);
}
END_TEST

START_TEST(stalls_keep_the_bytes_of_a_name)
{
    struct ctl ctl = hvt_ctl();
    ctl_json_stalls(&ctl, &hvt_reply);
    cJSON *document = parse(&ctl);
    const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(document, "stalls"), 0);
    ck_assert_str_eq(string(row, "tensor"), "w1\033[2J\x7f\xc2\x9b\xe2\x80\xae");
    ck_assert_ptr_nonnull(strstr(hvt_text, "\"w1\\u001b[2J\\u007f\\u009b\\u202e\""));
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(row, "ready")), 6);
    const cJSON *missing = cJSON_GetObjectItem(row, "missing");
    ck_assert(number(cJSON_GetArrayItem(missing, 0), "pid") == 4714);
    ck_assert_str_eq(string(cJSON_GetArrayItem(missing, 0), "process"), "T");
    cJSON_Delete(document);
    free(hvt_text);
}
END_TEST

START_TEST(stalls_have_the_nodes_of_missing_ranks)
{
    static const int32_t ranks[] = {3};
    const struct hvd_admin_span span = {.job = "digits",
                                        .node = 1,
                                        .name = "b",
                                        .address = "192.0.2.2",
                                        .text = "",
                                        .ranks = ranks,
                                        .rank_count = 1};
    const struct hvd_admin_span *const spans[] = {&span};
    struct hvd_admin_answer reply = hvt_reply;
    struct ctl ctl = hvt_ctl();
    reply.spans = spans;
    reply.span_count = 1;
    ctl_json_stalls(&ctl, &reply);
    cJSON *document = parse(&ctl);
    const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(document, "stalls"), 0);
    const cJSON *missing = cJSON_GetObjectItem(row, "missing");
    const cJSON *known = cJSON_GetArrayItem(missing, 0);
    ck_assert(number(known, "node") == 1);
    ck_assert_str_eq(string(known, "node_name"), "b");
    ck_assert_str_eq(string(known, "node_address"), "192.0.2.2");
    ck_assert_ptr_null(cJSON_GetObjectItem(cJSON_GetArrayItem(missing, 1), "node"));
    cJSON_Delete(document);
    free(hvt_text);
}
END_TEST

START_TEST(an_event_is_a_line_with_all_that_it_has)
{
    struct ctl ctl = hvt_ctl();
    const char *const added[] = {"n3", "n\033[4"}, *const removed[] = {"n2"};
    const struct hvd_admin_event event = {.kind = HVD_ADMIN_EVENT_HOSTS_CHANGED,
                                          .at_ns = UINT64_MAX,
                                          .job = "",
                                          .rank = HVD_ADMIN_ANY,
                                          .node = "",
                                          .text = "",
                                          .count = 4,
                                          .added = added,
                                          .added_count = 2,
                                          .removed = removed,
                                          .removed_count = 1};
    ctl_json_event(&ctl, &event, "hosts-changed");
    cJSON *document = parse(&ctl);
    ck_assert_ptr_eq(strchr(hvt_text, '\n'), hvt_text + strlen(hvt_text) - 1);
    ck_assert_str_eq(string(document, "event"), "hosts-changed");
    ck_assert_ptr_nonnull(strstr(hvt_text, "\"at_ns\":18446744073709551615"));
    ck_assert(number(document, "kind") == 9 && number(document, "count") == 4);
    ck_assert(number(document, "rank") == -1);
    const cJSON *names = cJSON_GetObjectItem(document, "added");
    ck_assert_int_eq(cJSON_GetArraySize(names), 2);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetArrayItem(names, 1)), added[1]);
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(document, "removed")), 1);
    cJSON_Delete(document);
    free(hvt_text);
}
END_TEST

START_TEST(an_error_is_a_document_too)
{
    struct ctl ctl = hvt_ctl();
    ctl_json_error(&ctl, HVI_ERR_NOT_FOUND, "no \"x\"");
    cJSON *document = parse(&ctl);
    const cJSON *error = cJSON_GetObjectItem(document, "error");
    ck_assert(number(error, "status") == HVI_ERR_NOT_FOUND);
    ck_assert_str_eq(string(error, "name"), "ERR_NOT_FOUND");
    ck_assert_str_eq(string(error, "text"), "no \"x\"");
    cJSON_Delete(document);
    free(hvt_text);
}
END_TEST

START_TEST(an_absent_daemon_is_null)
{
    struct ctl ctl = hvt_ctl();
    ctl_json_version(&ctl, NULL);
    cJSON *document = parse(&ctl);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(document, "hvdd")));
    ck_assert_str_eq(string(document, "hvdctl"), HVD_VERSION_TEXT);
    cJSON_Delete(document);
    free(hvt_text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdctl/json");
    TCase *tests = tcase_create("json");
    tcase_add_test(tests, status_has_raw_numbers);
    tcase_add_test(tests, jobs_and_ranks_are_arrays);
    tcase_add_test(tests, nodes_of_a_job_have_their_ranks_and_links);
    tcase_add_test(tests, stalls_keep_the_bytes_of_a_name);
    tcase_add_test(tests, stalls_have_the_nodes_of_missing_ranks);
    tcase_add_test(tests, an_event_is_a_line_with_all_that_it_has);
    tcase_add_test(tests, an_error_is_a_document_too);
    tcase_add_test(tests, an_absent_daemon_is_null);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

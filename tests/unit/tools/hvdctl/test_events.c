/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl events`: a line for each event, and how it ends. */
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvdctl/hvt_program.h"

static struct hvi_event_host added[] = {{.name = "n2"}, {.name = "n3"}};
static struct hvi_event_host removed[] = {{.name = "n4"}};
static struct hvi_event_row joined[] = {
    {.kind = HVI_EVENT_NODE_JOINED, .rank = -1, .node = "n2", .text = "10.0.0.2", .at_ns = 5},
    {.kind = HVI_EVENT_NODE_LOST, .rank = -1, .node = "n4", .text = "its connection has ended"},
};
static struct hvi_event_row changed = {.kind = HVI_EVENT_HOSTS_CHANGED,
                                       .rank = -1,
                                       .count = 3,
                                       .added = added,
                                       .added_count = 2,
                                       .removed = removed,
                                       .removed_count = 1};
static struct hvi_event_row rank_lost = {
    .kind = HVI_EVENT_RANK_LOST, .job = "digits", .rank = 3, .pid = 4711, .text = "killed"};
static struct hvi_event_row later = {.kind = 99, .rank = -1, .text = "of a later hvdd"};

static const struct hvt_line lines[] = {
    {.kind = HVI_ADMIN_EVENTS},
    {.more = true, .reply = {.events = joined, .event_count = 2}},
    {.more = true, .reply = {.events = &changed, .event_count = 1}},
    {.more = true, .reply = {.events = &rank_lost, .event_count = 1}},
    {.more = true, .reply = {.events = &later, .event_count = 1}},
    {.more = true, .gone = true},
};

/* The next line as a document, to be deleted by the caller. */
static cJSON *next_line(char **rest_p)
{
    char *line = strtok_r(NULL, "\n", rest_p);
    cJSON *document = line != NULL ? cJSON_Parse(line) : NULL;
    ck_assert_msg(document != NULL, "no JSON: %s", line != NULL ? line : "the end");
    return document;
}

static void expect_event(cJSON *document, const char *event, const char *name, const char *text)
{
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(document, "event")), event);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(document, name)), text);
    cJSON_Delete(document);
}

START_TEST(each_event_is_a_document_and_a_later_hvdds_is_unknown)
{
    static char first[] = "\n{\"event\":\"subscribed\"}";
    char *rest;
    HVT_RUN(lines, "events --json");
    hvt_expect_end(3, "no hvdd is running");
    ck_assert_ptr_eq(strstr(hvt_out, first + 1), hvt_out);
    (void)strtok_r(hvt_out, "\n", &rest);
    expect_event(next_line(&rest), "node-joined", "text", "10.0.0.2");
    expect_event(next_line(&rest), "node-lost", "node", "n4");
    cJSON *hosts = next_line(&rest);
    const cJSON *names = cJSON_GetObjectItem(hosts, "added");
    ck_assert_int_eq(cJSON_GetArraySize(names), 2);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetArrayItem(names, 1)), "n3");
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(hosts, "removed")), 1);
    ck_assert_int_eq((int)cJSON_GetNumberValue(cJSON_GetObjectItem(hosts, "count")), 3);
    expect_event(hosts, "hosts-changed", "node", "");
    expect_event(next_line(&rest), "rank-lost", "job", "digits");
    expect_event(next_line(&rest), "unknown", "text", "of a later hvdd");
    cJSON *error = next_line(&rest);
    ck_assert_ptr_nonnull(cJSON_GetObjectItem(error, "error"));
    cJSON_Delete(error);
    ck_assert_ptr_null(strtok_r(NULL, "\n", &rest));
}
END_TEST

START_TEST(each_event_is_a_line_for_people)
{
    HVT_RUN(lines, "events");
    hvt_expect_end(3, "no hvdd is running");
    ck_assert_ptr_nonnull(strstr(hvt_out, "  subscribed\n"));
    ck_assert_ptr_nonnull(strstr(hvt_out, "node-joined"));
    ck_assert_ptr_nonnull(strstr(hvt_out, "added n2, n3  removed n4  now 3\n"));
    ck_assert_ptr_nonnull(strstr(hvt_out, "job digits  rank 3  killed\n"));
}
END_TEST

START_TEST(where_nothing_can_be_written_it_ends_with_an_error)
{
    hvt_out_path = "/dev/full";
    hvt_run_played(lines, 1, "events");
    hvt_expect_end(1, "hvdctl: the events cannot be written: No space left on device\n");
}
END_TEST

START_TEST(without_a_subscription_it_says_why)
{
    const struct hvt_line refused[] = {
        {.kind = HVI_ADMIN_EVENTS,
         .reply = {.status = HVI_ERR_REFUSED, .text = "this hvdd is private to another user"}}};
    char words[300];
    HVT_RUN(refused, "events");
    hvt_expect_end(1, "hvdctl: this hvdd is private to another user\n");
    ck_assert_str_eq(hvt_out, "");
    hvt_run("events");
    hvt_expect_end(3, "no hvdd is running");
    snprintf(words, sizeof words, "events --address /%0200d", 0);
    hvt_run(words);
    hvt_expect_end(2, "hvdctl: ");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hvdctl events");
    TCase *tests = tcase_create("events");

    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, hvt_program_setup, hvt_program_teardown);
    tcase_add_test(tests, each_event_is_a_document_and_a_later_hvdds_is_unknown);
    tcase_add_test(tests, each_event_is_a_line_for_people);
    tcase_add_test(tests, where_nothing_can_be_written_it_ends_with_an_error);
    tcase_add_test(tests, without_a_subscription_it_says_why);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

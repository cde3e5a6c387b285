/* SPDX-License-Identifier: Apache-2.0
 * hvdctl's tables, word for word. uid 0 is root everywhere. */
#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvdctl/reply.h"

#include <string.h>

#define EXPECT(ctl, golden)                                                                        \
    do {                                                                                           \
        fclose((ctl).out);                                                                         \
        ck_assert_str_eq(hvt_text, (golden));                                                      \
        free(hvt_text);                                                                            \
    } while (0)

START_TEST(status_is_a_short_list)
{
    struct ctl ctl = hvt_ctl();
    hvt_daemon.uptime_ns = 65000000000ull;
    ctl_show_status(&ctl, &hvt_reply);
    EXPECT(ctl, "hvdd         0.1.0, pid 17, user root, running for 1 min 5 s\n"
                "directory    /run/hvdd\n"
                "jobs         2\n"
                "sessions     5 now, 9 since start\n"
                "refused      1\n"
                "ranks lost   3\n");
}
END_TEST

START_TEST(lost_log_lines_are_mentioned_only_when_there_are_any)
{
    struct ctl ctl = hvt_ctl();
    hvt_daemon.uptime_ns = 1;
    hvt_daemon.log_lost = 7;
    ctl_show_status(&ctl, &hvt_reply);
    fclose(ctl.out);
    ck_assert_ptr_nonnull(strstr(hvt_text, "log          7 lines could not be written\n"));
    free(hvt_text);
}
END_TEST

START_TEST(what_only_some_hvdds_have_has_a_line_of_its_own)
{
    struct ctl ctl = hvt_ctl();
    hvt_daemon.uptime_ns = 1;
    hvt_daemon.uid = 4294967294u; /* no user has that number */
    hvt_daemon.mesh_port = 9600;
    ctl_show_status(&ctl, &hvt_reply);
    fclose(ctl.out);
    ck_assert_ptr_nonnull(strstr(hvt_text, ", user 4294967294, "));
    ck_assert_ptr_nonnull(strstr(hvt_text, "\nmesh port    9600\n"));
    free(hvt_text);
}
END_TEST

START_TEST(jobs_are_a_table)
{
    struct ctl ctl = hvt_ctl();
    struct hvd_admin_answer reply = hvt_reply;
    reply.rows_left_out = 3;
    ctl_show_jobs(&ctl, &reply);
    EXPECT(ctl, "JOB     GEN  USER  STATE    RANKS  NODES        AGE  ENGINE        OPS    BYTES\n"
                "digits    1  root  running    4/4      2  1 min 5 s    4712  1,234,567  1.5 GiB\n"
                "b        12  root  failed     1/2      1     1.5 ms      99          0      0 B\n"
                "(3 more not shown)\n");
}
END_TEST

START_TEST(of_another_users_job_the_table_tells_no_figures)
{
    struct ctl ctl = hvt_ctl();
    struct hvd_admin_job theirs = hvt_jobs[0];
    const struct hvd_admin_job *const rows[] = {&theirs};
    struct hvd_admin_answer reply = {.jobs = rows, .job_count = 1};
    theirs.withheld = true;
    ctl_show_jobs(&ctl, &reply);
    EXPECT(ctl, "JOB     GEN  USER  STATE    RANKS  NODES        AGE  ENGINE  OPS  BYTES\n"
                "digits    1  root  running    4/4      -  1 min 5 s    4712    -      -\n");
}
END_TEST

START_TEST(jobs_of_the_mesh_have_a_node_and_nothing_that_engines_know)
{
    struct ctl ctl = hvt_ctl();
    struct hvd_admin_job theirs = hvt_jobs[0];
    const struct hvd_admin_job *const rows[] = {&theirs};
    struct hvd_admin_answer reply = {.jobs = rows, .job_count = 1};
    theirs.withheld = true;
    theirs.node = "n1";
    ctl.of_mesh = true;
    ctl_show_jobs(&ctl, &reply);
    EXPECT(ctl, "NODE  JOB     GEN  USER  STATE    RANKS        AGE  ENGINE\n"
                "n1    digits    1  root  running    4/4  1 min 5 s    4712\n");
}
END_TEST

START_TEST(nodes_are_a_table_and_a_missing_mesh_a_sentence)
{
    struct hvd_admin_node rows[] = {
        {.name = "a",
         .address = "192.0.2.1",
         .port = 9600,
         .state = "listens",
         .jobs = "x, y",
         .version = "0.1.0"},
        {.name = "b",
         .address = "192.0.2.2",
         .state = "joined",
         .heard_ns = 1500000,
         .joined_ns = 65000000000ull,
         .jobs = "x",
         .version = "0.2.0"},
        {.name = "c",
         .address = "",
         .state = "refused",
         .heard_ns = 65000000000ull,
         .jobs = "",
         .version = ""},
    };
    const struct hvd_admin_node *const list[] = {&rows[0], &rows[1], &rows[2]};
    struct ctl ctl = hvt_ctl();
    struct hvd_admin_answer reply = {.text = "", .nodes = list, .node_count = 3};
    ctl_show_nodes(&ctl, &reply);
    EXPECT(ctl, "NODE  ADDRESS    PORT  STATE    VERSION      SINCE      HEARD  JOBS\n"
                "a     192.0.2.1  9600  listens  0.1.0            -          -  x, y\n"
                "b     192.0.2.2     -  joined   0.2.0    1 min 5 s     1.5 ms  x\n"
                "c     -             -  refused  -                -  1 min 5 s\n");
    ctl = hvt_ctl();
    reply = (struct hvd_admin_answer){.text = "this hvdd has no mesh"};
    ctl_show_nodes(&ctl, &reply);
    EXPECT(ctl, "nodes        this hvdd has no mesh\n");
    ctl = hvt_ctl();
    reply = (struct hvd_admin_answer){.text = "the hub is away", .nodes = list, .node_count = 1};
    ctl_show_nodes(&ctl, &reply);
    EXPECT(ctl, "NODE  ADDRESS    PORT  STATE    VERSION  SINCE  HEARD  JOBS\n"
                "a     192.0.2.1  9600  listens  0.1.0        -      -  x, y\n"
                "mesh         the hub is away\n");
}
END_TEST

START_TEST(links_between_the_nodes_of_a_job_are_a_table)
{
    struct hvd_admin_link rows[] = {
        {.to = 1,
         .purpose = HVD_ADMIN_LINK_CONTROL,
         .bytes_sent = 2048,
         .bytes_received = 1024,
         .messages_sent = 12345,
         .messages_received = 7,
         .rtt_ns = 1500,
         .transport = "tcp"},
        {.to = 1, .lane = 0, .bytes_sent = 1 << 20, .retransmits = 3, .transport = "tcp"},
        {.to = 2, .lane = 1, .bytes_received = 1 << 20, .transport = "ucx"},
    };
    const struct hvd_admin_link *const links[] = {&rows[0], &rows[1], &rows[2]};
    struct hvd_admin_span spans[] = {
        {.job = "x", .name = "a", .address = "192.0.2.1", .links = links, .link_count = 3},
        {.job = "x", .node = 1, .name = "b", .address = "192.0.2.2"},
        {.job = "other", .node = 2, .name = "c", .address = "192.0.2.3"}, /* none of x's */
    };
    const struct hvd_admin_span *const list[] = {&spans[0], &spans[1], &spans[2]};
    struct hvd_admin_answer reply = {.spans = list, .span_count = 3};
    struct ctl ctl = hvt_ctl();
    ctl_show_links(&ctl, &reply);
    EXPECT(ctl, "\n"
                "JOB  LINK OF  TO   KIND            SENT  RECEIVED  MESSAGES OUT  IN  RETRANSMITS"
                "     RTT\n"
                "x    0 a      1 b  control      2.0 KiB   1.0 KiB        12,345   7            0"
                "  1.5 µs\n"
                "x    0 a      1 b  data 0       1.0 MiB       0 B             -   -            3"
                "       -\n"
                "x    0 a      -    data 1, ucx      0 B   1.0 MiB             -   -            0"
                "       -\n");
    ctl = hvt_ctl();
    spans[0].link_count = 0;
    ctl_show_links(&ctl, &reply);
    EXPECT(ctl, "");
}
END_TEST

START_TEST(workers_of_gpus_are_a_table)
{
    struct hvd_admin_gpu rows[] = {
        {.uuid = "GPU-1",
         .name = "Fake",
         .job = "x",
         .pid = 7,
         .state = "idle",
         .import_bytes = 3u << 20,
         .staging_bytes = 80u << 20,
         .own_bytes = 500u << 20,
         .communicators = 2,
         .links = "NV18",
         .driver_version = 12040,
         .nccl_version = 22809},
        {.uuid = "GPU-2", .name = "", .job = "long", .state = "starting", .links = ""},
    };
    struct ctl ctl = hvt_ctl();
    struct hvd_admin_answer reply = {.text = "", .gpu_count = 2};
    ctl_show_gpus(&ctl, &reply, rows);
    EXPECT(ctl, "GPU    NAME  JOB   USER  PID  STATE     IMPORTED   STAGING        OWN  FREE  "
                "COMMS  NVLINK  CUDA  NCCL\n"
                "GPU-1  Fake  x     root    7  idle       3.0 MiB  80.0 MiB  500.0 MiB     -  "
                "    2  NV18    12.4  2.28.9\n"
                "GPU-2  -     long  root    -  starting         -         -          -     -  "
                "    0  -       -     -\n");
    ctl = hvt_ctl();
    reply.gpu_count = 0;
    ctl_show_gpus(&ctl, &reply, rows);
    EXPECT(ctl, "gpus         no worker runs; one is started for each GPU of a job that uses it\n");
    ctl = hvt_ctl();
    reply.daemon = &hvt_daemon;
    ctl_show_gpus(&ctl, &reply, rows);
    EXPECT(ctl, "MPS          pid 7, in /run/hvdd/mps\n"
                "gpus         no worker runs; one is started for each GPU of a job that uses it\n");
}
END_TEST

START_TEST(limits_are_a_table)
{
    const struct hvd_admin_limit rows[] = {
        {.limit = "max-jobs", .of = "all", .job = "", .counted = true, .used = 3, .most = 256},
        {.limit = "log-rate", .of = "user", .job = "", .most = 10},
        {.limit = "region-limit",
         .of = "job",
         .job = "x",
         .counted = true,
         .used = 3u << 20,
         .most = 80u << 20},
    };
    const struct hvd_admin_limit *const list[] = {&rows[0], &rows[1], &rows[2]};
    struct ctl ctl = hvt_ctl();
    const struct hvd_admin_answer reply = {
        .text = "", .limits = list, .limit_count = 3, .rows_left_out = 2};
    ctl_show_limits(&ctl, &reply);
    EXPECT(ctl, "LIMIT         OF    USER  JOB     USED      MOST\n"
                "max-jobs      all   -     -          3       256\n"
                "log-rate      user  root  -          -        10\n"
                "region-limit  job   root  x    3.0 MiB  80.0 MiB\n"
                "(2 more not shown)\n");
}
END_TEST

START_TEST(ranks_say_what_became_of_each)
{
    struct ctl ctl = hvt_ctl();
    ctl_show_ranks(&ctl, "digits", &hvt_reply);
    EXPECT(ctl,
           "RANK   PID  USER  STATE     PROCESS         OPS    BYTES  IN FLIGHT  LAG MEAN     "
           "P50      P99     MAX  LAST    MEMORY  FROM    NOTE\n"
           "   0  4711  root  attached  sleeping (S)  1,000  4.0 KiB          2    1.5 µs  "
           "900 ns  30.0 µs  2.0 ms  25 %  64.0 MiB  hvdrun\n"
           "   1  4713  root  lost      gone (X)          0      0 B          0         -       "
           "-        -       -     -       0 B  slurm   was killed by signal 9 (SIGKILL)\n"
           "   2     -  -     absent    -                 0      0 B          0         -       "
           "-        -       -     -       0 B  -\n");
}
END_TEST

START_TEST(a_rank_in_other_namespaces_has_a_note)
{
    static const char hidden[] = "staged: hvdd does not see the rank's pid namespace";
    struct hvd_admin_rank rows[] = {hvt_ranks[0], hvt_ranks[0]};
    const struct hvd_admin_rank *const list[] = {&rows[0], &rows[1]};
    struct ctl ctl = hvt_ctl();
    const struct hvd_admin_answer reply = {.ranks = list, .rank_count = 2};
    rows[0].own_pid = 7;
    rows[1].rank = 1, rows[1].pid = 0, rows[1].own_pid = 8, rows[1].memory = hidden;
    ctl_show_ranks(&ctl, "x", &reply);
    fclose(ctl.out);
    ck_assert_ptr_nonnull(strstr(hvt_text, "hvdrun  pid 7 in its own pid namespace\n   1     -  "
                                           "root "));
    ck_assert_ptr_nonnull(strstr(hvt_text,
                                 "hvdrun  pid 8 in its own pid namespace; ordinary memory "
                                 "staged: hvdd does not see the rank's pid namespace\n"));
    free(hvt_text);
}
END_TEST

START_TEST(a_rank_of_several_nodes_has_the_address_of_its_own)
{
    struct hvd_admin_span spans[] = {
        {.node = 0, .name = "a", .address = "192.0.2.1", .port = 9600, .job = "x"},
        {.node = 1, .name = "b", .address = "2001:db8::2", .port = 9601, .job = "x"},
    };
    struct hvd_admin_rank rows[] = {hvt_ranks[2], hvt_ranks[2]};
    const struct hvd_admin_span *const span_list[] = {&spans[0], &spans[1]};
    const struct hvd_admin_rank *const list[] = {&rows[0], &rows[1]};
    struct ctl ctl = hvt_ctl();
    const struct hvd_admin_answer reply = {
        .spans = span_list, .span_count = 2, .ranks = list, .rank_count = 2};
    rows[0].rank = 0;
    rows[1].rank = 1, rows[1].node = 1;
    ctl_show_ranks(&ctl, "x", &reply);
    fclose(ctl.out);
    ck_assert_ptr_nonnull(strstr(hvt_text, "\n0 a   192.0.2.1:9600         0 "));
    ck_assert_ptr_nonnull(strstr(hvt_text, "\n1 b   [2001:db8::2]:9601     1 "));
    free(hvt_text);
    ctl = hvt_ctl();
    rows[1].node = 2; /* of which nothing is known */
    ctl_show_ranks(&ctl, "x", &reply);
    fclose(ctl.out);
    ck_assert_msg(strstr(hvt_text, "\n-     -                  1 ") != NULL, "%s", hvt_text);
    free(hvt_text);
}
END_TEST

START_TEST(stalls_name_the_missing_ranks_and_their_state)
{
    struct ctl ctl = hvt_ctl();
    ctl_show_stalls(&ctl, &hvt_reply);
    EXPECT(ctl, "JOB     TENSOR                   OP         SET        AGE  READY      MISSING\n"
                "digits  w1\\x1b[2J\\x7f\\x9b\\u202e  allreduce    0  1 min 1 s  0-2,5,7,8  "
                "3 (pid 4714, stopped (T) in barrier 'b'), 4 (not attached)\n");
}
END_TEST

START_TEST(stalls_name_the_nodes_of_missing_ranks)
{
    static const int32_t ranks[][3] = {{0, 1, 2}, {3, 4, 5}, {3}};
    const struct hvd_admin_span spans[] = {
        {.job = "digits", .node = 0, .name = "a", .ranks = ranks[0], .rank_count = 3},
        {.job = "digits", .uid = 7, .node = 2, .name = "c", .ranks = ranks[2], .rank_count = 1},
        {.job = "other", .node = 3, .name = "d", .ranks = ranks[2], .rank_count = 1},
        {.job = "digits", .node = 1, .name = "b\033", .ranks = ranks[1], .rank_count = 3},
    };
    const struct hvd_admin_span *const span_list[] = {&spans[0], &spans[1], &spans[2], &spans[3]};
    const struct hvd_admin_missing silent = {
        .rank = 5, .process = "elsewhere", .waits_in = "on node 1 (b), which did not answer"};
    const struct hvd_admin_missing lone = {.rank = 6, .pid = 4715, .process = "S", .waits_in = ""};
    const struct hvd_admin_missing *const missing[] = {&hvt_missing[0], &hvt_missing[1], &silent,
                                                       &lone};
    struct hvd_admin_stall row = hvt_stalls[0];
    const struct hvd_admin_stall *const list[] = {&row};
    const struct hvd_admin_answer reply = {
        .text = "", .stalls = list, .stall_count = 1, .spans = span_list, .span_count = 4};
    struct ctl ctl = hvt_ctl();
    row.missing = missing;
    row.missing_count = 4;
    ctl_show_stalls(&ctl, &reply);
    fclose(ctl.out);
    ck_assert_msg(
        strstr(hvt_text,
               "  3 (node 1 b\\x1b, pid 4714, stopped (T) in barrier 'b'), "
               "4 (node 1 b\\x1b, not attached), 5 (on node 1 (b), which did not answer), "
               "6 (pid 4715, sleeping (S))\n") != NULL,
        "%s", hvt_text);
    free(hvt_text);
}
END_TEST

START_TEST(nothing_is_said_in_words)
{
    struct hvd_admin_answer reply = {0};
    struct ctl ctl = hvt_ctl();
    ctl_show_jobs(&ctl, &reply);
    ctl_show_stalls(&ctl, &reply);
    ctl_show_ranks(&ctl, "x", &reply);
    EXPECT(ctl, "no jobs\nnothing waits\nno ranks known of job x\n");
}
END_TEST

START_TEST(a_crowd_of_missing_ranks_is_counted)
{
    static const struct hvd_admin_missing one = {.process = "absent", .waits_in = ""};
    static const struct hvd_admin_missing *crowd[100];
    struct hvd_admin_stall row = hvt_stalls[0];
    const struct hvd_admin_stall *const list[] = {&row};
    struct hvd_admin_answer reply = {.stalls = list, .stall_count = 1};
    for (int i = 0; i < 100; i++)
        crowd[i] = &one;
    row.missing = crowd;
    row.missing_count = 100;
    struct ctl ctl = hvt_ctl();
    ctl_show_stalls(&ctl, &reply);
    fclose(ctl.out);
    ck_assert_ptr_nonnull(strstr(hvt_text, "0 (not attached) and 94 more\n"));
    free(hvt_text);
}
END_TEST

static void expect_event(const struct hvd_admin_event *event, const char *kind, const char *line)
{
    struct ctl ctl = hvt_ctl();
    ctl_show_event(&ctl, event, kind);
    fclose(ctl.out);
    ck_assert_uint_eq(strcspn(hvt_text, " "), strlen("hh:mm:ss"));
    ck_assert_str_eq(hvt_text + strlen("hh:mm:ss"), line);
    free(hvt_text);
}

START_TEST(an_event_is_a_line_with_its_time)
{
    const char *const added[] = {"n3", "n\033[4"}, *const removed[] = {"n2"};
    struct hvd_admin_event event = {
        .kind = HVD_ADMIN_EVENT_RANK_LOST, .job = "digits", .rank = 2, .node = "", .text = "why"};
    expect_event(&event, "rank-lost", "  rank-lost         job digits  rank 2  why\n");
    event = (struct hvd_admin_event){
        .kind = HVD_ADMIN_EVENT_LOST, .job = "", .rank = -1, .node = "", .text = "", .count = 7};
    expect_event(&event, "events-lost", "  events-lost       7\n");
    event = (struct hvd_admin_event){.kind = HVD_ADMIN_EVENT_HOSTS_CHANGED,
                                     .job = "",
                                     .rank = -1,
                                     .node = "",
                                     .text = "",
                                     .count = 4,
                                     .added = added,
                                     .added_count = 2,
                                     .removed = removed,
                                     .removed_count = 1};
    expect_event(&event, "hosts-changed",
                 "  hosts-changed     added n3, n\\x1b[4  removed n2  now 4\n");
}
END_TEST

START_TEST(a_trace_is_sorted_by_rank_and_age_with_what_is_open_last)
{
    struct hvd_admin_trace rows[] = {
        {.rank = 1, .number = 1, .tensor = "b", .op = "barrier", .dtype = "", .submit_ns = 1},
        {.rank = 0, .tensor = "w", .op = "allreduce", .dtype = "", .status = HVI_INPROGRESS},
        {.number = 7, .tensor = "v", .op = "allreduce", .dtype = "", .status = HVI_ERR_RANK_LOST},
        {.rank = 0, .number = 6, .tensor = "u\033", .op = "allgather", .dtype = "int8"},
    };
    const struct hvd_admin_trace *list[] = {&rows[0], &rows[1], &rows[2], &rows[3]};
    const struct hvd_admin_span span = {.name = "b", .clock_error_ns = 5000};
    struct ctl ctl = hvt_ctl();
    ctl_sort_trace(list, 4);
    ck_assert_uint_eq(list[0]->number, 6);
    ck_assert_uint_eq(list[1]->number, 7);
    ck_assert_uint_eq(list[2]->number, 0);
    ck_assert_int_eq(list[3]->rank, 1);
    const struct hvd_admin_span *spans[] = {&span};
    const struct ctl_trace trace = {
        .rows = list, .count = 4, .spans = spans, .span_count = 1, .rows_left_out = 3};
    ctl_show_trace(&ctl, &trace);
    ctl_show_trace(&ctl, &(const struct ctl_trace){.count = 0});
    fclose(ctl.out);
    ck_assert_ptr_nonnull(strstr(hvt_text, "u\\x1b"));
    ck_assert_ptr_nonnull(strstr(hvt_text, "ERR_RANK_LOST\n"));
    ck_assert_ptr_nonnull(strstr(hvt_text, "waiting\n"));
    ck_assert_ptr_nonnull(strstr(hvt_text, "(3 more not shown)\n"));
    ck_assert_ptr_nonnull(strstr(hvt_text, "no ops yet\n"));
    ck_assert_ptr_nonnull(strstr(hvt_text, "node 0, b, are right to within 5.0 µs)\n"));
    free(hvt_text);
}
END_TEST

START_TEST(top_subtracts_two_looks)
{
    const struct hvd_admin_rank before = {
        .ops = 100, .bytes = 1000, .lag_ops = 10, .last_ops = 1, .lag_sum_ns = 50};
    struct ctl_top_row row = {
        .job = "j",
        .now = {.rank = 3,
                .pid = 9,
                .state = "attached",
                .process = "R",
                .ops = 300,
                .bytes = 5096,
                .lag_ops = 14,
                .last_ops = 4,
                .lag_sum_ns = 4050},
    };
    struct ctl ctl = hvt_ctl();
    ctl_top_compare(&row, &before, HVI_NS_SEC / 2);
    ck_assert_uint_eq(row.ops_per_s, 400);
    ck_assert_uint_eq(row.bytes_per_s, 8192);
    ck_assert_uint_eq(row.lag_ns, 1000);
    ck_assert_uint_eq(row.met, 4);
    ck_assert_uint_eq(row.last, 3);
    ctl_show_top(&ctl, &row, 1);
    ctl_show_top(&ctl, &row, 0);
    EXPECT(ctl, "JOB  RANK  PID  PROCESS      OPS/S  BYTES/S  IN FLIGHT     LAG  LAG P99  LAST\n"
                "j       3    9  running (R)    400  8.0 KiB          0  1.0 µs        -  75 %\n"
                "no jobs\n");
}
END_TEST

START_TEST(top_starts_from_nothing_for_a_rank_that_came_anew)
{
    const struct hvd_admin_rank before = {.ops = 100, .bytes = 1000};
    struct ctl_top_row row = {.now = {.ops = 10, .bytes = 20}};
    ctl_top_compare(&row, &before, HVI_NS_SEC);
    ck_assert_uint_eq(row.ops_per_s, 10);
    ctl_top_compare(&row, NULL, HVI_NS_SEC);
    ck_assert_uint_eq(row.bytes_per_s, 20);
    ck_assert_uint_eq(row.lag_ns, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdctl/show");
    TCase *tests = tcase_create("show");
    tcase_add_test(tests, jobs_of_the_mesh_have_a_node_and_nothing_that_engines_know);
    tcase_add_test(tests, nodes_are_a_table_and_a_missing_mesh_a_sentence);
    tcase_add_test(tests, status_is_a_short_list);
    tcase_add_test(tests, lost_log_lines_are_mentioned_only_when_there_are_any);
    tcase_add_test(tests, what_only_some_hvdds_have_has_a_line_of_its_own);
    tcase_add_test(tests, jobs_are_a_table);
    tcase_add_test(tests, of_another_users_job_the_table_tells_no_figures);
    tcase_add_test(tests, links_between_the_nodes_of_a_job_are_a_table);
    tcase_add_test(tests, workers_of_gpus_are_a_table);
    tcase_add_test(tests, limits_are_a_table);
    tcase_add_test(tests, ranks_say_what_became_of_each);
    tcase_add_test(tests, a_rank_in_other_namespaces_has_a_note);
    tcase_add_test(tests, a_rank_of_several_nodes_has_the_address_of_its_own);
    tcase_add_test(tests, stalls_name_the_missing_ranks_and_their_state);
    tcase_add_test(tests, stalls_name_the_nodes_of_missing_ranks);
    tcase_add_test(tests, nothing_is_said_in_words);
    tcase_add_test(tests, a_crowd_of_missing_ranks_is_counted);
    tcase_add_test(tests, an_event_is_a_line_with_its_time);
    tcase_add_test(tests, a_trace_is_sorted_by_rank_and_age_with_what_is_open_last);
    tcase_add_test(tests, top_subtracts_two_looks);
    tcase_add_test(tests, top_starts_from_nothing_for_a_rank_that_came_anew);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

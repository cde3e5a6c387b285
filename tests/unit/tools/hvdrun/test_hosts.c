/* SPDX-License-Identifier: Apache-2.0
 * Hosts of a job: names, slots, which are this machine, and which ranks go where. */
#include "tools/hvdrun/hosts.h"

#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char text[512];
static struct run_hosts hosts;

static int parse(const char *line)
{
    text[0] = '\0';
    run_hosts_fini(&hosts);
    return run_hosts_parse(line, &hosts, text, sizeof text);
}

/* The file is read back through its name. */
static int read_file(const char *content)
{
    char path[] = "/tmp/hvt-hosts-XXXXXX";
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
    close(fd);
    text[0] = '\0';
    run_hosts_fini(&hosts);
    const int status = run_hosts_read(path, &hosts, text, sizeof text);
    unlink(path);
    return status;
}

/* "name=slots@first+ranks" of every host, with ! for this machine. */
static const char *listed(void)
{
    static char line[512];
    line[0] = '\0';
    for (size_t i = 0; i < hosts.count; i++) {
        const struct run_host *host = &hosts.list[i];
        const size_t used = strlen(line);
        snprintf(line + used, sizeof line - used, "%s%s%s=%ld@%d+%d", used > 0 ? " " : "",
                 host->name, host->here ? "!" : "", host->slots, host->first_rank, host->ranks);
    }
    return line;
}

START_TEST(this_machine_has_many_names)
{
    char name[200] = "";
    char line[256];
    gethostname(name, sizeof name - 1);
    snprintf(line, sizeof line, "%s:2,localhost:3,127.0.0.1:4,127.1.2.3:0,[::1]:5", name);
    ck_assert_msg(parse(line) == 0, "%s", text);
    ck_assert_int_eq((int)run_hosts_slots(&hosts), 14);
    ck_assert_uint_eq(hosts.count, 5);
    for (size_t i = 0; i < hosts.count; i++)
        ck_assert_msg(hosts.list[i].here, "%s is this machine", hosts.list[i].name);
}
END_TEST

START_TEST(other_machines_are_others)
{
    ck_assert_int_eq(
        parse("worker-1:2,203.0.113.9:1,me@localhost:1,[2001:db8::1]:3,[fe80::2%eth0],a.b_c,"
              "me@[2001:db8::2]:2"),
        0);
    run_hosts_fill(&hosts, 11);
    ck_assert_str_eq(listed(), "worker-1=2@0+2 203.0.113.9=1@2+1 me@localhost=1@3+1 "
                               "2001:db8::1=3@4+3 fe80::2%eth0=1@7+1 a.b_c=1@8+1 "
                               "me@2001:db8::2=2@9+2");
    ck_assert(run_hosts_are_spread(&hosts));
}
END_TEST

START_TEST(what_is_no_host_and_slots_gets_horovods_sentence)
{
    static const char *const wrong[] = {"",
                                        "localhost:",
                                        ":3",
                                        "local host:3",
                                        "localhost :3",
                                        "localhost: 3",
                                        "localhost:3 4",
                                        "localhost:3 other:4",
                                        "[ ::1]:3",
                                        " ",
                                        "localhost:1, ",
                                        "localhost:1, ,other:1",
                                        "localhost:-1",
                                        "localhost:3x",
                                        "::1",
                                        "[::1",
                                        "[::1]3",
                                        "[]:3",
                                        "@[::1]:3",
                                        "-l@[::1]:3",
                                        "a@b@[::1]:3",
                                        "me@x[::1]:3",
                                        "localhost:1,",
                                        ",localhost:1",
                                        "-oProxyCommand=x:1",
                                        "h;reboot:1",
                                        "localhost:99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ck_assert_msg(parse(wrong[i]) == -1, "'%s' is accepted", wrong[i]);
        ck_assert_str_eq(text, "Invalid host input, please make sure it has format as : "
                               "worker-0:2,worker-1:2.");
        ck_assert_uint_eq(hosts.count, 0);
    }
}
END_TEST

START_TEST(blanks_around_an_entry_do_not_count)
{
    ck_assert_msg(parse("h1:2, h2:3 ,\th3 , [::1]:4\n") == 0, "%s", text);
    run_hosts_fill(&hosts, 10);
    ck_assert_str_eq(listed(), "h1=2@0+2 h2=3@2+3 h3=1@5+1 ::1!=4@6+4");
}
END_TEST

START_TEST(a_host_without_a_number_has_one_slot)
{
    ck_assert_int_eq(parse("h1,h2:2"), 0);
    ck_assert_int_eq((int)run_hosts_slots(&hosts), 3);
}
END_TEST

START_TEST(a_host_that_is_named_twice_has_the_sum)
{
    ck_assert_int_eq(parse("h1:1,h2:2,h1:3"), 0);
    run_hosts_fill(&hosts, 6);
    ck_assert_str_eq(listed(), "h1=4@0+4 h2=2@4+2");
}
END_TEST

START_TEST(ranks_fill_hosts_in_their_order_and_the_rest_is_left_out)
{
    ck_assert_int_eq(parse("h1:1,h0:0,h2:3,h3:4,h4:1"), 0);
    run_hosts_fill(&hosts, 6);
    ck_assert_str_eq(listed(), "h1=1@0+1 h2=3@1+3 h3=4@4+2");
}
END_TEST

START_TEST(two_names_of_one_machine_are_two_hosts)
{
    ck_assert_int_eq(parse("localhost:2,127.0.0.1:2"), 0);
    run_hosts_fill(&hosts, 4);
    ck_assert(run_hosts_are_spread(&hosts));
    run_hosts_fill(&hosts, 2);
    ck_assert(!run_hosts_are_spread(&hosts));
    ck_assert_int_eq(parse("other:1"), 0);
    ck_assert(run_hosts_are_spread(&hosts));
}
END_TEST

START_TEST(cross_ranks_count_hosts_with_the_same_local_rank)
{
    static const int expected[][4] = {/* host, local rank, cross rank, cross size */
                                      {0, 0, 0, 3}, {1, 0, 1, 3}, {2, 0, 2, 3},
                                      {1, 1, 0, 2}, {2, 1, 1, 2}, {1, 2, 0, 1}};
    ck_assert_int_eq(parse("h1:1,h2:3,h3:2"), 0);
    run_hosts_fill(&hosts, 6);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        int cross_rank;
        int cross_size;
        run_hosts_cross(&hosts, (size_t)expected[i][0], expected[i][1], &cross_rank, &cross_size);
        ck_assert_msg(cross_rank == expected[i][2] && cross_size == expected[i][3],
                      "host %d, local rank %d: cross rank %d of %d", expected[i][0], expected[i][1],
                      cross_rank, cross_size);
    }
}
END_TEST

START_TEST(a_file_has_a_host_per_line)
{
    ck_assert_msg(read_file("# ours\n\nh1 slots=2\n  h2\tslots=3 max_slots=8 # large\nh3:4\nh4\n"
                            "[::1]:5\nme@[2001:db8::1] slots=6\n") == 0,
                  "%s", text);
    run_hosts_fill(&hosts, 21);
    ck_assert_str_eq(listed(), "h1=2@0+2 h2=3@2+3 h3=4@5+4 h4=1@9+1 ::1!=5@10+5 "
                               "me@2001:db8::1=6@15+6");
    ck_assert_int_eq(read_file("h1 slots=2"), 0);
    ck_assert_int_eq((int)run_hosts_slots(&hosts), 2);
    ck_assert_msg(read_file("h1 slots = 2\nh2 slots =3 max_slots= 4\nh3 \tslots=\t5 \n") == 0, "%s",
                  text);
    run_hosts_fill(&hosts, 10);
    ck_assert_str_eq(listed(), "h1=2@0+2 h2=3@2+3 h3=5@5+5");
    ck_assert_int_eq(read_file(""), 0);
    ck_assert_uint_eq(hosts.count, 0);
}
END_TEST

START_TEST(a_wrong_line_is_named)
{
    static const char *const wrong[] = {"h1 2",         "h1 slots=-1",    "h1 slots=1 slots=1",
                                        "h1:2 slots=2", "h1 max_slots=x", "h1 cpus=2",
                                        "h1 = 2",       "h1 slots = ",    "= 2"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char content[64];
        snprintf(content, sizeof content, "ok slots=2\n%s\n", wrong[i]);
        ck_assert_msg(read_file(content) == -1, "'%s' is accepted", wrong[i]);
        ck_assert_msg(strstr(text, ":2: a line is a host and its slots") != NULL, "%s", text);
        ck_assert_uint_eq(hosts.count, 0);
    }
}
END_TEST

START_TEST(a_file_that_cannot_be_read_is_named)
{
    ck_assert_int_eq(run_hosts_read("/nonexistent/hosts", &hosts, text, sizeof text), -1);
    ck_assert_str_eq(text,
                     "cannot read the hostfile /nonexistent/hosts: No such file or directory");
    ck_assert_int_eq(run_hosts_read("/", &hosts, text, sizeof text), -1);
    ck_assert_msg(strstr(text, "Is a directory") != NULL, "%s", text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/hosts");
    TCase *tests = tcase_create("hosts");
    tcase_add_test(tests, this_machine_has_many_names);
    tcase_add_test(tests, other_machines_are_others);
    tcase_add_test(tests, what_is_no_host_and_slots_gets_horovods_sentence);
    tcase_add_test(tests, blanks_around_an_entry_do_not_count);
    tcase_add_test(tests, a_host_without_a_number_has_one_slot);
    tcase_add_test(tests, a_host_that_is_named_twice_has_the_sum);
    tcase_add_test(tests, ranks_fill_hosts_in_their_order_and_the_rest_is_left_out);
    tcase_add_test(tests, two_names_of_one_machine_are_two_hosts);
    tcase_add_test(tests, cross_ranks_count_hosts_with_the_same_local_rank);
    tcase_add_test(tests, a_file_has_a_host_per_line);
    tcase_add_test(tests, a_wrong_line_is_named);
    tcase_add_test(tests, a_file_that_cannot_be_read_is_named);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

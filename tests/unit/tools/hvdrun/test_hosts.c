/* SPDX-License-Identifier: Apache-2.0
 * Hosts of a job: this machine by any of its names, its slots counted, others refused by name. */
#include "tools/hvdrun/hosts.h"

#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char text[512];
static long slots;

static int parse(const char *hosts)
{
    text[0] = '\0';
    slots = -1;
    return run_hosts_parse(hosts, &slots, text, sizeof text);
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
    slots = -1;
    const int status = run_hosts_read(path, &slots, text, sizeof text);
    unlink(path);
    return status;
}

START_TEST(this_machine_has_many_names)
{
    char name[200] = "";
    char line[256];
    gethostname(name, sizeof name - 1);
    snprintf(line, sizeof line, "%s:2,localhost:3,127.0.0.1:4,127.1.2.3:0", name);
    ck_assert_msg(parse(line) == 0, "%s", text);
    ck_assert_int_eq(slots, 9);
}
END_TEST

START_TEST(other_machines_are_refused_by_name)
{
    static const char *const others[] = {"worker-1:2", "localhost:1,worker-1:2", "worker-1:0"};
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(parse(others[i]), -1);
        ck_assert_msg(strncmp(text, "worker-1 is not this machine, ", 30) == 0, "%s", text);
        ck_assert_int_eq(slots, -1);
    }
    ck_assert_int_eq(parse("192.0.2.1:1"), -1);
    ck_assert_msg(strstr(text, "192.0.2.1 is not this machine") != NULL, "%s", text);
}
END_TEST

START_TEST(what_is_no_host_and_slots_gets_horovods_sentence)
{
    static const char *const wrong[] = {"",
                                        "localhost",
                                        "localhost:",
                                        ":3",
                                        "local host:3",
                                        "localhost:-1",
                                        "localhost:3x",
                                        "[::1]:3",
                                        "localhost:1,",
                                        ",localhost:1",
                                        "localhost:99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ck_assert_msg(parse(wrong[i]) == -1, "'%s' is accepted", wrong[i]);
        ck_assert_str_eq(text, "Invalid host input, please make sure it has format as : "
                               "worker-0:2,worker-1:2.");
    }
}
END_TEST

START_TEST(a_file_has_a_host_and_its_slots_per_line)
{
    ck_assert_msg(read_file("# ours\n\nlocalhost slots=2\n  127.0.0.1\tslots=3  \n") == 0, "%s",
                  text);
    ck_assert_int_eq(slots, 5);
    ck_assert_int_eq(read_file("localhost slots=2"), 0);
    ck_assert_int_eq(slots, 2);
    ck_assert_int_eq(read_file(""), 0);
    ck_assert_int_eq(slots, 0);
}
END_TEST

START_TEST(a_wrong_line_is_named)
{
    ck_assert_int_eq(read_file("localhost slots=2\nlocalhost 2\n"), -1);
    ck_assert_msg(strstr(text, ":2: a line is a host and its slots") != NULL, "%s", text);
    ck_assert_int_eq(read_file("localhost\n"), -1);
    ck_assert_int_eq(read_file("localhost slots=-1\n"), -1);
    ck_assert_int_eq(read_file("\nworker-1 slots=2\n"), -1);
    ck_assert_msg(strstr(text, ":2: worker-1 is not this machine") != NULL, "%s", text);
}
END_TEST

START_TEST(a_file_that_cannot_be_read_is_named)
{
    ck_assert_int_eq(run_hosts_read("/nonexistent/hosts", &slots, text, sizeof text), -1);
    ck_assert_str_eq(text,
                     "cannot read the hostfile /nonexistent/hosts: No such file or directory");
    ck_assert_int_eq(run_hosts_read("/", &slots, text, sizeof text), -1);
    ck_assert_msg(strstr(text, "Is a directory") != NULL, "%s", text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/hosts");
    TCase *tests = tcase_create("hosts");
    tcase_add_test(tests, this_machine_has_many_names);
    tcase_add_test(tests, other_machines_are_refused_by_name);
    tcase_add_test(tests, what_is_no_host_and_slots_gets_horovods_sentence);
    tcase_add_test(tests, a_file_has_a_host_and_its_slots_per_line);
    tcase_add_test(tests, a_wrong_line_is_named);
    tcase_add_test(tests, a_file_that_cannot_be_read_is_named);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

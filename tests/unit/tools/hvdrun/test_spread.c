/* SPDX-License-Identifier: Apache-2.0
 * A job of several hosts: names of this machine, and others to which a script takes the place of ssh. */
#include "base/clock.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvdrun/hvt_job.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

/* Both are this machine, and two hosts all the same. */
#define HERE "-H localhost:1,127.0.0.1:1 --address @ --report-time 0.1 "

static struct hvt_job job;

static void setup(void)
{
    hvt_job_setup(&job);
    hvt_job_write(&job, "ssh-script", "#!/bin/sh\nexec sh -c \"$2\"\n");
}

static void teardown(void)
{
    hvt_job_teardown(&job);
}

#define EXPECT_OUT(part) hvt_job_expect(&job, job.out, (part))
#define EXPECT_ERR(part) hvt_job_expect(&job, job.err, (part))

static void expect_end(int code)
{
    ck_assert_msg(job.code == code, "exit code %d after: %s%s", job.code, job.out, job.err);
}

static int lines_of(const char *name)
{
    char path[128];
    int lines = 0;
    snprintf(path, sizeof path, "%s/%s", job.root, name);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    for (int byte = getc(file); byte != EOF; byte = getc(file))
        lines += byte == '\n';
    fclose(file);
    return lines;
}

/* ---- jobs that end well ---- */

START_TEST(ranks_of_all_hosts_print_here)
{
    hvt_job_run(&job, "-np 2 " HERE,
                "echo $HVD_RANK of $HVD_SIZE, $HVD_CROSS_RANK/$HVD_CROSS_SIZE; echo e >&2");
    expect_end(0);
    EXPECT_OUT("[0]<stdout>:0 of 2, 0/2\n");
    EXPECT_OUT("[1]<stdout>:1 of 2, 1/2\n");
    EXPECT_ERR("[0]<stderr>:e\n");
    EXPECT_ERR("[1]<stderr>:e\n");
}
END_TEST

START_TEST(what_is_typed_here_is_read_by_rank_0)
{
    hvt_job_start(&job, "-np 2 " HERE, "test $HVD_RANK = 1 || cat; echo end");
    hvt_job_await(&job, "[1]<stdout>:end");
    hvt_job_type(&job, "a line\n");
    hvt_job_await(&job, "[0]<stdout>:a line\n");
    hvt_job_end(&job);
    expect_end(0);
    EXPECT_OUT("[0]<stdout>:end\n");
}
END_TEST

START_TEST(other_hosts_are_reached_by_the_command_in_place_of_ssh)
{
    hvt_job_run(&job, "-np 3 -H h1:1,h2:2 --address @ --ssh-command @/ssh-script -x FOO=bar",
                "echo $HVD_LOCAL_RANK/$HVD_LOCAL_SIZE $MASTER_ADDR $FOO");
    expect_end(0);
    EXPECT_OUT("[0]<stdout>:0/1 h1 bar\n");
    EXPECT_OUT("[1]<stdout>:0/2 h1 bar\n");
    EXPECT_OUT("[2]<stdout>:1/2 h1 bar\n");
}
END_TEST

START_TEST(interfaces_that_have_names_are_for_nccl_and_gloo_too)
{
    static const char script[] = "echo ${NCCL_SOCKET_IFNAME-none} ${HOROVOD_GLOO_IFACE-none}";
    unsetenv("NCCL_SOCKET_IFNAME");
    unsetenv("HOROVOD_GLOO_IFACE");
    hvt_job_run(&job, "-np 2 --network-interfaces lo,eth9 " HERE, script);
    expect_end(0);
    EXPECT_OUT("[0]<stdout>:lo,eth9 lo\n");
    EXPECT_OUT("[1]<stdout>:lo,eth9 lo\n");
    hvt_job_run(&job, "-np 2 --network-interfaces 127.0.0.1,lo " HERE, script);
    expect_end(0);
    EXPECT_OUT("[1]<stdout>:none none\n");
    hvt_job_run(&job, "-np 2 --network-interfaces ^eth9 " HERE, script);
    expect_end(0);
    EXPECT_OUT("[1]<stdout>:none none\n");
}
END_TEST

START_TEST(many_hosts_are_reached_through_relays)
{
    hvt_job_run(&job,
                "-np 5 -H h1:1,h2:1,h3:1,h4:1,h5:1 --address @ --ssh-command @/ssh-script "
                "--fan-out 2 --verbose",
                "echo here");
    expect_end(0);
    EXPECT_OUT("[0]<stdout>:here\n");
    EXPECT_OUT("[4]<stdout>:here\n");
    EXPECT_ERR("h1: through h1\n");
    EXPECT_ERR("h2: through h1\n");
    EXPECT_ERR("h5: through h4\n");
}
END_TEST

START_TEST(where_no_relay_starts_hosts_are_reached_directly)
{
    hvt_job_write(&job, "no-relays",
                  "#!/bin/sh\ncase \"$2\" in *--relay) exit 1;; esac\nexec sh -c \"$2\"\n");
    hvt_job_run(&job,
                "-np 3 -H h1:1,h2:1,h3:1 --address @ --ssh-command @/no-relays --fan-out 1 "
                "--verbose",
                "echo here");
    expect_end(0);
    EXPECT_OUT("[0]<stdout>:here\n");
    EXPECT_OUT("[2]<stdout>:here\n");
    ck_assert_ptr_null(strstr(job.err, "through"));
}
END_TEST

START_TEST(where_a_relay_says_nothing_its_hosts_are_reached_directly)
{
    hvt_job_write(&job, "deaf-relays",
                  "#!/bin/sh\ncase \"$2\" in *--relay) exec sleep 100;; esac\nexec sh -c \"$2\"\n");
    hvt_job_run(&job,
                "-np 3 -H h1:1,h2:1,h3:1 --address @ --ssh-command @/deaf-relays --fan-out 1 "
                "--start-timeout 3",
                "echo here");
    expect_end(0);
    EXPECT_OUT("[0]<stdout>:here\n");
    EXPECT_OUT("[2]<stdout>:here\n");
    ck_assert_str_eq(job.err, "");
}
END_TEST

START_TEST(a_dropped_connection_is_tried_again)
{
    hvt_job_write(&job, "drops-once",
                  "#!/bin/sh\nif mkdir ${0%/*}/tried 2>/dev/null; then\n"
                  "echo 'kex_exchange_identification: Connection closed by remote host' >&2\n"
                  "exit 255; fi\nrmdir ${0%/*}/tried\necho welcome\nexec sh -c \"$2\"\n");
    hvt_job_run(&job, "-np 1 -H h1:1 --address @ --ssh-command @/drops-once", "echo here");
    expect_end(0);
    EXPECT_OUT("[0]<stdout>:here\n");
    ck_assert_str_eq(job.err, "");
}
END_TEST

START_TEST(calls_and_what_they_return_are_files_here)
{
    char path[128], returned[64] = "";
    hvt_job_write(&job, "call", "the call");
    hvt_job_run(&job, "-np 2 --call-dir @ " HERE,
                "(cat $HVD_RUN_CALL; echo , $HVD_RANK) >/proc/self/fd/$HVD_RUN_RESULT");
    expect_end(0);
    for (int rank = 0; rank < 2; rank++) {
        char wanted[64];
        snprintf(path, sizeof path, "%s/result.%d", job.root, rank);
        snprintf(wanted, sizeof wanted, "the call, %d\n", rank);
        FILE *file = fopen(path, "re");
        ck_assert_ptr_nonnull(file);
        ck_assert_ptr_nonnull(fgets(returned, sizeof returned, file));
        fclose(file);
        ck_assert_str_eq(returned, wanted);
    }
}
END_TEST

/* Rank 1, on the second host, returns before rank 0 does. A later part of a result is no arrival. */
START_TEST(the_order_in_which_results_come_is_a_file_here)
{
    char path[128], lines[64] = "";
    hvt_job_write(&job, "call", "the call");
    hvt_job_run(&job, "-np 2 --call-dir @ " HERE,
                "while [ $HVD_RANK = 0 ] && [ ! -s $HVD_ADDRESS/result.1 ]; do sleep 0.01; done; "
                "echo first >/proc/self/fd/$HVD_RUN_RESULT; sleep 0.05; "
                "echo second >/proc/self/fd/$HVD_RUN_RESULT");
    expect_end(0);
    snprintf(path, sizeof path, "%s/arrivals", job.root);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(lines, 1, sizeof lines - 1, file), 8);
    fclose(file);
    ck_assert_str_eq(lines, "1 1\n0 0\n");
}
END_TEST

/* The first host greets long before the other one: its agent waits without a word of what to run. */
START_TEST(a_host_that_waits_for_another_one_hears_that_hvdrun_is_there)
{
    hvt_job_write(&job, "one-is-slow", "#!/bin/sh\n[ $1 = h1 ] || sleep 1\nexec sh -c \"$2\"\n");
    setenv(HVT_JOB_SILENCE, "500", 1);
    hvt_job_run(&job,
                "-np 2 -H h1:1,h2:1 --address @ --ssh-command @/one-is-slow --silence-time 0.5",
                "echo here");
    expect_end(0);
    EXPECT_OUT("[0]<stdout>:here\n");
    EXPECT_OUT("[1]<stdout>:here\n");
}
END_TEST

/* A hvdd that says where it listens, and which one it joins. */
static void write_hvdd(void)
{
    hvt_job_write(&job, "hvdd-script",
                  "#!/bin/sh\nfor word; do case $last in --ready-fd) ready=$word;; "
                  "--parent-fd) parent=$word;; --runtime-dir) dir=$word;; "
                  "--mesh-*) echo $last $word >&2;; esac; last=$word; done\n"
                  "test -s $dir/mesh.key || exit 1\necho 9612 >$dir/mesh.port\n"
                  "echo >/proc/self/fd/$ready\nexec cat /proc/self/fd/$parent\n");
}

START_TEST(private_hvdds_meet_at_the_first)
{
    write_hvdd();
    hvt_job_run(&job, "-np 2 -H localhost:1,127.0.0.1:1 --hvdd @/hvdd-script --verbose",
                "echo $MASTER_ADDR");
    expect_end(0);
    EXPECT_ERR("--mesh-listen 127.0.0.1:0\n");
    EXPECT_ERR("--mesh-join 127.0.0.1:9612\n");
    EXPECT_ERR("hvdrun: localhost: private hvdd: pid ");
    EXPECT_OUT("[1]<stdout>:127.0.0.1\n");
}
END_TEST

/* Another network than that of ssh. */
START_TEST(private_hvdds_meet_at_the_interface_that_is_named)
{
    write_hvdd();
    hvt_job_write(&job, "ssh-there",
                  "#!/bin/sh\nexport SSH_CONNECTION='203.0.113.7 5 203.0.113.1 22'\n"
                  "exec sh -c \"$2\"\n");
    hvt_job_run(&job,
                "-np 2 -H h1:1,h2:1 --ssh-command @/ssh-there --hvdd @/hvdd-script "
                "--network-interfaces lo",
                "echo $MASTER_ADDR");
    expect_end(0);
    EXPECT_ERR("--mesh-listen 127.0.0.1:0\n");
    EXPECT_ERR("--mesh-join 127.0.0.1:9612\n");
    EXPECT_OUT("[1]<stdout>:127.0.0.1\n");
    hvt_job_run(&job,
                "-np 2 -H h1:1,h2:1 --ssh-command @/ssh-there --hvdd @/hvdd-script "
                "--network-interfaces none0",
                "echo never");
    expect_end(1);
    EXPECT_ERR("hvdrun: h1: HVD_INTERFACE=none0 names no interface of this machine that is up");
}
END_TEST

/* To 0.0.0.0 every machine has a way, by 127.0.0.1. */
START_TEST(a_first_host_that_ssh_reaches_by_loopback_has_another_address_elsewhere)
{
    hvt_job_write(&job, "ssh-there",
                  "#!/bin/sh\ncase $1 in h1) at=127.0.1.1;; h2) at=0.0.0.0;; *) at=nowhere;; "
                  "esac\nexport SSH_CONNECTION=\"203.0.113.7 5 $at 22\"\nexec sh -c \"$2\"\n");
    hvt_job_run(&job, "-np 2 -H h1:1,h2:1 --address @ --ssh-command @/ssh-there",
                "echo $MASTER_ADDR");
    expect_end(0);
    EXPECT_OUT("[1]<stdout>:127.0.0.1\n");
    hvt_job_run(&job, "-np 3 -H localhost:1,h1:1,h3:1 --address @ --ssh-command @/ssh-there",
                "echo never");
    expect_end(1);
    EXPECT_ERR("hvdrun: nowhere is no address\n"); /* not the way to the one by loopback */
}
END_TEST

/* ---- jobs that do not ---- */

START_TEST(a_rank_that_fails_ends_the_others)
{
    hvt_job_run(&job, "-np 2 " HERE, "test $HVD_RANK = 1 && exit 3; sleep 100");
    expect_end(3);
    EXPECT_ERR("rank 1 on 127.0.0.1: exited with code 3, the first to fail\n");
    EXPECT_ERR("rank 0: ended by hvdrun (SIGTERM)\n");
}
END_TEST

START_TEST(a_command_that_is_not_there_has_the_shells_exit_code)
{
    hvt_job_run(&job, "-np 2 " HERE "/nonexistent/train", "true");
    expect_end(127);
    EXPECT_ERR("hvdrun: localhost: cannot start rank 0: /nonexistent/train: command not found\n");
}
END_TEST

START_TEST(hosts_that_cannot_be_reached_are_all_told)
{
    hvt_job_write(&job, "some-down",
                  "#!/bin/sh\ncase $1 in\nh1) echo 'ssh: connect to host h1: refused' >&2; exit "
                  "255;;\nh2) echo 'sh: not found' >&2; exit 127;;\n"
                  "h3) echo; echo 'hvdrun --node speaks:'; printf '\\377\\377\\377\\377'; exit;;\n"
                  "esac\nexec sh -c \"$2\"\n");
    hvt_job_run(&job,
                "-np 4 -H h1:1,h2:1,h3:1,h4:1 --address @ --ssh-command @/some-down "
                "--remote-hvdrun /x/hvdrun",
                "echo never");
    expect_end(1);
    EXPECT_ERR("hvdrun: h1: cannot be reached: ssh: connect to host h1: refused\n");
    EXPECT_ERR("hvdrun: h2: there is no /x/hvdrun; install the same version there");
    EXPECT_ERR("hvdrun: h3: what comes from there makes no sense: a message of 4294967295 bytes");
    EXPECT_ERR("hvdrun: h4: there is no /x/hvdrun");
    ck_assert_str_eq(job.out, "");
}
END_TEST

/* Each login is a line, and waits before it fails. So many begin, and no more. */
static void expect_logins(const char *words, int most)
{
    char path[128];
    const uint64_t deadline_ns = hvi_deadline_after(20 * (int64_t)HVI_NS_SEC);
    hvt_job_write(&job, "logins", "");
    snprintf(path, sizeof path, "%s/go", job.root);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    hvt_job_start(&job, words, "echo never");
    while (lines_of("logins") < most && !hvi_deadline_passed(deadline_ns))
        usleep(5 * 1000);
    usleep(200 * 1000); /* not a wait for something: one more than may be would begin */
    ck_assert_int_eq(lines_of("logins"), most);
    const int fd = open(path, O_RDWR | O_CLOEXEC); /* all go on, also those to come */
    hvt_job_end(&job);
    close(fd);
    unlink(path);
    expect_end(1);
}

/* By hvdrun, and by each relay, of which each has a group of four here: its own host, and three others. */
START_TEST(so_many_hosts_are_logged_in_to_at_a_time)
{
    char words[768] = "--address @ --ssh-command @/waits --fan-out 0 -H h0";
    size_t used = strlen(words);
    hvt_job_write(&job, "waits",
                  "#!/bin/sh\ncase \"$2\" in *--relay) exec sh -c \"$2\";; esac\n"
                  "echo $1 >>${0%/*}/logins\n: <${0%/*}/go\nexit 1\n");
    for (int i = 1; i < 36; i++)
        used += (size_t)snprintf(words + used, sizeof words - used, ",h%d", i);
    expect_logins(words, 32);
    EXPECT_ERR("hvdrun: h35: ");
    expect_logins("--address @ --ssh-command @/waits --fan-out 2 -H h1,h2,h3,h4,h5,h6,h7,h8", 4);
    EXPECT_ERR("hvdrun: h8: ");
}
END_TEST

#define NO_DIRECTORY                                                                               \
    "cannot enter /nonexistent: No such file or directory; --remote-dir names another directory\n"

START_TEST(where_no_host_has_the_directory_all_are_told)
{
    hvt_job_run(&job, "-H h1:1,h2:1,h3:1 --ssh-command @/ssh-script --remote-dir /nonexistent",
                "echo never");
    expect_end(1);
    ck_assert_str_eq(job.err, "hvdrun: h1: " NO_DIRECTORY "hvdrun: h2: " NO_DIRECTORY
                              "hvdrun: h3: " NO_DIRECTORY);
}
END_TEST

START_TEST(where_no_host_has_hvdd_all_are_told)
{
    hvt_job_run(&job, "-H h1:1,h2:1 --ssh-command @/ssh-script --hvdd /nonexistent/hvdd",
                "echo never");
    expect_end(1);
    EXPECT_ERR("hvdrun: h1: cannot start /nonexistent/hvdd: No such file or directory");
    EXPECT_ERR("hvdrun: h2: cannot start /nonexistent/hvdd: No such file or directory");
}
END_TEST

/* Where the others' hvdds would meet, none is; theirs start all the same, and end. */
START_TEST(of_hosts_beside_a_first_one_that_fails_those_that_fail_are_told)
{
    hvt_job_write(&job, "hvdd-script",
                  "#!/bin/sh\ncase \"$HVT_HOST $*\" in *--mesh-join*) echo joins >&2; exit 1;;\n"
                  "h1*--mesh-listen*) echo no room >&2; exit 1;; h3*) echo no luck >&2; exit 1;; "
                  "esac\nfor word; do case $last in --ready-fd) ready=$word;; "
                  "--parent-fd) parent=$word;; esac; last=$word; done\n"
                  "echo >/proc/self/fd/$ready\nexec cat /proc/self/fd/$parent\n");
    hvt_job_write(&job, "named", "#!/bin/sh\nexport HVT_HOST=$1\nexec sh -c \"$2\"\n");
    hvt_job_run(&job, "-H h1:1,h2:1,h3:1 --ssh-command @/named --hvdd @/hvdd-script", "echo never");
    expect_end(1);
    ck_assert_str_eq(job.err, "hvdrun: h1: the private hvdd failed to start: no room\n"
                              "hvdrun: h3: the private hvdd failed to start: no luck\n");
}
END_TEST

/* That of h2 would wait for it until its time is over. */
START_TEST(the_end_of_the_hvdd_where_the_others_are_to_meet_ends_the_start)
{
    hvt_job_write(&job, "hvdd-script",
                  "#!/bin/sh\nfor word; do case $last in --ready-fd) ready=$word;; "
                  "--parent-fd) parent=$word;; --runtime-dir) dir=$word;; esac; last=$word; done\n"
                  "case \"$*\" in *--mesh-join*) exec cat /proc/self/fd/$parent;; esac\n"
                  "echo 9612 >$dir/mesh.port\necho >/proc/self/fd/$ready\nsleep 0.3\n"
                  "kill -9 $$\n");
    hvt_job_run(&job, "-np 2 -H localhost:1,127.0.0.1:1 --hvdd @/hvdd-script", "echo never");
    expect_end(1);
    EXPECT_ERR("hvdrun: localhost: the private hvdd (pid ");
    EXPECT_ERR(") was killed by signal 9 (SIGKILL) before the ranks were started\n");
    ck_assert_ptr_null(strstr(job.err, "127.0.0.1: "));
}
END_TEST

/* With hvdds that are there nobody meets at the first host's. What h2 says after its greeting comes later. */
START_TEST(a_first_host_that_fails_is_told_with_the_others_where_hvdds_are_there)
{
    hvt_job_write(&job, "late",
                  "#!/bin/sh\n[ $1 = h1 ] && exec sh -c \"$2\"\n"
                  "sh -c \"$2\" | { dd bs=65536 count=1 2>/dev/null; sleep 0.3; cat; }\n");
    hvt_job_run(&job,
                "-H h1:1,h2:1 --address @ --ssh-command @/late --remote-dir /nonexistent-directory",
                "echo never");
    expect_end(1);
    EXPECT_ERR("hvdrun: h1: ");
    EXPECT_ERR("hvdrun: h2: ");
}
END_TEST

START_TEST(a_host_that_does_not_answer_in_time_is_told)
{
    hvt_job_write(&job, "hangs", "#!/bin/sh\nexec sleep 100\n");
    hvt_job_run(&job, "-np 1 -H h1:1 --address @ --ssh-command @/hangs --start-timeout 0.2",
                "echo never");
    expect_end(1);
    EXPECT_ERR("hvdrun: h1: did not answer within 0.2 s (--start-timeout)\n");
}
END_TEST

START_TEST(an_interrupt_ends_the_start)
{
    hvt_job_write(&job, "hangs", "#!/bin/sh\nexec sleep 100\n");
    hvt_job_start(&job, "-np 1 -H h1:1 --address @ --ssh-command @/hangs --verbose", "echo never");
    hvt_job_await(&job, "is pid");
    kill(job.pid, SIGINT);
    hvt_job_end(&job);
    expect_end(128 + SIGINT);
    EXPECT_ERR("hvdrun: interrupted while the hosts were starting\n");
}
END_TEST

START_TEST(a_second_interrupt_waits_for_no_agent)
{
    hvt_job_write(&job, "lasts",
                  "#!/bin/sh\ntest $1 = h1 || exec sleep 100\nsh -c \"$2\"\nexec sleep 100\n");
    hvt_job_start(&job, "-np 2 -H h1:1,h2:1 --address @ --ssh-command @/lasts --verbose",
                  "echo never");
    hvt_job_await(&job, "h2: ");
    usleep(300 * 1000); /* not a wait for something: h1's agent greets as a rule */
    const uint64_t start_ns = hvi_clock_ns();
    kill(job.pid, SIGINT);
    hvt_job_await(&job, "hvdrun: interrupted while the hosts were starting\n");
    usleep(200 * 1000); /* not a wait for something: signals that come together do not kill */
    kill(job.pid, SIGTERM);
    hvt_job_end(&job);
    expect_end(128 + SIGINT);
    ck_assert_uint_lt(hvi_clock_ns() - start_ns, 8 * HVI_NS_SEC);
}
END_TEST

START_TEST(an_interrupt_reaches_the_ranks)
{
    hvt_job_start(&job, "-np 2 " HERE,
                  "trap 'echo caught; exit 9' INT TERM; echo on; "
                  "while :; do sleep 0.02; done");
    hvt_job_await(&job, "[0]<stdout>:on");
    hvt_job_await(&job, "[1]<stdout>:on");
    kill(job.pid, SIGINT);
    hvt_job_end(&job);
    ck_assert_int_ne(job.code, 0);
    EXPECT_OUT("[0]<stdout>:caught\n");
    EXPECT_OUT("[1]<stdout>:caught\n");
}
END_TEST

START_TEST(an_agent_that_is_killed_takes_its_ranks_along)
{
    hvt_job_start(&job, "-np 2 " HERE,
                  "echo on; test $HVD_RANK = 0 && exec sleep 100; "
                  "until test -e @/go; do sleep 0.01; done; kill -9 $PPID; exec sleep 100");
    hvt_job_await(&job, "[0]<stdout>:on\n");
    hvt_job_await(&job, "[1]<stdout>:on\n");
    hvt_job_write(&job, "go", "");
    hvt_job_end(&job);
    expect_end(1);
    EXPECT_ERR("hvdrun: lost the agent on 127.0.0.1: hvdrun --node was killed by signal 9 "
               "(SIGKILL); it ends its ranks\n");
    EXPECT_ERR("rank 0: ended by hvdrun (SIGTERM)\n");
}
END_TEST

START_TEST(an_agent_that_stands_still_is_given_up)
{
    hvt_job_run(&job, "-np 2 --silence-time 0.3 " HERE,
                "test $HVD_RANK = 1 && kill -STOP $PPID; exec sleep 100");
    expect_end(1);
    EXPECT_ERR("it has said nothing for 0.3 s (--silence-time)");
}
END_TEST

/* Three hosts behind one relay. A rank stops the process that the script finds. */
static void stop_behind_a_relay(const char *options, const char *script)
{
    char words[256];
    snprintf(words, sizeof words,
             "-np 3 -H h1:1,h2:1,h3:1 --address @ --fan-out 1 --report-time 0.1 %s", options);
    hvt_job_run(&job, words, script);
    expect_end(1);
}

/* What the relay says comes late, and each time with the word that the agent's stdin has room for a beat. */
START_TEST(an_agent_behind_a_relay_that_stands_still_is_given_up)
{
    hvt_job_write(&job, "late",
                  "#!/bin/sh\ncase \"$2\" in *--relay) ;; *) exec sh -c \"$2\";; esac\n"
                  "sh -c \"$2\" | while dd bs=65536 count=1 2>$0.dd; ! grep -q ^0+0 $0.dd; do "
                  "sleep 0.15; done\n");
    stop_behind_a_relay("--ssh-command @/late --silence-time 0.4",
                        "test $HVD_RANK = 1 && kill -STOP $PPID; exec sleep 100");
    EXPECT_ERR("lost the agent on h2: it has said nothing for 0.4 s (--silence-time)");
}
END_TEST

START_TEST(a_relay_that_stands_still_is_given_up)
{
    stop_behind_a_relay("--ssh-command @/ssh-script --silence-time 0.3",
                        "read a b c relay rest </proc/$PPID/stat; "
                        "test $HVD_RANK = 0 && kill -STOP $relay; exec sleep 100");
    EXPECT_ERR("lost the agent on h1: it has said nothing for 0.3 s (--silence-time)");
    EXPECT_ERR("lost the agent on h3: it has said nothing for 0.3 s (--silence-time)");
}
END_TEST

START_TEST(a_call_that_is_not_there_is_told)
{
    hvt_job_run(&job, "-np 2 --call-dir /nonexistent " HERE, "true");
    expect_end(1);
    ck_assert_str_eq(job.err,
                     "hvdrun: cannot read the call in /nonexistent: No such file or directory\n");
}
END_TEST

static TCase *make_good_case(void)
{
    TCase *tests = tcase_create("good");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, ranks_of_all_hosts_print_here);
    tcase_add_test(tests, what_is_typed_here_is_read_by_rank_0);
    tcase_add_test(tests, other_hosts_are_reached_by_the_command_in_place_of_ssh);
    tcase_add_test(tests, interfaces_that_have_names_are_for_nccl_and_gloo_too);
    tcase_add_test(tests, many_hosts_are_reached_through_relays);
    tcase_add_test(tests, where_no_relay_starts_hosts_are_reached_directly);
    tcase_add_test(tests, where_a_relay_says_nothing_its_hosts_are_reached_directly);
    tcase_add_test(tests, a_dropped_connection_is_tried_again);
    tcase_add_test(tests, calls_and_what_they_return_are_files_here);
    tcase_add_test(tests, the_order_in_which_results_come_is_a_file_here);
    tcase_add_test(tests, a_host_that_waits_for_another_one_hears_that_hvdrun_is_there);
    tcase_add_test(tests, private_hvdds_meet_at_the_first);
    tcase_add_test(tests, private_hvdds_meet_at_the_interface_that_is_named);
    tcase_add_test(tests, a_first_host_that_ssh_reaches_by_loopback_has_another_address_elsewhere);
    return tests;
}

static TCase *make_bad_case(void)
{
    TCase *tests = tcase_create("bad");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_rank_that_fails_ends_the_others);
    tcase_add_test(tests, a_command_that_is_not_there_has_the_shells_exit_code);
    tcase_add_test(tests, hosts_that_cannot_be_reached_are_all_told);
    tcase_add_test(tests, so_many_hosts_are_logged_in_to_at_a_time);
    tcase_add_test(tests, where_no_host_has_the_directory_all_are_told);
    tcase_add_test(tests, where_no_host_has_hvdd_all_are_told);
    tcase_add_test(tests, of_hosts_beside_a_first_one_that_fails_those_that_fail_are_told);
    tcase_add_test(tests, the_end_of_the_hvdd_where_the_others_are_to_meet_ends_the_start);
    tcase_add_test(tests, a_first_host_that_fails_is_told_with_the_others_where_hvdds_are_there);
    tcase_add_test(tests, a_host_that_does_not_answer_in_time_is_told);
    tcase_add_test(tests, an_interrupt_ends_the_start);
    tcase_add_test(tests, a_second_interrupt_waits_for_no_agent);
    tcase_add_test(tests, an_interrupt_reaches_the_ranks);
    tcase_add_test(tests, an_agent_that_is_killed_takes_its_ranks_along);
    tcase_add_test(tests, an_agent_that_stands_still_is_given_up);
    tcase_add_test(tests, an_agent_behind_a_relay_that_stands_still_is_given_up);
    tcase_add_test(tests, a_relay_that_stands_still_is_given_up);
    tcase_add_test(tests, a_call_that_is_not_there_is_told);
    return tests;
}

int main(int argc, char **argv)
{
    int code;
    if (hvt_job_serves(argc, argv, &code))
        return code;
    Suite *suite = suite_create("tools/hvdrun/spread");
    suite_add_tcase(suite, make_good_case());
    suite_add_tcase(suite, make_bad_case());
    return hvt_run_suite(suite);
}

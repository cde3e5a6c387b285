/* SPDX-License-Identifier: Apache-2.0
 * The first words of a program that systemd starts, and what hvdd makes of them. */
#include "proto/started.h"

#include "base/clock.h"
#include "base/status.h"

#include "tests/unit/hvt_main.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int pair[2];
static struct hvi_packet packet;
static char text[160];

static void setup(void)
{
    const int on = 1;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    ck_assert_int_eq(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on), 0);
}

static void teardown(void)
{
    unsetenv("LISTEN_PID");
    close(pair[0]);
    close(pair[1]);
}

static void pretend_systemd_started_us(void)
{
    char pid[24];

    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
}

static int receive(void)
{
    return hvi_packet_receive(pair[0], &packet, hvi_deadline_after(HVI_NS_SEC));
}

START_TEST(a_program_that_hvdd_has_started_says_nothing)
{
    ck_assert_int_eq(hvi_started_tell(pair[1], "hvdd-engine"), HVI_OK);
    setenv("LISTEN_PID", "1", 1); /* of another process, which has forgotten to take it away */
    ck_assert_int_eq(hvi_started_tell(pair[1], "hvdd-engine"), HVI_OK);
    ck_assert_int_eq(hvi_packet_receive(pair[0], &packet, 0), HVI_ERR_TIMEOUT);
}
END_TEST

START_TEST(the_kernel_says_who_a_started_program_is)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        pretend_systemd_started_us();
        _exit(hvi_started_tell(pair[1], "hvdd-engine") == HVI_OK ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(receive(), HVI_OK);
    ck_assert_int_eq(packet.sender_pid, child);
    ck_assert_uint_eq(packet.sender_uid, geteuid());
    ck_assert(hvi_started_check(&packet, "hvdd-engine", text, sizeof text));
}
END_TEST

START_TEST(what_is_no_such_program_of_this_version_is_refused)
{
    const char *const others[] = {"hvdd-gate, protocol 1", "hvdd-engine, protocol 0", "hvdd-engine",
                                  "hvdd-engine, protocol 1 ", "x"};

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        ck_assert_int_eq(hvi_packet_send(pair[1], others[i], strlen(others[i]), NULL, 0, 0),
                         HVI_OK);
        ck_assert_int_eq(receive(), HVI_OK);
        ck_assert_int_eq(packet.sender_pid, getpid());
        ck_assert(!hvi_started_check(&packet, "hvdd-engine", text, sizeof text));
        ck_assert_str_eq(text, "what its unit has started is no hvdd-engine of this version");
    }
}
END_TEST

START_TEST(a_descriptor_has_no_place_in_it)
{
    const char said[] = "hvdd-engine, protocol 1";

    ck_assert_int_eq(hvi_packet_send(pair[1], said, strlen(said), pair, 1, 0), HVI_OK);
    ck_assert_int_eq(receive(), HVI_OK);
    ck_assert(!hvi_started_check(&packet, "hvdd-engine", text, sizeof text));
    hvi_packet_close_fds(&packet);
}
END_TEST

START_TEST(a_program_nobody_vouches_for_or_of_another_user_is_refused)
{
    const int off = 0;

    pretend_systemd_started_us();
    ck_assert_int_eq(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &off, sizeof off), 0);
    ck_assert_int_eq(hvi_started_tell(pair[1], "hvdd-gate"), HVI_OK);
    ck_assert_int_eq(receive(), HVI_OK);
    ck_assert_int_eq(packet.sender_pid, 0);
    ck_assert(!hvi_started_check(&packet, "hvdd-gate", text, sizeof text));
    ck_assert_msg(strstr(text, "pid namespace") != NULL, "%s", text);
    packet.sender_pid = getpid();
    packet.sender_uid = geteuid() + 1;
    ck_assert(!hvi_started_check(&packet, "hvdd-gate", text, sizeof text));
    ck_assert_msg(strstr(text, "as the user") != NULL, "%s", text);
    packet.sender_uid = geteuid();
    ck_assert(hvi_started_check(&packet, "hvdd-gate", text, sizeof text));
}
END_TEST

START_TEST(a_program_whose_hvdd_has_gone_is_told)
{
    pretend_systemd_started_us();
    close(pair[0]);
    pair[0] = -1;
    ck_assert_int_eq(hvi_started_tell(pair[1], "hvdd-gate"), HVI_ERR_CLOSED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("started");
    TCase *tcase = tcase_create("started");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_program_that_hvdd_has_started_says_nothing);
    tcase_add_test(tcase, the_kernel_says_who_a_started_program_is);
    tcase_add_test(tcase, what_is_no_such_program_of_this_version_is_refused);
    tcase_add_test(tcase, a_descriptor_has_no_place_in_it);
    tcase_add_test(tcase, a_program_nobody_vouches_for_or_of_another_user_is_refused);
    tcase_add_test(tcase, a_program_whose_hvdd_has_gone_is_told);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * The words that start an agent, and what ssh's failures mean. */
#include "tools/hvdrun/ssh.h"

#include "base/clock.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>

static struct run_ssh ssh;
static struct run_options options;
static char text[512];

static struct run_host host_of(const char *name, bool here)
{
    struct run_host host = {.slots = 1, .here = here};
    snprintf(host.name, sizeof host.name, "%s", name);
    return host;
}

/* The words with | between them. */
static const char *words_for(const char *name, bool here)
{
    static char line[4096];
    const struct run_host host = host_of(name, here);
    line[0] = '\0';
    ck_assert_msg(run_ssh_make(&options, &host, RUN_SSH_AGENT, &ssh, text, sizeof text) == 0, "%s",
                  text);
    for (char **word = ssh.argv; *word != NULL; word++)
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s",
                 word == ssh.argv ? "" : "|", *word);
    run_ssh_fini(&ssh);
    return line;
}

static void reset(void)
{
    unsetenv("HVD_SSH");
    options =
        (struct run_options){.start_timeout_ns = 12 * HVI_NS_SEC, .remote_hvdrun = "/x/hvdrun"};
}

#define OURS                                                                                       \
    "-T|-o|BatchMode=yes|-o|ControlMaster=no|-o|ClearAllForwardings=yes|"                          \
    "-o|ServerAliveInterval=5|-o|ServerAliveCountMax=3|-o|ConnectTimeout=3"

START_TEST(ssh_gets_its_options_and_then_the_users)
{
    reset();
    ck_assert_str_eq(words_for("h1", false), "ssh|" OURS "|h1|'/x/hvdrun' --node");
    options.ssh_port = "2222";
    options.ssh_identity = "/x/key";
    ck_assert_str_eq(words_for("u@h1", false),
                     "ssh|" OURS "|-p|2222|-i|/x/key|u@h1|'/x/hvdrun' --node");
    options.start_timeout_ns = 1;
    ck_assert_ptr_nonnull(strstr(words_for("h1", false), "ConnectTimeout=1|"));
    options.start_timeout_ns = 500 * HVI_NS_SEC;
    ck_assert_ptr_nonnull(strstr(words_for("h1", false), "ConnectTimeout=10|"));
}
END_TEST

START_TEST(a_command_in_its_place_gets_only_what_was_asked_for)
{
    reset();
    options.ssh_command = " /x/kubexec.sh  --verbose ";
    ck_assert_str_eq(words_for("h1", false), "/x/kubexec.sh|--verbose|h1|'/x/hvdrun' --node");
    options.ssh_port = "9";
    ck_assert_str_eq(words_for("h1", false), "/x/kubexec.sh|--verbose|-p|9|h1|'/x/hvdrun' --node");
    options.ssh_port = NULL;
    options.ssh_command = "/x/ssh -F conf";
    ck_assert_str_eq(words_for("h1", false), "/x/ssh|-F|conf|" OURS "|h1|'/x/hvdrun' --node");
}
END_TEST

START_TEST(the_environment_may_name_the_command)
{
    reset();
    setenv("HVD_SSH", "/x/rsh", 1);
    ck_assert_str_eq(words_for("h1", false), "/x/rsh|h1|'/x/hvdrun' --node");
    options.ssh_command = "/x/other";
    ck_assert_str_eq(words_for("h1", false), "/x/other|h1|'/x/hvdrun' --node");
    setenv("HVD_SSH", "  ", 1);
    options.ssh_command = NULL;
    ck_assert_int_eq(strncmp(words_for("h1", false), "ssh|", 4), 0);
    unsetenv("HVD_SSH");
}
END_TEST

START_TEST(any_path_is_one_word_there)
{
    reset();
    options.remote_hvdrun = "/x y/$(z)/it's";
    ck_assert_ptr_nonnull(strstr(words_for("h1", false), "|'/x y/$(z)/it'\\''s' --node"));
}
END_TEST

START_TEST(the_agent_of_this_machine_is_this_program)
{
    char self[512] = "";
    char expected[600];
    reset();
    options.ssh_command = "/x/never";
    ck_assert_int_gt(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    snprintf(expected, sizeof expected, "%s|--node", self);
    ck_assert_str_eq(words_for("localhost", true), expected);
}
END_TEST

START_TEST(too_many_words_are_refused)
{
    char many[300] = "";
    const struct run_host host = host_of("h1", false);
    reset();
    for (int i = 0; i < 100; i++)
        strcat(many, "a ");
    options.ssh_command = many;
    ck_assert_int_eq(run_ssh_make(&options, &host, RUN_SSH_AGENT, &ssh, text, sizeof text), -1);
    ck_assert_ptr_nonnull(strstr(text, "too many"));
}
END_TEST

static const char *explained(bool here, enum hvi_fate_kind kind, int code, const char *words)
{
    const struct run_host host = host_of("h1", here);
    reset();
    ck_assert_int_eq(run_ssh_make(&options, &host, RUN_SSH_AGENT, &ssh, text, sizeof text), 0);
    if (!here)
        snprintf(ssh.hvdrun, sizeof ssh.hvdrun, "/x/hvdrun");
    run_ssh_explain(&ssh, &host, (struct hvi_fate){kind, code}, words, text, sizeof text);
    run_ssh_fini(&ssh);
    return text;
}

START_TEST(failures_are_told_apart)
{
    ck_assert_str_eq(explained(false, HVI_FATE_EXITED, 255, "Warning: x\nNo route to host\r\n"),
                     "cannot be reached: No route to host");
    ck_assert_str_eq(explained(false, HVI_FATE_EXITED, 255, ""),
                     "cannot be reached: ssh does not say why");
    ck_assert_str_eq(explained(false, HVI_FATE_EXITED, 127, "sh: 1: not found\n"),
                     "there is no /x/hvdrun; install the same version there, or say where it is "
                     "with --remote-hvdrun");
    ck_assert_str_eq(explained(false, HVI_FATE_EXITED, 127,
                               "/x/hvdrun: error while loading shared libraries: libyaml-0.so.2: "
                               "cannot open shared object file: No such file or directory\n"),
                     "hvdrun cannot be run there: /x/hvdrun: error while loading shared libraries: "
                     "libyaml-0.so.2: cannot open shared object file: No such file or directory; "
                     "install what it needs (scripts/deps.sh run)");
    ck_assert_str_eq(explained(false, HVI_FATE_EXITED, 126, "Exec format error\n"),
                     "/x/hvdrun cannot be run there: Exec format error; is it for another "
                     "architecture?");
    ck_assert_str_eq(explained(false, HVI_FATE_EXITED, 2, "hvdrun: unknown option --node\n"),
                     "ssh exited with code 2 before it was ready: hvdrun: unknown option --node");
    ck_assert_ptr_nonnull(strstr(explained(true, HVI_FATE_SIGNALED, 9, ""),
                                 "was killed by signal 9 (SIGKILL) before it was ready"));
}
END_TEST

START_TEST(what_to_do_about_keys_is_said)
{
    ck_assert_str_eq(
        explained(false, HVI_FATE_EXITED, 255, "me@h1: Permission denied (publickey).\n"),
        "cannot be reached: me@h1: Permission denied (publickey). It has to let you in "
        "without a password: try ssh-copy-id h1, or name the key with -i");
    ck_assert_str_eq(explained(false, HVI_FATE_EXITED, 255,
                               "No ED25519 host key is known for h1 and you have requested strict "
                               "checking.\nHost key verification failed.\r\n"),
                     "cannot be reached: Host key verification failed. Its key is not known here "
                     "yet: log in once with: ssh h1, or take the keys of new hosts with "
                     "HVD_SSH=\"ssh -o StrictHostKeyChecking=accept-new\"");
    ck_assert_str_eq(explained(false, HVI_FATE_EXITED, 255,
                               "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n"
                               "Host key verification failed.\n"),
                     "cannot be reached: Host key verification failed. Its key is another one than "
                     "before: if that is right, forget the old one with ssh-keygen -R, and log in "
                     "once with: ssh h1");
}
END_TEST

START_TEST(only_a_dropped_connection_is_tried_again)
{
    const struct hvi_fate failed = {HVI_FATE_EXITED, 255};
    const struct hvi_fate missing = {HVI_FATE_EXITED, 127};
    ck_assert(run_ssh_was_dropped(
        failed, "kex_exchange_identification: Connection closed by remote host\n"));
    ck_assert(run_ssh_was_dropped(failed, "Connection reset by 192.0.2.1 port 22\n"));
    ck_assert(!run_ssh_was_dropped(failed, "Permission denied (publickey).\n"));
    ck_assert(!run_ssh_was_dropped(failed, "ssh: connect to host h1 port 22: Connection refused"));
    ck_assert(!run_ssh_was_dropped(missing, "Connection reset by 192.0.2.1 port 22\n"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/ssh");
    TCase *tests = tcase_create("ssh");
    tcase_add_test(tests, ssh_gets_its_options_and_then_the_users);
    tcase_add_test(tests, a_command_in_its_place_gets_only_what_was_asked_for);
    tcase_add_test(tests, the_environment_may_name_the_command);
    tcase_add_test(tests, any_path_is_one_word_there);
    tcase_add_test(tests, the_agent_of_this_machine_is_this_program);
    tcase_add_test(tests, too_many_words_are_refused);
    tcase_add_test(tests, failures_are_told_apart);
    tcase_add_test(tests, what_to_do_about_keys_is_said);
    tcase_add_test(tests, only_a_dropped_connection_is_tried_again);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"
#include "daemon/node/rundir.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char base[64], dir[128], text[512];
static struct node_rundir rundir;

static void setup(void)
{
    snprintf(base, sizeof(base), "/tmp/hvt-rundir-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(base));
    snprintf(dir, sizeof(dir), "%s/hvdd", base);
    rundir = (struct node_rundir)NODE_RUNDIR_INIT;
    text[0] = '\0';
}

static void teardown(void)
{
    char lock[160];

    node_rundir_close(&rundir);
    snprintf(lock, sizeof(lock), "%s/hvdd.lock", dir);
    unlink(lock);
    snprintf(lock, sizeof(lock), "%s/attach.sock", dir);
    unlink(lock);
    unlink(dir);
    rmdir(dir);
    ck_assert_msg(rmdir(base) == 0, "%s is not empty", base);
}

static int open_it(bool private_mode)
{
    return node_rundir_open(dir, private_mode, &rundir, text, sizeof(text));
}

static mode_t mode_of(const char *path)
{
    struct stat info;
    ck_assert_int_eq(lstat(path, &info), 0);
    return info.st_mode & 07777;
}

START_TEST(a_missing_directory_is_made_with_the_right_mode_and_removed)
{
    mode_t modes[] = {0755, 0700};

    for (int private_mode = 0; private_mode < 2; private_mode++) {
        ck_assert_msg(open_it(private_mode) == HVI_OK, "%s", text);
        ck_assert_int_eq(mode_of(dir), modes[private_mode]);
        ck_assert(rundir.created);
        ck_assert(!rundir.stored && !rundir.left);
        node_rundir_close(&rundir);
        node_rundir_close(&rundir);
        ck_assert_int_ne(access(dir, F_OK), 0);
    }
}
END_TEST

START_TEST(a_directory_that_was_there_stays)
{
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    ck_assert_int_eq(open_it(true), HVI_OK);
    node_rundir_close(&rundir);
    ck_assert_int_eq(access(dir, F_OK), 0);
}
END_TEST

START_TEST(a_link_is_refused_even_to_a_good_directory)
{
    char other[128];

    snprintf(other, sizeof(other), "%s/other", base);
    ck_assert_int_eq(mkdir(other, 0700), 0);
    ck_assert_int_eq(symlink(other, dir), 0);
    ck_assert_int_eq(open_it(true), HVI_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(text, "link"));
    ck_assert_int_eq(rmdir(other), 0);
}
END_TEST

START_TEST(a_file_is_refused)
{
    fclose(fopen(dir, "w"));
    ck_assert_int_eq(open_it(true), HVI_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(text, "no directory"));
}
END_TEST

START_TEST(a_directory_that_others_may_write_or_a_private_one_they_may_read_is_refused)
{
    ck_assert_int_eq(mkdir(dir, 0755), 0);
    ck_assert_int_eq(chmod(dir, 0755), 0);
    ck_assert_int_eq(open_it(true), HVI_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(text, "has mode 0755"));
    ck_assert_ptr_nonnull(strstr(text, "at most 0700"));
    ck_assert_int_eq(open_it(false), HVI_OK);
    node_rundir_close(&rundir);
    ck_assert_int_eq(chmod(dir, 0775), 0);
    ck_assert_int_eq(open_it(false), HVI_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(text, "has mode 0775"));
}
END_TEST

START_TEST(a_directory_of_another_user_is_refused)
{
    if (hvt_skip_if(geteuid() != 0, "only root can make one"))
        return;
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    ck_assert_int_eq(chown(dir, 12345, (gid_t)-1), 0);
    ck_assert_int_eq(open_it(true), HVI_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(text, "belongs to uid 12345"));
}
END_TEST

START_TEST(a_missing_parent_and_a_relative_path_are_refused)
{
    ck_assert_int_eq(node_rundir_open("/nonexistent/x", true, &rundir, text, sizeof(text)),
                     HVI_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(text, "/nonexistent/x"));
    ck_assert_int_eq(node_rundir_open("relative", true, &rundir, text, sizeof(text)),
                     HVI_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(text, "absolute"));
}
END_TEST

static void make_socket(void)
{
    char path[160];

    snprintf(path, sizeof(path), "%s/attach.sock", dir);
    close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

START_TEST(the_second_hvdd_is_told_the_pid_of_the_first)
{
    struct node_rundir second = NODE_RUNDIR_INIT;
    char expected[256];

    ck_assert_int_eq(open_it(true), HVI_OK);
    make_socket();
    ck_assert_int_eq(node_rundir_open(dir, true, &second, text, sizeof(text)), HVI_ERR_REFUSED);
    snprintf(expected, sizeof(expected), "another hvdd (pid %d) serves %s", (int)getpid(), dir);
    ck_assert_str_eq(text, expected);
    node_rundir_close(&rundir);
    ck_assert_int_eq(open_it(true), HVI_OK);
}
END_TEST

START_TEST(the_lock_of_a_dead_hvdd_does_not_count_but_its_mark_does)
{
    int status;
    pid_t child;

    ck_assert_int_eq(mkdir(dir, 0700), 0);
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        int failed = open_it(true);
        node_rundir_mark_stored(&rundir);
        _exit(failed == HVI_OK ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_msg(open_it(true) == HVI_OK, "%s", text);
    ck_assert(rundir.stored && rundir.left);
    node_rundir_close(&rundir);
    ck_assert_int_eq(open_it(true), HVI_OK);
    ck_assert(!rundir.stored);
}
END_TEST

/* It has made the directory, and takes it away; or somebody else has. */
START_TEST(a_hvdd_that_ends_and_has_no_socket_any_more_is_waited_for)
{
    int has_lock[2], status;
    char byte;

    if (_i == 1)
        ck_assert_int_eq(mkdir(dir, 0700), 0);
    ck_assert_int_eq(pipe(has_lock), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        bool failed = open_it(true) != HVI_OK || write(has_lock[1], "", 1) != 1;
        usleep(200 * 1000);
        node_rundir_close(&rundir);
        _exit(failed);
    }
    ck_assert_int_eq(read(has_lock[0], &byte, 1), 1);
    ck_assert_msg(open_it(true) == HVI_OK, "%s", text);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    close(has_lock[0]);
    close(has_lock[1]);
}
END_TEST

/* An hvdd has been killed, and its child keeps the lock for 200 ms, as an engine that was just being
 * started. */
static void leave_lock_to_child(void)
{
    pid_t child;

    ck_assert_int_eq(mkdir(dir, 0700), 0);
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        int failed = open_it(true);
        if (fork() == 0)
            usleep(200 * 1000);
        _exit(failed == HVI_OK ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

START_TEST(the_lock_that_a_dead_hvdd_has_left_to_a_child_is_waited_for)
{
    leave_lock_to_child();
    ck_assert_msg(open_it(true) == HVI_OK, "%s", text);
}
END_TEST

struct opened {
    int status;
    char text[sizeof text];
};

/* A new hvdd. If it has the lock, it keeps it until the other end of `stay` is closed. */
static pid_t start_hvdd(struct opened *opened_p, const int stay[2])
{
    char byte;
    pid_t child = fork();

    ck_assert_int_ge(child, 0);
    if (child > 0)
        return child;
    close(stay[1]);
    opened_p->status = open_it(true);
    if (opened_p->status == HVI_OK)
        make_socket();
    strcpy(opened_p->text, text);
    ssize_t got = opened_p->status == HVI_OK ? read(stay[0], &byte, 1) : 0;
    _exit(got == 0 ? 0 : 1);
}

START_TEST(of_two_new_hvdds_the_second_is_told_the_pid_of_the_first)
{
    struct opened *opened =
        mmap(NULL, 2 * sizeof *opened, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int stay[2], status;
    char expected[256];
    pid_t pids[2];

    ck_assert_ptr_ne(opened, MAP_FAILED);
    leave_lock_to_child();
    ck_assert_int_eq(pipe(stay), 0);
    for (int i = 0; i < 2; i++)
        pids[i] = start_hvdd(&opened[i], stay);
    int second = waitpid(-1, &status, 0) == pids[1];
    close(stay[1]);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(waitpid(pids[!second], &status, 0), pids[!second]);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(opened[!second].status, HVI_OK);
    ck_assert_int_eq(opened[second].status, HVI_ERR_REFUSED);
    snprintf(expected, sizeof(expected), "another hvdd (pid %d) serves %s", (int)pids[!second],
             dir);
    ck_assert_str_eq(opened[second].text, expected);
    close(stay[0]);
    munmap(opened, 2 * sizeof *opened);
}
END_TEST

START_TEST(socket_paths_must_fit_sun_path)
{
    char path[HVI_WIRE_PATH];
    const size_t room = sizeof(((struct sockaddr_un *)0)->sun_path);
    const size_t tail = strlen("/attach.sock");

    memset(rundir.path, 'd', sizeof(rundir.path));
    rundir.path[room - 1 - tail] = '\0';
    ck_assert(node_rundir_socket_path(&rundir, "attach.sock", path, sizeof(path)));
    ck_assert_uint_eq(strlen(path), room - 1);
    rundir.path[room - 1 - tail] = 'd';
    rundir.path[room - tail] = '\0';
    ck_assert(!node_rundir_socket_path(&rundir, "attach.sock", path, sizeof(path)));
}
END_TEST

START_TEST(the_default_depends_on_the_user_and_the_session)
{
    char session[] = "/tmp/hvt-session-XXXXXX", path[HVI_WIRE_PATH], expected[64];
    const uid_t uid = geteuid() == 0 ? 54321 : geteuid();

    ck_assert_ptr_nonnull(mkdtemp(session));
    ck_assert_int_eq(chown(session, uid, (gid_t)-1), 0);
    setenv("XDG_RUNTIME_DIR", session, 1);
    ck_assert_int_eq(node_rundir_default(0, path, sizeof(path)), HVI_OK);
    ck_assert_str_eq(path, "/run/hvdd");
    ck_assert_int_eq(node_rundir_default(uid, path, sizeof(path)), HVI_OK);
    snprintf(expected, sizeof(expected), "%s/hvdd", session);
    ck_assert_str_eq(path, expected);
    ck_assert_int_eq(rmdir(session), 0); /* as where su has taken the variable along */
    ck_assert_int_eq(node_rundir_default(uid, path, sizeof(path)), HVI_OK);
    snprintf(expected, sizeof(expected), "/tmp/hvdd-%u", (unsigned)uid);
    ck_assert_str_eq(path, expected);
    unsetenv("XDG_RUNTIME_DIR");
    ck_assert_int_eq(node_rundir_default(uid, path, sizeof(path)), HVI_OK);
    ck_assert_str_eq(path, expected);
    ck_assert_int_eq(node_rundir_default(uid, path, 8), HVI_ERR_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node runtime directory");
    TCase *tcase = tcase_create("rundir");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_missing_directory_is_made_with_the_right_mode_and_removed);
    tcase_add_test(tcase, a_directory_that_was_there_stays);
    tcase_add_test(tcase, a_link_is_refused_even_to_a_good_directory);
    tcase_add_test(tcase, a_file_is_refused);
    tcase_add_test(tcase,
                   a_directory_that_others_may_write_or_a_private_one_they_may_read_is_refused);
    tcase_add_test(tcase, a_directory_of_another_user_is_refused);
    tcase_add_test(tcase, a_missing_parent_and_a_relative_path_are_refused);
    tcase_add_test(tcase, the_second_hvdd_is_told_the_pid_of_the_first);
    tcase_add_test(tcase, the_lock_of_a_dead_hvdd_does_not_count_but_its_mark_does);
    tcase_add_loop_test(tcase, a_hvdd_that_ends_and_has_no_socket_any_more_is_waited_for, 0, 2);
    tcase_add_test(tcase, the_lock_that_a_dead_hvdd_has_left_to_a_child_is_waited_for);
    tcase_add_test(tcase, of_two_new_hvdds_the_second_is_told_the_pid_of_the_first);
    tcase_add_test(tcase, socket_paths_must_fit_sun_path);
    tcase_add_test(tcase, the_default_depends_on_the_user_and_the_session);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * Which daemon a tool talks to, with real sockets in a fresh directory. */
#include "admin/address.h"

#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/hvt_listen.h"
#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];
static char place[128]; /* $XDG_RUNTIME_DIR/hvdd */
static int listener = -1;

static void setup(void)
{
    snprintf(root, sizeof root, "/tmp/hvt-address-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    snprintf(place, sizeof place, "%s/hvdd", root);
    ck_assert_int_eq(mkdir(place, 0700), 0);
    setenv("XDG_RUNTIME_DIR", root, 1);
    unsetenv("HVD_ADDRESS");
}

static void teardown(void)
{
    char path[160];
    snprintf(path, sizeof path, "%s/admin.sock", place);
    unlink(path);
    rmdir(place);
    rmdir(root);
    if (listener >= 0)
        close(listener);
    listener = -1;
}

static void listen_there(void)
{
    listener = hvt_listen(place, "admin.sock", SOCK_STREAM);
}

START_TEST(the_runtime_directory_of_the_user_comes_first)
{
    struct address address;
    listen_there();
    ck_assert_int_eq(address_find(NULL, &address), HVI_OK);
    ck_assert_str_eq(address.dir, place);
}
END_TEST

START_TEST(a_stale_socket_is_no_daemon_and_the_sentence_says_so)
{
    struct address address;
    listen_there();
    close(listener);
    listener = -1;
    ck_assert_int_eq(address_find(place, &address), HVI_ERR_NO_DAEMON);
    ck_assert_str_eq(address.dir, place);
    ck_assert_ptr_nonnull(strstr(address.why, place));
    ck_assert_ptr_nonnull(strstr(address.why, "nobody listens"));
    ck_assert_int_eq(address_probe(place, HVI_NEVER), ECONNREFUSED);
}
END_TEST

/* Who listens is known when there is a connection, and without one nothing may be said. */
START_TEST(a_listener_whose_queue_stays_full_is_not_taken_for_ours)
{
    struct address address;
    int error = 0;
    listen_there();
    for (int i = 0; i < 100 && error == 0; i++)
        error = address_probe(place, 0);
    ck_assert_int_eq(error, EAGAIN);
    const uint64_t before_ns = hvi_clock_ns();
    ck_assert_int_eq(address_probe(place, before_ns + 30 * HVI_NS_MS), EAGAIN);
    ck_assert_uint_ge(hvi_clock_ns(), before_ns + 29 * HVI_NS_MS);
    ck_assert_int_eq(address_find(place, &address), HVI_ERR_NO_DAEMON);
    ck_assert_ptr_nonnull(strstr(address.why, "its queue of connections stays full"));
}
END_TEST

/* A hvdd for all users has it, and admin.sock beside it. */
START_TEST(the_socket_of_root_is_tried_first_and_not_waited_for)
{
    char path[160];
    listen_there();
    ck_assert(!address_is_of_root(place));
    const int roots = hvt_listen(place, "root.sock", SOCK_STREAM);
    int places = 0;
    while (places < 100 && address_is_of_root(place))
        places++;
    ck_assert_int_eq(places,
                     65); /* one more than its queue is long; none of them was in the other one */
    ck_assert_int_eq(address_probe(place, 0), 0);
    close(roots);
    ck_assert_int_eq(address_probe(place, 0), 0); /* as a hvdd that was killed leaves it */
    snprintf(path, sizeof path, "%s/root.sock", place);
    unlink(path);
}
END_TEST

START_TEST(an_address_that_is_given_is_the_only_one_tried)
{
    struct address address;
    listen_there();
    ck_assert_int_eq(address_find("/nonexistent/hvdd", &address), HVI_ERR_NO_DAEMON);
    ck_assert_ptr_null(strstr(address.why, place));
    setenv("HVD_ADDRESS", "/nonexistent/other", 1);
    ck_assert_int_eq(address_find(NULL, &address), HVI_ERR_NO_DAEMON);
    ck_assert_ptr_nonnull(strstr(address.why, "/nonexistent/other (nothing there)"));
    ck_assert_int_eq(address_find(place, &address), HVI_OK); /* the argument wins */
}
END_TEST

START_TEST(a_directory_that_others_can_write_is_not_trusted)
{
    struct address address;
    listen_there();
    ck_assert_int_eq(chmod(place, 0777), 0);
    if (address_find(NULL, &address) == HVI_OK) /* a system daemon may run on this machine */
        ck_assert_str_ne(address.dir, place);
    else
        ck_assert_ptr_nonnull(strstr(address.why, "not trusted"));
}
END_TEST

START_TEST(a_path_too_long_for_a_socket_is_invalid)
{
    struct address address;
    char path[200];
    memset(path, 'x', sizeof path - 1);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    ck_assert_int_eq(address_find(path, &address), HVI_ERR_INVALID);
    ck_assert_int_eq(address_probe(path, 0), ENAMETOOLONG);
}
END_TEST

START_TEST(places_are_tried_in_the_librarys_order)
{
    struct address address;
    if (hvt_skip_if(address_find(NULL, &address) == HVI_OK, "a hvdd runs here"))
        return;
    const char *runtime = strstr(address.why, place);
    const char *system = strstr(address.why, "/run/hvdd (");
    ck_assert(runtime != NULL && system != NULL && runtime < system);
    ck_assert_ptr_nonnull(strstr(system, "/tmp/hvdd-"));
    unsetenv("XDG_RUNTIME_DIR");
    ck_assert_int_eq(address_find(NULL, &address), HVI_ERR_NO_DAEMON);
    ck_assert_ptr_eq(strstr(address.why, "/tmp/hvdd-"), address.why);
    ck_assert_ptr_nonnull(strstr(address.why, "/run/hvdd ("));
}
END_TEST

START_TEST(an_empty_variable_configures_nothing)
{
    struct address address;
    listen_there();
    setenv("HVD_ADDRESS", "", 1);
    ck_assert_int_eq(address_find(NULL, &address), HVI_OK);
    ck_assert_str_eq(address.dir, place);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("admin/address");
    TCase *tests = tcase_create("address");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, the_runtime_directory_of_the_user_comes_first);
    tcase_add_test(tests, a_stale_socket_is_no_daemon_and_the_sentence_says_so);
    tcase_add_test(tests, a_listener_whose_queue_stays_full_is_not_taken_for_ours);
    tcase_add_test(tests, the_socket_of_root_is_tried_first_and_not_waited_for);
    tcase_add_test(tests, an_address_that_is_given_is_the_only_one_tried);
    tcase_add_test(tests, a_directory_that_others_can_write_is_not_trusted);
    tcase_add_test(tests, a_path_too_long_for_a_socket_is_invalid);
    tcase_add_test(tests, places_are_tried_in_the_librarys_order);
    tcase_add_test(tests, an_empty_variable_configures_nothing);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

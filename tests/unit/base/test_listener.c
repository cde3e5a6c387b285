/* SPDX-License-Identifier: Apache-2.0
 * Whom a process believes that listens, by real sockets of two users; and a queue that is full. */
#include "base/listener.h"

#include "base/clock.h"
#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#define NOBODY 65534u

/* A connection to a socket that `uid` listens at: in the abstract namespace, where every user may make names. */
static int connect_to(uid_t uid)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "hvt-listener-%d", (int)getpid());
    ck_assert_int_eq(bind(server, (struct sockaddr *)&name, sizeof name), 0);
    ck_assert_int_eq(seteuid(uid), 0);
    ck_assert_int_eq(listen(server, 1), 0);
    ck_assert_int_eq(seteuid(getuid()), 0);
    ck_assert_int_eq(connect(client, (struct sockaddr *)&name, sizeof name), 0);
    close(server);
    return client;
}

START_TEST(ones_own_process_is_believed)
{
    uid_t uid;
    int fd = connect_to(geteuid());

    ck_assert(hvi_listener_is_ours(fd, &uid));
    ck_assert_uint_eq(uid, geteuid());
    ck_assert(hvi_listener_may_serve(fd, NULL, &uid));
    close(fd);
}
END_TEST

START_TEST(what_is_no_socket_is_not_believed)
{
    uid_t uid;
    int pair[2];

    ck_assert_int_eq(pipe(pair), 0);
    setenv("HVD_SERVICE_UID", "4294967295", 1);
    ck_assert(!hvi_listener_is_ours(pair[0], &uid));
    ck_assert(!hvi_listener_may_serve(pair[0], NULL, &uid));
    close(pair[0]);
    close(pair[1]);
}
END_TEST

START_TEST(the_process_of_another_user_is_believed_only_where_it_is_named)
{
    static const char *const others[] = {
        "",       "6553",   "655340", "65534 ", " 65534",
        "+65534", "65534x", "-1",     "nobody", "18446744073709617150"};
    uid_t uid;

    if (hvt_skip_if(geteuid() != 0, "only root can be two users"))
        return;
    int fd = connect_to(NOBODY);
    unsetenv("HVD_SERVICE_UID");
    ck_assert(!hvi_listener_is_ours(fd, &uid));
    ck_assert_uint_eq(uid, NOBODY);
    ck_assert(!hvi_listener_may_serve(fd, NULL, &uid));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        setenv("HVD_SERVICE_UID", others[i], 1);
        ck_assert_msg(!hvi_listener_may_serve(fd, NULL, &uid), "'%s'", others[i]);
    }
    setenv("HVD_SERVICE_UID", "65534", 1);
    ck_assert(hvi_listener_may_serve(fd, NULL, &uid));
    ck_assert(!hvi_listener_is_ours(fd, &uid));
    close(fd);
}
END_TEST

START_TEST(the_process_of_the_owner_of_a_named_directory_is_believed)
{
    char place[] = "/tmp/hvt-listener-XXXXXX";
    uid_t uid;

    if (hvt_skip_if(geteuid() != 0, "only root can be two users"))
        return;
    int fd = connect_to(NOBODY);
    unsetenv("HVD_SERVICE_UID");
    ck_assert_ptr_nonnull(mkdtemp(place));
    ck_assert(!hvi_listener_may_serve(fd, place, &uid));
    ck_assert_int_eq(chown(place, NOBODY, NOBODY), 0);
    ck_assert(hvi_listener_may_serve(fd, place, &uid));
    ck_assert(!hvi_listener_may_serve(fd, NULL, &uid));
    ck_assert_int_eq(rmdir(place), 0);
    ck_assert(!hvi_listener_may_serve(fd, place, &uid));
    close(fd);
}
END_TEST

START_TEST(the_process_of_root_is_believed)
{
    uid_t uid;

    if (hvt_skip_if(geteuid() != 0, "only root can be two users"))
        return;
    int fd = connect_to(0);
    ck_assert_int_eq(seteuid(NOBODY), 0);
    ck_assert(hvi_listener_is_ours(fd, &uid));
    ck_assert_uint_eq(uid, 0);
    close(fd);
    /* For LeakSanitizer, which looks at the process when it ends. */
    ck_assert_int_eq(seteuid(0), 0);
}
END_TEST

START_TEST(a_path_is_tried_once)
{
    char folder[] = "/tmp/hvt-listener-XXXXXX", path[200];
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(name.sun_path, sizeof(name.sun_path), "%s/s", folder);
    ck_assert_int_eq(hvi_listener_try(name.sun_path), -ENOENT);
    ck_assert_int_eq(bind(server, (struct sockaddr *)&name, sizeof(name)), 0);
    ck_assert_int_eq(hvi_listener_try(name.sun_path), -ECONNREFUSED);
    ck_assert_int_eq(listen(server, 0), 0);
    int fd = hvi_listener_try(name.sun_path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_ne(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    ck_assert_int_eq(hvi_listener_try(name.sun_path), -EAGAIN);
    memset(path, 'a', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    ck_assert_int_eq(hvi_listener_try(path), -EINVAL);
    ck_assert_int_eq(hvi_listener_try(""), -EINVAL);
    close(fd);
    close(server);
    unlink(name.sun_path);
    rmdir(folder);
}
END_TEST

/* The queue has one place, and one more for a connection that is let in. */
START_TEST(a_place_in_a_queue_that_is_full_is_waited_for_until_the_deadline)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fds[3], left = 3;

    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "hvt-queue-%d", (int)getpid());
    ck_assert_int_eq(bind(server, (struct sockaddr *)&name, sizeof name), 0);
    ck_assert_int_eq(listen(server, 1), 0);
    for (int i = 0; i < 3; i++)
        fds[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(hvi_listener_connect(fds[0], &name, 0), 0);
    ck_assert_int_eq(hvi_listener_connect(fds[1], &name, HVI_NEVER), 0);
    ck_assert_int_ne(fcntl(fds[0], F_GETFL) & O_NONBLOCK, 0);
    ck_assert_int_ne(fcntl(fds[1], F_GETFL) & O_NONBLOCK, 0);
    uint64_t end_ns = hvi_deadline_after(20 * (int64_t)HVI_NS_MS);
    ck_assert_int_eq(hvi_listener_connect(fds[2], &name, end_ns), EAGAIN);
    ck_assert(hvi_deadline_passed(end_ns));
    ck_assert_int_eq(hvi_listener_connect(fds[2], &name, 0), EAGAIN);
    close(accept(server, NULL, NULL));
    ck_assert_int_eq(hvi_listener_connect(fds[2], &name, 0), 0);
    close(server);
    while (left > 0)
        close(fds[--left]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("listener");
    TCase *tcase = tcase_create("listener");

    tcase_add_test(tcase, ones_own_process_is_believed);
    tcase_add_test(tcase, what_is_no_socket_is_not_believed);
    tcase_add_test(tcase, the_process_of_another_user_is_believed_only_where_it_is_named);
    tcase_add_test(tcase, the_process_of_the_owner_of_a_named_directory_is_believed);
    tcase_add_test(tcase, the_process_of_root_is_believed);
    tcase_add_test(tcase, a_path_is_tried_once);
    tcase_add_test(tcase, a_place_in_a_queue_that_is_full_is_waited_for_until_the_deadline);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

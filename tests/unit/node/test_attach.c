/* SPDX-License-Identifier: Apache-2.0
 * attach.sock of a real hvdd, with an engine that does as it is told. */
#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/node/rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct rig rig;
static struct hvi_attach_reply reply;

static const char *const plain[] = {"--private", NULL};
static const char *const quick[] = {"--private", "--attach-timeout", "100ms", NULL};

static void setup(void)
{
    rig_init(&rig);
}

static void teardown(void)
{
    rig_fini(&rig);
}

static void start(const char *mode, const char *const *arguments)
{
    if (mode != NULL)
        setenv("FAKE_ENGINE", mode, 1);
    else
        unsetenv("FAKE_ENGINE");
    rig_start(&rig, arguments);
}

static void stop(void)
{
    rig_kill(&rig, SIGTERM);
    rig_kill(&rig, SIGINT);
    ck_assert_int_eq(rig_wait(&rig), 0);
    ck_assert_int_eq(rig_engines(&rig), 0);
}

/* The refusal is followed by the end of the connection. */
static void assert_refused(int fd, int status, const char *needle)
{
    ck_assert(rig_read_reply(fd, &reply));
    ck_assert_msg(reply.status == status, "%s: %s", hvi_status_name(reply.status), reply.text);
    ck_assert_msg(strstr(reply.text, needle) != NULL, "\"%s\" is not in \"%s\"", needle,
                  reply.text);
    ck_assert(!rig_read_reply(fd, &reply));
    close(fd);
}

START_TEST(ranks_of_a_job_get_the_same_engine_and_jobs_different_ones)
{
    int a, b, c, engine;

    start(NULL, plain);
    a = rig_attach(&rig, rig_request("a", 0, 2), HVI_OK, &reply);
    engine = reply.engine_pid;
    ck_assert_uint_eq(reply.generation, 1);
    b = rig_attach(&rig, rig_request("a", 1, 2), HVI_OK, &reply);
    ck_assert_int_eq(reply.engine_pid, engine);
    c = rig_attach(&rig, rig_request("b", 0, 1), HVI_OK, &reply);
    ck_assert_int_ne(reply.engine_pid, engine);
    rig_wait_log(&rig, "forming -> running", 2);
    close(a);
    close(b);
    close(c);
    rig_wait_engines(&rig, 0);
    stop();
    ck_assert(!rig_exists(&rig, ""));
}
END_TEST

START_TEST(every_refusal_is_a_reply_with_a_sentence_and_then_an_end_of_file)
{
    struct hvi_attach_request *request;
    int fd, holder;

    start(NULL, plain);
    holder = rig_join(&rig, "a", 0, 2);
    request = rig_request("a", 0, 2);
    request->protocol_version = 99;
    rig_send_attach(fd = rig_connect(&rig), request);
    assert_refused(fd, HVI_ERR_VERSION, "protocol 99");
    rig_send_attach(fd = rig_connect(&rig), rig_request("a", 2, 2));
    assert_refused(fd, HVI_ERR_BAD_RANK, "rank 2");
    rig_send_attach(fd = rig_connect(&rig), rig_request("a", 1, 3));
    assert_refused(fd, HVI_ERR_BAD_SIZE, "size 3");
    rig_send_attach(fd = rig_connect(&rig), rig_request("a", 0, 2));
    assert_refused(fd, HVI_ERR_DUPLICATE_RANK, "already attached");
    request = rig_request("a", 1, 2);
    strcpy(request->job_key, "guess");
    rig_send_attach(fd = rig_connect(&rig), request);
    assert_refused(fd, HVI_ERR_REFUSED, "job key");
    ck_assert_int_eq(rig_engines(&rig), 1);
    close(holder);
    stop();
}
END_TEST

/* By hvdd where the kernel does not do that. */
static void assert_fds_refused(const void *bytes, size_t length, uint32_t count, const char *text)
{
    const int passrights = 83, on = 1;
    int fd = rig_connect(&rig);
    bool refuses = setsockopt(fd, SOL_SOCKET, passrights, &on, sizeof on) == 0;
    int status = hvi_packet_send(fd, bytes, length, (int[]){fd, fd}, count, 0);

    ck_assert_int_eq(status, refuses ? HVI_ERR_REFUSED : HVI_OK);
    if (refuses) {
        close(fd);
        return;
    }
    assert_refused(fd, HVI_ERR_PROTOCOL, text);
}

START_TEST(garbage_gets_a_protocol_error_and_hurts_nobody)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX + 64];
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};
    int fd, holder, big = 400000;
    size_t length;

    start(NULL, plain);
    holder = rig_join(&rig, "a", 0, 2);
    memset(bytes, 0xff, sizeof(bytes));
    fd = rig_connect(&rig);
    ck_assert_int_eq(send(fd, bytes, 100, 0), 100);
    assert_refused(fd, HVI_ERR_PROTOCOL, "no valid AttachRequest");
    fd = rig_connect(&rig);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &big, sizeof(big));
    ck_assert_int_eq(send(fd, bytes, sizeof(bytes), 0), (ssize_t)sizeof(bytes));
    assert_refused(fd, HVI_ERR_PROTOCOL, "at most 128 KiB");
    fd = rig_connect(&rig);
    rig_send(fd, &msg);
    assert_refused(fd, HVI_ERR_PROTOCOL, "must be an AttachRequest");
    assert_fds_refused("x", 1, 2, "no valid AttachRequest");
    assert_fds_refused("x", 1, 1, "no valid AttachRequest");
    msg = (struct hvi_packet_msg){.kind = HVI_PACKET_ATTACH_REQUEST,
                                  .attach_request = *rig_request("a", 1, 2)};
    ck_assert_int_eq(hvi_packet_msg_encode(&msg, bytes, sizeof(bytes), &length), HVI_OK);
    assert_fds_refused(bytes, length, 1, "has a descriptor");
    close(rig_connect(&rig));
    close(rig_join(&rig, "a", 1, 2));
    close(holder);
    stop();
}
END_TEST

START_TEST(a_silent_connection_is_refused_after_the_attach_timeout)
{
    uint64_t before;
    int fd;

    start(NULL, quick);
    before = hvi_clock_ns();
    fd = rig_connect(&rig);
    assert_refused(fd, HVI_ERR_ATTACH_TIMEOUT, "AttachRequest");
    ck_assert_uint_ge(hvi_clock_ns() - before, 100 * HVI_NS_MS);
    stop();
}
END_TEST

START_TEST(more_pending_connections_than_allowed_are_refused)
{
    static const char *const few[] = {"--private", "--max-pending=2", NULL};
    int first, second, third;

    start(NULL, few);
    first = rig_connect(&rig);
    second = rig_connect(&rig);
    third = rig_connect(&rig);
    assert_refused(third, HVI_ERR_DAEMON_LIMIT, "max-pending");
    rig_send_attach(first, rig_request("a", 0, 1));
    ck_assert(rig_read_reply(first, &reply));
    ck_assert_int_eq(reply.status, HVI_OK);
    close(first);
    close(second);
    stop();
}
END_TEST

START_TEST(one_users_pending_connections_leave_room_for_the_others)
{
    static const char *const few[] = {"--private=no", "--max-pending=3", "--max-pending-per-user=2",
                                      NULL};
    int first, second, third, status;
    pid_t child;

    rig_become(&rig, SERVICE);
    start(NULL, few);
    first = rig_connect(&rig);
    second = rig_connect(&rig);
    third = rig_connect(&rig);
    assert_refused(third, HVI_ERR_DAEMON_LIMIT,
                   "wait to be attached, which is the most for one user "
                   "(max-pending-per-user");
    child = geteuid() == 0 ? fork() : -1; /* only root can be two users */
    if (child == 0) {
        if (setuid(12345) != 0)
            _exit(3);
        rig_send_attach(third = rig_connect(&rig), rig_request("b", 0, 1));
        _exit(rig_read_reply(third, &reply) && reply.status == HVI_OK ? 0 : 1);
    }
    if (child > 0) {
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_int_eq(status, 0);
    }
    rig_send_attach(first, rig_request("a", 0, 1));
    ck_assert(rig_read_reply(first, &reply));
    ck_assert_int_eq(reply.status, HVI_OK);
    close(first);
    close(second);
    stop();
}
END_TEST

START_TEST(an_engine_that_dies_before_it_answers_is_told_to_the_client)
{
    int fd;

    start("die", plain);
    rig_send_attach(fd = rig_connect(&rig), rig_request("a", 0, 1));
    assert_refused(fd, HVI_ERR_DAEMON, "exited with code 3");
    rig_wait_log(&rig, "engine-ended", 1);
    ck_assert_int_eq(rig_log_count(&rig, "engine-started"), 1);
    stop();
}
END_TEST

START_TEST(an_engine_that_was_just_ending_costs_the_client_nothing)
{
    char once[128];

    snprintf(once, sizeof(once), "%s/once", rig.base);
    setenv("FAKE_ENGINE_ONCE", once, 1);
    start("once", plain);
    close(rig_attach(&rig, rig_request("a", 0, 1), HVI_OK, &reply));
    ck_assert_int_eq(rig_log_count(&rig, "engine-started"), 2);
    stop();
}
END_TEST

START_TEST(an_engine_that_does_not_answer_is_told_to_the_client)
{
    int fd;

    start("silent", quick);
    rig_send_attach(fd = rig_connect(&rig), rig_request("a", 0, 1));
    assert_refused(fd, HVI_ERR_DAEMON, "did not answer in time");
    stop();
}
END_TEST

START_TEST(an_engine_that_speaks_nonsense_is_killed)
{
    int fd;

    start("nonsense", plain);
    rig_send_attach(fd = rig_connect(&rig), rig_request("a", 0, 1));
    ck_assert(rig_read_reply(fd, &reply)); /* before or after: it is an answer */
    rig_wait_log(&rig, "bad-engine", 1);
    rig_wait_log(&rig, "engine-killed", 1);
    rig_wait_engines(&rig, 0);
    close(fd);
    stop();
}
END_TEST

START_TEST(an_engine_that_does_not_read_is_killed_after_five_seconds)
{
    enum { RANKS = 600 };
    static const char *const patient[] = {"--private", "--attach-timeout=60s", "--max-pending=1000",
                                          "--max-pending-per-user=1000", NULL};
    static int fds[RANKS];
    uint64_t before;

    start("deaf", patient);
    for (int rank = 0; rank < RANKS; rank++)
        rig_send_attach(fds[rank] = rig_connect(&rig), rig_request("a", rank, RANKS));
    before = hvi_clock_ns();
    rig_wait_log(&rig, "has not read its link", 1);
    ck_assert_uint_ge(hvi_clock_ns() - before, 4 * HVI_NS_SEC);
    for (int rank = 0; rank < RANKS; rank++)
        assert_refused(fds[rank], HVI_ERR_DAEMON, "SIGKILL");
    stop();
}
END_TEST

START_TEST(a_missing_engine_program_is_told_to_the_client)
{
    char engine[128];
    int fd;
    const char *arguments[] = {"--private", "--engine", engine, NULL};

    snprintf(engine, sizeof(engine), "%s/engine", rig.base);
    FILE *out = fopen(engine, "we");
    fputs("#!/nonexistent\n", out);
    fchmod(fileno(out), 0755);
    fclose(out);
    start(NULL, arguments);
    rig_send_attach(fd = rig_connect(&rig), rig_request("a", 0, 1));
    assert_refused(fd, HVI_ERR_DAEMON, "could not start the engine of job 'a'");
    stop();
}
END_TEST

START_TEST(open_and_close_in_a_row_always_finds_a_free_place)
{
    start(NULL, plain);
    for (int round = 0; round < 100; round++) {
        int fd = rig_join(&rig, "a", 0, 1);
        if (round % 2 == 0)
            rig_detach(fd);
        else
            close(fd);
    }
    rig_wait_engines(&rig, 0);
    stop();
}
END_TEST

START_TEST(a_client_that_goes_away_while_its_rank_is_held_leaves_nothing)
{
    int holder, fd;

    start(NULL, plain);
    holder = rig_join(&rig, "a", 0, 1);
    rig_send_attach(fd = rig_connect(&rig), rig_request("a", 0, 1));
    close(fd);
    close(holder);
    rig_wait_engines(&rig, 0);
    rig_wait_log(&rig, "attach-gone", 1);
    stop();
}
END_TEST

START_TEST(another_user_who_names_a_job_as_mine_is_called_gets_one_of_his_own)
{
    static const char *const open_to_all[] = {"--private=no", NULL};
    int holder, status;
    pid_t child;

    if (hvt_skip_if(geteuid() != 0, "only root can be two users"))
        return;
    rig_become(&rig, SERVICE);
    start(NULL, open_to_all);
    holder = rig_join(&rig, "a", 0, 2);
    child = fork();
    if (child == 0) {
        int fd;
        if (setuid(12345) != 0)
            _exit(3);
        fd = rig_connect(&rig);
        rig_send_attach(fd, rig_request("a", 1, 2));
        _exit(rig_read_reply(fd, &reply) && reply.status == HVI_OK && reply.generation == 1 ? 0
                                                                                            : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    rig_wait_log(&rig, "job=a generation=1 uid=12345", 1);
    close(holder);
    stop();
}
END_TEST

/* Else it would knock for ever. */
START_TEST(a_worker_that_is_not_taken_back_is_told_why)
{
    static const char *const without[] = {"--private", "--gpu=no", NULL};
    const struct hvi_packet_msg msg = {
        .kind = HVI_PACKET_GPU_RETURN,
        .gpu_return = {.protocol_version = HVI_PROTOCOL_VERSION, .job = "g", .instance = 1}};
    int fd;

    start(NULL, without);
    rig_send(fd = rig_connect(&rig), &msg);
    assert_refused(fd, HVI_ERR_REFUSED,
                   "a worker for a GPU of job 'g' is not taken back: hvdd has no workers for GPUs "
                   "(gpu = no)");
    ck_assert_int_eq(rig_log_count(&rig, "is not taken back"), 1);
    stop();
}
END_TEST

START_TEST(a_private_hvdd_refuses_even_root)
{
    int fd;

    if (hvt_skip_if(geteuid() != 0, "only root can be two users"))
        return;
    rig_become(&rig, 12345);
    start(NULL, plain);
    rig_send_attach(fd = rig_connect(&rig), rig_request("a", 0, 1));
    assert_refused(fd, HVI_ERR_REFUSED, "private to uid 12345");
    stop();
}
END_TEST

/* hvdd needs a moment to see that connections were closed. There are too few descriptors for an engine: being told so
 * is being served. */
static void wait_for_room(void)
{
    uint64_t end = hvi_deadline_after(RIG_MS * (int64_t)HVI_NS_MS);

    do {
        int fd = rig_connect(&rig);
        rig_send_attach(fd, rig_request("a", 0, 1));
        ck_assert(rig_read_reply(fd, &reply));
        close(fd);
        ck_assert(!hvi_deadline_passed(end));
    } while (strstr(reply.text, "could not start the engine") == NULL);
}

/* What a hvdd has open that nobody has connected to, without the descriptors that the rig passes above 20. */
static long descriptors_of_an_idle_hvdd(void)
{
    char path[64];
    long count = 0;
    struct dirent *entry;

    start(NULL, plain);
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)rig.pid);
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.' && atoi(entry->d_name) < 20;
    closedir(dir);
    stop();
    return count;
}

START_TEST(running_out_of_descriptors_neither_spins_nor_kills_hvdd)
{
    enum { CLIENTS = 16 }; /* fewer than may wait to be accepted */
    long idle = descriptors_of_an_idle_hvdd();
    int fds[CLIENTS];
    struct rusage usage;

    /* A connection needs two: with the first limit it is not kept, with the second the next one cannot be accepted, with
     * the third the next one is not kept. The loop's timer is there since the gate was started. */
    for (rig.nofile = idle + 1; rig.nofile <= idle + 3; rig.nofile++) {
        int paused = rig_log_count(&rig, "cannot-accept");
        int refused = rig_log_count(&rig, "hvdd is out of ");
        start(NULL, plain);
        for (int i = 0; i < CLIENTS; i++)
            fds[i] = rig_connect(&rig);
        while (rig_log_count(&rig, "cannot-accept") == paused &&
               rig_log_count(&rig, "hvdd is out of ") == refused)
            usleep(2000);
        if (rig_log_count(&rig, "cannot-accept") > paused) {
            rig_wait_log(&rig, "cannot-accept", paused + 2); /* a second apart */
            ck_assert_int_le(rig_log_count(&rig, "cannot-accept"), paused + 3);
        }
        for (int i = 0; i < CLIENTS; i++)
            close(fds[i]);
        if (rig_log_count(&rig, "cannot-accept") > paused)
            wait_for_room();
        stop();
    }
    ck_assert_int_gt(rig_log_count(&rig, "cannot-accept"), 0);
    ck_assert_int_gt(rig_log_count(&rig, "hvdd is out of descriptors"), 0);
    ck_assert_int_eq(getrusage(RUSAGE_CHILDREN, &usage), 0);
    ck_assert_int_lt(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hvdd attach");
    TCase *tcase = tcase_create("attach");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, ranks_of_a_job_get_the_same_engine_and_jobs_different_ones);
    tcase_add_test(tcase, every_refusal_is_a_reply_with_a_sentence_and_then_an_end_of_file);
    tcase_add_test(tcase, garbage_gets_a_protocol_error_and_hurts_nobody);
    tcase_add_test(tcase, a_silent_connection_is_refused_after_the_attach_timeout);
    tcase_add_test(tcase, more_pending_connections_than_allowed_are_refused);
    tcase_add_test(tcase, one_users_pending_connections_leave_room_for_the_others);
    tcase_add_test(tcase, an_engine_that_dies_before_it_answers_is_told_to_the_client);
    tcase_add_test(tcase, an_engine_that_was_just_ending_costs_the_client_nothing);
    tcase_add_test(tcase, an_engine_that_does_not_answer_is_told_to_the_client);
    tcase_add_test(tcase, an_engine_that_speaks_nonsense_is_killed);
    tcase_add_test(tcase, an_engine_that_does_not_read_is_killed_after_five_seconds);
    tcase_add_test(tcase, a_missing_engine_program_is_told_to_the_client);
    tcase_add_test(tcase, open_and_close_in_a_row_always_finds_a_free_place);
    tcase_add_test(tcase, a_client_that_goes_away_while_its_rank_is_held_leaves_nothing);
    tcase_add_test(tcase, another_user_who_names_a_job_as_mine_is_called_gets_one_of_his_own);
    tcase_add_test(tcase, a_worker_that_is_not_taken_back_is_told_why);
    tcase_add_test(tcase, a_private_hvdd_refuses_even_root);
    tcase_add_test(tcase, running_out_of_descriptors_neither_spins_nor_kills_hvdd);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

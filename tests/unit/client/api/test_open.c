/* SPDX-License-Identifier: Apache-2.0
 * hvd_open against daemons that are absent, refuse, lie or hang, and what is left behind afterwards: nothing. */
#include "base/clock.h"
#include "client/attach/reserve.h"
#include "client/session/session.h"
#include "proto/wire.h"
#include "shm/slots.h"
#include "tests/unit/client/count.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct hvd_options options;

static void set_up(void)
{
    clearenv();
    hvd_options_init(&options);
    options.rank = 0;
    options.size = 1;
    options.job = "open";
}

/* Opens, expects `status` and all words in the sentence, and that nothing is left. */
static void expect(int status, const char *const *words)
{
    struct hvd_session *session = (struct hvd_session *)&options;
    int fds = hvt_count_fds();
    int mappings = hvt_count_mappings();
    int rc = hvd_open(&options, &session);
    ck_assert_msg(rc == status, "%s: %s", hvd_status_name(rc), hvd_last_error());
    ck_assert_msg(session == (void *)&options, "an output was written on failure");
    for (size_t i = 0; words[i]; i++)
        ck_assert_msg(strstr(hvd_last_error(), words[i]) != NULL, "'%s' is not in '%s'", words[i],
                      hvd_last_error());
    uint64_t deadline_ns = hvi_deadline_after(10000000000);
    while (hvt_count_fds() != fds && !hvi_deadline_passed(deadline_ns))
        usleep(1000); /* the fake closes its end in its own time */
    ck_assert_int_eq(hvt_count_fds(), fds);
    ck_assert_int_eq(hvt_count_mappings(), mappings);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

START_TEST(no_daemon_says_where_and_what_to_do)
{
    options.address = "/tmp/hvt-there-is-nothing";
    expect(HVD_ERR_NO_DAEMON, WORDS("no hvdd answers at /tmp/hvt-there-is-nothing/attach.sock",
                                    "No such file", "systemctl start hvdd", "hvdrun"));
    options.address = "/tmp/hvdrun-that-is-gone";
    expect(HVD_ERR_NO_DAEMON, WORDS("no hvdd answers at /tmp/hvdrun-that-is-gone/attach.sock",
                                    "the private one that hvdrun started for this job is gone"));
    options.address = NULL;
    setenv("HVD_ADDRESS", "/tmp/hvt-neither-here", 1);
    expect(HVD_ERR_NO_DAEMON, WORDS("/tmp/hvt-neither-here/attach.sock"));
}
END_TEST

START_TEST(a_stale_socket_is_no_daemon)
{
    char dir[] = "/tmp/hvt-client-XXXXXX";
    char path[64];
    struct hvt_fake_script script = {0};
    ck_assert_ptr_nonnull(mkdtemp(dir));
    struct hvt_fake *fake = hvt_fake_start_at(&script, dir);
    char keep[64];
    snprintf(path, sizeof path, "%s/attach.sock", dir);
    snprintf(keep, sizeof keep, "%s/kept", dir);
    ck_assert_int_eq(rename(path, keep), 0);
    hvt_fake_stop(fake);
    ck_assert_int_eq(rename(keep, path), 0);
    options.address = dir;
    expect(HVD_ERR_NO_DAEMON, WORDS("Connection refused"));
    unlink(path);
    rmdir(dir);
}
END_TEST

START_TEST(a_directory_that_makes_no_socket_path_is_invalid)
{
    static char address[200];
    memset(address, 'a', sizeof address - 1);
    address[0] = '/';
    options.address = address;
    expect(HVD_ERR_INVALID, WORDS("too long"));
}
END_TEST

START_TEST(no_permission_says_so)
{
    char dir[] = "/tmp/hvt-client-XXXXXX";
    struct hvt_fake_script script = {0};
    if (hvt_skip_if(geteuid() != 0, "only root can be two users"))
        return;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    struct hvt_fake *fake = hvt_fake_start_at(&script, dir);
    ck_assert_int_eq(setegid(65534), 0);
    ck_assert_int_eq(seteuid(65534), 0);
    options.address = dir;
    struct hvd_session *session;
    int rc = hvd_open(&options, &session);
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(setegid(0), 0);
    hvt_fake_stop(fake);
    rmdir(dir);
    ck_assert_int_eq(rc, HVD_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "no permission"));
}
END_TEST

struct refusal {
    int status;
    const char *text;
};

static const struct refusal refusals[] = {
    {HVD_ERR_BAD_RANK, "rank 7 does not fit job 'open' of size 4"},
    {HVD_ERR_BAD_SIZE, "job 'open' has size 4 and not 2"},
    {HVD_ERR_DUPLICATE_RANK, "rank 0 of job 'open' is attached already by pid 4711"},
    {HVD_ERR_REFUSED, "the job key is not that of job 'open'"},
    {HVD_ERR_VERSION, "this hvdd speaks protocol 2 and the client protocol 1"},
    {HVD_ERR_DRAINING, "hvdd is shutting down"},
    {HVD_ERR_DAEMON_LIMIT, "no more than 64 jobs"},
};

START_TEST(a_refusal_arrives_with_its_sentence)
{
    struct hvt_fake_script script = {
        .attach = HVT_REFUSE, .status = refusals[_i].status, .text = refusals[_i].text};
    struct hvt_fake *fake = hvt_fake_start(&script);
    options.address = hvt_fake_dir(fake);
    expect(refusals[_i].status, WORDS(refusals[_i].text, hvt_fake_dir(fake)));
    hvt_fake_stop(fake);
}
END_TEST

struct lie {
    enum hvt_fake_attach attach;
    int status;
    const char *word;
};

static const struct lie lies[] = {
    {HVT_GARBAGE, HVD_ERR_PROTOCOL, "something else"},
    {HVT_WRONG_KIND, HVD_ERR_PROTOCOL, "kind 7"},
    {HVT_FOREIGN, HVD_ERR_VERSION, "protocol 42"},
    {HVT_FEW_FDS, HVD_ERR_PROTOCOL, "2 descriptors instead of 4"},
    {HVT_BAD_CHANNEL, HVD_ERR_PROTOCOL, "channel"},
    {HVT_UNSEALED, HVD_ERR_PROTOCOL, "channel"},
    {HVT_NOT_MEMORY, HVD_ERR_PROTOCOL, "channel"},
    {HVT_FOREIGN_ABI, HVD_ERR_VERSION, "channel"},
    {HVT_BAD_BELL, HVD_ERR_PROTOCOL, "bell"},
    {HVT_HANG_UP, HVD_ERR_DAEMON, "without an answer"},
};

START_TEST(a_lying_engine_is_told_from_a_good_one)
{
    struct hvt_fake_script script = {.attach = lies[_i].attach};
    struct hvt_fake *fake = hvt_fake_start(&script);
    struct hvd_session *session;
    options.address = hvt_fake_dir(fake);
    int mappings = hvt_count_mappings();
    int rc = hvd_open(&options, &session);
    ck_assert_msg(rc == lies[_i].status, "%d: %s: %s", _i, hvd_status_name(rc), hvd_last_error());
    ck_assert_msg(strstr(hvd_last_error(), lies[_i].word) != NULL, "'%s'", hvd_last_error());
    hvt_fake_stop(fake);
    /* The bell and the engine's own mapping of the channel are gone with it. */
    ck_assert_int_lt(hvt_count_mappings(), mappings);
    ck_assert_int_eq(hvt_count_mappings(), 0);
}
END_TEST

START_TEST(slots_that_are_none_are_refused)
{
    struct hvt_fake_script script = {.slots_fd = memfd_create("no-slots", MFD_CLOEXEC)};
    ck_assert_int_eq(ftruncate(script.slots_fd, 1 << 20),
                     0); /* without seals, among other things */
    struct hvt_fake *fake = hvt_fake_start(&script);
    struct hvd_session *session;
    options.address = hvt_fake_dir(fake);
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_PROTOCOL);
    ck_assert_msg(strstr(hvd_last_error(), "the express slots that the engine (pid ") != NULL,
                  "'%s'", hvd_last_error());
    hvt_fake_stop(fake);
    close(script.slots_fd);
    ck_assert_int_eq(hvt_count_mappings(), 0);
}
END_TEST

START_TEST(slots_in_which_the_rank_has_no_seat_are_refused)
{
    struct hvd_session *first, *second;
    struct hvi_slots job;
    ck_assert_int_eq(hvi_slots_create(1, &job), HVD_OK);
    struct hvt_fake_script script = {.slots_fd = job.region.fd};
    struct hvt_fake *fake = hvt_fake_start(&script);
    first = hvt_fake_open(fake);
    options.address = hvt_fake_dir(fake);
    ck_assert_int_eq(hvd_open(&options, &second), HVD_ERR_PROTOCOL);
    ck_assert_msg(strstr(hvd_last_error(), "gave this rank seat 1 of 1") != NULL, "'%s'",
                  hvd_last_error());
    hvd_close(first);
    hvt_fake_stop(fake);
    hvi_slots_fini(&job);
}
END_TEST

START_TEST(a_daemon_with_too_many_connections_waiting_costs_the_timeout_and_no_more)
{
    char dir[] = "/tmp/hvt-client-XXXXXX";
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fillers[8], filled = 0;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(name.sun_path, sizeof name.sun_path, "%s/attach.sock", dir);
    ck_assert_int_eq(bind(listening, (struct sockaddr *)&name, sizeof name), 0);
    ck_assert_int_eq(listen(listening, 0), 0);
    do {
        ck_assert_int_lt(filled, 8);
        fillers[filled] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    } while (connect(fillers[filled++], (struct sockaddr *)&name, sizeof name) == 0);
    options.address = dir;
    options.timeout_ns = 100 * HVI_NS_MS;
    uint64_t start_ns = hvi_clock_ns();
    expect(HVD_ERR_ATTACH_TIMEOUT, WORDS(dir, "has too many connections waiting"));
    uint64_t took_ns = hvi_clock_ns() - start_ns;
    ck_assert_uint_ge(took_ns, 100 * HVI_NS_MS);
    ck_assert_uint_lt(took_ns, hvt_patience(1000 * HVI_NS_MS));
    while (filled > 0)
        close(fillers[--filled]);
    close(listening);
    unlink(name.sun_path);
    rmdir(dir);
}
END_TEST

START_TEST(a_silent_daemon_costs_the_timeout_and_no_more)
{
    struct hvt_fake_script script = {.attach = HVT_SILENT};
    struct hvt_fake *fake = hvt_fake_start(&script);
    struct hvd_session *session;
    options.address = hvt_fake_dir(fake);
    options.timeout_ns = 100 * 1000 * 1000;
    uint64_t start_ns = hvi_clock_ns();
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_ATTACH_TIMEOUT);
    uint64_t took_ns = hvi_clock_ns() - start_ns;
    ck_assert_uint_ge(took_ns, 100 * HVI_NS_MS);
    ck_assert_uint_lt(took_ns, hvt_patience(1000 * HVI_NS_MS));
    hvt_fake_stop(fake);
}
END_TEST

START_TEST(a_daemon_that_ends_is_looked_for_again_only_where_none_was_named)
{
    struct hvt_fake_script script = {.attach = HVT_HANG_UP_ONCE};
    char runtime[] = "/tmp/hvt-client-XXXXXX";
    char dir[64];
    struct hvd_session *session;
    ck_assert_ptr_nonnull(mkdtemp(runtime));
    snprintf(dir, sizeof dir, "%s/hvdd", runtime);
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    struct hvt_fake *fake = hvt_fake_start_at(&script, dir);
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    ck_assert_msg(hvd_open(&options, &session) == HVD_OK, "%s", hvd_last_error());
    ck_assert_str_eq(hvd_address(session), dir);
    hvd_close(session);
    hvt_fake_stop(fake);
    fake = hvt_fake_start_at(&script, dir);
    options.address = dir;
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_DAEMON);
    hvt_fake_stop(fake);
    rmdir(dir);
    rmdir(runtime);
}
END_TEST

START_TEST(the_request_says_who_we_are)
{
    struct hvt_fake_script script = {0};
    struct hvt_fake *fake = hvt_fake_start(&script);
    struct hvd_session *session;
    options.address = hvt_fake_dir(fake);
    options.rank = 1;
    options.size = 4;
    options.local_rank = 2;
    options.local_size = 4;
    setenv("HVD_STALL_WARN", "5s", 1);
    setenv("HOROVOD_CYCLE_TIME", "1", 1);
    setenv("HVD_JOB_KEY", "secret", 1);
    setenv("HVD_BROKEN", "\xff", 1);
    setenv("HOME", "/nowhere", 1);
    setenv("NCCL_ALGO", "Tree", 1);
    setenv("NCCL_NET_PLUGIN", "/tmp/evil.so", 1);
    ck_assert_msg(hvd_open(&options, &session) == HVD_OK, "%s", hvd_last_error());
    ck_assert_str_eq(hvt_fake_identity(fake), "open 1/4 2/4 0/1 arguments");
    ck_assert_str_eq(hvt_fake_setting(fake, "HVD_STALL_WARN"), "5s");
    ck_assert_str_eq(hvt_fake_setting(fake, "HOROVOD_CYCLE_TIME"), "1");
    ck_assert_ptr_null(hvt_fake_setting(fake, "HVD_JOB_KEY"));
    ck_assert_ptr_null(hvt_fake_setting(fake, "HVD_BROKEN"));
    ck_assert_ptr_null(hvt_fake_setting(fake, "HOME"));
    ck_assert_str_eq(hvt_fake_setting(fake, "NCCL_ALGO"), "Tree");
    ck_assert_ptr_null(hvt_fake_setting(fake, "NCCL_NET_PLUGIN"));
    ck_assert_int_eq(hvd_rank(session), 1);
    ck_assert_int_eq(hvd_size(session), 4);
    ck_assert_int_eq(hvd_local_rank(session), 2);
    ck_assert_int_eq(hvd_local_size(session), 4);
    ck_assert_int_eq(hvd_cross_rank(session), 0);
    ck_assert_int_eq(hvd_cross_size(session), 1);
    ck_assert_str_eq(hvd_job(session), "open");
    ck_assert_str_eq(hvd_address(session), hvt_fake_dir(fake));
    ck_assert_int_eq(hvd_session_status(session), HVD_OK);
    ck_assert_int_eq(hvd_close(session), HVD_OK);
    hvt_fake_stop(fake);
}
END_TEST

/* Whether it can serve such jobs, hvdd says. */
START_TEST(a_rank_of_a_job_on_two_nodes_asks_hvdd_and_knows_where_it_is)
{
    struct hvt_fake_script script = {0};
    struct hvt_fake *fake = hvt_fake_start(&script);
    struct hvd_session *session;

    options.address = hvt_fake_dir(fake);
    options.rank = 900000;
    options.size = 1000000;
    options.local_rank = 3;
    options.local_size = 4;
    options.cross_rank = 70000;
    options.cross_size = 250000;
    ck_assert_msg(hvd_open(&options, &session) == HVD_OK, "%s", hvd_last_error());
    ck_assert_str_eq(hvt_fake_identity(fake), "open 900000/1000000 3/4 70000/250000 arguments");
    ck_assert_int_eq(hvd_size(session), 1000000);
    ck_assert_int_eq(hvd_local_size(session), 4);
    ck_assert_int_eq(hvd_cross_rank(session), 70000);
    ck_assert_int_eq(hvd_close(session), HVD_OK);
    hvt_fake_stop(fake);
}
END_TEST

START_TEST(a_key_that_is_too_long_is_invalid)
{
    static char key[200];
    memset(key, 'k', sizeof key - 1);
    struct hvt_fake_script script = {0};
    struct hvt_fake *fake = hvt_fake_start(&script);
    options.address = hvt_fake_dir(fake);
    options.job_key = key;
    expect(HVD_ERR_INVALID, WORDS("job key"));
    ck_assert_ptr_null(strstr(hvd_last_error(), "kkkk")); /* a secret is never in a sentence */
    hvt_fake_stop(fake);
}
END_TEST

START_TEST(options_that_were_not_initialised_are_refused)
{
    options.struct_size = 0;
    expect(HVD_ERR_INVALID, WORDS("hvd_options_init"));
}
END_TEST

START_TEST(close_says_goodbye)
{
    struct hvt_fake_script script = {0};
    struct hvt_fake *fake = hvt_fake_start(&script);
    struct hvd_session *session = hvt_fake_open(fake);
    ck_assert_int_eq(hvd_close(session), HVD_OK);
    ck_assert(hvt_fake_detached(hvt_fake_session(fake, 0)));
    hvt_fake_stop(fake);
}
END_TEST

/* ---- at exit ---- */

static const struct {
    int status;
    bool closed; /* before */
    bool detached;
    bool unread; /* an op that was released has ended, and no call has seen that */
} exits[] = {{0, false, true, false},
             {3, false, false, false},
             {3, true, true, false},
             {0, false, true, true}};

static void leave_unread(struct hvd_session *session)
{
    const struct hvi_channel_header *header = session->link.channel.header;
    struct hvd_op *op;
    uint32_t before = atomic_load(&header->cq_tail);
    ck_assert_int_eq(hvd_barrier_async(session, "end", NULL, &op), HVD_OK);
    hvd_op_free(op);
    uint64_t deadline_ns = hvi_deadline_after(10000000000);
    while (atomic_load(&header->cq_tail) == before && !hvi_deadline_passed(deadline_ns))
        usleep(100);
}

static int leave_it_to_exit(struct hvt_fake *fake, bool closed, bool unread)
{
    struct hvd_session *session = hvt_fake_open(fake);

    if (unread) /* seen by the call, and by the exit */
        leave_unread(session);
    if (hvd_close_at_exit(session) != HVD_OK || hvd_close_at_exit(session) != HVD_OK)
        return 90;
    if (unread)
        leave_unread(session);
    return closed ? hvd_close(session) : 0;
}

START_TEST(a_good_exit_says_goodbye_and_a_bad_one_does_not)
{
    struct hvt_fake_script script = {0};
    struct hvt_fake *fake = hvt_fake_start(&script);

    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int wrong = leave_it_to_exit(fake, exits[_i].closed, exits[_i].unread);
        exit(wrong != 0 ? wrong : exits[_i].status);
    }
    int ended = hvt_wait_child(pid);
    ck_assert(WIFEXITED(ended));
    ck_assert_int_eq(WEXITSTATUS(ended), exits[_i].status);
    ck_assert(hvt_fake_detached(hvt_fake_session(fake, 0)) == exits[_i].detached);
    hvt_fake_stop(fake);
}
END_TEST

START_TEST(only_one_idle_session_is_left_to_exit)
{
    struct hvt_fake_script script = {.manual = true};
    struct hvt_fake *fake = hvt_fake_start(&script);
    struct hvd_session *first = hvt_fake_open(fake), *second = hvt_fake_open(fake);
    struct hvd_op *op;

    ck_assert_int_eq(hvd_close_at_exit(NULL), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_barrier_async(first, "b", NULL, &op), HVD_OK);
    ck_assert_int_eq(hvd_close_at_exit(first), HVD_ERR_BUSY);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "1 ops are in flight"));
    hvt_fake_done(hvt_fake_session(fake, 0), hvt_fake_take(hvt_fake_session(fake, 0)).cookie,
                  HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 10000000000), HVD_OK);
    hvd_op_free(op);
    ck_assert_int_eq(hvd_close_at_exit(first), HVD_OK);
    ck_assert_int_eq(hvd_close_at_exit(second), HVD_ERR_LIMIT);
    ck_assert_int_eq(hvd_close(first), HVD_OK);
    ck_assert_int_eq(hvd_close_at_exit(second), HVD_OK);
    ck_assert_int_eq(hvd_close(second), HVD_OK);
    hvt_fake_stop(fake);
}
END_TEST

START_TEST(close_waits_a_second_for_a_mute_engine_and_no_more)
{
    struct hvt_fake_script script = {.mute = true};
    struct hvt_fake *fake = hvt_fake_start(&script);
    struct hvd_session *session = hvt_fake_open(fake);
    uint64_t start_ns = hvi_clock_ns();
    ck_assert_int_eq(hvd_close(session), HVD_ERR_TIMEOUT); /* its ops may still be at work */
    ck_assert_uint_lt(hvi_clock_ns() - start_ns, hvt_patience(1500 * HVI_NS_MS));
    hvt_fake_stop(fake);
}
END_TEST

START_TEST(the_wait_of_close_comes_in_pieces)
{
    struct hvt_fake_script script = {.mute = true};
    struct hvt_fake *fake = hvt_fake_start(&script);
    struct hvd_session *session = hvt_fake_open(fake);
    uint64_t start_ns = hvi_clock_ns();
    ck_assert_int_eq(hvd_close_wait(NULL, 0), HVD_OK);
    ck_assert_int_eq(hvd_close_wait(session, 0), HVD_INPROGRESS);
    ck_assert_int_eq(hvd_close_wait(session, 20000000), HVD_INPROGRESS);
    ck_assert_uint_ge(hvi_clock_ns() - start_ns, 20 * HVI_NS_MS);
    ck_assert_uint_lt(hvi_clock_ns() - start_ns, hvt_patience(500 * HVI_NS_MS));
    ck_assert_int_eq(hvd_close_wait(session, -1), HVD_ERR_TIMEOUT); /* to the end */
    ck_assert_uint_lt(hvi_clock_ns() - start_ns, hvt_patience(1500 * HVI_NS_MS));
    ck_assert_int_eq(hvd_close_wait(session, 20000000), HVD_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "hvd_close_wait: the session is over, but"));
    ck_assert_int_eq(hvd_close(session), HVD_ERR_TIMEOUT);
    hvt_fake_stop(fake);
}
END_TEST

START_TEST(close_does_not_go_on_with_a_wait_that_was_given_up)
{
    struct hvt_fake_script script = {.mute = true};
    struct hvt_fake *fake = hvt_fake_start(&script);
    struct hvd_session *session = hvt_fake_open(fake);
    ck_assert_int_eq(hvd_close_wait(session, 0), HVD_INPROGRESS);
    uint64_t start_ns = hvi_clock_ns();
    ck_assert_int_eq(hvd_close(session), HVD_ERR_TIMEOUT);
    ck_assert_uint_lt(hvi_clock_ns() - start_ns, hvt_patience(500 * HVI_NS_MS));
    hvt_fake_stop(fake);
}
END_TEST

START_TEST(an_engine_that_answers_ends_the_wait_of_close)
{
    struct hvt_fake_script script = {0};
    struct hvt_fake *fake = hvt_fake_start(&script);
    struct hvd_session *session = hvt_fake_open(fake);
    int rc;
    while ((rc = hvd_close_wait(session, 20000000)) == HVD_INPROGRESS) {
    }
    ck_assert_int_eq(rc, HVD_OK);
    ck_assert(hvt_fake_detached(hvt_fake_session(fake, 0)));
    ck_assert_int_eq(hvd_close_wait(session, 0), HVD_OK);
    ck_assert_int_eq(hvd_close(session), HVD_OK);
    hvt_fake_stop(fake);
}
END_TEST

static void open_use_close(const char *dir)
{
    struct hvd_session *session;
    float x[5000] = {1};
    struct hvd_tensor small = hvd_tensor_1d(x, HVD_FLOAT32, 1);
    struct hvd_tensor large = hvd_tensor_1d(x, HVD_FLOAT32, 5000);
    void *memory;
    options.address = dir;
    ck_assert_msg(hvd_open(&options, &session) == HVD_OK, "%s", hvd_last_error());
    ck_assert_int_eq(hvd_allreduce(session, "a", &small, &small, HVD_SUM), HVD_OK);
    ck_assert_int_eq(hvd_allreduce(session, "b", &large, &large, HVD_SUM), HVD_OK);
    ck_assert_int_eq(hvd_alloc(session, 10000, &memory), HVD_OK);
    ck_assert_int_eq(hvd_register(session, x, sizeof x), HVD_OK);
    ck_assert_int_eq(hvd_close(session), HVD_OK);
}

START_TEST(three_hundred_sessions_leave_nothing)
{
    struct hvt_fake_script script = {0};
    for (int round = 0; round < 50; round++) {
        struct hvt_fake *fake = hvt_fake_start(&script);
        for (int i = 0; i < 6; i++)
            open_use_close(hvt_fake_dir(fake));
        hvt_fake_stop(fake);
        static struct hvt_count before;
        struct hvt_count now = hvt_count_take();
        if (round == 1)
            before = now;
        ck_assert_int_eq(now.shared_mappings, 0);
        if (round < 1)
            continue;
        ck_assert_int_eq(now.fds, before.fds);
        ck_assert_msg(now.heap_bytes <= before.heap_bytes + 4096, "%zu bytes became %zu",
                      before.heap_bytes, now.heap_bytes);
    }
}
END_TEST

/* The fake in a process of its own, with its own limits; it ends when `stop_fd` is closed, and its status is the number of
 * AttachRequests. */
static pid_t fake_process(const char *dir, int *stop_fd_p)
{
    struct hvt_fake_script script = {0};
    int ready[2], stop[2];
    char byte = 0;
    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe(stop), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        close(stop[1]);
        struct hvt_fake *fake = hvt_fake_start_at(&script, dir);
        ck_assert_int_eq(write(ready[1], &byte, 1), 1);
        ck_assert_int_eq(read(stop[0], &byte, 1), 0);
        int requests = (int)hvt_fake_requests(fake);
        hvt_fake_stop(fake);
        _exit(requests);
    }
    close(stop[0]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    *stop_fd_p = stop[1];
    return pid;
}

START_TEST(running_out_of_descriptors_is_an_error_at_every_step)
{
    char dir[] = "/tmp/hvt-client-XXXXXX";
    struct hvd_session *session = NULL;
    struct rlimit old, limit;
    int stop_fd, status;
    int failures = 0;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    pid_t pid = fake_process(dir, &stop_fd);
    for (int i = 0; i < 16; i++) /* the limit is on numbers: leave no gaps below it */
        ck_assert_int_ge(dup(0), 0);
    int highest = dup(0);
    close(highest);
    int fds = hvt_count_fds();
    options.address = dir;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    limit = old;
    for (; failures < 20; failures++) {
        limit.rlim_cur = (rlim_t)(highest + failures);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        int rc = hvd_open(&options, &session);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
        if (rc == HVD_OK)
            break;
        ck_assert_msg(rc == HVD_ERR_LIMIT, "%s: %s", hvd_status_name(rc), hvd_last_error());
        ck_assert_int_eq(hvt_count_fds(), fds);
        ck_assert_int_eq(hvt_count_mappings(), 0);
    }
    ck_assert_int_eq(failures, 6); /* the socket, and the five that an engine may send */
    hvd_close(session);
    close(stop_fd);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_msg(WEXITSTATUS(status) == 1, "an engine has taken a rank that then failed");
    rmdir(dir);
}
END_TEST

static void set_space(rlim_t bytes)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
}

/* What this process has mapped may grow by so much. */
static void limit_space(uint64_t bytes)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    set_space(pages * (rlim_t)sysconf(_SC_PAGESIZE) + bytes);
}

START_TEST(a_rank_that_has_no_room_for_a_channel_is_not_asked_for)
{
    struct client_reserve reserve;
    int fds = hvt_count_fds();
    limit_space(HVI_CHANNEL_BYTES - HVI_PAGE);
    int rc = client_reserve_take(&reserve, 0);
    set_space(RLIM_INFINITY);
    ck_assert_int_eq(rc, HVD_ERR_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "ulimit -v"));
    ck_assert_int_eq(hvt_count_fds(), fds);
    ck_assert_int_eq(client_reserve_take(&reserve, 0), HVD_OK);
    ck_assert_int_eq(hvt_count_fds(), fds + (int)CLIENT_RESERVE_FDS);
    client_reserve_drop(&reserve);
    ck_assert_int_eq(hvt_count_fds(), fds);
}
END_TEST

static char logged[HVI_TEXT_MAX + 1];

static void keep_line(void *unused, enum hvd_log_level level, const char *text)
{
    (void)unused;
    ck_assert_int_eq(level, HVD_LOG_WARN);
    snprintf(logged, sizeof logged, "%s", text);
}

/* Some 270 MiB for 32 ranks. */
START_TEST(a_rank_that_has_no_room_for_slots_does_without)
{
    struct hvd_session *session;
    struct hvi_slots job;
    ck_assert_int_eq(hvi_slots_create(32, &job), HVD_OK);
    struct hvt_fake_script script = {.slots_fd = job.region.fd};
    struct hvt_fake *fake = hvt_fake_start(&script);
    options.address = hvt_fake_dir(fake);
    options.size = 32;
    options.log = keep_line;
    limit_space(64u << 20);
    ck_assert_msg(hvd_open(&options, &session) == HVD_OK, "%s", hvd_last_error());
    set_space(RLIM_INFINITY);
    ck_assert_int_eq(hvd_barrier(session, "b"), HVD_OK);
    ck_assert_int_eq(hvd_barrier(session, "b"), HVD_OK);
    ck_assert_ptr_nonnull(strstr(logged, "small ops go through the engine"));
    hvd_close(session);
    hvt_fake_stop(fake);
    hvi_slots_fini(&job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client open");
    TCase *tcase = tcase_create("open");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, NULL);
    tcase_add_test(tcase, no_daemon_says_where_and_what_to_do);
    tcase_add_test(tcase, a_stale_socket_is_no_daemon);
    tcase_add_test(tcase, a_directory_that_makes_no_socket_path_is_invalid);
    tcase_add_test(tcase, no_permission_says_so);
    tcase_add_loop_test(tcase, a_refusal_arrives_with_its_sentence, 0,
                        (int)(sizeof refusals / sizeof refusals[0]));
    tcase_add_loop_test(tcase, a_lying_engine_is_told_from_a_good_one, 0,
                        (int)(sizeof lies / sizeof lies[0]));
    tcase_add_test(tcase, slots_that_are_none_are_refused);
    tcase_add_test(tcase, slots_in_which_the_rank_has_no_seat_are_refused);
    tcase_add_test(tcase, a_daemon_with_too_many_connections_waiting_costs_the_timeout_and_no_more);
    tcase_add_test(tcase, a_silent_daemon_costs_the_timeout_and_no_more);
    tcase_add_test(tcase, a_daemon_that_ends_is_looked_for_again_only_where_none_was_named);
    tcase_add_test(tcase, the_request_says_who_we_are);
    tcase_add_test(tcase, a_rank_of_a_job_on_two_nodes_asks_hvdd_and_knows_where_it_is);
    tcase_add_test(tcase, a_key_that_is_too_long_is_invalid);
    tcase_add_test(tcase, options_that_were_not_initialised_are_refused);
    tcase_add_test(tcase, close_says_goodbye);
    tcase_add_loop_test(tcase, a_good_exit_says_goodbye_and_a_bad_one_does_not, 0,
                        sizeof exits / sizeof exits[0]);
    tcase_add_test(tcase, only_one_idle_session_is_left_to_exit);
    tcase_add_test(tcase, close_waits_a_second_for_a_mute_engine_and_no_more);
    tcase_add_test(tcase, the_wait_of_close_comes_in_pieces);
    tcase_add_test(tcase, close_does_not_go_on_with_a_wait_that_was_given_up);
    tcase_add_test(tcase, an_engine_that_answers_ends_the_wait_of_close);
    tcase_add_test(tcase, three_hundred_sessions_leave_nothing);
    tcase_add_test(tcase, running_out_of_descriptors_is_an_error_at_every_step);
    tcase_add_test(tcase, a_rank_that_has_no_room_for_a_channel_is_not_asked_for);
    tcase_add_test(tcase, a_rank_that_has_no_room_for_slots_does_without);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

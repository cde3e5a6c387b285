/* SPDX-License-Identifier: Apache-2.0
 * The timeline's file and ring: never half an event, never a wait, and what is lost is counted. */
#include "base/status.h"
#include "daemon/engine/watch/timeline.h"
#include "tests/unit/engine/hvt_bench.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static struct hvt_bench bench;
static char path[] = "/tmp/hvt-timeline-XXXXXX";
static int file_fd;

static void open_bench(int32_t size)
{
    file_fd = mkstemp(path);
    ck_assert_int_ge(file_fd, 0);
    hvt_bench_init(&bench, size);
}

static void close_bench(void)
{
    hvt_bench_fini(&bench);
    close(file_fd);
    unlink(path);
    memcpy(path + sizeof path - 7, "XXXXXX", 6);
}

static cJSON *read_file(void)
{
    struct stat stat;

    ck_assert_int_eq(fstat(file_fd, &stat), 0);
    char *text = calloc(1, (size_t)stat.st_size + 1);
    ck_assert_int_eq(pread(file_fd, text, (size_t)stat.st_size, 0), stat.st_size);
    cJSON *events = cJSON_ParseWithOpts(text, NULL, true);
    ck_assert_msg(events != NULL, "not JSON: %.300s", text);
    free(text);
    return events;
}

static size_t count_of(const cJSON *events, const char *name)
{
    const cJSON *event;
    size_t count = 0;

    cJSON_ArrayForEach(event, events)
    {
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(event, "name"));
        count += text && strcmp(text, name) == 0;
    }
    return count;
}

/* The Ack for the request that was sent last. */
static struct hvi_ack answer(int32_t rank)
{
    struct pollfd pollfd = {.fd = bench.peers[rank].socket, .events = POLLIN};
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    struct hvi_packet_msg msg;

    while (poll(&pollfd, 1, 1) == 0) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        hvt_bench_turn(&bench);
    }
    ck_assert(hvt_peer_expect(&bench.peers[rank], HVI_PACKET_ACK, &msg));
    return msg.ack;
}

static int start(int32_t rank, int fd)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_TIMELINE_START};

    msg.timeline_start.mark_cycles = true;
    hvt_peer_send(&bench.peers[rank], &msg, fd);
    return answer(rank).status;
}

static int stop(int32_t rank)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_TIMELINE_STOP};

    hvt_peer_send(&bench.peers[rank], &msg, -1);
    return answer(rank).status;
}

static void submit(int32_t rank, const char *name)
{
    struct hvi_submission op =
        hvt_peer_op(&bench.peers[rank], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 3, 0);

    hvt_peer_name(&bench.peers[rank], &op, 1, name);
    hvt_peer_submit(&bench.peers[rank], &op);
    hvt_bench_turn(&bench);
}

/* Lengths that vary bring some pages to be filled to the last byte. */
START_TEST(events_of_every_length_fill_the_pages)
{
    char name[160];

    open_bench(1);
    ck_assert_int_eq(start(0, file_fd), HVI_OK);
    for (int i = 0; i < 3000; i++) {
        memset(name, 'x', sizeof name);
        name[1 + i * 7 % 150] = '\0';
        submit(0, name);
        ck_assert_int_eq(hvt_peer_complete(&bench.peers[0], NULL, 0).status, HVI_OK);
    }
    ck_assert_int_eq(stop(0), HVI_OK);
    cJSON *events = read_file();
    ck_assert_uint_eq(count_of(events, "DROPPED"), 0); /* the ring has room for all of them */
    ck_assert_uint_eq(count_of(events, "NEGOTIATE_ALLREDUCE"), 3000);
    cJSON_Delete(events);
    close_bench();
}
END_TEST

START_TEST(a_large_file_grows_and_is_cut_at_the_end)
{
    char name[900];
    struct stat stat;

    open_bench(1);
    ck_assert_int_eq(start(0, file_fd), HVI_OK);
    for (int i = 0; i < 4000; i++) {
        memset(name, i % 3 ? '"' : '\x01', sizeof name - 1);
        snprintf(name, sizeof name, "%06d", i);
        name[6] = '_';
        name[899] = '\0';
        submit(0, name);
        ck_assert_int_eq(hvt_peer_complete(&bench.peers[0], NULL, 0).status, HVI_OK);
    }
    ck_assert_int_eq(stop(0), HVI_OK);
    ck_assert_int_eq(fstat(file_fd, &stat), 0);
    ck_assert_int_gt(stat.st_size, 4 << 20);
    cJSON *events = read_file();
    size_t dropped = count_of(events, "DROPPED");
    ck_assert(dropped > 0 || count_of(events, "NEGOTIATE_ALLREDUCE") == 4000);
    ck_assert_uint_eq(count_of(events, "process_sort_index"), count_of(events, "process_name"));
    cJSON_Delete(events);
    close_bench();
}
END_TEST

/* Nobody reads the ring: as if the disk had stopped. */
START_TEST(what_does_not_fit_is_counted_and_the_count_is_an_event)
{
    open_bench(1);
    ck_assert_int_eq(start(0, file_fd), HVI_OK);
    struct engine_timeline *timeline = bench.engine->watch.timeline;
    for (int i = 0; i < 300000; i++)
        engine_timeline_cycle(&bench.engine->watch);
    ck_assert_ptr_eq(bench.engine->watch.timeline, timeline);
    ck_assert_int_eq(stop(0), HVI_OK);
    cJSON *events = read_file();
    size_t cycles = count_of(events, "CYCLE_START");
    const cJSON *event;
    size_t lost = 0;
    cJSON_ArrayForEach(event, events)
    {
        const cJSON *args = cJSON_GetObjectItem(event, "args");
        if (cJSON_GetObjectItem(args, "count"))
            lost += (size_t)cJSON_GetObjectItem(args, "count")->valuedouble;
    }
    ck_assert_uint_eq(cycles + lost, 300000);
    cJSON_Delete(events);
    close_bench();
}
END_TEST

START_TEST(a_full_disk_leaves_a_valid_file_and_a_working_job)
{
    struct rlimit limit = {.rlim_cur = 6 << 20, .rlim_max = RLIM_INFINITY};

    open_bench(1);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(start(0, file_fd), HVI_OK);
    for (int i = 0; i < 120000; i++)
        engine_timeline_cycle(&bench.engine->watch);
    ck_assert_int_eq(stop(0), HVI_OK);
    cJSON *events = read_file();
    ck_assert_uint_gt(count_of(events, "CYCLE_START"), 20000);
    cJSON_Delete(events);
    submit(0, "after");
    ck_assert_int_eq(hvt_peer_complete(&bench.peers[0], NULL, 0).status, HVI_OK);
    close_bench();
}
END_TEST

START_TEST(what_is_no_file_is_refused)
{
    int pipe_fds[2];

    open_bench(1);
    ck_assert_int_eq(pipe(pipe_fds), 0);
    ck_assert_int_eq(start(0, pipe_fds[1]), HVI_ERR_INVALID);
    ck_assert_int_eq(start(0, file_fd), HVI_OK);
    ck_assert_int_eq(start(0, file_fd), HVI_ERR_EXISTS);
    ck_assert_int_eq(stop(0), HVI_OK);
    ck_assert_int_eq(stop(0), HVI_OK);
    int read_only = open(path, O_RDONLY);
    ck_assert_int_eq(start(0, read_only), HVI_ERR_LIMIT);
    close(read_only);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    close_bench();
}
END_TEST

START_TEST(a_timeline_for_which_there_is_no_descriptor_is_refused_and_a_later_one_is_not)
{
    const struct engine_asker asker = {.rank = 0, .session = 1, .request = 5};

    open_bench(1);
    const int before = hvt_count_fds(), fd = dup(file_fd);
    const struct rlimit limit = hvt_forbid_fds();
    engine_timeline_start(&bench.engine->watch, &asker, fd, path, false);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    const struct hvi_ack ack = answer(0);
    ck_assert_int_eq(ack.status, HVI_ERR_LIMIT);
    ck_assert_str_eq(ack.text, "the engine is out of memory, threads or descriptors");
    ck_assert_int_eq(hvt_count_fds(), before);
    ck_assert_int_eq(start(0, file_fd), HVI_OK);
    ck_assert_int_eq(stop(0), HVI_OK);
    close_bench();
}
END_TEST

START_TEST(a_start_without_a_descriptor_breaks_the_protocol)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_TIMELINE_START};

    open_bench(2);
    hvt_peer_send(&bench.peers[0], &msg, -1);
    hvt_bench_turn(&bench);
    ck_assert_int_eq(bench.engine->sessions.ranks[0].state, ENGINE_RANK_ENDED);
    ck_assert_int_eq(bench.engine->sessions.ranks[1].state, ENGINE_RANK_ATTACHED);
    close_bench();
}
END_TEST

START_TEST(an_engine_that_ends_completes_its_file)
{
    open_bench(2);
    ck_assert_int_eq(start(1, file_fd), HVI_OK);
    submit(0, "w");
    hvt_bench_fini(&bench);
    cJSON *events = read_file();
    ck_assert_uint_eq(count_of(events, "NEGOTIATE_ALLREDUCE"), 1);
    cJSON_Delete(events);
    unlink(path);
    close(file_fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/timeline");
    TCase *tcase = tcase_create("timeline");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, events_of_every_length_fill_the_pages);
    tcase_add_test(tcase, a_large_file_grows_and_is_cut_at_the_end);
    tcase_add_test(tcase, what_does_not_fit_is_counted_and_the_count_is_an_event);
    tcase_add_test(tcase, a_full_disk_leaves_a_valid_file_and_a_working_job);
    tcase_add_test(tcase, what_is_no_file_is_refused);
    tcase_add_test(tcase,
                   a_timeline_for_which_there_is_no_descriptor_is_refused_and_a_later_one_is_not);
    tcase_add_test(tcase, a_start_without_a_descriptor_breaks_the_protocol);
    tcase_add_test(tcase, an_engine_that_ends_completes_its_file);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

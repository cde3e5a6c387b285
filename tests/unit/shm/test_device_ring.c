/* SPDX-License-Identifier: Apache-2.0
 * The device channel: what may be mapped, batches of every length through both rings, and a worker that
 * sleeps and is woken for each batch. */
#include "shm/device.h"

#include "base/clock.h"
#include "base/status.h"
#include "shm/abi.h"
#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

static struct hvi_device_channel worker, engine;
static int to_worker, to_engine;

static void setup(void)
{
    ck_assert_int_eq(hvi_device_create(77, 3, &worker), HVI_OK);
    int fd = dup(worker.map.fd);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(hvi_device_map(fd, &engine), HVI_OK);
    to_worker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    to_engine = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ck_assert(to_worker >= 0 && to_engine >= 0);
}

static void teardown(void)
{
    close(to_worker);
    close(to_engine);
    hvi_device_fini(&engine);
    hvi_device_fini(&worker);
}

static bool is_rung(int event_fd)
{
    uint64_t count;
    return read(event_fd, &count, sizeof(count)) == sizeof(count);
}

/* A batch of `slots` slots, each of which says its number. */
static bool publish(uint64_t number, uint32_t slots)
{
    uint32_t room = 0;
    ck_assert_int_eq(hvi_ring_space(&engine.commands, &room), HVI_OK);
    ck_assert_uint_ge(room, slots);
    for (uint32_t i = 0; i < slots; i++) {
        struct hvi_device_batch *slot = hvi_ring_slot(&engine.commands, i);
        *slot = (struct hvi_device_batch){.command = i == 0 ? HVI_DEVICE_BATCH : HVI_DEVICE_MEMBER,
                                          .slots = slots,
                                          .number = number};
    }
    return hvi_device_publish(&engine, slots, to_worker);
}

/* The next batch, if there is one: its number; every slot of it is looked at. */
static uint64_t take(uint32_t *slots_p)
{
    struct hvi_device_batch head, slot;
    uint32_t there = 0;
    ck_assert_int_eq(hvi_ring_available(&worker.commands, &there), HVI_OK);
    if (there == 0)
        return 0;
    hvi_ring_copy(&worker.commands, 0, &head);
    ck_assert_uint_eq(head.command, HVI_DEVICE_BATCH);
    ck_assert_uint_ge(there, head.slots); /* one publication */
    for (uint32_t i = 1; i < head.slots; i++) {
        hvi_ring_copy(&worker.commands, i, &slot);
        ck_assert_uint_eq(slot.command, HVI_DEVICE_MEMBER);
        ck_assert_uint_eq(slot.number, head.number);
    }
    hvi_ring_release(&worker.commands, head.slots);
    *slots_p = head.slots;
    return head.number;
}

static void answer(uint64_t number)
{
    uint32_t room = 0;
    ck_assert_int_eq(hvi_ring_space(&worker.dones, &room), HVI_OK);
    ck_assert_uint_gt(room, 0);
    struct hvi_device_done *done = hvi_ring_slot(&worker.dones, 0);
    *done = (struct hvi_device_done){.seq = number, .number = number, .member = -1};
    hvi_device_answer(&worker, 1, to_engine);
}

static uint64_t collect(void)
{
    struct hvi_device_done done;
    uint32_t there = 0;
    ck_assert_int_eq(hvi_ring_available(&engine.dones, &there), HVI_OK);
    if (there == 0)
        return 0;
    hvi_ring_copy(&engine.dones, 0, &done);
    hvi_ring_release(&engine.dones, 1);
    ck_assert_uint_eq(done.seq, done.number);
    return done.number;
}

START_TEST(both_ends_know_the_worker_and_the_epoch)
{
    ck_assert_uint_eq(engine.instance, 77);
    ck_assert_uint_eq(engine.epoch, 3);
    engine.header->instance = 78; /* what was mapped stays */
    ck_assert_uint_eq(worker.instance, 77);
}
END_TEST

START_TEST(batches_of_every_length_come_whole_and_in_order)
{
    uint32_t slots = 0;
    uint64_t taken = 0;
    for (uint64_t number = 1; number <= 4000; number++) {
        uint32_t length = (uint32_t)(number * 7 % 131 + 1);
        publish(number, length);
        if (number % 3)
            continue;
        for (uint64_t got; (got = take(&slots)) != 0; taken++)
            ck_assert_uint_eq(got, taken + 1);
    }
    ck_assert_uint_eq(take(&slots), 4000);
}
END_TEST

START_TEST(a_full_ring_has_no_room_until_the_worker_reads)
{
    uint32_t room = 1, slots = 0;
    for (uint64_t number = 1; number <= HVI_DEVICE_SLOTS / 128; number++)
        publish(number, 128);
    ck_assert_int_eq(hvi_ring_space(&engine.commands, &room), HVI_OK);
    ck_assert_uint_eq(room, 0);
    ck_assert_uint_eq(take(&slots), 1);
    ck_assert_int_eq(hvi_ring_space(&engine.commands, &room), HVI_OK);
    ck_assert_uint_eq(room, 128);
}
END_TEST

START_TEST(as_many_answers_fit_as_batches_may_be_under_way)
{
    for (uint64_t number = 1; number <= HVI_DEVICE_DONES; number++)
        answer(number);
    ck_assert(is_rung(to_engine));
    for (uint64_t number = 1; number <= HVI_DEVICE_DONES; number++)
        ck_assert_uint_eq(collect(), number);
    ck_assert_uint_eq(collect(), 0);
}
END_TEST

START_TEST(a_worker_that_is_awake_costs_no_system_call)
{
    uint32_t slots;
    ck_assert(!publish(1, 1));
    ck_assert(!is_rung(to_worker));
    ck_assert(!hvi_device_arm(&worker)); /* there is something */
    ck_assert_uint_eq(take(&slots), 1);
    ck_assert(hvi_device_arm(&worker));
    hvi_device_disarm(&worker);
    ck_assert(!publish(2, 1));
    ck_assert(!is_rung(to_worker));
}
END_TEST

START_TEST(a_worker_that_sleeps_is_woken_once)
{
    ck_assert(hvi_device_arm(&worker));
    ck_assert(publish(1, 1));
    ck_assert(!publish(2, 1));
    ck_assert(is_rung(to_worker));
    hvi_device_disarm(&worker);
}
END_TEST

START_TEST(an_impossible_index_is_refused_and_keeps_the_worker_awake)
{
    uint32_t there;
    atomic_store(&engine.header->command_tail, HVI_DEVICE_SLOTS + 1);
    ck_assert_int_eq(hvi_ring_available(&worker.commands, &there), HVI_ERR_PROTOCOL);
    ck_assert(!hvi_device_arm(&worker));
    atomic_store(&worker.header->done_tail, 0x80000000u);
    ck_assert_int_eq(hvi_ring_available(&engine.dones, &there), HVI_ERR_PROTOCOL);
}
END_TEST

static void expect_refused(size_t offset, int status)
{
    struct hvi_device_channel fresh, refused;
    ck_assert_int_eq(hvi_device_create(1, 1, &fresh), HVI_OK);
    ((unsigned char *)fresh.header)[offset] ^= 0x40;
    int fd = dup(fresh.map.fd);
    ck_assert_int_eq(hvi_device_map(fd, &refused), status);
    ck_assert_int_eq(close(fd), 0); /* it stayed the caller's */
    hvi_device_fini(&fresh);
}

START_TEST(a_channel_of_another_kind_is_refused)
{
    expect_refused(offsetof(struct hvi_device_header, magic), HVI_ERR_PROTOCOL);
    expect_refused(offsetof(struct hvi_device_header, abi_version), HVI_ERR_VERSION);
    expect_refused(offsetof(struct hvi_device_header, header_bytes), HVI_ERR_PROTOCOL);
    expect_refused(offsetof(struct hvi_device_header, total_bytes), HVI_ERR_PROTOCOL);
    expect_refused(offsetof(struct hvi_device_header, pad0), HVI_ERR_PROTOCOL);
    expect_refused(offsetof(struct hvi_device_header, done_head), HVI_ERR_PROTOCOL);
    struct hvi_region other;
    struct hvi_device_channel refused;
    ck_assert_int_eq(hvi_region_create("hvt-other", 4096, &other), HVI_OK);
    ck_assert_int_eq(hvi_device_map(other.fd, &refused), HVI_ERR_PROTOCOL);
    hvi_region_fini(&other);
}
END_TEST

/* ---- both at once: no wake-up is lost ---- */

#define PATIENCE_MS 20000
#ifdef HVD_SANITIZE
#define BATCHES 3000u
#else
#define BATCHES 30000u
#endif

static uint64_t sleeps;

/* Sleeps whenever it can. A wake-up that never comes is a poll that runs into its end. */
static void *serve(void *unused)
{
    (void)unused;
    uint32_t slots;
    for (uint64_t served = 0; served < BATCHES;) {
        uint64_t number = take(&slots);
        if (number != 0) {
            served = number;
            answer(number);
        } else if (hvi_device_arm(&worker)) {
            struct pollfd poller = {.fd = to_worker, .events = POLLIN};
            sleeps++;
            ck_assert_msg(poll(&poller, 1, PATIENCE_MS) == 1, "slept through batch %llu",
                          (unsigned long long)served + 1);
            is_rung(to_worker);
            hvi_device_disarm(&worker);
        }
    }
    return NULL;
}

START_TEST(no_wake_up_is_lost)
{
    pthread_t thread;
    uint64_t sent = 0, got = 0;
    sleeps = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, serve, NULL), 0);
    while (got < BATCHES) {
        const uint64_t ahead = 1 + sent % 5;
        for (uint64_t i = 0; i < ahead && sent < BATCHES; i++)
            sent++, publish(sent, (uint32_t)(sent % 9 + 1));
        while (got < sent) {
            struct pollfd poller = {.fd = to_engine, .events = POLLIN};
            ck_assert_int_eq(poll(&poller, 1, PATIENCE_MS), 1);
            is_rung(to_engine);
            for (uint64_t number; (number = collect()) != 0; got++)
                ck_assert_uint_eq(number, got + 1);
        }
    }
    pthread_join(thread, NULL);
    ck_assert_uint_gt(sleeps, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shm/device");
    TCase *tcase = tcase_create("channel");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, both_ends_know_the_worker_and_the_epoch);
    tcase_add_test(tcase, batches_of_every_length_come_whole_and_in_order);
    tcase_add_test(tcase, a_full_ring_has_no_room_until_the_worker_reads);
    tcase_add_test(tcase, as_many_answers_fit_as_batches_may_be_under_way);
    tcase_add_test(tcase, a_worker_that_is_awake_costs_no_system_call);
    tcase_add_test(tcase, a_worker_that_sleeps_is_woken_once);
    tcase_add_test(tcase, an_impossible_index_is_refused_and_keeps_the_worker_awake);
    tcase_add_test(tcase, a_channel_of_another_kind_is_refused);
    tcase_add_test(tcase, no_wake_up_is_lost);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

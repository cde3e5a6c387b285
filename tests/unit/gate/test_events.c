/* SPDX-License-Identifier: Apache-2.0
 * What waits for a subscriber: all of it in order, or the oldest and how many are missing. */
#include "base/status.h"
#include "daemon/gate/events.h"
#include "proto/wire.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>

static struct gate_events events;

static void setup(void)
{
    memset(&events, 0, sizeof(events));
}

static void teardown(void)
{
    gate_events_fini(&events);
}

static void add(int number)
{
    gate_events_add(&events, (const unsigned char *)&number, sizeof(number));
}

static void expect(int number)
{
    size_t length = 0;
    unsigned char *reply = gate_events_take(&events, &length);

    ck_assert_ptr_nonnull(reply);
    ck_assert_uint_eq(length, sizeof(number));
    ck_assert_mem_eq(reply, &number, sizeof(number));
    free(reply);
}

static void expect_lost(uint64_t count)
{
    struct hvi_admin_reply reply;
    size_t length = 0;
    unsigned char *bytes = gate_events_take(&events, &length);

    ck_assert_ptr_nonnull(bytes);
    ck_assert_int_eq(hvi_admin_reply_decode(bytes, length, &reply, NULL, 0), HVI_OK);
    ck_assert_uint_eq(reply.request, 0);
    ck_assert_uint_eq(reply.event_count, 1);
    ck_assert_uint_eq(reply.events[0].kind, HVI_EVENT_LOST);
    ck_assert_uint_eq(reply.events[0].count, count);
    hvi_admin_reply_free(&reply);
    free(bytes);
}

static void expect_nothing(void)
{
    size_t length;

    ck_assert_ptr_null(gate_events_take(&events, &length));
}

START_TEST(events_come_in_their_order)
{
    expect_nothing();
    add(1);
    add(2);
    expect(1);
    add(3);
    expect(2);
    expect(3);
    expect_nothing();
}
END_TEST

START_TEST(those_that_do_not_fit_are_counted_in_one_event)
{
    for (int i = 0; i < (int)GATE_EVENTS_MAX + 5; i++)
        add(i);
    for (int i = 0; i < (int)GATE_EVENTS_MAX; i++)
        expect(i);
    expect_lost(5);
    expect_nothing();
}
END_TEST

START_TEST(what_follows_comes_after_the_number_of_the_lost)
{
    for (int i = 0; i < (int)GATE_EVENTS_MAX + 1; i++)
        add(i);
    expect(0);
    add(1000);
    add(1001); /* there is no room again */
    for (int i = 1; i < (int)GATE_EVENTS_MAX; i++)
        expect(i);
    expect_lost(1);
    expect(1000);
    expect_lost(1);
    expect_nothing();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gate/events");
    TCase *tests = tcase_create("events");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, events_come_in_their_order);
    tcase_add_test(tests, those_that_do_not_fit_are_counted_in_one_event);
    tcase_add_test(tests, what_follows_comes_after_the_number_of_the_lost);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

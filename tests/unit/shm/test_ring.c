/* SPDX-License-Identifier: Apache-2.0
 * The ring alone, on heap memory of exactly its size, so that AddressSanitizer sees any slot
 * outside. */
#include "shm/ring.h"

#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/shm/hvt_link.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

#define SLOT_BYTES 24u

struct words {
    uint64_t a, b, c;
};

struct bench {
    struct hvi_ring producer;
    struct hvi_ring consumer;
    _Atomic uint32_t head;
    _Atomic uint32_t tail;
    unsigned char *slots;
};

/* Both ends agree that `start` slots have already gone through. */
static void bench_init(struct bench *bench, uint32_t slot_count, uint32_t start)
{
    bench->slots = malloc((size_t)slot_count * SLOT_BYTES);
    ck_assert_ptr_nonnull(bench->slots);
    memset(bench->slots, 0xee, (size_t)slot_count * SLOT_BYTES);
    atomic_init(&bench->head, start);
    atomic_init(&bench->tail, start);
    hvi_ring_init(&bench->producer, bench->slots, SLOT_BYTES, slot_count, &bench->head,
                  &bench->tail);
    hvi_ring_init(&bench->consumer, bench->slots, SLOT_BYTES, slot_count, &bench->head,
                  &bench->tail);
    bench->producer.own = bench->producer.peer = start;
    bench->consumer.own = bench->consumer.peer = start;
}

static void bench_fini(struct bench *bench)
{
    free(bench->slots);
}

static void push(struct bench *bench, uint64_t value)
{
    struct words *slot = hvi_ring_slot(&bench->producer, 0);
    *slot = (struct words){value, ~value, value * 3};
    hvi_ring_publish(&bench->producer, 1);
}

static uint64_t pop(struct bench *bench)
{
    struct words slot;
    hvi_ring_copy(&bench->consumer, 0, &slot);
    ck_assert(slot.b == ~slot.a && slot.c == slot.a * 3);
    hvi_ring_release(&bench->consumer, 1);
    return slot.a;
}

static uint32_t space(struct bench *bench)
{
    uint32_t slots = 0;
    ck_assert_int_eq(hvi_ring_space(&bench->producer, &slots), HVI_OK);
    return slots;
}

static uint32_t available(struct bench *bench)
{
    uint32_t slots = 0;
    ck_assert_int_eq(hvi_ring_available(&bench->consumer, &slots), HVI_OK);
    return slots;
}

START_TEST(an_empty_ring_has_all_space_and_nothing_to_read)
{
    struct bench bench;
    bench_init(&bench, 8, 0);
    ck_assert_uint_eq(space(&bench), 8);
    ck_assert_uint_eq(available(&bench), 0);
    bench_fini(&bench);
}
END_TEST

START_TEST(a_full_ring_has_no_space_until_something_is_released)
{
    struct bench bench;
    bench_init(&bench, 8, 0);
    for (uint64_t i = 0; i < 8; i++) {
        ck_assert_uint_eq(space(&bench), 8 - i);
        push(&bench, i);
        ck_assert_uint_eq(available(&bench), i + 1);
    }
    ck_assert_uint_eq(space(&bench), 0);
    ck_assert_uint_eq(available(&bench), 8);
    ck_assert_uint_eq(pop(&bench), 0);
    ck_assert_uint_eq(space(&bench), 1);
    for (uint64_t i = 1; i < 8; i++)
        ck_assert_uint_eq(pop(&bench), i);
    ck_assert_uint_eq(available(&bench), 0);
    ck_assert_uint_eq(space(&bench), 8);
    bench_fini(&bench);
}
END_TEST

START_TEST(what_is_not_published_is_not_seen)
{
    struct bench bench;
    bench_init(&bench, 8, 0);
    memset(hvi_ring_slot(&bench.producer, 0), 1, SLOT_BYTES);
    memset(hvi_ring_slot(&bench.producer, 1), 2, SLOT_BYTES);
    ck_assert_uint_eq(available(&bench), 0);
    hvi_ring_publish(&bench.producer, 2);
    ck_assert_uint_eq(available(&bench), 2);
    bench_fini(&bench);
}
END_TEST

START_TEST(slots_come_in_order_through_many_turns)
{
    struct bench bench;
    struct hvt_random random;
    hvt_random_init(&random, 1);
    bench_init(&bench, 16, 0);
    uint64_t sent = 0, received = 0;
    while (received < 20000) {
        for (uint64_t n = hvt_random_below(&random, space(&bench) + 1); n > 0; n--)
            push(&bench, sent++);
        uint32_t here = available(&bench);
        ck_assert_uint_eq(here, sent - received);
        for (uint64_t n = hvt_random_below(&random, here + 1); n > 0; n--)
            ck_assert_uint_eq(pop(&bench), received++);
    }
    bench_fini(&bench);
}
END_TEST

START_TEST(the_index_may_wrap_at_every_filling)
{
    for (uint32_t before = 0; before <= 20; before++) {
        struct bench bench;
        bench_init(&bench, 8, UINT32_MAX - before + 1);
        for (uint64_t round = 0; round < 40; round++) {
            uint32_t fill = (uint32_t)(round % 9);
            for (uint64_t i = 0; i < fill; i++)
                push(&bench, round * 100 + i);
            ck_assert_uint_eq(available(&bench), fill);
            ck_assert_uint_eq(space(&bench), 8 - fill);
            for (uint64_t i = 0; i < fill; i++)
                ck_assert_uint_eq(pop(&bench), round * 100 + i);
            ck_assert_uint_eq(space(&bench), 8);
        }
        bench_fini(&bench);
    }
}
END_TEST

START_TEST(a_ring_of_one_slot_works)
{
    struct bench bench;
    bench_init(&bench, 1, UINT32_MAX - 2);
    for (uint64_t i = 0; i < 10; i++) {
        push(&bench, i);
        ck_assert_uint_eq(space(&bench), 0);
        ck_assert_uint_eq(available(&bench), 1);
        ck_assert_uint_eq(pop(&bench), i);
        ck_assert_uint_eq(space(&bench), 1);
    }
    bench_fini(&bench);
}
END_TEST

START_TEST(the_largest_ring_may_be_full)
{
    /* Slots of one byte; only the indices matter. */
    static unsigned char memory[1 << 20];
    struct bench bench;
    atomic_init(&bench.head, 5);
    atomic_init(&bench.tail, 5);
    hvi_ring_init(&bench.producer, memory, 1, sizeof(memory), &bench.head, &bench.tail);
    bench.producer.own = bench.producer.peer = 5;
    hvi_ring_publish(&bench.producer, sizeof(memory));
    ck_assert_uint_eq(space(&bench), 0);
}
END_TEST

/* --- a peer that lies --- */

START_TEST(a_tail_beyond_the_ring_is_a_protocol_error)
{
    const uint32_t starts[] = {0, 3, UINT32_MAX - 3};
    for (size_t i = 0; i < 3; i++) {
        struct bench bench;
        bench_init(&bench, 8, starts[i]);
        uint32_t slots = 77;
        for (uint32_t lie = 9; lie < 2000; lie += 7) {
            atomic_store(&bench.tail, starts[i] + lie);
            ck_assert_int_eq(hvi_ring_available(&bench.consumer, &slots), HVI_ERR_PROTOCOL);
        }
        ck_assert_msg(slots == 77, "the output was set on failure");
        atomic_store(&bench.tail, starts[i] + 8);
        ck_assert_msg(available(&bench) == 8, "an error must not change the view");
        bench_fini(&bench);
    }
}
END_TEST

START_TEST(a_tail_that_moves_back_is_a_protocol_error)
{
    struct bench bench;
    uint32_t slots;
    bench_init(&bench, 8, 100);
    for (uint64_t i = 0; i < 5; i++)
        push(&bench, i);
    ck_assert_uint_eq(available(&bench), 5);
    atomic_store(&bench.tail, 104);
    ck_assert_int_eq(hvi_ring_available(&bench.consumer, &slots), HVI_ERR_PROTOCOL);
    atomic_store(&bench.tail, 99);
    ck_assert_int_eq(hvi_ring_available(&bench.consumer, &slots), HVI_ERR_PROTOCOL);
    bench_fini(&bench);
}
END_TEST

START_TEST(a_head_that_moves_back_or_past_the_tail_is_a_protocol_error)
{
    struct bench bench;
    uint32_t slots = 77;
    bench_init(&bench, 8, 100);
    for (uint64_t i = 0; i < 5; i++)
        push(&bench, i);
    ck_assert_uint_eq(available(&bench), 5);
    hvi_ring_release(&bench.consumer, 2);
    ck_assert_uint_eq(space(&bench), 5);
    const uint32_t lies[] = {101, 100, 99, 106, 107, 200, 101 + (1u << 31), 0, UINT32_MAX};
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        atomic_store(&bench.head, lies[i]);
        ck_assert_int_eq(hvi_ring_space(&bench.producer, &slots), HVI_ERR_PROTOCOL);
    }
    ck_assert_uint_eq(slots, 77);
    atomic_store(&bench.head, 105);
    ck_assert_uint_eq(space(&bench), 8);
    bench_fini(&bench);
}
END_TEST

/* A consumer that obeys its view only; any index may appear at any time. */
static void read_under_lies(struct bench *bench, struct hvt_random *random, uint64_t *refused,
                            uint64_t *read)
{
    uint32_t slots;
    struct words slot;
    if (hvi_ring_available(&bench->consumer, &slots) != HVI_OK) {
        ++*refused;
        return;
    }
    ck_assert_uint_le(slots, 8);
    for (uint32_t i = 0; i < slots; i++)
        hvi_ring_copy(&bench->consumer, i, &slot);
    *read += slots;
    hvi_ring_release(&bench->consumer, (uint32_t)hvt_random_below(random, slots + 1));
}

static void write_under_lies(struct bench *bench, struct hvt_random *random, uint64_t *refused,
                             uint64_t *written)
{
    uint32_t slots;
    if (hvi_ring_space(&bench->producer, &slots) != HVI_OK) {
        ++*refused;
        return;
    }
    ck_assert_uint_le(slots, 8);
    for (uint32_t i = 0; i < slots; i++)
        memset(hvi_ring_slot(&bench->producer, i), 0x55, SLOT_BYTES);
    *written += slots;
    hvi_ring_publish(&bench->producer, (uint32_t)hvt_random_below(random, slots + 1));
}

START_TEST(no_index_leads_outside)
{
    struct hvt_random random;
    uint64_t refused[2] = {0}, moved[2] = {0};
    hvt_random_init(&random, 2);
    for (int round = 0; round < HVT_SCALE(2000); round++) {
        struct bench bench;
        bench_init(&bench, 8, (uint32_t)hvt_random_next(&random));
        for (int step = 0; step < 200; step++) {
            uint64_t dice = hvt_random_next(&random);
            /* Near lies and far ones; the view's own index is the victim's and is restored. */
            uint32_t lie = dice & 1 ? (uint32_t)(dice >> 32) : (uint32_t)(dice >> 8 & 31) - 16;
            atomic_store(&bench.tail, bench.consumer.own + lie);
            read_under_lies(&bench, &random, &refused[0], &moved[0]);
            atomic_store(&bench.head, bench.producer.own - lie);
            write_under_lies(&bench, &random, &refused[1], &moved[1]);
        }
        bench_fini(&bench);
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_gt(refused[i], 1000);
        ck_assert_uint_gt(moved[i], 1000);
    }
}
END_TEST

START_TEST(a_copy_does_not_change_with_its_slot)
{
    struct bench bench;
    struct words copy;
    bench_init(&bench, 8, 0);
    push(&bench, 41);
    ck_assert_uint_eq(available(&bench), 1);
    hvi_ring_copy(&bench.consumer, 0, &copy);
    memset(bench.slots, 0, SLOT_BYTES);
    ck_assert_uint_eq(copy.a, 41);
    bench_fini(&bench);
}
END_TEST

/* --- our own invariants --- */

START_TEST(a_slot_count_that_is_no_power_of_two_aborts)
{
    struct bench bench;
    hvi_ring_init(&bench.producer, &bench, 8, 6, &bench.head, &bench.tail);
}
END_TEST

START_TEST(publishing_more_than_the_space_aborts)
{
    struct bench bench;
    bench_init(&bench, 8, 0);
    hvi_ring_publish(&bench.producer, 9);
}
END_TEST

START_TEST(releasing_more_than_was_seen_aborts)
{
    struct bench bench;
    bench_init(&bench, 8, 0);
    push(&bench, 1);
    ck_assert_uint_eq(available(&bench), 1);
    hvi_ring_release(&bench.consumer, 2);
}
END_TEST

START_TEST(copying_what_is_not_there_aborts)
{
    struct bench bench;
    struct words copy;
    bench_init(&bench, 8, 0);
    push(&bench, 1);
    hvi_ring_copy(&bench.consumer, 0, &copy); /* not looked: the view has seen nothing yet */
}
END_TEST

/* --- two threads, so that ThreadSanitizer judges the memory orders --- */

#define THREAD_MESSAGES HVT_SCALE(500000u)

static void *produce(void *argument)
{
    struct bench *bench = argument;
    uint64_t sent = 0;
    while (sent < THREAD_MESSAGES) {
        uint32_t slots;
        if (hvi_ring_space(&bench->producer, &slots) != HVI_OK)
            return NULL;
        if (slots == 0)
            sched_yield();
        for (; slots > 0 && sent < THREAD_MESSAGES; slots--)
            push(bench, sent++);
    }
    return NULL;
}

START_TEST(two_threads_see_every_slot_once_and_whole)
{
    struct bench bench;
    pthread_t thread;
    bench_init(&bench, 256, UINT32_MAX - 1000);
    ck_assert_int_eq(pthread_create(&thread, NULL, produce, &bench), 0);
    uint64_t deadline_ns = hvi_deadline_after(HVT_PATIENCE_NS);
    for (uint64_t received = 0; received < THREAD_MESSAGES;) {
        uint32_t slots = available(&bench);
        if (slots == 0) {
            ck_assert(!hvi_deadline_passed(deadline_ns));
            sched_yield();
        } else {
            deadline_ns = hvi_deadline_after(HVT_PATIENCE_NS);
        }
        for (; slots > 0; slots--)
            ck_assert_uint_eq(pop(&bench), received++);
    }
    pthread_join(thread, NULL);
    bench_fini(&bench);
}
END_TEST

static void add_plain(TCase *tcase)
{
    tcase_add_test(tcase, an_empty_ring_has_all_space_and_nothing_to_read);
    tcase_add_test(tcase, a_full_ring_has_no_space_until_something_is_released);
    tcase_add_test(tcase, what_is_not_published_is_not_seen);
    tcase_add_test(tcase, slots_come_in_order_through_many_turns);
    tcase_add_test(tcase, the_index_may_wrap_at_every_filling);
    tcase_add_test(tcase, a_ring_of_one_slot_works);
    tcase_add_test(tcase, the_largest_ring_may_be_full);
    tcase_add_test(tcase, two_threads_see_every_slot_once_and_whole);
}

static void add_hostile(TCase *tcase)
{
    tcase_add_test(tcase, a_tail_beyond_the_ring_is_a_protocol_error);
    tcase_add_test(tcase, a_tail_that_moves_back_is_a_protocol_error);
    tcase_add_test(tcase, a_head_that_moves_back_or_past_the_tail_is_a_protocol_error);
    tcase_add_test(tcase, no_index_leads_outside);
    tcase_add_test(tcase, a_copy_does_not_change_with_its_slot);
    tcase_add_test_raise_signal(tcase, a_slot_count_that_is_no_power_of_two_aborts, SIGABRT);
    tcase_add_test_raise_signal(tcase, publishing_more_than_the_space_aborts, SIGABRT);
    tcase_add_test_raise_signal(tcase, releasing_more_than_was_seen_aborts, SIGABRT);
    tcase_add_test_raise_signal(tcase, copying_what_is_not_there_aborts, SIGABRT);
}

int main(void)
{
    Suite *suite = suite_create("shm/ring");
    TCase *plain = tcase_create("plain");
    TCase *hostile = tcase_create("hostile");
    add_plain(plain);
    add_hostile(hostile);
    suite_add_tcase(suite, plain);
    suite_add_tcase(suite, hostile);
    return hvt_run_suite(suite);
}

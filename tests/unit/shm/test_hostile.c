/* SPDX-License-Identifier: Apache-2.0
 * The peer writes anything anywhere in the shared memory. Whatever it does, a view reports a
 * protocol error or hands out plain data; it never leaves its areas, never loops, never sleeps
 * beyond its bound.
 *
 * The areas are checked twice: on heap copies of exactly their size, so that AddressSanitizer sees
 * one byte too far, and on the real mapping with a second process that writes all the time. */
#include "base/status.h"
#include "base/types.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/shm/hvt_link.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct hvt_link pair;
static struct hvt_random dice;

static void set_up(void)
{
    hvt_random_init(&dice, 99);
    hvt_link_open(&pair, 9);
}

static void tear_down(void)
{
    hvt_link_close(&pair);
}

/* Numbers that like to break things. */
static uint64_t nasty(void)
{
    static const uint64_t edges[] = {
        0,
        1,
        63,
        64,
        127,
        128,
        1015,
        1016,
        1017,
        1023,
        1024,
        1025,
        4095,
        4096,
        4097,
        65535,
        65536,
        65537,
        INT32_MAX,
        UINT64_C(1) << 31,
        UINT32_MAX,
        INT64_MAX,
        UINT64_C(1) << 63,
        UINT64_MAX,
    };
    uint64_t roll = hvt_random_next(&dice);
    return roll & 1 ? hvt_random_next(&dice) >> (roll >> 8 & 63)
                    : edges[roll / 2 % (sizeof(edges) / sizeof(edges[0]))];
}

/* Areas on the heap, each an allocation of its own. */
struct heap_view {
    struct hvi_channel channel;
    void *areas[5];
};

static void *heap_area(struct heap_view *view, int number, size_t bytes)
{
    view->areas[number] = aligned_alloc(64, bytes);
    ck_assert_ptr_nonnull(view->areas[number]);
    memset(view->areas[number], 0, bytes);
    return view->areas[number];
}

static void heap_view_init(struct heap_view *view)
{
    struct hvi_channel *channel = &view->channel;
    *channel = pair.engine;
    struct hvi_channel_header *header = heap_area(view, 0, sizeof(*header));
    channel->header = header;
    channel->names = heap_area(view, 1, HVI_NAMES_BYTES);
    channel->texts = heap_area(view, 2, HVI_TEXT_CELLS * sizeof(struct hvi_text_cell));
    hvi_ring_init(&channel->sq, heap_area(view, 3, HVI_SQ_SLOTS * sizeof(struct hvi_submission)),
                  sizeof(struct hvi_submission), HVI_SQ_SLOTS, &header->sq_head, &header->sq_tail);
    hvi_ring_init(&channel->cq, heap_area(view, 4, HVI_CQ_SLOTS * sizeof(struct hvi_completion)),
                  sizeof(struct hvi_completion), HVI_CQ_SLOTS, &header->cq_head, &header->cq_tail);
}

static void heap_view_fini(struct heap_view *view)
{
    for (int i = 0; i < 5; i++)
        free(view->areas[i]);
}

START_TEST(no_text_number_leads_outside)
{
    struct heap_view view;
    char text[HVI_TEXT_MAX + 1];
    uint64_t read = 0, refused = 0;
    heap_view_init(&view);
    for (int i = 0; i < HVT_SCALE(150000); i++) {
        struct hvi_text_cell *cell = &view.channel.texts[hvt_random_below(&dice, HVI_TEXT_CELLS)];
        atomic_store(&cell->turn, (uint32_t)hvt_random_below(&dice, 3));
        atomic_store(&cell->bytes, (uint32_t)nasty());
        uint32_t number = (uint32_t)(i & 1 ? nasty() : (uint64_t)(cell - view.channel.texts));
        size_t size = hvt_random_below(&dice, sizeof(text) + 1);
        memset(text, 0x55, sizeof(text));
        bool ok = hvi_channel_read_text(&view.channel, number, (uint32_t)hvt_random_below(&dice, 3),
                                        text, size);
        if (size > 0)
            ck_assert_ptr_nonnull(memchr(text, 0, size));
        ck_assert(size == sizeof(text) || text[size] == 0x55);
        read += ok;
        refused += !ok;
    }
    ck_assert_uint_gt(read, 100);
    ck_assert_uint_gt(refused, 100);
    heap_view_fini(&view);
}
END_TEST

START_TEST(no_name_number_leads_outside)
{
    struct heap_view view;
    char name[HVI_NAME_MAX + 1];
    uint64_t read = 0, refused = 0;
    heap_view_init(&view);
    memset(view.channel.names, 'n', HVI_NAMES_BYTES);
    for (int i = 0; i < HVT_SCALE(150000); i++) {
        uint32_t offset = (uint32_t)nasty(), bytes = (uint32_t)nasty();
        name[0] = '\0';
        bool ok = hvi_channel_read_name(&view.channel, offset, bytes, name);
        ck_assert_int_eq(ok, offset < HVI_NAMES_BYTES && bytes <= HVI_NAME_MAX);
        ck_assert_uint_eq(strlen(name), ok ? bytes : 0);
        read += ok;
        refused += !ok;
    }
    ck_assert_uint_gt(read, 100);
    ck_assert_uint_gt(refused, 100);
    heap_view_fini(&view);
}
END_TEST

/* What an engine does with the submissions it is offered, as far as this folder goes. */
static int engine_step(struct hvi_channel *channel)
{
    uint32_t here, space;
    if (hvi_ring_available(&channel->sq, &here) != HVI_OK ||
        hvi_ring_space(&channel->cq, &space) != HVI_OK)
        return HVI_ERR_PROTOCOL;
    ck_assert_uint_le(here, HVI_SQ_SLOTS);
    ck_assert_uint_le(space, HVI_CQ_SLOTS);
    uint32_t count = here < space ? here : space;
    for (uint32_t i = 0; i < count; i++) {
        struct hvi_submission copy;
        char name[HVI_NAME_MAX + 1];
        hvi_ring_copy(&channel->sq, i, &copy);
        (void)hvi_channel_read_name(channel, copy.name_offset, copy.name_bytes, name);
        hvt_fill_completion(hvi_ring_slot(&channel->cq, i), i);
    }
    hvi_ring_release(&channel->sq, count);
    hvi_ring_publish(&channel->cq, count);
    hvi_bell_ring_client(channel->header);
    return HVI_OK;
}

/* What a client does with the completions it is offered. */
static int client_step(struct hvi_channel *channel)
{
    uint32_t here, space;
    if (hvi_ring_available(&channel->cq, &here) != HVI_OK ||
        hvi_ring_space(&channel->sq, &space) != HVI_OK)
        return HVI_ERR_PROTOCOL;
    ck_assert_uint_le(here, HVI_CQ_SLOTS);
    ck_assert_uint_le(space, HVI_SQ_SLOTS);
    for (uint32_t i = 0; i < here; i++) {
        struct hvi_completion copy;
        char text[HVI_TEXT_MAX + 1];
        hvi_ring_copy(&channel->cq, i, &copy);
        (void)hvi_channel_read_text(channel, copy.text_cell, copy.text_turn, text, sizeof(text));
    }
    hvi_ring_release(&channel->cq, here);
    space = space < 16 ? space : 16;
    for (uint32_t i = 0; i < space; i++)
        hvt_fill_submission(hvi_ring_slot(&channel->sq, i), i);
    hvi_ring_publish(&channel->sq, space);
    return HVI_OK;
}

static void set_index(_Atomic uint32_t *index, uint32_t limit)
{
    uint64_t roll = hvt_random_next(&dice);
    uint32_t near = (uint32_t)(roll >> 16) % (2 * limit);
    atomic_store(index, roll & 1 ? (uint32_t)nasty() : near);
}

START_TEST(an_engine_survives_every_index_and_slot)
{
    uint64_t refused = 0, survived = 0;
    for (int round = 0; round < HVT_SCALE(1000); round++) {
        struct heap_view view;
        heap_view_init(&view);
        uint64_t *slots = view.areas[3];
        for (int i = 0; i < 500; i++)
            slots[hvt_random_below(&dice, HVI_SQ_SLOTS * 32)] = nasty();
        int status = HVI_OK;
        for (int step = 0; step < 4 && status == HVI_OK; step++) {
            set_index(&view.channel.header->sq_tail, HVI_SQ_SLOTS);
            if (step > 0)
                set_index(&view.channel.header->cq_head, 64);
            status = engine_step(&view.channel);
            survived += status == HVI_OK;
        }
        refused += status == HVI_ERR_PROTOCOL;
        heap_view_fini(&view);
    }
    ck_assert_uint_gt(refused, HVT_SCALE(100));
    ck_assert_uint_gt(survived, HVT_SCALE(100));
}
END_TEST

START_TEST(a_client_survives_every_index_and_slot)
{
    uint64_t refused = 0, survived = 0;
    for (int round = 0; round < HVT_SCALE(1000); round++) {
        struct heap_view view;
        heap_view_init(&view);
        uint64_t *slots = view.areas[4], *texts = view.areas[2];
        for (int i = 0; i < 500; i++) {
            slots[hvt_random_below(&dice, HVI_CQ_SLOTS * 8)] = nasty();
            texts[hvt_random_below(&dice, HVI_TEXT_CELLS * 128)] = nasty();
        }
        int status = HVI_OK;
        for (int step = 0; step < 4 && status == HVI_OK; step++) {
            set_index(&view.channel.header->cq_tail, HVI_CQ_SLOTS);
            if (step > 0)
                set_index(&view.channel.header->sq_head, 16);
            status = client_step(&view.channel);
            survived += status == HVI_OK;
        }
        refused += status == HVI_ERR_PROTOCOL;
        heap_view_fini(&view);
    }
    ck_assert_uint_gt(refused, HVT_SCALE(100));
    ck_assert_uint_gt(survived, HVT_SCALE(100));
}
END_TEST

/* --- while the peer writes --- */

/* Writes nasty numbers all over the channel and the bell, the indices more often than the rest,
 * until killed. */
static void scribble(struct hvi_channel *channel)
{
    _Atomic uint64_t *words = channel->region.base;
    _Atomic uint64_t *bell = pair.bell.base;
    _Atomic uint32_t *hot[] = {
        &channel->header->sq_tail,   &channel->header->sq_head,       &channel->header->cq_tail,
        &channel->header->cq_head,   &channel->header->cq_bell,       &channel->header->cq_sleepers,
        &pair.page->engine_sleeping, &channel->header->session_state,
    };
    for (;;) {
        uint64_t roll = hvt_random_next(&dice);
        atomic_store_explicit(&words[roll % (channel->region.bytes / 8)], nasty(),
                              memory_order_relaxed);
        atomic_store_explicit(&bell[roll % 512], nasty(), memory_order_relaxed);
        _Atomic uint32_t *index = hot[roll >> 32 & 7];
        if (roll >> 40 & 1)
            atomic_fetch_add_explicit(index, (uint32_t)(roll >> 48 & 31), memory_order_relaxed);
        else if ((roll >> 41 & 7) == 0)
            atomic_store_explicit(index, (uint32_t)nasty(), memory_order_relaxed);
    }
}

/* A new session on the same memory: the indices are honest again for a moment. */
static void rebind(struct hvi_channel *channel)
{
    struct hvi_channel_header *header = channel->header;
    struct hvi_ring *rings[] = {&channel->sq, &channel->cq};
    atomic_store(&header->sq_tail, 0);
    atomic_store(&header->sq_head, 0);
    atomic_store(&header->cq_tail, 0);
    atomic_store(&header->cq_head, 0);
    for (int i = 0; i < 2; i++)
        rings[i]->own = rings[i]->peer = 0;
}

static void run_under_scribbling(struct hvi_channel *victim, struct hvi_channel *attacker,
                                 int (*step)(struct hvi_channel *), void (*nap)(void))
{
    uint64_t refused = 0, survived = 0;
    pid_t pid = hvt_fork();
    if (pid == 0)
        scribble(attacker);
    uint64_t deadline_ns = hvi_deadline_after(HVT_PATIENCE_NS);
    const uint64_t enough = 200; /* on one core it takes a time slice to be hit once */
    while (refused < enough || survived < enough) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "refused %lu, survived %lu", refused,
                      survived);
        if (step(victim) == HVI_OK) {
            survived++;
        } else {
            refused++;
            rebind(victim);
        }
        nap();
    }
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(WIFSIGNALED(hvt_wait_child(pid)));
}

static void engine_nap(void)
{
    for (uint32_t word = 0; word < 16; word++)
        hvi_bell_take(pair.page, word);
    if (!hvi_bell_arm(pair.page))
        return;
    struct pollfd entry = {.fd = pair.event_fd, .events = POLLIN};
    poll(&entry, 1, 0);
    hvi_bell_disarm(pair.page);
}

static void client_nap(void)
{
    const struct hvi_wait_policy policy = {5, 0, 20000, 1};
    uint64_t start_ns = hvi_clock_ns();
    hvi_bell_wait(pair.client.header, hvi_bell_read(pair.client.header), &policy, HVI_NEVER);
    ck_assert(hvi_clock_ns() - start_ns < 5 * HVI_NS_SEC);
    hvi_bell_ring_engine(pair.page, 9, pair.event_fd);
}

START_TEST(an_engine_survives_a_scribbling_client)
{
    run_under_scribbling(&pair.engine, &pair.client, engine_step, engine_nap);
}
END_TEST

START_TEST(a_client_survives_a_scribbling_engine)
{
    run_under_scribbling(&pair.client, &pair.engine, client_step, client_nap);
}
END_TEST

START_TEST(a_client_that_clears_the_bell_hurts_only_itself)
{
    /* The engine believed to be awake is not woken; it wakes by its own clock. */
    ck_assert(hvi_bell_arm(pair.page));
    atomic_store(&pair.page->engine_sleeping, 0);
    ck_assert(!hvi_bell_ring_engine(pair.page, 9, pair.event_fd));
    hvi_bell_disarm(pair.page);
    ck_assert_msg(hvi_bell_take(pair.page, 0) == 1u << 9, "the bit is still there");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shm/hostile");
    TCase *tcase = tcase_create("contents");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, no_text_number_leads_outside);
    tcase_add_test(tcase, no_name_number_leads_outside);
    tcase_add_test(tcase, an_engine_survives_every_index_and_slot);
    tcase_add_test(tcase, a_client_survives_every_index_and_slot);
    tcase_add_test(tcase, an_engine_survives_a_scribbling_client);
    tcase_add_test(tcase, a_client_survives_a_scribbling_engine);
    tcase_add_test(tcase, a_client_that_clears_the_bell_hurts_only_itself);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * The loops of hvt_link.h. They follow the drain, arm, drain again, sleep order of shm/bell.c to
 * the letter, because that order is what the tests are about. */
#include "tests/unit/shm/hvt_link.h"

#include "base/status.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define SUBMISSION_WORDS (sizeof(struct hvi_submission) / 8)
#define COMPLETION_WORDS (sizeof(struct hvi_completion) / 8)
#define IDLE_PASSES      32u

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void hvt_random_init(struct hvt_random *random, uint64_t seed)
{
    const char *text = getenv("HVT_SEED");
    uint64_t shift = text ? strtoull(text, NULL, 0) : 0;
    random->state = mix(seed + 1) ^ mix(shift);
}

uint64_t hvt_random_next(struct hvt_random *random)
{
    random->state += UINT64_C(0x9e3779b97f4a7c15);
    return mix(random->state);
}

uint64_t hvt_random_below(struct hvt_random *random, uint64_t limit)
{
    return hvt_random_next(random) % limit;
}

void hvt_link_open(struct hvt_link *link, uint32_t channel_index)
{
    ck_assert_int_eq(hvi_channel_create(channel_index, 7, &link->engine), HVI_OK);
    int copy = fcntl(link->engine.region.fd, F_DUPFD_CLOEXEC, 3);
    ck_assert_int_eq(hvi_channel_map(copy, &link->client), HVI_OK);
    ck_assert_int_eq(hvi_bell_create(&link->bell, &link->page), HVI_OK);
    link->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ck_assert_int_ge(link->event_fd, 0);
}

void hvt_link_close(struct hvt_link *link)
{
    close(link->event_fd);
    hvi_region_fini(&link->bell);
    hvi_channel_fini(&link->client);
    hvi_channel_fini(&link->engine);
}

/* --- messages --- */

/* Word i of message `seq`, different for every pair. */
static void fill_words(uint64_t *words, size_t count, uint64_t seq)
{
    uint64_t word = mix(seq);
    for (size_t i = 0; i < count; i++)
        words[i] = word += UINT64_C(0x9e3779b97f4a7c15);
}

void hvt_fill_submission(struct hvi_submission *slot, uint64_t seq)
{
    uint64_t words[SUBMISSION_WORDS];
    fill_words(words, SUBMISSION_WORDS, seq);
    words[0] = seq;
    memcpy(slot, words, sizeof(words));
}

bool hvt_submission_is(const struct hvi_submission *slot, uint64_t seq)
{
    struct hvi_submission expected;
    hvt_fill_submission(&expected, seq);
    return memcmp(slot, &expected, sizeof(expected)) == 0;
}

void hvt_fill_completion(struct hvi_completion *slot, uint64_t seq)
{
    uint64_t words[COMPLETION_WORDS];
    fill_words(words, COMPLETION_WORDS, ~seq);
    words[0] = seq;
    memcpy(slot, words, sizeof(words));
}

bool hvt_completion_is(const struct hvi_completion *slot, uint64_t seq)
{
    struct hvi_completion expected;
    hvt_fill_completion(&expected, seq);
    return memcmp(slot, &expected, sizeof(expected)) == 0;
}

/* --- engine --- */

static bool echo_one(struct hvt_link *link, struct hvt_run *run, uint32_t ahead)
{
    struct hvi_submission submission;
    uint64_t seq = run->done + ahead + 1;
    hvi_ring_copy(&link->engine.sq, ahead, &submission);
    if (!hvt_submission_is(&submission, seq)) {
        run->end = HVT_BAD_DATA;
        return false;
    }
    hvt_fill_completion(hvi_ring_slot(&link->engine.cq, ahead), seq);
    return true;
}

/* Echoes what is there. Returns the number of messages, or -1 with run->end set. */
static int engine_pass(struct hvt_link *link, struct hvt_run *run)
{
    uint32_t here, space;
    if (hvi_ring_available(&link->engine.sq, &here) != HVI_OK ||
        hvi_ring_space(&link->engine.cq, &space) != HVI_OK) {
        run->end = HVT_PROTOCOL;
        return -1;
    }
    uint32_t count = here < space ? here : space;
    if (count == 0)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!echo_one(link, run, i))
            return -1;
    }
    hvi_ring_release(&link->engine.sq, count);
    hvi_ring_publish(&link->engine.cq, count);
    run->system_calls += hvi_bell_ring_client(link->engine.header);
    run->done += count;
    return (int)count;
}

static void engine_sleep(struct hvt_link *link, struct hvt_run *run)
{
    if (!hvi_bell_arm(link->page))
        return;
    struct pollfd entry = {.fd = link->event_fd, .events = POLLIN};
    int ready = poll(&entry, 1, (int)(run->sleep_ns / HVI_NS_MS));
    hvi_bell_disarm(link->page);
    run->sleeps++;
    uint64_t count;
    if (ready > 0 && read(link->event_fd, &count, sizeof(count)) != sizeof(count))
        run->end = HVT_BAD_DATA;
    uint32_t here = 0;
    if (ready == 0 && hvi_ring_available(&link->engine.sq, &here) == HVI_OK && here > 0)
        run->end = HVT_LOST_WAKE;
}

/* True when the channel's bit was set, and no other. */
static bool take_bit(struct hvt_link *link, struct hvt_run *run)
{
    uint64_t taken = 0;
    uint32_t index = link->engine.channel_index;
    for (uint32_t word = 0; word < HVI_BELL_CHANNELS / 64; word++) {
        uint64_t bits = hvi_bell_take(link->page, word);
        uint64_t ours = word == index / 64 ? UINT64_C(1) << (index % 64) : 0;
        if ((bits & ~ours) != 0)
            run->end = HVT_BAD_DATA;
        taken |= bits;
    }
    return taken != 0;
}

void hvt_engine_run(struct hvt_link *link, struct hvt_run *run)
{
    uint32_t idle = 0;
    run->end = HVT_DONE;
    while (run->done < run->total && run->end == HVT_DONE) {
        /* Only a set bit leads to the ring, as in the engine: a bit that is lost loses its message.
         */
        int count = take_bit(link, run) ? engine_pass(link, run) : 0;
        if (count != 0) {
            idle = 0;
        } else if (++idle > IDLE_PASSES) {
            engine_sleep(link, run);
            idle = 0;
        }
        if (idle == 0 && hvi_deadline_passed(run->deadline_ns) && run->end == HVT_DONE)
            run->end = HVT_LATE;
    }
}

/* --- client --- */

/* Submits a burst if the window and the ring allow. Returns the number, or -1. */
static int submit_burst(struct hvt_link *link, struct hvt_client_style *style, struct hvt_run *run,
                        uint64_t *sent)
{
    uint32_t space;
    if (hvi_ring_space(&link->client.sq, &space) != HVI_OK) {
        run->end = HVT_PROTOCOL;
        return -1;
    }
    uint64_t count = hvt_random_below(&style->random, style->burst) + 1;
    uint64_t limits[] = {space, style->window - (*sent - run->done), run->total - *sent};
    for (size_t i = 0; i < 3; i++)
        count = count < limits[i] ? count : limits[i];
    if (count == 0)
        return 0;
    for (uint32_t i = 0; i < count; i++)
        hvt_fill_submission(hvi_ring_slot(&link->client.sq, i), *sent + i + 1);
    hvi_ring_publish(&link->client.sq, (uint32_t)count);
    run->system_calls +=
        hvi_bell_ring_engine(link->page, link->client.channel_index, link->event_fd);
    *sent += count;
    return (int)count;
}

static int drain_completions(struct hvt_link *link, struct hvt_run *run)
{
    uint32_t count;
    if (hvi_ring_available(&link->client.cq, &count) != HVI_OK) {
        run->end = HVT_PROTOCOL;
        return -1;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct hvi_completion completion;
        hvi_ring_copy(&link->client.cq, i, &completion);
        if (!hvt_completion_is(&completion, run->done + i + 1)) {
            run->end = HVT_BAD_DATA;
            return -1;
        }
    }
    hvi_ring_release(&link->client.cq, count);
    run->done += count;
    return (int)count;
}

static void client_sleep(struct hvt_link *link, struct hvt_client_style *style, struct hvt_run *run)
{
    const struct hvi_wait_policy policy = {
        .spins = style->spins,
        .yield_ns = hvt_random_below(&style->random, style->yield_ns + 1),
        .slice_ns = run->sleep_ns,
    };
    uint32_t seen = hvi_bell_read(link->client.header);
    if (drain_completions(link, run) != 0)
        return;
    uint64_t start_ns = hvi_clock_ns();
    bool moved = hvi_bell_wait(link->client.header, seen, &policy, run->deadline_ns);
    run->sleeps++;
    if (!moved || hvi_clock_ns() - start_ns < run->sleep_ns)
        return;
    /* Slept the whole slice, and then the word had moved: nobody woke us. */
    run->end = HVT_LOST_WAKE;
}

void hvt_client_run(struct hvt_link *link, struct hvt_client_style *style, struct hvt_run *run)
{
    uint64_t sent = 0;
    run->end = HVT_DONE;
    while (run->done < run->total && run->end == HVT_DONE) {
        int submitted = submit_burst(link, style, run, &sent);
        int drained = submitted < 0 ? -1 : drain_completions(link, run);
        if (submitted != 0 || drained != 0)
            continue;
        client_sleep(link, style, run);
        if (run->end == HVT_DONE && hvi_deadline_passed(run->deadline_ns))
            run->end = HVT_LATE;
    }
}

/* --- processes --- */

pid_t hvt_fork(void)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(98);
    }
    return pid;
}

/* SPDX-License-Identifier: Apache-2.0
 * Doorbells: how a side that found nothing to do goes to sleep without missing the peer's next
 * message.
 *
 * Both directions follow  drain -> arm -> drain again -> sleep  on one side and  publish -> ring ->
 * look at armed -> wake  on the other; the accesses to both words are sequentially consistent, so it
 * is impossible that both miss.
 *
 * engine side (client -> engine): a bit per channel in the job's bell page and an eventfd that the
 *   engine's loop polls.
 * client side (engine -> client): a futex word in the channel; the waiter spins, then yields, then
 *   sleeps in the kernel in slices, so that it can look at its socket and notice a dead engine.
 * Thread-safe as stated per function. */
#ifndef HVI_SHM_BELL_H
#define HVI_SHM_BELL_H

#include "shm/abi.h"
#include "shm/wait.h"

#include <stdbool.h>
#include <stdint.h>

/* --- client -> engine --- */

/* Client, any thread that holds the submission side: marks channel `index` active and, if the
 * engine sleeps, writes `event_fd`. Call after hvi_ring_publish. Returns true if a system call was
 * made. */
bool hvi_bell_ring_engine(struct hvi_bell_page *page, uint32_t index, int event_fd);
/* Engine thread: takes and clears word `word` (0..15) of the active bitmap. Cheap when nothing is
 * set. */
uint64_t hvi_bell_take(struct hvi_bell_page *page, uint32_t word);
/* Engine thread: announces sleep. Returns false, disarmed again, when some channel is active: drain
 * first. */
bool hvi_bell_arm(struct hvi_bell_page *page);
/* Engine thread: awake again. */
void hvi_bell_disarm(struct hvi_bell_page *page);

/* --- engine -> client --- */

/* Engine thread: after completions were published; bumps the word and wakes sleepers. Returns true
 * if it made a system call. */
bool hvi_bell_ring_client(struct hvi_channel_header *channel);

/* Client, any thread: the word to remember before looking at the completion ring. Acquire. */
uint32_t hvi_bell_read(const struct hvi_channel_header *channel);
/* Client, any thread: returns when the word differs from `seen`, when a slice or `deadline_ns`
 * (monotonic) has passed, or on a signal. True when the word has moved. */
bool hvi_bell_wait(struct hvi_channel_header *channel, uint32_t seen,
                   const struct hvi_wait_policy *policy, uint64_t deadline_ns);

#endif

/* SPDX-License-Identifier: Apache-2.0
 * What the ranks of a job share besides hvdd, in memory that a fork does not copy. */
#include "tests/property/prop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int64_t hvt_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

struct hvt_shared *hvt_shared_new(void)
{
    struct hvt_shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;

    if (shared == MAP_FAILED)
        abort();
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared->mutex, &mutex);
    pthread_condattr_init(&cond);
    pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&shared->turned, &cond);
    return shared;
}

void hvt_shared_free(struct hvt_shared *shared)
{
    munmap(shared, sizeof *shared);
}

/* No deadline of its own: whoever makes the others wait here has one, and then the workers' parent
 * ends all. */
void hvt_shared_meet(struct hvt_shared *shared, int ranks)
{
    pthread_mutex_lock(&shared->mutex);
    int turn = shared->turn;
    if (++shared->waiting == ranks) {
        shared->waiting = 0;
        shared->turn++;
        pthread_cond_broadcast(&shared->turned);
    }
    while (shared->turn == turn)
        pthread_cond_wait(&shared->turned, &shared->mutex);
    pthread_mutex_unlock(&shared->mutex);
}

void hvt_shared_fail(struct hvt_shared *shared, const char *text)
{
    int none = 0;

    if (!atomic_compare_exchange_strong(&shared->failed, &none, 1))
        return;
    snprintf(shared->text, sizeof shared->text, "%s", text);
    atomic_store(&shared->failed, 2);
}

uint64_t hvt_shared_note(struct hvt_shared *shared, uint32_t number, uint64_t value)
{
    uint64_t none = 0, noted = value | 1ull << 63;

    if (number >= HVT_NOTES || atomic_compare_exchange_strong(&shared->notes[number], &none, noted))
        return value & ~(1ull << 63);
    return none & ~(1ull << 63);
}

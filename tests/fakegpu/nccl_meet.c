/* SPDX-License-Identifier: Apache-2.0
 * The ranks of a communicator share a file in FAKEGPU's meet=FOLDER, whose path is the id. Each holds a lock on the byte of
 * its rank, so that the others see when it is gone, also from another pid namespace. The file has no name from the moment
 * when all have come. */
#include "tests/fakegpu/nccl_fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define IDS 64

static char made[IDS][sizeof(struct gpu_nccl_id)]; /* files that nobody has joined from here */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((destructor)) static void remove_files(void)
{
    for (unsigned i = 0; i < IDS; i++) {
        if (made[i][0] != '\0')
            unlink(made[i]);
    }
}

static void note(const char *path, bool is_made)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < IDS; i++) {
        if (strcmp(made[i], is_made ? "" : path) == 0) {
            strcpy(made[i], is_made ? path : "");
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

int fake_nccl_make_id(struct gpu_nccl_id *id_p)
{
    const char *folder = fake_setting("meet");
    uint64_t number;

    if (getrandom(&number, sizeof(number), 0) != sizeof(number))
        return FAKE_NCCL_SYSTEM_ERROR;
    *id_p = (struct gpu_nccl_id){{0}};
    if ((size_t)snprintf(id_p->bytes, sizeof(id_p->bytes), "%s/fakegpu-nccl-%016llx",
                         folder == NULL ? "/dev/shm" : folder,
                         (unsigned long long)number) >= sizeof(id_p->bytes))
        return FAKE_NCCL_INVALID_ARGUMENT;
    int fd = open(id_p->bytes, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return FAKE_NCCL_SYSTEM_ERROR;
    close(fd);
    note(id_p->bytes, true);
    return GPU_NCCL_OK;
}

static bool lock_byte(int fd, int rank, int command, short *type_p)
{
    struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};

    if (fcntl(fd, command, &byte) != 0)
        return false;
    *type_p = byte.l_type;
    return true;
}

static int map(struct gpu_nccl_comm *comm, const char *path)
{
    const size_t ranks = (size_t)comm->ranks,
                 head = (sizeof(struct fake_nccl_area) + 4095) & ~4095u;
    uint32_t none = 0;
    short type;

    comm->bytes = head + ranks * FAKE_NCCL_STAGE + ranks * ranks * sizeof(struct fake_nccl_mail);
    comm->fd = open(path, O_RDWR | O_CLOEXEC);
    if (comm->fd < 0 || ftruncate(comm->fd, (off_t)comm->bytes) != 0 ||
        !lock_byte(comm->fd, comm->rank, F_OFD_SETLK, &type))
        return FAKE_NCCL_SYSTEM_ERROR;
    comm->area = mmap(NULL, comm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, comm->fd, 0);
    if (comm->area == MAP_FAILED)
        return FAKE_NCCL_SYSTEM_ERROR;
    comm->stages = (char *)comm->area + head;
    comm->mail = (struct fake_nccl_mail *)(void *)(comm->stages + ranks * FAKE_NCCL_STAGE);
    if (!atomic_compare_exchange_strong(&comm->area->ranks, &none, (uint32_t)ranks) &&
        none != ranks)
        return FAKE_NCCL_INVALID_ARGUMENT;
    return GPU_NCCL_OK;
}

static void introduce(struct gpu_nccl_comm *comm, int device)
{
    struct fake_nccl_member *self = &comm->area->members[comm->rank];
    const char *host = getenv("NCCL_HOSTID");
    char name[64] = "";

    gethostname(name, sizeof(name) - 1);
    snprintf(self->host, sizeof(self->host), "%s", host == NULL ? name : host);
    self->device = fake_device_of(device) + fake_number("node", 0) * FAKE_DEVICES; /* busId */
    if (atomic_exchange(&self->is_here, 1) != 0)
        fake_blame("rank %d has joined the communicator of this id before", comm->rank);
}

static bool has_duplicates(const struct gpu_nccl_comm *comm)
{
    const struct fake_nccl_member *members = comm->area->members;

    for (int i = 0; i < comm->ranks; i++) {
        for (int j = 0; j < i; j++) {
            if (members[i].device == members[j].device &&
                strcmp(members[i].host, members[j].host) == 0)
                return true;
        }
    }
    return false;
}

int fake_nccl_join(struct gpu_nccl_comm *comm, int ranks, const struct gpu_nccl_id *id, int rank,
                   int device)
{
    comm->ranks = ranks;
    comm->rank = rank;
    int result = map(comm, id->bytes);
    if (result != GPU_NCCL_OK)
        return result;
    introduce(comm, device);
    for (int i = 0; i < ranks; i++) { /* for ever, as NCCL does */
        while (atomic_load(&comm->area->members[i].is_here) == 0)
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    unlink(id->bytes);
    note(id->bytes, false);
    return has_duplicates(comm) ? FAKE_NCCL_INVALID_USAGE : GPU_NCCL_OK;
}

void fake_nccl_leave(struct gpu_nccl_comm *comm)
{
    if (comm->area != NULL && comm->area != MAP_FAILED)
        munmap(comm->area, comm->bytes);
    if (comm->fd >= 0)
        close(comm->fd);
}

static bool is_gone(struct gpu_nccl_comm *comm, int rank)
{
    short type;

    return rank != comm->rank && lock_byte(comm->fd, rank, F_OFD_GETLK, &type) && type == F_UNLCK;
}

bool fake_nccl_wait(struct gpu_nccl_comm *comm, unsigned *round_p)
{
    const long ns = *round_p < 100 ? 20000 : 500000;

    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    const bool is_looking = ++*round_p % 64 == 0;
    for (int i = 0; i < comm->ranks; i++) {
        if (is_looking && is_gone(comm, i))
            atomic_store(&comm->async_error, FAKE_NCCL_REMOTE_ERROR);
    }
    return !atomic_load(&comm->is_aborted);
}

bool fake_nccl_meet(struct gpu_nccl_comm *comm)
{
    unsigned round = 0;

    atomic_store(&comm->area->members[comm->rank].turn, ++comm->turn);
    for (int i = 0; i < comm->ranks; i++) {
        while (atomic_load(&comm->area->members[i].turn) < comm->turn) {
            if (!fake_nccl_wait(comm, &round))
                return false;
        }
    }
    return !atomic_load(&comm->is_aborted);
}

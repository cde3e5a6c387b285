/* SPDX-License-Identifier: Apache-2.0
 * The GPU: found by its UUID, with a context of this process. The driver is only called in a thread of its own (hvd-launch), so
 * that the main thread answers hvdd whatever the driver does. Functions are the main thread's, and do not block. */
#ifndef HVD_GPU_DEVICE_H
#define HVD_GPU_DEVICE_H

#include "base/types.h"
#include "gpu/cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct gpu_device {
    int event_fd;               /* readable when gpu_device_state or .step has changed */
    _Atomic(const char *) step; /* what the thread is at; relaxed, constant strings */
    _Atomic int state; /* the thread: release; pairs with the acquire in gpu_device_state */
    pthread_t thread;
    unsigned char uuid[HVI_UUID_BYTES];
    /* In the thread, whose context is current: what belongs to the start (false, with a sentence: it fails), and what the
     * thread does then, until it has to end. NULL: nothing. */
    bool (*prepare)(void *user, const struct hvi_cuda *cuda, char *text_p, size_t text_size);
    void (*serve)(void *user);
    void *user;

    /* The thread's until gpu_device_state says that it is over, then constant. */
    struct hvi_cuda cuda;
    hvi_cu_device ordinal;
    hvi_cu_context context;
    bool can_multicast; /* with other GPUs: NCCL may have NVLS */
    char name[64];
    char why[400]; /* it has failed */
};

/* Starts the thread, which looks for the driver and the device. The caller may have set .prepare, .serve and .user. HVI_OK or HVI_ERR_NO_MEMORY. */
int gpu_device_open(struct gpu_device *device, const unsigned char uuid[HVI_UUID_BYTES]);
/* HVI_INPROGRESS; HVI_OK: it is there; HVI_ERR_UNSUPPORTED: .why says what is missing. */
int gpu_device_state(struct gpu_device *device);
/* Waits for the thread, which has been told to end, and gives the context back. False: the driver has not returned, and the process can only be ended. */
bool gpu_device_close(struct gpu_device *device);

#endif

/* SPDX-License-Identifier: Apache-2.0
 * What ends a wait besides the ranks: the step that a kernel belongs to is cancelled (another of its
 * kernels has failed, the session was closed, its time is over), or the user has pressed Ctrl-C. */
#ifndef PYTHON_NATIVE_STEP_H
#define PYTHON_NATIVE_STEP_H

#include "hvd/hvd.h"
#include "python/native/tensorflow_c.h"

/* Where this TensorFlow keeps a kernel's CancellationManager, which its C API does not tell: the offset of
 * OpKernelContext's `params_`, and in that of `cancellation_manager`. Without this call steps are never
 * seen to be cancelled. */
HVD_API void hvd_tf_cancellation(size_t params_offset, size_t manager_offset);

/* Notes every SIGINT from now on and passes it to the handler that is there, Python's. While there is a waker
 * the first one is held until hvd_tf_deliver_interrupt, and kernels are taken back: were it pending in Python
 * while TensorFlow makes an exception of an error, that would end in a RuntimeError about both. A handler that
 * is set later takes ours out. */
HVD_API void hvd_tf_watch_interrupts(void);
/* Passes a held interrupt on, if there is one. */
HVD_API void hvd_tf_deliver_interrupt(void);
#define STEP_INTERRUPTED "interrupted by SIGINT"

/* Whether the step of a kernel that is not done was cancelled. */
bool step_is_cancelled(TF_OpKernelContext *context);

/* The number of interrupts so far; whether one is held. */
int step_interrupts(void);
bool step_interrupt_held(void);

/* Who is told of an interrupt, in the signal handler; NULL: nobody, and none is held. */
void step_set_waker(void (*waker)(int fd), int fd);

#endif

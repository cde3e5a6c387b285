/* SPDX-License-Identifier: Apache-2.0
 * The callback that ends an asynchronous kernel, kept beyond the kernel's return.
 *
 * TensorFlow's C API passes a pointer to a std::function<void()> that lives in the caller's frame
 * (tensorflow/c/kernels.cc, CAsyncOpKernel::ComputeAsync): it is gone when the kernel's function has
 * returned, though the API's purpose is to call it later. So it is moved out: as libstdc++ moves one, by
 * copying its four words and emptying the source (bits/std_function.h; part of its ABI since GCC 4, and
 * TensorFlow's wheels are built against libstdc++). Where the words do not look like that nothing is
 * taken, and the kernel waits in TensorFlow's thread (docs/adr/0010). */
#ifndef PYTHON_NATIVE_DONE_H
#define PYTHON_NATIVE_DONE_H

#include "python/native/tensorflow_c.h"

/* std::function<void()>: what is called, its manager (NULL: empty) and its invoker. Without `manager`
 * functor[0] is TensorFlow's own pointer, which must still be valid. */
struct done {
    void *functor[2];
    void (*manager)(void *functor, const void *source, int operation);
    void (*invoker)(const void *functor);
};

/* Takes `source` over; the caller's is empty then. False: it cannot be moved, so it must be run before the
 * kernel's function returns. */
bool done_take(struct done *done, TF_AsyncOpKernelDoneCallback *source);
/* Runs and destroys it. Once. */
void done_run(struct done *done);

#endif

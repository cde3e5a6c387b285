/* SPDX-License-Identifier: Apache-2.0
 * See done.h. */
#include "python/native/done.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#define DESTROY 3 /* std::__destroy_functor */

static bool is_code(void (*function)(void))
{
    Dl_info info;
    void *address;
    memcpy(&address, &function, sizeof(address));
    return address && dladdr(address, &info) != 0;
}

/* Whether both function pointers lead into a loaded library. Asked until it was true once: all kernels get
 * their callbacks from the same code. */
static bool is_function(const struct done *done)
{
    static atomic_bool known;
    if (atomic_load_explicit(&known, memory_order_relaxed))
        return done->manager && done->invoker;
    if (!is_code((void (*)(void))done->manager) || !is_code((void (*)(void))done->invoker))
        return false;
    atomic_store_explicit(&known, true, memory_order_relaxed);
    return true;
}

bool done_take(struct done *done, TF_AsyncOpKernelDoneCallback *source)
{
    memcpy(done, source, sizeof(*done));
    if (!is_function(done)) {
        *done = (struct done){.functor = {source}};
        return false;
    }
    memset((char *)source + offsetof(struct done, manager), 0, sizeof(done->manager));
    return true;
}

void done_run(struct done *done)
{
    if (!done->manager) {
        TF_RunAsyncOpKernelDoneCallback(done->functor[0]);
        return;
    }
    TF_RunAsyncOpKernelDoneCallback((TF_AsyncOpKernelDoneCallback *)done);
    done->manager(done, done, DESTROY);
}

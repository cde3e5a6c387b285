/* SPDX-License-Identifier: Apache-2.0
 * hvdrun --check-build: what this build can do, in the form of horovodrun's. Which frameworks there
 * are is known to Python only, so a Python is asked, without importing them. */
#ifndef HVI_TOOLS_HVDRUN_BUILD_H
#define HVI_TOOLS_HVDRUN_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define RUN_BUILD_FRAMEWORKS 3

struct run_build {
    bool frameworks[RUN_BUILD_FRAMEWORKS]; /* TensorFlow, PyTorch, MXNet */
    char python[512];                      /* who said so, or was to */
    bool has_nccl;                         /* run_build_has_nccl */
};

/* Asks the Python that HVDRUN_PYTHON names, else python3 of PATH, which of the frameworks and their
 * bindings it would find. Waits at most 20 s. 0, or -1 with a sentence and no framework. */
int run_build_ask(struct run_build *build_p, char *text_p, size_t text_size);
/* Whether workers of GPUs would find a driver and NCCL here, and have kernels: those of the hvdd that runs in `address` (NULL: where
 * hvdrun looks for one), else of the hvdd-gpu beside this program. Waits at most 25 s; opens no device. */
bool run_build_has_nccl(const char *address);
/* The lists, for `name` ("Horovod" or "hvd"). */
void run_build_print(FILE *out, const char *name, const char *version,
                     const struct run_build *build);

#endif

/* SPDX-License-Identifier: Apache-2.0
 * Which processes of Slurm's are ranks. Any thread. */
#ifndef HVI_BASE_SLURM_H
#define HVI_BASE_SLURM_H

#include <stdbool.h>
#include <stdlib.h>

/* Whether `step`, the value of SLURM_STEP_ID or NULL, is a step of srun's. Slurm gives the highest numbers to
 * the steps that it makes itself: of batch scripts, and of the shell of salloc (use_interactive_step). */
static inline bool hvi_slurm_is_step_of_ranks(const char *step)
{
    return step && step[0] != '\0' && strtoul(step, NULL, 10) <= 0xfffffff0UL;
}

#endif

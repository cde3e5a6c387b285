/* SPDX-License-Identifier: Apache-2.0
 * hvt_step: kills or stops its own process at a named step of the library (client/step.h), when the
 * test has asked for it: HVT_STEP="slot-arrived 3 9" means the third time, with signal 9. The time
 * (CLOCK_MONOTONIC, ns) stands in $TMPDIR/step.PID before the signal is raised. */
#include "client/step.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void tell_time(void)
{
    char path[256];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(path, sizeof path, "%s/step.%d", getenv("TMPDIR"), (int)getpid());
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec) < 0 ||
        fclose(file) != 0)
        abort();
}

void hvt_step(const char *name)
{
    static char wanted[64];
    static int left = -1, number;

    if (left < 0) {
        const char *text = getenv("HVT_STEP");
        left = 0;
        if (text && sscanf(text, "%63s %d %d", wanted, &left, &number) != 3)
            abort();
    }
    if (left > 0 && strcmp(name, wanted) == 0 && --left == 0) {
        tell_time();
        raise(number);
    }
}

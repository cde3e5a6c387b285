/* SPDX-License-Identifier: Apache-2.0
 * One check of `hvdctl doctor`: looks at one thing of this machine and says what it found. Main
 * thread; a check takes about a second at most. */
#ifndef HVI_TOOLS_HVDCTL_DOCTOR_H
#define HVI_TOOLS_HVDCTL_DOCTOR_H

#include "tools/hvdctl/ctl.h"

enum ctl_verdict { CTL_CHECK_OK, CTL_CHECK_NOTE, CTL_CHECK_PROBLEM };

struct ctl_finding {
    enum ctl_verdict verdict;
    char value[256];
    char next[256]; /* what to do; "" when there is nothing to do */
};

struct ctl_check {
    const char *name;
    void (*look)(const struct ctl *ctl, struct ctl_finding *finding_p);
};

/* All checks, in the order shown; ends with a NULL name. */
extern const struct ctl_check ctl_checks[];

/* The findings as a table, or with ctl->json as {"checks": [...], "problems": n}. */
void ctl_doctor_print(const struct ctl *ctl, const struct ctl_check *checks,
                      const struct ctl_finding *findings, size_t count);

#endif

/* SPDX-License-Identifier: Apache-2.0
 * One check of `hvdctl doctor`: looks at one thing of this machine, or of a peer, and says what it found.
 * Main thread; a check takes about a second at most, those of a name or a peer some seconds. The first that asks
 * hvdd-gpu waits for it, 20 s at most. */
#ifndef HVI_TOOLS_HVDCTL_DOCTOR_H
#define HVI_TOOLS_HVDCTL_DOCTOR_H

#include "tools/hvdctl/ctl.h"

enum ctl_verdict { CTL_CHECK_OK, CTL_CHECK_NOTE, CTL_CHECK_PROBLEM };

#define CTL_CHECKS_MAX 40u /* of one run */

/* A number of a finding, for programs. */
struct ctl_figure {
    const char *name; /* with its unit; NULL: none */
    uint64_t value;
};

struct ctl_finding {
    enum ctl_verdict verdict;
    char value[1024];
    char next[256]; /* what to do; "" when there is nothing to do */
    struct ctl_figure figures[2];
};

struct ctl_check {
    const char *name;
    void (*look)(const struct ctl *ctl, struct ctl_finding *finding_p);
};

void ctl_found(struct ctl_finding *finding, enum ctl_verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ctl_next(struct ctl_finding *finding, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The checks of this machine and of its network, in the order shown; each list ends with a NULL name. */
extern const struct ctl_check ctl_checks[];
extern const struct ctl_check ctl_network_checks[];
/* Of `doctor gpu`: some seconds, in which the first visible GPU is used. */
extern const struct ctl_check ctl_gpu_checks[];

/* The checks of ctl->peer. Returns how many of at most `room` were made: later ones need what earlier ones
 * have found. Only the names of `checks_p` are set. */
size_t ctl_peer_look(const struct ctl *ctl, struct ctl_check *checks_p,
                     struct ctl_finding *findings_p, size_t room);
/* "hvdctl 1.2.3, hvdd 1.2.3", or "hvdctl 1.2.3, no hvdd". Asks the hvdd, for a second at most. */
void ctl_peer_versions(const struct ctl *ctl, char *text_p, size_t size);

/* The ports of jobs: HVD_PORT_RANGE, else the default. False: that is no range, and the default is set. */
bool ctl_port_range(uint16_t *first_p, uint16_t *last_p);
/* A TCP socket, non-blocking, that is bound to this port of all addresses; or -1 with errno. */
int ctl_bind(uint16_t port);
/* 0: not known. */
uint32_t ctl_interface_mtu(const char *name);

#endif

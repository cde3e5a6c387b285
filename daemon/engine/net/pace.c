/* SPDX-License-Identifier: Apache-2.0
 * Which congestion control connections have. One that paces what it sends (bbr) sets a timer for each segment, unless the
 * fq discipline does that for it. Between neighbours this costs more than all else: 1 MiB between two nodes took 1.0 ms with
 * bbr and 0.57 without, a broadcast of 64 MiB 41 and 22 ms. Over a long way it is worth it.
 *
 * A connection that has begun with one that paces is paced for good, whatever comes after it. So where that is the
 * system's choice, all begin with another, and get the system's once their way turns out to be long. */
#include "daemon/engine/net/conn.h"

#include "base/log.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>

#define NEAR_US 2000u /* there and back */

void engine_net_pace_begin(struct engine_net *net, int fd)
{
    static const char *const others[] = {"cubic", "reno"}; /* one may need a privilege */
    char name[ENGINE_NET_PACE_NAME] = "";
    socklen_t length = sizeof name - 1;

    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0 ||
        strncmp(name, "bbr", 3) != 0)
        return;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, others[i], (socklen_t)strlen(others[i])) !=
            0)
            continue;
        if (net->paced[0] == '\0')
            HVI_LOG(HVI_LOG_INFO, "net", "not-paced",
                    "connections to near nodes do not have the system's congestion control",
                    "system=%s ours=%s", name, others[i]);
        memcpy(net->paced, name, sizeof net->paced);
        return;
    }
}

void engine_net_pace_settle(const struct engine_net *net, int fd, uint32_t round_trip_us)
{
    if (net->paced[0] != '\0' && round_trip_us > NEAR_US)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, net->paced, (socklen_t)strlen(net->paced));
}

uint32_t engine_net_pace_round_trip(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? info.tcpi_min_rtt : 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * What jobs on several machines need of this machine's network. Nothing is sent but the question of what
 * this machine's own name stands for. */
#include "base/interface.h"
#include "base/place.h"
#include "base/status.h"
#include "tools/common/text.h"
#include "tools/hvdctl/doctor.h"
#include "tools/hvdctl/resolve.h"

#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define MTU_LEAST    1280u /* of IPv6 */
#define BUFFER_LEAST (2ull << 20)

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? value : "";
}

/* ---- the name ---- */

static void check_host_name(const struct ctl *ctl, struct ctl_finding *finding)
{
    char name[256] = "";
    char addresses[160];
    (void)ctl;
    gethostname(name, sizeof name - 1);
    const char *why = ctl_resolve_text(name, addresses, sizeof addresses);
    if (why == NULL) {
        ctl_found(finding, CTL_CHECK_OK, "%.64s is %s", name, addresses);
        return;
    }
    ctl_found(finding, CTL_CHECK_NOTE, "%.64s: %s", name, why);
    ctl_next(finding, "give this machine a name in /etc/hosts or DNS; until then hvdrun -H takes "
                      "its address");
}

/* ---- interfaces ---- */

static bool is_network(const struct ifaddrs *one)
{
    return one->ifa_addr != NULL &&
           (one->ifa_addr->sa_family == AF_INET || one->ifa_addr->sa_family == AF_INET6) &&
           (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
}

/* Its first address of the list: each interface once. */
static bool is_first(const struct ifaddrs *all, const struct ifaddrs *one)
{
    for (; all != one; all = all->ifa_next)
        if (is_network(all) && strcmp(all->ifa_name, one->ifa_name) == 0)
            return false;
    return true;
}

static void check_interfaces(const struct ctl *ctl, struct ctl_finding *finding)
{
    const char *wanted = environment("HVD_INTERFACE");
    struct hvi_interface chosen;
    char why[200];
    (void)ctl;
    const int status = hvi_interface_find(wanted, AF_UNSPEC, &chosen, why, sizeof why);
    if (status == HVI_OK) {
        ctl_found(finding, CTL_CHECK_OK, "%s, %s%s%.80s", chosen.name, chosen.address,
                  wanted[0] != '\0' ? ": by HVD_INTERFACE=" : "", wanted);
    } else if (wanted[0] != '\0') {
        ctl_found(finding, CTL_CHECK_PROBLEM, "%s", why);
        ctl_next(finding, "`ip address` lists the interfaces that are up: give one of their "
                          "names, addresses or networks, or unset HVD_INTERFACE");
    } else {
        ctl_found(finding, CTL_CHECK_NOTE, "none is up but the loopback");
        ctl_next(finding, "jobs on this machine alone work; for others: ip link set DEVICE up, "
                          "and an address");
    }
}

uint32_t ctl_interface_mtu(const char *name)
{
    struct ifreq request = {.ifr_mtu = 0};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    const bool known = ioctl(fd, SIOCGIFMTU, &request) == 0;
    close(fd);
    return known ? (uint32_t)request.ifr_mtu : 0;
}

/* "eth0 1500, ib0 4092"; what does not fit is left out. The least of them, 0: there is none. */
static uint32_t list_mtus(const struct ifaddrs *all, char *text_p, size_t size)
{
    uint32_t least = 0;
    size_t used = 0;
    text_p[0] = '\0';
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        if (!is_network(one) || !is_first(all, one))
            continue;
        const uint32_t mtu = ctl_interface_mtu(one->ifa_name);
        least = least == 0 || mtu < least ? mtu : least;
        if (used < size)
            used += (size_t)snprintf(text_p + used, size - used, "%s%s %" PRIu32,
                                     used > 0 ? ", " : "", one->ifa_name, mtu);
    }
    return least;
}

static void check_mtu(const struct ctl *ctl, struct ctl_finding *finding)
{
    struct ifaddrs *all = NULL;
    char text[200] = "";
    (void)ctl;
    const uint32_t least = getifaddrs(&all) == 0 ? list_mtus(all, text, sizeof text) : 0;
    freeifaddrs(all);
    if (least == 0) {
        ctl_found(finding, CTL_CHECK_OK, "no interface but the loopback");
        return;
    }
    ctl_found(finding, least < MTU_LEAST ? CTL_CHECK_NOTE : CTL_CHECK_OK, "%s", text);
    if (least < MTU_LEAST)
        ctl_next(finding,
                 "packets below %u bytes cost time, and IPv6 needs that: ip link set DEVICE mtu "
                 "1500, on every machine of that network",
                 MTU_LEAST);
}

/* ---- ports ---- */

bool ctl_port_range(uint16_t *first_p, uint16_t *last_p)
{
    const char *given = environment("HVD_PORT_RANGE");
    uint32_t first = HVI_PORT_FIRST, last = HVI_PORT_LAST;
    const bool good = given[0] == '\0' || hvi_place_ports(given, &first, &last);
    *first_p = (uint16_t)first;
    *last_p = (uint16_t)last;
    return good;
}

int ctl_bind(uint16_t port)
{
    const struct sockaddr_in6 six = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_ANY_INIT};
    const struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    const int on = 1, off = 0;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool has_six = fd >= 0;
    if (!has_six) /* a kernel without IPv6 */
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* past TIME_WAIT */
    if (has_six)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, has_six ? (const void *)&six : (const void *)&four,
             has_six ? sizeof six : sizeof four) == 0)
        return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* How many can be listened at; *error_p: why the last of the others cannot. */
static unsigned count_free(uint16_t first, uint16_t last, int *error_p)
{
    unsigned count = 0;
    for (uint32_t port = first; port <= last; port++) {
        const int fd = ctl_bind((uint16_t)port);
        if (fd < 0) {
            *error_p = errno;
            continue;
        }
        close(fd);
        count++;
    }
    return count;
}

static void check_ports(const struct ctl *ctl, struct ctl_finding *finding)
{
    uint16_t first, last;
    int error = 0;
    (void)ctl;
    if (!ctl_port_range(&first, &last)) {
        ctl_found(finding, CTL_CHECK_PROBLEM, "HVD_PORT_RANGE=%.64s is no range of ports",
                  environment("HVD_PORT_RANGE"));
        ctl_next(finding, "write it as 9600-9631, or unset it");
        return;
    }
    const unsigned all = last - first + 1u, count = count_free(first, last, &error);
    ctl_found(finding,
              count == 0  ? CTL_CHECK_PROBLEM
              : count < 2 ? CTL_CHECK_NOTE
                          : CTL_CHECK_OK,
              "%u of %u from %u to %u are free%s%s", count, all, first, last,
              count == 0 ? ": " : "", count == 0 ? strerror(error) : "");
    if (count < 2)
        ctl_next(finding, "a job on several machines takes a port on each, and one more on the "
                          "first: HVD_PORT_RANGE=20000-20063 hvdrun ...; of the service: "
                          "port-range in hvdd.conf");
}

/* ---- buffers ---- */

/* The last of the three numbers of such a file; 0: it cannot be read. */
static uint64_t read_most(const char *path)
{
    uint64_t most = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%*u %*u %" SCNu64, &most) != 1)
        most = 0;
    fclose(file);
    return most;
}

/* Engines set no sizes, so the kernel's own limits count, and not those of net.core. */
static void check_buffers(const struct ctl *ctl, struct ctl_finding *finding)
{
    char in[32], out[32];
    (void)ctl;
    const uint64_t receive = read_most("/proc/sys/net/ipv4/tcp_rmem");
    const uint64_t send = read_most("/proc/sys/net/ipv4/tcp_wmem");
    if (receive == 0 || send == 0) {
        ctl_found(finding, CTL_CHECK_NOTE, "net.ipv4.tcp_rmem and tcp_wmem cannot be read");
        ctl_next(finding, "let this container read /proc/sys/net, or look at them on the machine");
        return;
    }
    text_bytes(receive, in, sizeof in);
    text_bytes(send, out, sizeof out);
    const bool small = receive < BUFFER_LEAST || send < BUFFER_LEAST;
    ctl_found(finding, small ? CTL_CHECK_NOTE : CTL_CHECK_OK,
              "a connection may have %s to receive, %s to send", in, out);
    if (small)
        ctl_next(finding,
                 "sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456' net.ipv4.tcp_wmem='4096 16384 "
                 "4194304', or a connection does not fill a fast or long way");
}

const struct ctl_check ctl_network_checks[] = {
    {"host name", check_host_name}, {"interface", check_interfaces},   {"MTU", check_mtu},
    {"ports", check_ports},         {"socket buffers", check_buffers}, {NULL, NULL},
};

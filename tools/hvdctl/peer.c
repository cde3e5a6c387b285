/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl doctor --peer HOST[:PORT]`: the way to another machine, step by step. Each step needs what those
 * before it have found, and the first problem ends them.
 *
 *   name       the addresses of HOST
 *   port       connections to PORT, or to the first of HVD_PORT_RANGE: made, refused, or nothing comes back
 *   way        from which address and interface
 *   hvdd       what answers: a mesh of a hvdd's says that it speaks ZeroMQ with CURVE, and to strangers no
 *              more; a doctor --peer-server says its version, to one that has its key (HVD_PEER_KEY)
 *   round trip of connections, or with the key of messages
 *   bandwidth, path MTU    with the key
 *
 * hvdd has no part in measuring: it would be one more thing that a stranger could ask for. */
#include "base/clock.h"
#include "base/interface.h"
#include "base/place.h"
#include "base/status.h"
#include "tools/common/text.h"
#include "tools/hvdctl/doctor.h"
#include "tools/hvdctl/peer_link.h"
#include "tools/hvdctl/resolve.h"

#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECT_NS   (1500 * (int64_t)HVI_NS_MS) /* the first packet is sent again after a second */
#define MEET_NS      (3 * (int64_t)HVI_NS_SEC)
#define MEASURE_NS   (20 * (int64_t)HVI_NS_SEC)
#define CONNECTS     5u
#define ECHOES       101u
#define ADDRESSES    3u           /* that are tried */
#define FIRST_BYTES  (1ull << 20) /* of a measurement, to know how many it takes */
#define ENOUGH_NS    (300 * HVI_NS_MS)
#define ZMTP_BYTES   64u
#define ZMTP_ASKS_AT 12u /* the mechanism */

struct peer {
    const struct ctl *ctl;
    char host[256], place[96]; /* place: "10.0.0.2, port 9600" */
    uint16_t port, port_last;  /* which is tried; the range's last */
    bool port_given, ended;    /* ended: the rest cannot be looked at */
    struct addrinfo *addresses;
    struct sockaddr_storage address; /* the one that is used */
    socklen_t address_length;
    int fd; /* -1 */
    uint64_t connects_ns[CONNECTS];
    unsigned connects;
    char interface[64];
    uint32_t mtu; /* of that interface; 0: not known */
    unsigned char key[CTL_PEER_KEY_BYTES];
    bool has_key, bad_key;
    struct ctl_peer_link link; /* .fd < 0: nothing is measured */
};

struct step {
    const char *name;
    void (*look)(struct peer *peer, struct ctl_finding *finding);
};

/* ---- the name ---- */

static bool parse(struct peer *peer, const char *text)
{
    uint32_t port = UINT32_MAX; /* none */
    if (!hvi_place_split(text, peer->host, sizeof peer->host, &port) || port == 0)
        return false;
    peer->port_given = port <= UINT16_MAX;
    if (peer->port_given)
        peer->port = (uint16_t)port;
    return true;
}

static void look_at_name(struct peer *peer, struct ctl_finding *finding)
{
    char text[200];
    uint16_t first;
    (void)ctl_port_range(&first, &peer->port_last); /* else the default: "ports" has said it */
    peer->port = first;
    if (!parse(peer, peer->ctl->peer)) {
        ctl_found(finding, CTL_CHECK_PROBLEM, "\"%.64s\" is no HOST or HOST:PORT", peer->ctl->peer);
        ctl_next(finding, "write --peer server2, --peer server2:9600 or --peer [fd00::2]:9600");
        peer->ended = true;
        return;
    }
    const char *why = ctl_resolve(peer->host, &peer->addresses);
    if (why == NULL) {
        ctl_addresses_text(peer->addresses, text, sizeof text);
        ctl_found(finding, CTL_CHECK_OK, "%.48s is %s", peer->host, text);
        return;
    }
    ctl_found(finding, CTL_CHECK_PROBLEM, "%.64s: %s", peer->host, why);
    ctl_next(finding,
             "give /etc/hosts or DNS this name, or use its address; /etc/resolv.conf names "
             "the name server");
    peer->ended = true;
}

/* ---- connections ---- */

/* 0 with *fd_p, or an errno. */
static int connect_once(const struct addrinfo *to, uint64_t *took_ns_p, int *fd_p)
{
    struct pollfd pollfd = {.events = POLLOUT};
    int error = 0;
    socklen_t length = sizeof error;
    const int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    const uint64_t began_ns = hvi_clock_ns();
    if (connect(fd, to->ai_addr, to->ai_addrlen) != 0)
        error = errno;
    pollfd.fd = fd;
    if (error == EINPROGRESS) {
        if (poll(&pollfd, 1, (int)(CONNECT_NS / (int64_t)HVI_NS_MS)) <= 0)
            error = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
            error = errno;
    }
    *took_ns_p = hvi_clock_ns() - began_ns;
    if (error != 0)
        close(fd);
    else
        *fd_p = fd;
    return error;
}

static int compare_times(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static uint64_t median(uint64_t *times_ns, unsigned count)
{
    qsort(times_ns, count, sizeof *times_ns, compare_times);
    return times_ns[count / 2];
}

/* The first address that can be connected to; else the first that refuses; else the first. 0, or its errno. */
static int choose_address(struct peer *peer, const struct addrinfo **to_p)
{
    unsigned tried = 0;
    int failure = ENETUNREACH;
    *to_p = peer->addresses;
    for (struct addrinfo *one = peer->addresses; one != NULL && tried < ADDRESSES;
         one = one->ai_next) {
        uint64_t took_ns;
        struct sockaddr *address = one->ai_addr;
        if (address->sa_family == AF_INET)
            ((struct sockaddr_in *)(void *)address)->sin_port = htons(peer->port);
        else if (address->sa_family == AF_INET6)
            ((struct sockaddr_in6 *)(void *)address)->sin6_port = htons(peer->port);
        else
            continue;
        const int error = connect_once(one, &took_ns, &peer->fd);
        if (tried++ == 0 || error == 0 || (error == ECONNREFUSED && failure != ECONNREFUSED)) {
            *to_p = one;
            failure = error;
        }
        if (error == 0)
            break;
    }
    return failure;
}

static void say_refused(const struct peer *peer, struct ctl_finding *finding)
{
    if (!peer->port_given && !peer->has_key) {
        ctl_found(finding, CTL_CHECK_NOTE, "%s: refused, so what is sent there is not dropped",
                  peer->place);
        ctl_next(finding,
                 "nothing listens there between jobs: to try more, run hvdctl doctor "
                 "--peer-server on %.64s",
                 peer->host);
        return;
    }
    ctl_found(finding, CTL_CHECK_PROBLEM, "%s: refused, nothing listens there", peer->place);
    ctl_next(finding,
             "start it on %.64s: hvdctl doctor --peer-server, or hvdd --mesh-listen; or a "
             "firewall there refuses",
             peer->host);
}

static void say_unreached(struct peer *peer, int error, struct ctl_finding *finding)
{
    peer->ended = true;
    if (error == ETIMEDOUT) {
        ctl_found(finding, CTL_CHECK_PROBLEM, "%s: nothing comes back", peer->place);
        ctl_next(finding,
                 "a firewall drops it, or the machine is off: let TCP ports %u-%u through in both "
                 "directions, or give HVD_PORT_RANGE ports that pass",
                 peer->port, peer->port_given ? peer->port : peer->port_last);
        return;
    }
    ctl_found(finding, CTL_CHECK_PROBLEM, "%s: %s", peer->place, strerror(error));
    ctl_next(finding, "`ip route get` of that address says which way is taken; another network: "
                      "its name or address, and HVD_INTERFACE on both machines");
}

static void look_at_port(struct peer *peer, struct ctl_finding *finding)
{
    const struct addrinfo *to;
    char address[64];
    int error = choose_address(peer, &to);
    peer->address_length = to->ai_addrlen;
    memcpy(&peer->address, to->ai_addr, to->ai_addrlen);
    ctl_address_text(to->ai_addr, to->ai_addrlen, address, sizeof address);
    snprintf(peer->place, sizeof peer->place, "%s, port %u", address, peer->port);
    if (error == ECONNREFUSED) {
        say_refused(peer, finding);
        peer->ended = finding->verdict == CTL_CHECK_PROBLEM;
    } else if (error != 0) {
        say_unreached(peer, error, finding);
    } else {
        ctl_found(finding, CTL_CHECK_OK, "%s: connected", peer->place);
    }
    while (!peer->ended && peer->connects < CONNECTS) {
        int fd = -1;
        error = connect_once(to, &peer->connects_ns[peer->connects], &fd);
        if (fd >= 0)
            close(fd);
        if (error != 0 && error != ECONNREFUSED)
            break;
        peer->connects++;
    }
}

/* ---- the way ---- */

static void note_interface(struct peer *peer, const struct sockaddr *own)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        if (!hvi_interface_is_same(one->ifa_addr, own))
            continue;
        snprintf(peer->interface, sizeof peer->interface, "%s", one->ifa_name);
        peer->mtu = ctl_interface_mtu(one->ifa_name);
        if (peer->mtu > IP_MAXPACKET)
            peer->mtu = IP_MAXPACKET; /* the loopback's is one more */
        break;
    }
    freeifaddrs(all);
}

/* The kernel chooses the way of a datagram socket when it is connected; nothing is sent. */
static void look_at_way(struct peer *peer, struct ctl_finding *finding)
{
    struct sockaddr_storage own = {0};
    socklen_t length = sizeof own;
    char text[64];
    const int fd = socket(peer->address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&peer->address, peer->address_length) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &length) != 0) {
        ctl_found(finding, CTL_CHECK_PROBLEM, "no way there: %s", strerror(errno));
        ctl_next(finding, "`ip route` has no entry for it: add one, or use an address of a network "
                          "that this machine is in");
        peer->ended = true;
    } else {
        note_interface(peer, (const struct sockaddr *)&own);
        ctl_address_text((const struct sockaddr *)&own, length, text, sizeof text);
        ctl_found(finding, CTL_CHECK_OK, "from %s, %s, MTU %" PRIu32, text,
                  peer->interface[0] != '\0' ? peer->interface : "an unknown interface", peer->mtu);
    }
    if (fd >= 0)
        close(fd);
}

/* ---- what answers ---- */

void ctl_peer_versions(const struct ctl *ctl, char *text_p, size_t size)
{
    struct hvd_admin_answer *reply = NULL;
    char why[512];
    const bool there = ctl_ask_daemon(ctl, &reply, why, sizeof why);
    if (there && reply != NULL && reply->daemon != NULL)
        snprintf(text_p, size, "hvdctl %s, hvdd %.24s", HVD_VERSION_TEXT, reply->daemon->version);
    else
        snprintf(text_p, size, "hvdctl %s, no hvdd", HVD_VERSION_TEXT);
    hvd_admin_answer_free(reply);
}

/* The greeting of ZMTP 3, with which every ZeroMQ socket begins. */
static bool is_mesh(const struct ctl_peer_link *link)
{
    static const char curve[20] = "CURVE";
    unsigned char greeting[ZMTP_BYTES] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0};
    memcpy(greeting + ZMTP_ASKS_AT, curve, sizeof curve);
    if (ctl_peer_send(link, greeting, sizeof greeting) != HVI_OK ||
        ctl_peer_receive(link, greeting, sizeof greeting) != HVI_OK)
        return false;
    return greeting[0] == 0xff && greeting[9] == 0x7f && greeting[10] >= 3 &&
           memcmp(greeting + ZMTP_ASKS_AT, curve, sizeof curve) == 0;
}

static void look_at_stranger(struct peer *peer, struct ctl_finding *finding)
{
    const struct ctl_peer_link link = {.fd = peer->fd,
                                       .deadline_ns = hvi_deadline_after(CONNECT_NS)};
    if (is_mesh(&link)) {
        ctl_found(finding, CTL_CHECK_OK, "a mesh that hvdd could join answers (ZeroMQ with CURVE)");
        ctl_next(finding, "it tells strangers no version: `hvdctl nodes` here says whether this "
                          "machine's hvdd is in it");
        return;
    }
    ctl_found(finding, CTL_CHECK_NOTE, "what listens there is no mesh of a hvdd's");
    ctl_next(finding,
             "an engine says nothing to strangers, and hvdctl doctor --peer-server wants "
             "the key that it has printed in %s",
             CTL_PEER_KEY_NAME);
}

static void say_not_met(struct peer *peer, int status, struct ctl_finding *finding)
{
    peer->ended = true;
    if (status == HVI_ERR_REFUSED) {
        ctl_found(finding, CTL_CHECK_PROBLEM, "the hvdctl there has another key");
        ctl_next(finding,
                 "copy the line that hvdctl doctor --peer-server prints; a key counts once");
        return;
    }
    ctl_found(finding, CTL_CHECK_PROBLEM, "what listens there is no hvdctl doctor --peer-server");
    ctl_next(finding, "use the port of the line that it prints, or unset %s", CTL_PEER_KEY_NAME);
}

static void look_at_peer(struct peer *peer, struct ctl_finding *finding)
{
    struct ctl_peer_link link = {.fd = peer->fd};
    char own[CTL_PEER_VERSIONS], versions[CTL_PEER_VERSIONS];
    const int one = 1;
    if (peer->fd < 0) {
        ctl_found(finding, CTL_CHECK_OK, "none at the moment");
        return;
    }
    if (peer->bad_key) {
        ctl_found(finding, CTL_CHECK_PROBLEM, "%s is no key", CTL_PEER_KEY_NAME);
        ctl_next(finding, "copy the whole line that hvdctl doctor --peer-server prints");
        peer->ended = true;
        return;
    }
    if (!peer->has_key) {
        look_at_stranger(peer, finding);
        return;
    }
    ctl_peer_versions(peer->ctl, own, sizeof own);
    setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    link.deadline_ns = hvi_deadline_after(MEET_NS);
    const int status = ctl_peer_meet(&link, peer->key, false, own, versions);
    if (status != HVI_OK) {
        say_not_met(peer, status, finding);
        return;
    }
    peer->link = link;
    const bool same = strcspn(own, ",") == strcspn(versions, ",") &&
                      strncmp(own, versions, strcspn(own, ",")) == 0;
    ctl_found(finding, same ? CTL_CHECK_OK : CTL_CHECK_NOTE, "%s", versions);
    if (!same)
        ctl_next(finding, "here it is %s: install the same version on both", own);
}

/* ---- measuring ---- */

static unsigned echo(const struct ctl_peer_link *link, uint64_t *times_ns)
{
    struct ctl_peer_ask ask = {.what = CTL_PEER_ECHO};
    unsigned count = 0;
    while (count < ECHOES) {
        const uint64_t began_ns = hvi_clock_ns();
        if (ctl_peer_send_ask(link, &ask) != HVI_OK || ctl_peer_receive_ask(link, &ask) != HVI_OK)
            break;
        times_ns[count++] = hvi_clock_ns() - began_ns;
    }
    return count;
}

static void look_at_round_trip(struct peer *peer, struct ctl_finding *finding)
{
    uint64_t times_ns[ECHOES];
    char text[32];
    unsigned count = 0;
    if (peer->link.fd >= 0) {
        peer->link.deadline_ns = hvi_deadline_after(MEET_NS);
        count = echo(&peer->link, times_ns);
    }
    const bool messages = count > 0;
    if (!messages && peer->connects == 0) {
        ctl_found(finding, CTL_CHECK_NOTE, "not measured: no second connection was made");
        return;
    }
    const uint64_t middle_ns =
        messages ? median(times_ns, count) : median(peer->connects_ns, peer->connects);
    text_duration(middle_ns, text, sizeof text);
    ctl_found(finding, CTL_CHECK_OK, "%s, the median of %u %s", text,
              messages ? count : peer->connects, messages ? "messages" : "connections");
    finding->figures[0] = (struct ctl_figure){"round_trip_ns", middle_ns};
}

/* Bytes per second; 0: it did not come to its end. */
static uint64_t measure_once(struct ctl_peer_link *link, enum ctl_peer_what what, uint64_t bytes,
                             uint64_t *took_ns_p)
{
    struct ctl_peer_ask ask = {.what = what, .bytes = bytes};
    link->deadline_ns = hvi_deadline_after(MEASURE_NS);
    const uint64_t began_ns = hvi_clock_ns();
    int status = ctl_peer_send_ask(link, &ask);
    if (status == HVI_OK && what == CTL_PEER_TAKE)
        status = ctl_peer_pour(link, bytes);
    if (status == HVI_OK)
        status =
            what == CTL_PEER_GIVE ? ctl_peer_drain(link, bytes) : ctl_peer_receive_ask(link, &ask);
    *took_ns_p = hvi_clock_ns() - began_ns + 1;
    return status == HVI_OK ? (uint64_t)((double)bytes * 1e9 / (double)*took_ns_p) : 0;
}

static uint64_t measure(struct ctl_peer_link *link, enum ctl_peer_what what)
{
    uint64_t took_ns;
    const uint64_t rate = measure_once(link, what, FIRST_BYTES, &took_ns);
    if (rate == 0 || took_ns >= ENOUGH_NS)
        return rate;
    const uint64_t bytes = FIRST_BYTES * (ENOUGH_NS / took_ns);
    return measure_once(link, what, bytes < CTL_PEER_BYTES_MAX ? bytes : CTL_PEER_BYTES_MAX,
                        &took_ns);
}

static void look_at_bandwidth(struct peer *peer, struct ctl_finding *finding)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    char there[32], back[32];
    if (peer->link.fd < 0) {
        ctl_found(finding, CTL_CHECK_OK, "not measured");
        ctl_next(finding,
                 "run hvdctl doctor --peer-server on %.64s, and here the line that it "
                 "prints",
                 peer->host);
        return;
    }
    const uint64_t send = measure(&peer->link, CTL_PEER_TAKE);
    const uint64_t receive = send > 0 ? measure(&peer->link, CTL_PEER_GIVE) : 0;
    if (send == 0 || receive == 0) {
        ctl_found(finding, CTL_CHECK_PROBLEM, "small messages pass, and a megabyte %s does not",
                  send == 0 ? "to it" : "from it");
        ctl_next(finding,
                 "a link on the way takes only smaller packets than %s's %" PRIu32 ", and "
                 "a firewall drops the ICMP that would say so: try ip link set %s mtu 1400",
                 peer->interface, peer->mtu, peer->interface);
        peer->ended = true;
        return;
    }
    getsockopt(peer->fd, IPPROTO_TCP, TCP_INFO, &info, &length);
    text_bytes(send, there, sizeof there);
    text_bytes(receive, back, sizeof back);
    ctl_found(finding, CTL_CHECK_OK, "%s/s to it, %s/s from it; %u packets sent again", there, back,
              info.tcpi_total_retrans);
    finding->figures[0] = (struct ctl_figure){"send_bytes_per_s", send};
    finding->figures[1] = (struct ctl_figure){"receive_bytes_per_s", receive};
}

static void look_at_path_mtu(struct peer *peer, struct ctl_finding *finding)
{
    const bool six = peer->address.ss_family == AF_INET6;
    int mtu = 0;
    socklen_t length = sizeof mtu;
    if (peer->fd < 0 || getsockopt(peer->fd, six ? IPPROTO_IPV6 : IPPROTO_IP,
                                   six ? IPV6_MTU : IP_MTU, &mtu, &length) != 0) {
        ctl_found(finding, CTL_CHECK_OK, "not known without a connection");
        return;
    }
    const bool less = peer->mtu != 0 && (uint32_t)mtu < peer->mtu;
    ctl_found(finding, less ? CTL_CHECK_NOTE : CTL_CHECK_OK, "%d", mtu);
    finding->figures[0] = (struct ctl_figure){"path_mtu", (uint64_t)mtu};
    if (less)
        ctl_next(finding,
                 "a link on the way, perhaps a tunnel, takes less than %s's %" PRIu32
                 ": each connection has to find that out first",
                 peer->interface, peer->mtu);
}

static const struct step steps[] = {
    {"peer's name", look_at_name},      {"peer's port", look_at_port},
    {"way to the peer", look_at_way},   {"peer's hvdd", look_at_peer},
    {"round trip", look_at_round_trip}, {"bandwidth", look_at_bandwidth},
    {"path MTU", look_at_path_mtu},
};

size_t ctl_peer_look(const struct ctl *ctl, struct ctl_check *checks_p,
                     struct ctl_finding *findings_p, size_t room)
{
    struct peer peer = {.ctl = ctl, .fd = -1, .link = {.fd = -1}};
    const char *key = getenv(CTL_PEER_KEY_NAME);
    size_t count = 0;
    peer.has_key = key != NULL && ctl_peer_key_parse(key, peer.key);
    peer.bad_key = key != NULL && !peer.has_key;
    for (; count < sizeof steps / sizeof steps[0] && count < room && !peer.ended; count++) {
        checks_p[count].name = steps[count].name;
        steps[count].look(&peer, &findings_p[count]);
    }
    if (peer.fd >= 0)
        close(peer.fd);
    if (peer.addresses != NULL)
        freeaddrinfo(peer.addresses);
    return count;
}

/* SPDX-License-Identifier: Apache-2.0
 * What comes to the tools, by the first byte: a stranger at the port of `hvdctl doctor --peer-server`, who never gets in; a
 * question there, which is in bounds; -H of hvdrun; its hostfile. What hvdrun refuses has a sentence. */
#include "fuzz.h"

#include "base/status.h"
#include "tools/hvdctl/peer_link.h"
#include "tools/hvdrun/hosts.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define HOSTS_BYTES 4096 /* every name is compared with those before it */

/* A connection at which these bytes have come, and no more will. *other_p is its other end. */
static struct ctl_peer_link connection(const uint8_t *data, size_t size, int *other_p)
{
    int fds[2];

    HVT_FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    HVT_FUZZ_REQUIRE(send(fds[1], data, size, MSG_NOSIGNAL) == (ssize_t)size);
    HVT_FUZZ_REQUIRE(shutdown(fds[1], SHUT_WR) == 0);
    *other_p = fds[1];
    return (struct ctl_peer_link){.fd = fds[0], .deadline_ns = UINT64_MAX};
}

static void meet(const uint8_t *data, size_t size)
{
    static const unsigned char key[CTL_PEER_KEY_BYTES] = "nobody has this";
    char versions[CTL_PEER_VERSIONS];
    int other;
    const struct ctl_peer_link link = connection(data, size, &other);

    HVT_FUZZ_REQUIRE(ctl_peer_meet(&link, key, true, "1", versions) != HVI_OK);
    close(link.fd);
    close(other);
}

static void ask(const uint8_t *data, size_t size)
{
    struct ctl_peer_ask asked;
    int other;
    const struct ctl_peer_link link = connection(data, size, &other);

    while (ctl_peer_receive_ask(&link, &asked) == HVI_OK)
        HVT_FUZZ_REQUIRE(asked.what >= CTL_PEER_ECHO && asked.what <= CTL_PEER_GIVE &&
                         asked.bytes <= CTL_PEER_BYTES_MAX);
    close(link.fd);
    close(other);
}

/* Takes the hosts. */
static void check_hosts(int status, struct run_hosts *hosts, const char *text)
{
    HVT_FUZZ_REQUIRE(status == 0 || (text[0] != '\0' && hosts->count == 0));
    for (size_t i = 0; i < hosts->count; i++) {
        HVT_FUZZ_REQUIRE(hosts->list[i].name[0] != '\0' && hosts->list[i].slots >= 0);
        HVT_FUZZ_REQUIRE(hosts->list[i].name[0] != '-'); /* ssh would take it for an option */
    }
    run_hosts_fini(hosts);
}

static void parse_list(const uint8_t *data, size_t size)
{
    char list[HOSTS_BYTES + 1], text[512] = "";
    struct run_hosts hosts;

    memcpy(list, data, size);
    list[size] = '\0';
    const int status = run_hosts_parse(list, &hosts, text, sizeof text);
    check_hosts(status, &hosts, text);
}

static void read_file(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("hvt-hosts", MFD_CLOEXEC);
    char path[64], text[512] = "";
    struct run_hosts hosts;

    HVT_FUZZ_REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const int status = run_hosts_read(path, &hosts, text, sizeof text);
    check_hosts(status, &hosts, text);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const takers[])(const uint8_t *, size_t) = {meet, ask, parse_list, read_file};

    if (size > 0 && size <= HOSTS_BYTES)
        takers[data[0] % 4](data + 1, size - 1);
    return 0;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    static const struct {
        const char *bytes;
        size_t length;
    } seeds[] = {
#define SEED(text) {text, sizeof(text) - 1}
        SEED("\0hvdpeer1................................"
             "................................................................"
             "................................"),
        SEED("\1\1\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\2\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0"),
        SEED("\2h1:2,user@h2,[::1]:4,h1,localhost:1"),
        SEED("\3# hosts\nh1 slots=2\nh2 slots = 4 max_slots=8\nh3:2\n\n127.0.0.1\n"),
#undef SEED
    };

    if (index >= sizeof seeds / sizeof seeds[0])
        return 0;
    HVT_FUZZ_REQUIRE(seeds[index].length <= room);
    memcpy(bytes_p, seeds[index].bytes, seeds[index].length);
    return seeds[index].length;
}

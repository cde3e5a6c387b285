/* SPDX-License-Identifier: Apache-2.0
 * A probe that knows no CUDA and does what PROBE_SELFTEST says, so that the supervision can be tested anywhere. */
#include "probes/probe.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char *what)
{
    const char *wanted = getenv("PROBE_SELFTEST");
    return wanted && strcmp(wanted, what) == 0;
}

/* Answers "ping" with what the passed page holds. */
static void second(const struct probe_options *o)
{
    struct probe_msg m;
    int fd;
    (void)o;
    if (is("silent peer"))
        pause();
    if (is("failing peer"))
        probe_fail("the peer says why");
    probe_expect(PROBE_PEER_FD, "ping", &m, &fd);
    uint64_t *page = probe_map_page(fd, 4096);
    struct probe_msg reply = {.verb = "pong", .a = {*page + m.a[0]}};
    probe_say(PROBE_PEER_FD, &reply, -1);
    if (is("peer hangs"))
        pause();
}

static void talk(void)
{
    struct probe_msg m = {.verb = "ping", .a = {40}};
    int fd = probe_shared_page(4096);
    uint64_t *page = probe_map_page(fd, 4096);
    *page = 2;
    probe_step("talking");
    struct probe_peer peer = probe_start("second");
    probe_say(peer.fd, &m, fd);
    probe_expect(peer.fd, "pong", &m, NULL);
    probe_figure((double)m.a[0], "pages", "answer_of_%s", "peer");
    probe_figure(probe_end(&peer, 2), "status", "peer_ended");
}

static void first(const struct probe_options *o)
{
    double values[] = {3, 1, 2};
    probe_fact("device", "none, \"this\" is\ta self-test\\");
    probe_figure(0.5, "s", "before");
    probe_note("variant \"%s\", quick %d, device %d", o->variant, o->is_quick, o->device);
    if (is("refuse"))
        probe_refuse("no such thing");
    if (is("fail"))
        probe_fail("something: %d", 7);
    if (is("exit"))
        _exit(9);
    probe_step("the step");
    if (is("crash"))
        raise(SIGSEGV);
    if (is("hang") || (is("hang in mps") && strcmp(o->variant, "mps") == 0))
        pause();
    talk();
    probe_percentiles(values, 3, "us", "three");
    probe_figure(1.0 / 0.0, "us", "endless");
    probe_answer("yes, it does", "works");
}

static const char *const variants[] = {"plain", "mps", NULL};
static const struct probe_role roles[] = {{"first", first}, {"second", second}, {NULL, NULL}};
const struct probe probe = {0, "The self-test", variants, roles};

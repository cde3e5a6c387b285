/* SPDX-License-Identifier: Apache-2.0
 * Which congestion control connections have, on systems of either kind. */
#include "daemon/engine/net/conn.h"
#include "tests/unit/hvt_main.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#define NEAR_US 50u
#define FAR_US  30000u

static struct engine_net net;
static int fd;

static void setup(void)
{
    net = (struct engine_net){.fd = -1};
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
}

static void teardown(void)
{
    close(fd);
}

/* False: this kernel does not have it, or not for us. */
static bool set(const char *name)
{
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}

static const char *get(void)
{
    static char name[ENGINE_NET_PACE_NAME];
    socklen_t length = sizeof name;

    ck_assert_int_eq(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
    return name;
}

START_TEST(a_choice_that_does_not_pace_stays)
{
    ck_assert(set("reno"));
    engine_net_pace_begin(&net, fd);
    ck_assert_str_eq(get(), "reno");
    ck_assert_str_eq(net.paced, "");
    engine_net_pace_settle(&net, fd, FAR_US);
    ck_assert_str_eq(get(), "reno");
}
END_TEST

START_TEST(bbr_is_for_long_ways_only)
{
    if (!set("bbr"))
        return; /* then it is nobody's choice here */
    engine_net_pace_begin(&net, fd);
    ck_assert_str_ne(get(), "bbr");
    ck_assert_str_eq(net.paced, "bbr");
    engine_net_pace_settle(&net, fd, NEAR_US);
    ck_assert_str_ne(get(), "bbr");
    engine_net_pace_settle(&net, fd, FAR_US);
    ck_assert_str_eq(get(), "bbr");
}
END_TEST

START_TEST(the_systems_choice_comes_back_on_a_long_way)
{
    snprintf(net.paced, sizeof net.paced, "reno"); /* which every kernel has */
    if (!set("cubic") && !set("bbr"))
        return; /* it has no other */
    engine_net_pace_settle(&net, fd, NEAR_US);
    ck_assert_str_ne(get(), "reno");
    engine_net_pace_settle(&net, fd, FAR_US);
    ck_assert_str_eq(get(), "reno");
}
END_TEST

START_TEST(a_way_over_this_machine_is_near)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    ck_assert_int_eq(connect(to, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_uint_lt(engine_net_pace_round_trip(to), FAR_US);
    ck_assert_uint_gt(engine_net_pace_round_trip(to), 0);
    close(to);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/pace");
    TCase *tcase = tcase_create("pace");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_choice_that_does_not_pace_stays);
    tcase_add_test(tcase, bbr_is_for_long_ways_only);
    tcase_add_test(tcase, the_systems_choice_comes_back_on_a_long_way);
    tcase_add_test(tcase, a_way_over_this_machine_is_near);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * Hosts, ports and names of nodes as people write them. */
#include "base/place.h"

#include "tests/unit/hvt_main.h"

#include <string.h>

#define NO_PORT UINT32_MAX

static const struct {
    const char *text, *host; /* NULL: it is none */
    uint32_t port;
} places[] = {
    {"server1", "server1", NO_PORT},
    {"server1:9600", "server1", 9600},
    {"10.0.0.1:65535", "10.0.0.1", 65535},
    {"*:0", "*", 0},
    {"2001:db8::1", "2001:db8::1", NO_PORT},
    {"[2001:db8::1]", "2001:db8::1", NO_PORT},
    {"[2001:db8::1]:9600", "2001:db8::1", 9600},
    {"", NULL, 0},
    {":9600", NULL, 0},
    {"server1:", NULL, 0},
    {"server1:x", NULL, 0},
    {"server1:96x", NULL, 0},
    {"server1:+96", NULL, 0},
    {"server1: 96", NULL, 0},
    {"server1:65536", NULL, 0},
    {"server1:18446744073709551617", NULL, 0},
    {"[2001:db8::1", NULL, 0},
    {"[2001:db8::1]9600", NULL, 0},
    {"[]:9600", NULL, 0},
    {"sixteen-letters-", NULL, 0},
};

START_TEST(a_host_may_have_a_port)
{
    char host[16] = "before";
    uint32_t port = NO_PORT;
    const bool good = hvi_place_split(places[_i].text, host, sizeof(host), &port);

    ck_assert_msg(good == (places[_i].host != NULL), "%s", places[_i].text);
    ck_assert_str_eq(host, good ? places[_i].host : "before");
    ck_assert_uint_eq(port, good ? places[_i].port : NO_PORT);
}
END_TEST

static const struct {
    const char *text;
    uint32_t first, last; /* 0: it is none */
} ranges[] = {
    {"9600-9631", 9600, 9631},
    {"1-65535", 1, 65535},
    {"7-7", 7, 7},
    {"", 0, 0},
    {"9600", 0, 0},
    {"0-7", 0, 0},
    {"8-7", 0, 0},
    {"7-65536", 0, 0},
    {"7-8x", 0, 0},
    {" 7-8", 0, 0},
    {"7-8-9", 0, 0},
    {"7--8", 0, 0},
};

START_TEST(a_range_has_two_ports)
{
    uint32_t first = 0, last = 0;

    ck_assert_msg(hvi_place_ports(ranges[_i].text, &first, &last) == (ranges[_i].first != 0), "%s",
                  ranges[_i].text);
    ck_assert_uint_eq(first, ranges[_i].first);
    ck_assert_uint_eq(last, ranges[_i].last);
}
END_TEST

START_TEST(a_nodes_name_is_that_of_a_file)
{
    char longest[HVI_NODE_NAME_MAX + 2];

    ck_assert(hvi_place_is_node_name("Server_1.rack-2"));
    ck_assert(hvi_place_is_node_name("2001:db8::1"));
    ck_assert(!hvi_place_is_node_name(""));
    ck_assert(!hvi_place_is_node_name("."));
    ck_assert(!hvi_place_is_node_name(".hidden"));
    ck_assert(!hvi_place_is_node_name("a/b"));
    ck_assert(!hvi_place_is_node_name("a b"));
    memset(longest, 'n', sizeof(longest));
    longest[HVI_NODE_NAME_MAX + 1] = '\0';
    ck_assert(!hvi_place_is_node_name(longest));
    longest[HVI_NODE_NAME_MAX] = '\0';
    ck_assert(hvi_place_is_node_name(longest));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base place");
    TCase *tcase = tcase_create("place");

    tcase_add_loop_test(tcase, a_host_may_have_a_port, 0,
                        (int)(sizeof(places) / sizeof(places[0])));
    tcase_add_loop_test(tcase, a_range_has_two_ports, 0, (int)(sizeof(ranges) / sizeof(ranges[0])));
    tcase_add_test(tcase, a_nodes_name_is_that_of_a_file);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * This host's address for others: by the way there, by interface, by network. The loopback interface
 * is the one that every machine has. */
#include "tools/hvdrun/route.h"

#include "tests/unit/hvt_main.h"

#include <string.h>

static char address[64];
static char text[256];

static int own(const char *peer, const char *interfaces)
{
    address[0] = text[0] = '\0';
    return run_route_own(peer, interfaces, address, sizeof address, text, sizeof text);
}

START_TEST(the_way_to_the_peer_decides)
{
    ck_assert_msg(own("127.0.0.1", NULL) == 0, "%s", text);
    ck_assert_str_eq(address, "127.0.0.1");
    ck_assert_int_eq(own("127.0.0.9", ""), 0);
    ck_assert_str_eq(address, "127.0.0.1");
}
END_TEST

START_TEST(a_name_is_not_looked_up)
{
    ck_assert_int_eq(own("localhost", NULL), -1);
    ck_assert_str_eq(text, "localhost is no address");
}
END_TEST

START_TEST(an_interface_or_a_network_can_be_named)
{
    static const char *const wishes[] = {"lo", "127.0.0.0/8", " lo , 203.0.113.0/24"};
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        ck_assert_msg(own("127.0.0.1", wishes[i]) == 0, "%s: %s", wishes[i], text);
        ck_assert_str_eq(address, "127.0.0.1");
    }
}
END_TEST

START_TEST(a_wish_is_met_by_an_address_of_another_family_than_the_peers)
{
    ck_assert_msg(own("2001:db8::1", "127.0.0.0/8") == 0, "%s", text);
    ck_assert_str_eq(address, "127.0.0.1");
}
END_TEST

START_TEST(a_wish_that_nothing_meets_is_named)
{
    static const char *const wishes[] = {"nonexistent0", "127.0.0.1/33", "2001:db8::/32"};
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        ck_assert_msg(own("127.0.0.1", wishes[i]) == -1, "%s gives %s", wishes[i], address);
        ck_assert_msg(strstr(text, wishes[i]) != NULL, "%s", text);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/route");
    TCase *tests = tcase_create("route");
    tcase_add_test(tests, the_way_to_the_peer_decides);
    tcase_add_test(tests, a_name_is_not_looked_up);
    tcase_add_test(tests, an_interface_or_a_network_can_be_named);
    tcase_add_test(tests, a_wish_is_met_by_an_address_of_another_family_than_the_peers);
    tcase_add_test(tests, a_wish_that_nothing_meets_is_named);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/interface.h"

#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct hvi_interface machine[] = {
    {.name = "lo", .address = "127.0.0.1", .loopback = true},
    {.name = "eth0", .address = "192.0.2.3"},
    {.name = "eth0", .address = "2001:db8:1::3"},
    {.name = "docker0", .address = "198.51.100.1"},
    {.name = "ib0", .address = "203.0.113.7"},
};

static const struct {
    const char *wanted, *address, *text;
} rows[] = {
    {"eth0", "192.0.2.3", NULL},
    {"ib0,eth0", "203.0.113.7", NULL},
    {"eth7,ib0", "203.0.113.7", NULL},
    {"^docker0,eth0", "203.0.113.7", NULL},
    {"^docker0", "192.0.2.3", NULL},
    {"203.0.112.0/22", "203.0.113.7", NULL},
    {"^192.0.0.0/16,2001:db8::/32,198.51.96.0/19", "203.0.113.7", NULL},
    {"2001:db8:1::/48", "2001:db8:1::3", NULL},
    {"198.51.100.1", "198.51.100.1", NULL},
    {"lo", "127.0.0.1", NULL},
    {"0.0.0.0/0", "192.0.2.3", NULL}, /* the loopback comes last */
    {"127.0.0.0/8", "127.0.0.1", NULL},
    {"lo,0.0.0.0/0", "127.0.0.1", NULL},
    {"192.0.2.2/31", "192.0.2.3", NULL},
    {"192.0.2.4/31", NULL,
     "HVD_INTERFACE=192.0.2.4/31 names no interface of this machine that is up; see `ip address`"},
    {"eth1", NULL,
     "HVD_INTERFACE=eth1 names no interface of this machine that is up; see `ip address`"},
    {"^eth0,docker0,ib0", NULL,
     "HVD_INTERFACE=^eth0,docker0,ib0 leaves no interface; see `ip address`"},
    {"^docker0,^eth0", "203.0.113.7", NULL},
    {"0.0.0.0/0,^lo,^eth0", "203.0.113.7", NULL}, /* and docker0 after ib0 */
    {"^eth0", "203.0.113.7", NULL},
    {"^eth0,ib0", "198.51.100.1", NULL}, /* nothing else is left */
    {"0.0.0.0/0,^lo,^eth0,^ib0", "198.51.100.1", NULL},
    {"198.51.100.0/24", "198.51.100.1", NULL},
    {"198.51.100.0/24,203.0.113.0/24", "203.0.113.7", NULL},
    {"docker0,203.0.113.0/24", "198.51.100.1", NULL}, /* it is named */
    {"203.0.113.0/24,docker0", "203.0.113.7", NULL},
    {"198.51.100.1,eth0", "198.51.100.1", NULL},
    {"eth0,^192.0.2.0/24", "2001:db8:1::3", NULL},
    {" ib0 , eth0 ", "203.0.113.7", NULL},
    {"2001:0db8:0001::0003", "2001:db8:1::3", NULL},
    {"^lo", "192.0.2.3", NULL},
    {"lo,^lo", NULL,
     "HVD_INTERFACE=lo,^lo names no interface of this machine that is up; see `ip address`"},
    {"eth0,10.0.0.0/x", NULL,
     "HVD_INTERFACE: \"10.0.0.0/x\" is no network; write a name, an address, or a network as "
     "10.0.0.0/8"},
    {"10.0.0.0/33", NULL,
     "HVD_INTERFACE: \"10.0.0.0/33\" is no network; write a name, an address, or a network as "
     "10.0.0.0/8"},
    {"eth0/8", NULL,
     "HVD_INTERFACE: \"eth0/8\" is no network; write a name, an address, or a network as "
     "10.0.0.0/8"},
    {"10.0.0.0/", NULL,
     "HVD_INTERFACE: \"10.0.0.0/\" is no network; write a name, an address, or a network as "
     "10.0.0.0/8"},
};

START_TEST(names_lists_exclusions_and_networks_choose_an_address)
{
    struct hvi_interface chosen = {.name = ""};
    char text[300] = "";
    int status = hvi_interface_choose(rows[_i].wanted, machine, 5, &chosen, text, sizeof(text));

    if (rows[_i].address != NULL) {
        ck_assert_int_eq(status, HVI_OK);
        ck_assert_str_eq(chosen.address, rows[_i].address);
    } else {
        ck_assert_int_ne(status, HVI_OK);
        ck_assert_str_eq(text, rows[_i].text);
    }
}
END_TEST

START_TEST(interfaces_of_containers_and_virtual_machines_come_after_others)
{
    static const char *const guests[] = {
        "docker0", "docker_gwbridge", "podman0",         "cni0",   "lxcbr0",
        "lxdbr0",  "veth12ab34c",     "br-12ab3c45d67e", "virbr0", "vnet7"};
    static const char *const own[] = {"br-ex", "br-mgmt", "br-12ab3c", "br-12ab3c45d67g", "br0"};
    struct hvi_interface two[] = {{.address = "198.51.100.1"},
                                  {.name = "bridge0", .address = "192.0.2.3"}};
    struct hvi_interface chosen;
    char text[300];

    for (size_t i = 0; i < sizeof(guests) / sizeof(guests[0]); i++) {
        snprintf(two[0].name, sizeof(two[0].name), "%s", guests[i]);
        ck_assert_int_eq(hvi_interface_choose("^eth0", two, 2, &chosen, text, sizeof(text)),
                         HVI_OK);
        ck_assert_str_eq(chosen.name, "bridge0");
        ck_assert_int_eq(hvi_interface_choose(guests[i], two, 2, &chosen, text, sizeof(text)),
                         HVI_OK);
        ck_assert_str_eq(chosen.name, guests[i]);
    }
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        snprintf(two[0].name, sizeof(two[0].name), "%s", own[i]);
        ck_assert_int_eq(hvi_interface_choose("^eth0", two, 2, &chosen, text, sizeof(text)),
                         HVI_OK);
        ck_assert_str_eq(chosen.name, own[i]);
    }
}
END_TEST

START_TEST(the_loopback_of_this_machine_is_found_by_its_network)
{
    struct hvi_interface chosen;
    char text[300];

    ck_assert_int_eq(hvi_interface_find("127.0.0.0/8", AF_INET, &chosen, text, sizeof(text)),
                     HVI_OK);
    ck_assert_str_eq(chosen.address, "127.0.0.1");
    ck_assert(chosen.loopback);
    ck_assert_int_eq(hvi_interface_find("127.0.0.0/8", AF_INET6, &chosen, text, sizeof(text)),
                     HVI_ERR_NOT_FOUND);
}
END_TEST

START_TEST(a_host_is_this_machine_or_another_one_or_not_known)
{
    bool here = false;
    char text[400] = "";

    ck_assert_int_eq(hvi_interface_is_here("127.0.0.1", &here, text, sizeof(text)), HVI_OK);
    ck_assert(here);
    ck_assert_int_eq(hvi_interface_is_here("192.0.2.1", &here, text, sizeof(text)), HVI_OK);
    ck_assert(!here);
    ck_assert_int_eq(hvi_interface_is_here("no.such.host.invalid", &here, text, sizeof(text)),
                     HVI_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(text, "the host no.such.host.invalid is not known here: "));
}
END_TEST

/* 0: as it should be. */
static int look_where_all_can_be_bound(void)
{
    char text[400] = "";
    bool here = true;

    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        return 77;
    int fd = open("/proc/sys/net/ipv4/ip_nonlocal_bind", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "1", 1) != 1)
        return 77;
    close(fd);
    if (hvi_interface_is_here("192.0.2.1", &here, text, sizeof(text)) != HVI_OK || here)
        return 2;
    return hvi_interface_is_here("127.1.2.3", &here, text, sizeof(text)) == HVI_OK && here ? 0 : 3;
}

START_TEST(an_address_that_can_be_bound_need_not_be_this_machines)
{
    int status = -1;
    pid_t child = fork();

    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(look_where_all_can_be_bound());
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    if (hvt_skip_if(WEXITSTATUS(status) == 77, "no user namespace can be made"))
        return;
    ck_assert_int_eq(status, 0);
}
END_TEST

/* 0: as it should be. */
static int look_where_no_way_leads(void)
{
    char address[64] = "?";

    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        return 77;
    hvi_interface_from("192.0.2.1:9600", address, sizeof(address));
    return address[0] == '\0' ? 0 : 2;
}

START_TEST(a_sentence_has_the_address_on_the_way_to_a_place)
{
    char address[64], text[200];
    int status = -1;
    pid_t child = fork();

    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(look_where_no_way_leads());
    hvi_interface_from("127.0.0.9:9600", address, sizeof(address));
    ck_assert_str_eq(address, "127.0.0.1");
    hvi_interface_from("127.0.0.9", address, sizeof(address));
    ck_assert_str_eq(address, "127.0.0.1");
    ck_assert_int_eq(
        hvi_interface_towards("localhost", address, sizeof(address), text, sizeof(text)),
        HVI_ERR_INVALID);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    if (hvt_skip_if(WEXITSTATUS(status) == 77, "no user namespace can be made"))
        return;
    ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(a_list_without_an_entry_is_no_wish)
{
    ck_assert(!hvi_interface_is_wish(""));
    ck_assert(!hvi_interface_is_wish(" , "));
    ck_assert(hvi_interface_is_wish(" ,lo"));
}
END_TEST

START_TEST(networks_are_a_list_of_networks_and_addresses)
{
    static const char *const good[] = {"", "10.0.0.0/8", "10.0.0.3, 2001:db8::/32",
                                       " ::1 ,127.0.0.0/8"};
    static const char *const bad[] = {"eth0", "10.0.0.0/33", "^10.0.0.0/8", "10.0.0.0/8,any",
                                      "10.0.0"};
    char text[300];

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        ck_assert_int_eq(hvi_networks_check(good[i], text, sizeof(text)), HVI_OK);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_int_eq(hvi_networks_check(bad[i], text, sizeof(text)), HVI_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(text, "is no network"));
    }
    ck_assert(hvi_networks_have("10.0.0.0/8, 2001:db8::/32", "10.0.0.255"));
    ck_assert(hvi_networks_have("10.0.0.0/8, 2001:db8::/32", "2001:db8:1::5"));
    ck_assert(hvi_networks_have("192.0.2.7", "192.0.2.7"));
    ck_assert(!hvi_networks_have("10.0.0.0/8, 2001:db8::/32", "11.0.0.1"));
    ck_assert(!hvi_networks_have("0.0.0.0/0", "::1"));
    ck_assert(!hvi_networks_have("", "10.0.0.1"));
}
END_TEST

START_TEST(networks_cover_an_interface_with_all_its_addresses)
{
    char text[300];

    ck_assert_int_eq(hvi_networks_cover("127.0.0.0/8,::1", "127.0.0.1", text, sizeof(text)),
                     HVI_OK);
    ck_assert_int_eq(hvi_networks_cover("10.0.0.0/8", "127.0.0.1", text, sizeof(text)),
                     HVI_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(text, "the interface lo has the address "));
    ck_assert_int_eq(hvi_networks_cover("203.0.113.0/24", "203.0.113.9", text, sizeof(text)),
                     HVI_ERR_NOT_FOUND);
    ck_assert_str_eq(text, "no interface of this machine has the address 203.0.113.9");
}
END_TEST

START_TEST(an_address_with_a_label_of_its_own_is_its_interfaces)
{
    struct ifreq alias = {.ifr_name = "lo:1"}, loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    struct sockaddr_in address = {.sin_family = AF_INET};
    char text[300];

    if (hvt_skip_if(unshare(CLONE_NEWNET) != 0, "only root can have a network of its own"))
        return;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(ioctl(fd, SIOCSIFFLAGS, &loopback), 0);
    inet_pton(AF_INET, "198.51.100.7", &address.sin_addr);
    memcpy(&alias.ifr_addr, &address, sizeof(address));
    ck_assert_int_eq(ioctl(fd, SIOCSIFADDR, &alias), 0);
    ck_assert_int_eq(
        hvi_networks_cover("127.0.0.0/8,::1,198.51.100.7", "127.0.0.1", text, sizeof(text)),
        HVI_OK);
    ck_assert_int_eq(hvi_networks_cover("127.0.0.0/8,::1", "127.0.0.1", text, sizeof(text)),
                     HVI_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(text, "has the address 198.51.100.7"));
    close(fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base interface");
    TCase *tcase = tcase_create("interface");

    tcase_add_loop_test(tcase, names_lists_exclusions_and_networks_choose_an_address, 0,
                        (int)(sizeof(rows) / sizeof(rows[0])));
    tcase_add_test(tcase, interfaces_of_containers_and_virtual_machines_come_after_others);
    tcase_add_test(tcase, the_loopback_of_this_machine_is_found_by_its_network);
    tcase_add_test(tcase, a_host_is_this_machine_or_another_one_or_not_known);
    tcase_add_test(tcase, an_address_that_can_be_bound_need_not_be_this_machines);
    tcase_add_test(tcase, a_sentence_has_the_address_on_the_way_to_a_place);
    tcase_add_test(tcase, a_list_without_an_entry_is_no_wish);
    tcase_add_test(tcase, networks_are_a_list_of_networks_and_addresses);
    tcase_add_test(tcase, networks_cover_an_interface_with_all_its_addresses);
    tcase_add_test(tcase, an_address_with_a_label_of_its_own_is_its_interfaces);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

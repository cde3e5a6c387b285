/* SPDX-License-Identifier: Apache-2.0
 * The start of net-transport ucx: which UCX it takes, what that is told, and what is said where it cannot be. The loader finds
 * a libucp.so.0 that is no library (LD_LIBRARY_PATH), unless a test has loaded one of that name before. */
#include "base/status.h"
#include "daemon/engine/exec/net_port.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <ucp/api/ucp_version.h>

#define SAYS "net-transport is ucx, and "

static void *shared;
static char text[ENGINE_TEXT_BYTES];

static void set_up(void)
{
    hvt_log_open();
    unsetenv("FAKE_UCP_FAILS");
}

/* From one of the folders in HVT_UCP. What it has been told is to be had from it. */
static const char *(*load_fake(const char *folder, unsigned major, unsigned minor))(void)
{
    char path[512];
    const char *(*said)(void);
    snprintf(path, sizeof path, "%u.%u", major, minor);
    setenv("FAKE_UCP", path, 1);
    snprintf(path, sizeof path, "%s/%s/libucp.so.0", getenv("HVT_UCP"), folder);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
    void *function = dlsym(library, "fake_ucp_said");
    ck_assert_ptr_nonnull(function);
    memcpy(&said, &function, sizeof said);
    return said;
}

static int begin(const char *address)
{
    text[0] = '\0';
    shared = NULL;
    return engine_wire_ucx.begin(address, &shared, text);
}

static void expect_refused(const char *address, const char *words)
{
    ck_assert_int_eq(begin(address), HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(text, words);
    ck_assert_ptr_null(shared);
}

START_TEST(a_library_that_cannot_be_loaded_is_told_with_the_loaders_words)
{
    static const char head[] = SAYS "the library cannot be loaded: ";
    ck_assert_int_eq(begin("127.0.0.1"), HVI_ERR_UNSUPPORTED);
    ck_assert_int_eq(strncmp(text, head, strlen(head)), 0);
    ck_assert_msg(strstr(text, "/libucp.so.0: ") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "; install libucx0, or set net-transport to tcp") != NULL, "%s",
                  text);
}
END_TEST

static const struct {
    const char *folder;
    unsigned major, minor;
    const char *without;
} others[] = {
    {"whole", UCP_API_MAJOR, UCP_API_MINOR - 1, ""},
    {"whole", UCP_API_MAJOR + 1, UCP_API_MINOR, ""},
    {"lacking", UCP_API_MAJOR, UCP_API_MINOR, " without ucp_tag_send_sync_nbx"},
};

START_TEST(a_ucx_that_will_not_do_is_told_with_the_version_that_will)
{
    char words[ENGINE_TEXT_BYTES];
    load_fake(others[_i].folder, others[_i].major, others[_i].minor);
    snprintf(words, sizeof words,
             SAYS "libucp.so.0 is of UCX %u.%u%s, but this hvdd-engine needs %u.%u or a newer one "
                  "of %u: install that, or set net-transport to tcp",
             others[_i].major, others[_i].minor, others[_i].without, UCP_API_MAJOR, UCP_API_MINOR,
             UCP_API_MAJOR);
    expect_refused("127.0.0.1", words);
    expect_refused("127.0.0.1", words); /* nor the next time */
}
END_TEST

START_TEST(an_address_of_no_interface_is_told)
{
    load_fake("whole", UCP_API_MAJOR, UCP_API_MINOR);
    expect_refused("192.0.2.77",
                   "no interface has the address 192.0.2.77, by which other nodes know this one: "
                   "UCX cannot be told which one to use; set net-transport to tcp");
}
END_TEST

static const char *const steps[] = {"read", "TLS", "NET_DEVICES", "KEEPALIVE_INTERVAL", "init"};

START_TEST(an_interface_that_ucx_cannot_use_is_named_with_ucxs_words)
{
    const char *(*said)(void) = load_fake("whole", UCP_API_MAJOR, UCP_API_MINOR);
    setenv("FAKE_UCP_FAILS", steps[_i], 1);
    expect_refused("127.0.0.1", "UCX cannot use the interface lo: no such device; set "
                                "net-transport to tcp");
    ck_assert_ptr_null(strstr(said(), "cleanup"));
    ck_assert_int_eq(hvt_log_count("data between nodes goes over UCX"), 0);
    ck_assert_int_eq(strstr(said(), "released=config") != NULL, _i > 0); /* what was read */
}
END_TEST

START_TEST(ucx_is_told_the_interface_and_nothing_that_a_user_has_set)
{
    const char *(*said)(void) = load_fake("whole", UCP_API_MAJOR, UCP_API_MINOR + 1);
    char wanted[256];
    setenv("UCX_TLS", "all", 1);
    setenv("UCX_NET_DEVICES", "eth0", 1);
    setenv("UCX_ERROR_SIGNALS", "SIGSEGV", 1);
    setenv("HOME", "/tmp", 1);
    ck_assert_msg(begin("127.0.0.1") == HVI_OK, "%s", text);
    ck_assert_ptr_nonnull(shared);
    ck_assert_ptr_null(getenv("UCX_TLS"));
    ck_assert_ptr_null(getenv("UCX_NET_DEVICES"));
    ck_assert_ptr_null(getenv("HOME"));
    ck_assert_str_eq(getenv("UCX_ERROR_SIGNALS"), "");
    ck_assert_str_eq(getenv("UCX_TCP_AF_PRIO"), "inet");
    ck_assert_ptr_nonnull(strstr(said(), "read=nothing\nTLS=tcp\nNET_DEVICES=lo\n"));
    snprintf(wanted, sizeof wanted, "init=%u.%u\nreleased=config\n", UCP_API_MAJOR, UCP_API_MINOR);
    ck_assert_ptr_nonnull(strstr(said(), wanted));
    ck_assert_int_eq(hvt_log_count("data between nodes goes over UCX"), 1);
    ck_assert_int_eq(hvt_log_count("the interface has no RDMA device"), 1);
    engine_wire_ucx.end(shared);
    ck_assert_ptr_nonnull(strstr(said(), "cleanup=context\n"));
}
END_TEST

static const struct {
    const char *fails, *words, *undone;
} workers[] = {
    {"worker", "no such device", NULL},
    {"efd", "no such device", "destroyed=worker\n"},
    {"address", "no such device", "destroyed=worker\n"},
    {"", "too small", "released=address\ndestroyed=worker\n"},
};

START_TEST(a_port_without_a_worker_of_ucx_is_none_and_says_why)
{
    const char *(*said)(void) = load_fake("whole", UCP_API_MAJOR, UCP_API_MINOR);
    int ends[2];
    char byte;
    ck_assert_int_eq(begin("127.0.0.1"), HVI_OK);
    setenv("FAKE_UCP_FAILS", workers[_i].fails, 1);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    ck_assert_ptr_null(engine_wire_ucx.open(shared, ends[0], NULL));
    ck_assert_int_eq((int)read(ends[1], &byte, 1), 0); /* nothing was said, and it is closed */
    ck_assert_int_eq(hvt_log_count(workers[_i].words), 1);
    if (workers[_i].undone)
        ck_assert_ptr_nonnull(strstr(said(), workers[_i].undone));
    else
        ck_assert_ptr_null(strstr(said(), "destroyed"));
    close(ends[1]);
    engine_wire_ucx.end(shared);
    ck_assert_ptr_nonnull(strstr(said(), "cleanup=context\n"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine ucx");
    TCase *tests = tcase_create("ucx");
    tcase_add_checked_fixture(tests, set_up, NULL);
    tcase_add_test(tests, a_library_that_cannot_be_loaded_is_told_with_the_loaders_words);
    tcase_add_loop_test(tests, a_ucx_that_will_not_do_is_told_with_the_version_that_will, 0,
                        sizeof others / sizeof others[0]);
    tcase_add_test(tests, an_address_of_no_interface_is_told);
    tcase_add_loop_test(tests, an_interface_that_ucx_cannot_use_is_named_with_ucxs_words, 0,
                        sizeof steps / sizeof steps[0]);
    tcase_add_test(tests, ucx_is_told_the_interface_and_nothing_that_a_user_has_set);
    tcase_add_loop_test(tests, a_port_without_a_worker_of_ucx_is_none_and_says_why, 0,
                        sizeof workers / sizeof workers[0]);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

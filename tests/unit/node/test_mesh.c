/* SPDX-License-Identifier: Apache-2.0
 * What a gate is told of the mesh: options, the environment, and what became of the gate before it. */
#include "base/place.h"
#include "base/status.h"
#include "daemon/node/node.h"
#include "proto/gate.h"
#include "tests/unit/hvt_main.h"

#include <limits.h>
#include <sched.h>

static struct node node;
static struct hvi_gate_start start;

static void setup(void)
{
    memset(&node, 0, sizeof(node));
    memset(&start, 0, sizeof(start));
    node_config_defaults(&node.config);
    node.private_mode = true;
    snprintf(node.rundir.path, sizeof(node.rundir.path), "/run/x");
    unsetenv("HVD_KEY_FILE");
    unsetenv("HVD_PORT_RANGE");
    unsetenv("HVD_NET_TRANSPORT");
    unsetenv("HVD_TRUSTED_NETWORKS");
    unsetenv("HVD_NET_LANES");
    unsetenv("HVD_ENCRYPT");
    unsetenv("HVD_INTERFACE");
    unsetenv("HOROVOD_GLOO_IFACE");
    unsetenv("HVD_START_TIMEOUT");
    unsetenv("HOROVOD_START_TIMEOUT");
}

static void fill(void)
{
    ck_assert_int_eq(node_mesh_init(&node), HVI_OK);
    node_mesh_fill_start(&node, &start);
}

START_TEST(a_hvdd_without_mesh_options_tells_its_gate_of_none)
{
    setenv("HVD_KEY_FILE", "/somewhere", 1);
    setenv("HVD_INTERFACE", "eth0", 1);
    fill();
    ck_assert(!node_mesh_wanted(&node));
    ck_assert_str_eq(start.mesh_listen, "");
    ck_assert_str_eq(start.mesh_join, "");
    ck_assert_str_eq(start.mesh_key, "");
    ck_assert_str_eq(start.interface, "");
    ck_assert_uint_ne(start.node, 0);
    ck_assert_str_ne(start.name, "");
}
END_TEST

START_TEST(the_longest_name_of_a_host_is_cut)
{
    char name[HOST_NAME_MAX + 1];

    if (hvt_skip_if(geteuid() != 0 || unshare(CLONE_NEWUTS) != 0, "only root can name a host"))
        return;
    memset(name, 'x', HOST_NAME_MAX);
    name[HOST_NAME_MAX] = '\0';
    ck_assert_int_eq(sethostname(name, HOST_NAME_MAX), 0);
    fill();
    name[HVI_NODE_NAME_MAX] = '\0';
    ck_assert_str_eq(start.name, name);
}
END_TEST

START_TEST(what_is_not_given_has_its_default)
{
    snprintf(node.config.mesh_listen, sizeof(node.config.mesh_listen), "[::]:0");
    fill();
    ck_assert(node_mesh_wanted(&node));
    ck_assert_str_eq(start.mesh_listen, "[::]:0");
    ck_assert_str_eq(start.mesh_key, "/run/x/mesh.key");
    ck_assert_uint_eq(start.port_first, 9600);
    ck_assert_uint_eq(start.port_last, 9631);
    ck_assert_uint_eq(start.start_timeout_ns, 600 * HVI_NS_SEC);
}
END_TEST

START_TEST(the_environment_gives_what_the_options_do_not)
{
    snprintf(node.config.mesh_join, sizeof(node.config.mesh_join), "host:9600");
    setenv("HVD_KEY_FILE", "/etc/hvd/key", 1);
    setenv("HVD_PORT_RANGE", "7000-7000", 1);
    setenv("HOROVOD_GLOO_IFACE", "ib0", 1);
    setenv("HVD_START_TIMEOUT", "1.5", 1);
    fill();
    ck_assert_str_eq(start.mesh_key, "/etc/hvd/key");
    ck_assert_str_eq(start.interface, "ib0");
    ck_assert_uint_eq(start.port_first, 7000);
    ck_assert_uint_eq(start.port_last, 7000);
    ck_assert_uint_eq(start.start_timeout_ns, 3 * HVI_NS_SEC / 2);
    setenv("HVD_INTERFACE", "^docker0", 1);
    snprintf(node.config.mesh_key, sizeof(node.config.mesh_key), "/etc/key");
    node.config.start_timeout = (int64_t)HVI_NS_SEC;
    fill();
    ck_assert_str_eq(start.mesh_key, "/etc/key");
    ck_assert_str_eq(start.interface, "^docker0");
    ck_assert_uint_eq(start.start_timeout_ns, HVI_NS_SEC);
}
END_TEST

START_TEST(gate_and_engines_are_told_whether_hvdrun_has_started_hvdd_for_one_job)
{
    struct hvi_engine_start engine = {.one_job = true};

    fill();
    node_mesh_fill_engine(&node, &engine);
    ck_assert(!start.one_job && !engine.one_job);
    snprintf(node.config.mesh_listen, sizeof(node.config.mesh_listen), "[::]:0");
    node.config.parent_fd = 7;
    fill();
    node_mesh_fill_engine(&node, &engine);
    ck_assert(start.one_job && engine.one_job);
}
END_TEST

START_TEST(the_next_gate_listens_where_the_last_one_did)
{
    snprintf(node.config.mesh_listen, sizeof(node.config.mesh_listen), "0.0.0.0:0");
    node.mesh.port = 9607;
    fill();
    ck_assert_str_eq(start.mesh_listen, "0.0.0.0:9607");
    snprintf(node.config.mesh_listen, sizeof(node.config.mesh_listen), "0.0.0.0:80");
    fill();
    ck_assert_str_eq(start.mesh_listen, "0.0.0.0:80");
}
END_TEST

START_TEST(engines_are_told_of_ports_and_lanes)
{
    struct hvi_engine_start engine = {.port_first = 0};

    fill();
    node_mesh_fill_engine(&node, &engine);
    ck_assert_uint_eq(engine.port_first, 9600);
    ck_assert_uint_eq(engine.port_last, 9631);
    ck_assert_uint_eq(engine.net_lanes, 1);
    snprintf(node.config.port_range, sizeof(node.config.port_range), "7000-7007");
    setenv("HVD_PORT_RANGE", "8000-8001", 1);
    setenv("HVD_NET_LANES", "2", 1);
    fill();
    node_mesh_fill_engine(&node, &engine);
    ck_assert_uint_eq(engine.port_first, 7000);
    ck_assert_uint_eq(engine.port_last, 7007);
    ck_assert_uint_eq(engine.net_lanes, 2);
    node.config.net_lanes = 8; /* as after a reload */
    node_mesh_fill_engine(&node, &engine);
    ck_assert_uint_eq(engine.net_lanes, 8);
}
END_TEST

START_TEST(engines_are_told_whether_they_encrypt)
{
    struct hvi_engine_start engine = {.encrypt = true};

    fill();
    node_mesh_fill_engine(&node, &engine);
    ck_assert(!engine.encrypt);
    setenv("HVD_ENCRYPT", "1", 1);
    fill();
    node_mesh_fill_engine(&node, &engine);
    ck_assert(engine.encrypt);
    node.config.encrypt = 0;
    node_mesh_fill_engine(&node, &engine);
    ck_assert(!engine.encrypt);
    setenv("HVD_ENCRYPT", "0", 1);
    node.config.encrypt = 1;
    fill();
    node_mesh_fill_engine(&node, &engine);
    ck_assert(engine.encrypt);
    setenv("HVD_ENCRYPT", "yes", 1); /* not to be taken for a no */
    ck_assert_int_eq(node_mesh_init(&node), HVI_ERR_INVALID);
}
END_TEST

START_TEST(engines_are_told_of_the_transport_and_of_networks)
{
    struct hvi_engine_start engine = {.port_first = 0};

    fill();
    node_mesh_fill_engine(&node, &engine);
    ck_assert_str_eq(engine.net_transport, "tcp");
    ck_assert_str_eq(engine.trusted_networks, "");
    setenv("HVD_NET_TRANSPORT", "ucx", 1);
    setenv("HVD_TRUSTED_NETWORKS", "10.0.0.0/8", 1);
    fill();
    node_mesh_fill_engine(&node, &engine);
    ck_assert_str_eq(engine.net_transport, "ucx");
    ck_assert_str_eq(engine.trusted_networks, "10.0.0.0/8");
    snprintf(node.config.net_transport, sizeof(node.config.net_transport), "tcp");
    snprintf(node.config.trusted_networks, sizeof(node.config.trusted_networks), "fd00::/8");
    fill();
    node_mesh_fill_engine(&node, &engine);
    ck_assert_str_eq(engine.net_transport, "tcp");
    ck_assert_str_eq(engine.trusted_networks, "fd00::/8");
}
END_TEST

START_TEST(options_that_make_no_sense_are_refused)
{
    static const char *const ranges[] = {"9600",    "9600-", "9610-9600", "0-5",
                                         "1-65536", "1-2x",  "a-b"};
    static const char *const lanes[] = {"0", "9", "many", "2x", "-1"};

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        snprintf(node.config.port_range, sizeof(node.config.port_range), "%s", ranges[i]);
        ck_assert_msg(node_mesh_init(&node) == HVI_ERR_INVALID, "%s", ranges[i]);
    }
    setup();
    for (size_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++) {
        setenv("HVD_NET_LANES", lanes[i], 1);
        ck_assert_msg(node_mesh_init(&node) == HVI_ERR_INVALID, "%s", lanes[i]);
    }
    setup();
    setenv("HVD_NET_TRANSPORT", "rdma", 1);
    ck_assert_int_eq(node_mesh_init(&node), HVI_ERR_INVALID);
    setup();
    setenv("HVD_TRUSTED_NETWORKS", "eth0", 1);
    ck_assert_int_eq(node_mesh_init(&node), HVI_ERR_INVALID);
    setup();
    setenv("HVD_START_TIMEOUT", "soon", 1);
    ck_assert_int_eq(node_mesh_init(&node), HVI_ERR_INVALID);
    setup();
    snprintf(node.config.mesh_listen, sizeof(node.config.mesh_listen), "0.0.0.0:0");
    snprintf(node.config.mesh_join, sizeof(node.config.mesh_join), "host:9600");
    ck_assert_int_eq(node_mesh_init(&node), HVI_ERR_INVALID);
}
END_TEST

/* 192.0.2.0/24 and 2001:db8::/32 are for documentation: no machine has such an address. */
static const struct {
    const char *rendezvous, *listen, *join;
} places[] = {
    {"127.0.0.1", "*:7000", ""},
    {"127.0.0.1:9000", "*:9000", ""},
    {"localhost:9000", "*:9000", ""},
    {"192.0.2.1", "", "192.0.2.1:7000"},
    {"192.0.2.1:9000", "", "192.0.2.1:9000"},
    {"2001:db8::1", "", "[2001:db8::1]:7000"},
    {"[2001:db8::1]:9000", "", "[2001:db8::1]:9000"},
};

START_TEST(the_host_of_the_rendezvous_listens_and_the_others_join_it)
{
    setenv("HVD_PORT_RANGE", "7000-7007", 1);
    snprintf(node.config.rendezvous, sizeof(node.config.rendezvous), "%s", places[_i].rendezvous);
    fill();
    ck_assert(node_mesh_wanted(&node));
    ck_assert_str_eq(start.mesh_listen, places[_i].listen);
    ck_assert_str_eq(start.mesh_join, places[_i].join);
}
END_TEST

START_TEST(a_rendezvous_that_is_no_place_is_refused)
{
    static const char *const wrong[] = {":9600", "host:", "host:0", "host:65536", "host:x", "[]:1"};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        snprintf(node.config.rendezvous, sizeof(node.config.rendezvous), "%s", wrong[i]);
        ck_assert_msg(node_mesh_init(&node) == HVI_ERR_INVALID, "%s", wrong[i]);
    }
    snprintf(node.config.rendezvous, sizeof(node.config.rendezvous), "no.such.host.invalid:9600");
    ck_assert_int_eq(node_mesh_init(&node), HVI_ERR_NOT_FOUND);
    snprintf(node.config.rendezvous, sizeof(node.config.rendezvous), "127.0.0.1");
    ck_assert_int_eq(node_mesh_init(&node), HVI_OK);
    node.private_mode = false;
    ck_assert_int_eq(node_mesh_init(&node), HVI_ERR_INVALID);
    node.private_mode = true;
    snprintf(node.config.mesh_join, sizeof(node.config.mesh_join), "host:9600");
    ck_assert_int_eq(node_mesh_init(&node), HVI_ERR_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node mesh");
    TCase *tcase = tcase_create("mesh");

    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, a_hvdd_without_mesh_options_tells_its_gate_of_none);
    tcase_add_test(tcase, the_longest_name_of_a_host_is_cut);
    tcase_add_test(tcase, what_is_not_given_has_its_default);
    tcase_add_test(tcase, the_environment_gives_what_the_options_do_not);
    tcase_add_test(tcase, the_next_gate_listens_where_the_last_one_did);
    tcase_add_test(tcase, gate_and_engines_are_told_whether_hvdrun_has_started_hvdd_for_one_job);
    tcase_add_test(tcase, engines_are_told_of_ports_and_lanes);
    tcase_add_test(tcase, engines_are_told_whether_they_encrypt);
    tcase_add_test(tcase, engines_are_told_of_the_transport_and_of_networks);
    tcase_add_test(tcase, options_that_make_no_sense_are_refused);
    tcase_add_loop_test(tcase, the_host_of_the_rendezvous_listens_and_the_others_join_it, 0,
                        (int)(sizeof(places) / sizeof(places[0])));
    tcase_add_test(tcase, a_rendezvous_that_is_no_place_is_refused);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

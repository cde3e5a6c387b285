/* SPDX-License-Identifier: Apache-2.0 */
#include "base/limits.h"
#include "base/status.h"
#include "daemon/node/config.h"
#include "tests/unit/hvt_main.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static char text[NODE_CONFIG_ERROR];

static int parse(struct node_config *config, const char *contents)
{
    node_config_defaults(config);
    text[0] = '\0';
    return node_config_parse(config, "test.conf", contents, strlen(contents), text, sizeof(text));
}

static int set(struct node_config *config, const char *name, const char *value)
{
    const struct node_config_row *row = node_config_find(name);
    ck_assert_ptr_nonnull(row);
    text[0] = '\0';
    return node_config_set(config, row, value, text, sizeof(text));
}

START_TEST(every_row_accepts_and_formats_its_own_default)
{
    struct node_config config;
    char value[HVI_WIRE_PATH];

    node_config_defaults(&config);
    for (size_t i = 0; i < node_config_row_count; i++) {
        const struct node_config_row *row = &node_config_rows[i];
        ck_assert_msg(node_config_set(&config, row, row->standard, text, sizeof(text)) == HVI_OK,
                      "%s", text);
        node_config_format(&config, row, value, sizeof(value));
        ck_assert_msg(node_config_set(&config, row, value, text, sizeof(text)) == HVI_OK, "%s: %s",
                      row->name, value);
        ck_assert_ptr_eq(node_config_find(row->name), row);
        ck_assert_uint_gt(strlen(row->help), 10);
        ck_assert_uint_gt(strlen(row->argument), 0);
    }
}
END_TEST

/* A value just outside the range, as text of the row's type. */
static bool outside(const struct node_config_row *row, bool above, char *value_p, size_t size)
{
    int64_t edge = above ? row->largest : row->smallest;
    const char *unit = row->type == NODE_TYPE_TIME ? "ns" : "";

    if (edge == (above ? INT64_MAX : INT64_MIN))
        return false;
    edge += above ? 1 : -1;
    snprintf(value_p, size, row->type == NODE_TYPE_MODE ? "%llo%s" : "%lld%s", (long long)edge,
             unit);
    return true;
}

START_TEST(every_number_has_a_range_and_the_error_names_option_and_value)
{
    struct node_config config;
    char value[64];

    node_config_defaults(&config);
    for (size_t i = 0; i < node_config_row_count; i++) {
        const struct node_config_row *row = &node_config_rows[i];
        if (row->type == NODE_TYPE_TEXT || row->type == NODE_TYPE_SWITCH ||
            row->type == NODE_TYPE_LEVEL)
            continue;
        for (int above = 0; above < 2; above++) {
            if (!outside(row, above, value, sizeof(value)))
                continue;
            ck_assert_msg(node_config_set(&config, row, value, text, sizeof(text)) ==
                              HVI_ERR_INVALID,
                          "%s=%s", row->name, value);
            ck_assert_ptr_nonnull(strstr(text, row->name));
            ck_assert_ptr_nonnull(strstr(text, value));
        }
        ck_assert_int_eq(node_config_set(&config, row, "banana", text, sizeof(text)),
                         HVI_ERR_INVALID);
    }
}
END_TEST

START_TEST(times_take_units_and_a_bare_number_is_seconds)
{
    static const struct {
        const char *value;
        int64_t ns;
    } good[] = {{"0", 0},
                {"2", 2000000000},
                {"2s", 2000000000},
                {"1.5s", 1500000000},
                {"500ms", 500000000},
                {"3m", 180000000000},
                {"1h", 3600000000000},
                {"10 s", 10000000000},
                {"7us", 7000},
                {"9ns", 9}};
    static const char *const bad[] = {"",    "s",    "-1",   "1x", "1 s s", "1e3s", "99999999999h",
                                      "nan", "0x10", "1,5s", " 1"};
    struct node_config config;

    node_config_defaults(&config);
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        ck_assert_msg(set(&config, "drain-timeout", good[i].value) == HVI_OK, "%s", text);
        ck_assert_int_eq(config.drain_timeout, good[i].ns);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_msg(set(&config, "drain-timeout", bad[i]) == HVI_ERR_INVALID, "\"%s\" was taken",
                      bad[i]);
    ck_assert_int_eq(config.drain_timeout, 9);
}
END_TEST

START_TEST(sizes_take_units_as_powers_of_1024)
{
    struct node_config config;

    node_config_defaults(&config);
    ck_assert_int_eq(set(&config, "region-limit", "64K"), HVI_OK);
    ck_assert_int_eq(config.region_limit, 65536);
    ck_assert_int_eq(set(&config, "region-limit", "1.5G"), HVI_OK);
    ck_assert_int_eq(config.region_limit, 1610612736);
    ck_assert_int_eq(set(&config, "region-limit", "2MiB"), HVI_OK);
    ck_assert_int_eq(config.region_limit, 2097152);
    ck_assert_int_eq(set(&config, "region-limit", "3m"), HVI_OK);
    ck_assert_int_eq(config.region_limit, 3145728);
    ck_assert_int_eq(set(&config, "region-limit", "99999999T"), HVI_ERR_INVALID);
    ck_assert_int_eq(set(&config, "region-limit", "9223372036854775808"), HVI_ERR_INVALID);
    ck_assert_int_eq(set(&config, "region-limit", "5X"), HVI_ERR_INVALID);
}
END_TEST

START_TEST(switches_levels_and_modes_take_their_words_alone)
{
    struct node_config config;

    node_config_defaults(&config);
    ck_assert_int_eq(config.private_mode, -1);
    ck_assert_int_eq(set(&config, "private", "yes"), HVI_OK);
    ck_assert_int_eq(config.private_mode, 1);
    ck_assert_int_eq(set(&config, "private", "off"), HVI_OK);
    ck_assert_int_eq(config.private_mode, 0);
    ck_assert_int_eq(set(&config, "private", "maybe"), HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(text, "yes, no or auto"));
    ck_assert_int_eq(set(&config, "log-level", "debug"), HVI_OK);
    ck_assert_int_eq(config.log_level, HVI_LOG_DEBUG);
    ck_assert_int_eq(set(&config, "log-level", "loud"), HVI_ERR_INVALID);
    ck_assert_int_eq(set(&config, "admin-mode", "0600"), HVI_OK);
    ck_assert_int_eq(config.admin_mode, 0600);
    ck_assert_int_eq(set(&config, "admin-mode", "0999"), HVI_ERR_INVALID);
    ck_assert_int_eq(set(&config, "admin-mode", "0777"), HVI_ERR_INVALID);
}
END_TEST

START_TEST(a_file_has_comments_sections_and_either_dash_or_underscore)
{
    struct node_config config;

    ck_assert_int_eq(parse(&config,
                           "# comment\n; another\n\n[hvdd]\nmax-jobs = 3\nmax_sessions: 9\n"
                           "engine = /opt/x ; inline comment\nstall-warn=5m"),
                     HVI_OK);
    ck_assert_int_eq(config.max_jobs, 3);
    ck_assert_int_eq(config.max_sessions, 9);
    ck_assert_str_eq(config.engine, "/opt/x");
    ck_assert_int_eq(config.stall_warn, 300 * (int64_t)HVI_NS_SEC);
    ck_assert_int_eq(parse(&config, "max-jobs = 4\nmax-jobs = 5\n"), HVI_OK);
    ck_assert_int_eq(config.max_jobs, 5);
    ck_assert_int_eq(parse(&config, ""), HVI_OK);
}
END_TEST

START_TEST(an_indented_line_is_an_option_of_its_own)
{
    struct node_config config;

    ck_assert_msg(parse(&config, "[hvdd]\n interface = eth0\n threads = 8\n\tmesh-key=/k\r\n") ==
                      HVI_OK,
                  "%s", text);
    ck_assert_str_eq(config.interface, "eth0");
    ck_assert_int_eq(config.threads, 8);
    ck_assert_str_eq(config.mesh_key, "/k");
    ck_assert_int_eq(parse(&config, "interface = eth0\n eth1\n"), HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(text, "test.conf:2: neither"));
}
END_TEST

START_TEST(a_comment_begins_at_a_semicolon_after_a_blank)
{
    struct node_config config;

    ck_assert_int_eq(parse(&config, "engine = /a;b\t; c ; d\ngate = ;x\n [hvdd] ; e\n  # f\n"),
                     HVI_OK);
    ck_assert_str_eq(config.engine, "/a;b");
    ck_assert_str_eq(config.gate, "");
    ck_assert_int_eq(parse(&config, "max-jobs ;= 3\n"), HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(text, "neither"));
}
END_TEST

START_TEST(the_seeds_of_a_mesh_may_have_long_names)
{
    static const char seeds[] = "ip-10-20-30-40.eu-central-1.compute.internal:9600, "
                                "ip-10-20-30-41.eu-central-1.compute.internal:9600, "
                                "ip-10-20-30-42.eu-central-1.compute.internal:9600, "
                                "ip-10-20-30-43.eu-central-1.compute.internal:9600";
    char contents[300];
    struct node_config config;

    snprintf(contents, sizeof(contents), "[hvdd]\nmesh-seeds = %s\n", seeds);
    ck_assert_msg(parse(&config, contents) == HVI_OK, "%s", text);
    ck_assert_str_eq(config.mesh_seeds, seeds);
}
END_TEST

START_TEST(a_bad_line_is_named_by_file_line_name_value_and_range)
{
    struct node_config config;
    char longer[1100];

    ck_assert_int_eq(parse(&config, "[hvdd]\nmax-jobs = 0\n"), HVI_ERR_INVALID);
    ck_assert_str_eq(text, "test.conf:2: max-jobs: \"0\" is not a number between 1 and 65536");
    ck_assert_int_eq(parse(&config, "\n\nno-such = 1\n"), HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(text, "test.conf:3: \"no-such\" is no option"));
    ck_assert_int_eq(parse(&config, "[other]\nmax-jobs = 1\n"), HVI_ERR_INVALID);
    ck_assert_str_eq(text, "test.conf:1: section [other] is not known; options stand in [hvdd]");
    ck_assert_int_eq(parse(&config, "[hvdd\nmax-jobs = 1\n"), HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(text, "section [hvdd] is not known"));
    ck_assert_int_eq(parse(&config, "max-jobs\n"), HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(text, "test.conf:1: neither"));
    ck_assert_int_eq(parse(&config, "ready-fd = 3\n"), HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(text, "command line only"));
    memset(longer, 'x', sizeof(longer));
    longer[0] = '#';
    longer[sizeof(longer) - 1] = '\0';
    ck_assert_int_eq(parse(&config, longer), HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(text, "too long"));
    ck_assert_int_eq(
        node_config_parse(&config, "test.conf", "max\0jobs = 1\n", 13, text, sizeof(text)),
        HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(text, "NUL"));
}
END_TEST

/* A file with these contents; the name is valid until the next call. */
static const char *file_with(const char *contents)
{
    static char name[64];
    snprintf(name, sizeof(name), "/tmp/hvt-config-XXXXXX");
    int fd = mkstemp(name);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, contents, strlen(contents)), (ssize_t)strlen(contents));
    close(fd);
    return name;
}

START_TEST(the_command_line_wins_over_the_file_and_the_file_over_defaults)
{
    char *argv[] = {
        (char *)"hvdd",      (char *)"--config",    NULL,         (char *)"--max-jobs=7",
        (char *)"--private", (char *)"--idle-exit", (char *)"3s", NULL};
    struct node_command command;
    struct node_config config;

    const char *file = file_with("max-jobs = 5\nmax-sessions = 11\n");
    argv[2] = (char *)file;
    node_config_command(7, argv, &command);
    ck_assert_msg(node_config_load(&command, &config, text, sizeof(text)) == HVI_OK, "%s", text);
    unlink(file);
    ck_assert_int_eq(config.max_jobs, 7);
    ck_assert_int_eq(config.max_sessions, 11);
    ck_assert_int_eq(config.private_mode, 1);
    ck_assert_int_eq(config.idle_exit, 3 * (int64_t)HVI_NS_SEC);
    ck_assert_int_eq(config.max_pending, 1024);
}
END_TEST

START_TEST(a_missing_named_file_is_an_error_and_a_failed_load_changes_nothing)
{
    struct node_command command = {.file = "/nonexistent/hvdd.conf"};
    struct node_config config = {.max_jobs = 77};

    ck_assert_int_eq(node_config_load(&command, &config, text, sizeof(text)), HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(text, "/nonexistent/hvdd.conf"));
    ck_assert_int_eq(config.max_jobs, 77);
}
END_TEST

#define OF_SERVICE                                                                                 \
    "mesh-seeds = a:1,b:2\nmesh-listen = *:1\nmesh-join = c:3\nmesh-key = /k\nmax-jobs = 5\n"      \
    "runtime-dir = /r\nprivate = no\nengine = /e\ngate = /g\ngpu-program = /p\n"                   \
    "gpu-kernels = /n\nengine-socket = /s\ngate-socket = /s\ngpu-socket = /s\n"                    \
    "admin-mode = 0666\nidle-exit = 1\nrendezvous = d\n"
#define OF_NETWORK                                                                                 \
    "port-range = 1-2\ninterface = i\nnet-lanes = 8\nnet-transport = ucx\nstart-timeout = 1\n"     \
    "trusted-networks = 10.0.0.0/8\nencrypt = yes\n"

/* Loads `file` as the service's, by "--private" and "--mesh-join". */
static int load_standard(const char *file, const char *private_mode, struct node_config *config_p)
{
    struct node_command command = {.standard = file, .override_count = 2};

    command.overrides[0].row = node_config_find("private");
    command.overrides[0].value = private_mode;
    command.overrides[1].row = node_config_find("mesh-join");
    command.overrides[1].value = "d:4";
    text[0] = '\0';
    return node_config_load(&command, config_p, text, sizeof(text));
}

START_TEST(a_private_hvdd_leaves_out_what_is_the_services)
{
    const char *file = file_with(OF_SERVICE "later-option = 1\n");
    struct node_config config, mine;

    ck_assert_msg(load_standard(file, "yes", &config) == HVI_OK, "%s", text);
    node_config_defaults(&mine);
    ck_assert_int_eq(set(&mine, "private", "yes"), HVI_OK);
    ck_assert_int_eq(set(&mine, "mesh-join", "d:4"), HVI_OK);
    ck_assert_int_eq(set(&mine, "max-jobs", "5"), HVI_OK);
    for (size_t i = 0; i < node_config_row_count; i++)
        ck_assert_msg(!node_config_differs(&node_config_rows[i], &config, &mine), "%s",
                      node_config_rows[i].name);
    /* The service itself. */
    ck_assert_int_eq(load_standard(file, "no", &config), HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(text, "later-option"));
    unlink(file);
}
END_TEST

START_TEST(the_service_and_a_hvdd_that_is_told_the_file_take_all_of_it)
{
    const char *file = file_with(OF_SERVICE OF_NETWORK);
    const struct node_command named = {.file = file};
    struct node_config config;

    ck_assert_msg(load_standard(file, "no", &config) == HVI_OK, "%s", text);
    ck_assert_str_eq(config.mesh_seeds, "a:1,b:2");
    ck_assert_str_eq(config.mesh_join, "d:4");
    ck_assert_str_eq(config.port_range, "1-2");
    ck_assert_msg(node_config_load(&named, &config, text, sizeof(text)) == HVI_OK, "%s", text);
    ck_assert_str_eq(config.mesh_key, "/k");
    ck_assert_str_eq(config.mesh_join, "c:3");
    ck_assert_str_eq(config.interface, "i");
    unlink(file);
}
END_TEST

static const struct {
    const char *option, *variable;
} of_network[] = {
    {"port-range", "HVD_PORT_RANGE"},
    {"interface", "HVD_INTERFACE"},
    {"interface", "HOROVOD_GLOO_IFACE"},
    {"net-lanes", "HVD_NET_LANES"},
    {"net-transport", "HVD_NET_TRANSPORT"},
    {"start-timeout", "HVD_START_TIMEOUT"},
    {"encrypt", "HVD_ENCRYPT"},
    {"start-timeout", "HOROVOD_START_TIMEOUT"},
    {"trusted-networks", "HVD_TRUSTED_NETWORKS"},
};

START_TEST(options_of_the_network_hold_in_a_private_hvdd_unless_its_user_says_otherwise)
{
    const struct node_config_row *row = node_config_find(of_network[_i].option);
    const char *variable = of_network[_i].variable;
    const char *file = file_with(OF_NETWORK);
    struct node_config config, standard;

    node_config_defaults(&standard);
    unsetenv(variable);
    ck_assert_int_eq(load_standard(file, "yes", &config), HVI_OK);
    ck_assert(node_config_differs(row, &config, &standard));
    setenv(variable, "", 1);
    ck_assert_int_eq(load_standard(file, "yes", &config), HVI_OK);
    ck_assert(node_config_differs(row, &config, &standard));
    setenv(variable, "0", 1);
    ck_assert_int_eq(load_standard(file, "yes", &config), HVI_OK);
    ck_assert(!node_config_differs(row, &config, &standard));
    ck_assert_int_eq(load_standard(file, "no", &config), HVI_OK);
    ck_assert(node_config_differs(row, &config, &standard));
    unlink(file);
}
END_TEST

START_TEST(a_byte_order_mark_is_no_part_of_the_file)
{
    const char *file = file_with("\xEF\xBB\xBF[hvdd]\nmax-jobs = 5\n");
    struct node_config config;

    ck_assert_msg(load_standard(file, "no", &config) == HVI_OK, "%s", text);
    ck_assert_int_eq(config.max_jobs, 5);
    unlink(file);
}
END_TEST

START_TEST(what_is_printed_can_be_read_back)
{
    struct node_config config, again;
    char *printed = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&printed, &length);

    node_config_defaults(&config);
    config.max_jobs = 12;
    config.drain_timeout = 1500 * (int64_t)HVI_NS_MS;
    config.region_limit = 3ll << 30;
    strcpy(config.runtime_dir, "/run/other");
    memset(config.mesh_seeds, 'x', sizeof(config.mesh_seeds) - 1);
    node_config_print(&config, out);
    fclose(out);
    node_config_defaults(&again);
    ck_assert_msg(node_config_parse(&again, "printed", printed, length, text, sizeof(text)) ==
                      HVI_OK,
                  "%s", text);
    for (size_t i = 0; i < node_config_row_count; i++)
        ck_assert_msg(!node_config_differs(&node_config_rows[i], &config, &again), "%s",
                      node_config_rows[i].name);
    free(printed);
}
END_TEST

START_TEST(the_man_page_has_every_row)
{
    char *printed = NULL, needle[80];
    size_t length = 0;
    FILE *out = open_memstream(&printed, &length);

    node_config_print_man(out);
    fclose(out);
    for (size_t i = 0; i < node_config_row_count; i++) {
        const bool is_switch = node_config_rows[i].type == NODE_TYPE_SWITCH;
        snprintf(needle, sizeof(needle), is_switch ? "*--%s*[=_" : "*--%s* _",
                 node_config_rows[i].name);
        ck_assert_msg(strstr(printed, needle) != NULL, "%s", needle);
    }
    ck_assert_ptr_nonnull(strstr(printed, "*--private*[=_yes|no|auto_]\n"));
    ck_assert_ptr_nonnull(strstr(printed, "A private hvdd leaves it out of the service's file."));
    free(printed);
}
END_TEST

START_TEST(the_man_page_has_every_limit)
{
    char *printed = NULL, needle[80];
    size_t length = 0;
    FILE *out = open_memstream(&printed, &length);

    node_config_print_limits(out);
    fclose(out);
    for (int i = 0; i < HVI_LIMITS; i++) {
        const struct hvi_limit_fact *fact = &hvi_limit_facts[i];
        ck_assert_ptr_eq(hvi_limit_find(fact->name), fact);
        ck_assert((fact->fixed == 0) == (node_config_find(fact->name) != NULL));
        snprintf(needle, sizeof(needle), "|  %s\n", fact->name);
        ck_assert_msg(strstr(printed, needle) != NULL, "%s", needle);
    }
    ck_assert_ptr_null(hvi_limit_find("max-"));
    free(printed);
}
END_TEST

START_TEST(only_what_can_change_in_a_running_hvdd_is_marked_for_reload)
{
    static const char *const restart[] = {
        "runtime-dir",         "private",       "engine",           "gate",
        "engine-socket",       "gate-socket",   "admin-mode",       "mesh-listen",
        "mesh-join",           "rendezvous",    "mesh-key",         "port-range",
        "interface",           "net-transport", "trusted-networks", "start-timeout",
        "gpu-program",         "gpu-socket",    "max-admin",        "max-admin-per-user",
        "admin-rate-per-user", "gpu-mps"};
    static const char *const command[] = {"ready-fd", "parent-fd"};
    /* What EngineStart says, an engine hears once. */
    static const char *const later[] = {"threads",    "region-limit", "regions-per-session",
                                        "stall-warn", "net-lanes",    "encrypt",
                                        "gpu"};
    static const char *const partly[] = {"engine-linger", "log-level"};
    size_t reloads = 0;

    for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++)
        ck_assert_int_eq(node_config_find(later[i])->apply, NODE_APPLY_LATER);
    for (size_t i = 0; i < sizeof(partly) / sizeof(partly[0]); i++)
        ck_assert_int_eq(node_config_find(partly[i])->apply, NODE_APPLY_PARTLY);
    for (size_t i = 0; i < sizeof(restart) / sizeof(restart[0]); i++)
        ck_assert_int_eq(node_config_find(restart[i])->apply, NODE_APPLY_RESTART);
    for (size_t i = 0; i < sizeof(command) / sizeof(command[0]); i++)
        ck_assert_int_eq(node_config_find(command[i])->apply, NODE_APPLY_COMMAND);
    for (size_t i = 0; i < node_config_row_count; i++)
        reloads += node_config_rows[i].apply == NODE_APPLY_RELOAD;
    ck_assert_uint_eq(reloads, node_config_row_count - 38);
}
END_TEST

START_TEST(copy_moves_one_option_alone)
{
    struct node_config from, to;

    node_config_defaults(&from);
    node_config_defaults(&to);
    from.max_jobs = 3;
    from.max_pending = 4;
    node_config_copy(node_config_find("max-jobs"), &from, &to);
    ck_assert_int_eq(to.max_jobs, 3);
    ck_assert_int_eq(to.max_pending, 1024);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node config");
    TCase *tcase = tcase_create("config");

    tcase_add_test(tcase, every_row_accepts_and_formats_its_own_default);
    tcase_add_test(tcase, every_number_has_a_range_and_the_error_names_option_and_value);
    tcase_add_test(tcase, times_take_units_and_a_bare_number_is_seconds);
    tcase_add_test(tcase, sizes_take_units_as_powers_of_1024);
    tcase_add_test(tcase, switches_levels_and_modes_take_their_words_alone);
    tcase_add_test(tcase, a_file_has_comments_sections_and_either_dash_or_underscore);
    tcase_add_test(tcase, an_indented_line_is_an_option_of_its_own);
    tcase_add_test(tcase, a_comment_begins_at_a_semicolon_after_a_blank);
    tcase_add_test(tcase, the_seeds_of_a_mesh_may_have_long_names);
    tcase_add_test(tcase, a_bad_line_is_named_by_file_line_name_value_and_range);
    tcase_add_test(tcase, the_command_line_wins_over_the_file_and_the_file_over_defaults);
    tcase_add_test(tcase, a_missing_named_file_is_an_error_and_a_failed_load_changes_nothing);
    tcase_add_test(tcase, a_private_hvdd_leaves_out_what_is_the_services);
    tcase_add_test(tcase, the_service_and_a_hvdd_that_is_told_the_file_take_all_of_it);
    tcase_add_loop_test(
        tcase, options_of_the_network_hold_in_a_private_hvdd_unless_its_user_says_otherwise, 0,
        sizeof(of_network) / sizeof(of_network[0]));
    tcase_add_test(tcase, a_byte_order_mark_is_no_part_of_the_file);
    tcase_add_test(tcase, what_is_printed_can_be_read_back);
    tcase_add_test(tcase, the_man_page_has_every_row);
    tcase_add_test(tcase, the_man_page_has_every_limit);
    tcase_add_test(tcase, only_what_can_change_in_a_running_hvdd_is_marked_for_reload);
    tcase_add_test(tcase, copy_moves_one_option_alone);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * The key file of the mesh: what it may contain, and whose it must be. */
#include "daemon/gate/keys.h"

#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <sys/stat.h>

#define A "aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd"
#define B "AAAAAAAAAABBBBBBBBBBCCCCCCCCCCDDDDDDDDD#"
#define C "0123456789.-:+=^!/*?&<>()[]{}@%$#0123456"

static struct gate_keys keys;
static char text[700], path[128];

static void setup(void)
{
    snprintf(path, sizeof(path), "/tmp/hvt-keys-%d", (int)getpid());
}

static void teardown(void)
{
    char name[160];

    unlink(path);
    snprintf(name, sizeof(name), "%s.server", path);
    unlink(name);
}

static int parse(const char *contents)
{
    return gate_keys_parse(contents, strlen(contents), &keys, text, sizeof(text));
}

START_TEST(three_lines_make_a_key)
{
    ck_assert_int_eq(parse("# of job 7\nserver " A "\n\nclient " B "\nsecret " C), HVI_OK);
    ck_assert_str_eq(keys.server, A);
    ck_assert_str_eq(keys.secret, C);
    ck_assert_uint_eq(keys.client_count, 1);
    ck_assert_str_eq(keys.clients[0], B);
    gate_keys_fini(&keys);
    ck_assert_str_eq(keys.secret, "");
    ck_assert_int_eq(parse("client " B "\nserver " A "\nclient " A "\nsecret " C "\n"), HVI_OK);
    ck_assert_uint_eq(keys.client_count, 2);
    gate_keys_fini(&keys);
}
END_TEST

START_TEST(anything_else_is_refused)
{
    static const char *const wrong[] = {
        "",
        "server " A "\nclient " B "\n",
        "server " A "\nserver " A "\nclient " B "\nsecret " C "\n",
        "server " A "\nclient " B "\nsecret " C "x\n",
        "server " A "\nclient " B "\nsecret \n",
        "server " A "\nclient " B "\npublic " C "\n",
        "server " A "\nclient " B "\nsecret aaaaaaaaaabbbbbbbbbbccccccccccddddddddd~\n",
        "secret",
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        text[0] = '\0';
        ck_assert_msg(parse(wrong[i]) == HVI_ERR_INVALID, "%zu", i);
        ck_assert_msg(text[0] != '\0', "%zu", i);
    }
}
END_TEST

static void put(const char *name, mode_t mode)
{
    FILE *out = fopen(name, "we");

    ck_assert_ptr_nonnull(out);
    fputs("server " A "\nclient " B "\nsecret " C "\n", out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_int_eq(chmod(name, mode), 0);
}

START_TEST(a_file_that_others_may_read_is_refused)
{
    put(path, 0640);
    ck_assert_int_eq(gate_keys_read(path, true, &keys, text, sizeof(text)), HVI_ERR_REFUSED);
    ck_assert_msg(strstr(text, "others may read it") != NULL, "%s", text);
    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_assert_int_eq(gate_keys_read(path, true, &keys, text, sizeof(text)), HVI_OK);
    gate_keys_fini(&keys);
    if (hvt_skip_if(geteuid() != 0, "only root can give a file away"))
        return;
    ck_assert_int_eq(chown(path, 12345, 12345), 0);
    ck_assert_int_eq(gate_keys_read(path, true, &keys, text, sizeof(text)), HVI_ERR_REFUSED);
    ck_assert_msg(strstr(text, "it belongs to another user") != NULL, "%s", text);
}
END_TEST

START_TEST(a_missing_file_says_how_to_make_one)
{
    char name[160], expected[600];

    ck_assert_int_eq(gate_keys_read(path, false, &keys, text, sizeof(text)), HVI_ERR_REFUSED);
    snprintf(expected, sizeof(expected),
             "the mesh key %s cannot be used: No such file or directory; make a pair with `hvdctl "
             "key new PREFIX`: PREFIX.server is for the node that listens, PREFIX.client for those "
             "that join",
             path);
    ck_assert_str_eq(text, expected);
    snprintf(name, sizeof(name), "%s.server", path);
    put(name, 0600);
    ck_assert_int_eq(gate_keys_read(path, false, &keys, text, sizeof(text)), HVI_ERR_REFUSED);
    ck_assert_int_eq(gate_keys_read(path, true, &keys, text, sizeof(text)), HVI_OK);
    gate_keys_fini(&keys);
    ck_assert_int_eq(gate_keys_read("/dev/null", true, &keys, text, sizeof(text)), HVI_ERR_REFUSED);
    ck_assert_msg(strstr(text, "no regular file") != NULL, "%s", text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gate keys");
    TCase *tcase = tcase_create("keys");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, three_lines_make_a_key);
    tcase_add_test(tcase, anything_else_is_refused);
    tcase_add_test(tcase, a_file_that_others_may_read_is_refused);
    tcase_add_test(tcase, a_missing_file_says_how_to_make_one);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

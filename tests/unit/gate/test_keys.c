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
             "the mesh key %s.client cannot be used: No such file or directory; make a pair with "
             "`hvdctl "
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

/* ---- a folder ---- */

static void write_file(const char *name, const char *contents, mode_t mode)
{
    char file[200];

    snprintf(file, sizeof(file), "%s/%s", path, name);
    FILE *out = fopen(file, "we");
    ck_assert_ptr_nonnull(out);
    fputs(contents, out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_int_eq(chmod(file, mode), 0);
}

static void make_folder(void)
{
    char allow[160];

    snprintf(allow, sizeof(allow), "%s/allow", path);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    ck_assert_int_eq(mkdir(allow, 0755), 0);
}

static void remove_folder(void)
{
    char command[160];

    snprintf(command, sizeof(command), "rm -rf %s", path);
    ck_assert_int_eq(system(command), 0);
}

static int look_again(bool *changed_p)
{
    return gate_keys_read_allowed(path, &keys, changed_p, text, sizeof(text));
}

START_TEST(a_folder_has_a_secret_and_the_keys_of_nodes_by_name)
{
    bool changed = true;

    make_folder();
    write_file("node.key", "secret " C "\n", 0600);
    write_file("allow/n2", B, 0644);
    write_file("allow/n1", "# of the first\n" A "\n", 0644);
    write_file("allow/.n3.17", "half", 0644);
    ck_assert_msg(gate_keys_read_node(path, &keys, text, sizeof(text)) == HVI_OK, "%s", text);
    ck_assert(keys.of_node);
    ck_assert_str_eq(keys.secret, C);
    ck_assert_uint_eq(keys.client_count, 2);
    ck_assert_str_eq(gate_keys_name(&keys, B), "n2");
    ck_assert_str_eq(gate_keys_of(&keys, "n1"), A);
    ck_assert_ptr_null(gate_keys_name(&keys, C));
    ck_assert_ptr_null(gate_keys_of(&keys, "n3"));
    ck_assert_int_eq(look_again(&changed), HVI_OK);
    ck_assert(!changed);
    write_file("allow/n2", C, 0644);
    ck_assert_int_eq(look_again(&changed), HVI_OK);
    ck_assert(changed);
    ck_assert_str_eq(gate_keys_of(&keys, "n2"), C);
    gate_keys_fini(&keys);
    remove_folder();
}
END_TEST

START_TEST(what_cannot_be_believed_of_an_allow_list_is_left_out_with_a_sentence)
{
    bool changed = false;

    make_folder();
    write_file("node.key", "secret " C "\n", 0600);
    write_file("allow/n1", A, 0644);
    ck_assert_int_eq(gate_keys_read_node(path, &keys, text, sizeof(text)), HVI_OK);
    write_file("allow/n2", B, 0666);
    ck_assert_int_eq(look_again(&changed), HVI_OK);
    ck_assert(!changed);
    ck_assert_msg(strstr(text, "the key of node n2 (") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "others may write it") != NULL, "%s", text);
    write_file("allow/n2", "secret " B, 0644);
    ck_assert_int_eq(look_again(&changed), HVI_OK);
    ck_assert_msg(strstr(text, "it is not one line with the KEY") != NULL, "%s", text);
    write_file("allow/n2", A "\n" B, 0644);
    ck_assert_int_eq(look_again(&changed), HVI_OK);
    ck_assert_uint_eq(keys.client_count, 1);
    gate_keys_fini(&keys);
    remove_folder();
}
END_TEST

START_TEST(a_folder_that_others_may_write_is_refused_and_so_is_a_secret_that_they_may_read)
{
    char allow[160];

    make_folder();
    ck_assert_int_eq(gate_keys_read_node(path, &keys, text, sizeof(text)), HVI_ERR_REFUSED);
    ck_assert_msg(strstr(text, "make this node's key with `hvdctl key new --node`") != NULL, "%s",
                  text);
    write_file("node.key", "secret " C "\n", 0640);
    ck_assert_int_eq(gate_keys_read_node(path, &keys, text, sizeof(text)), HVI_ERR_REFUSED);
    ck_assert_msg(strstr(text, "others may read it") != NULL, "%s", text);
    write_file("node.key", "secret " C "\n", 0600);
    snprintf(allow, sizeof(allow), "%s/allow", path);
    ck_assert_int_eq(chmod(allow, 0775), 0);
    ck_assert_int_eq(gate_keys_read_node(path, &keys, text, sizeof(text)), HVI_ERR_REFUSED);
    ck_assert_msg(strstr(text, "others may write it") != NULL, "%s", text);
    remove_folder();
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
    tcase_add_test(tcase, a_folder_has_a_secret_and_the_keys_of_nodes_by_name);
    tcase_add_test(tcase, what_cannot_be_believed_of_an_allow_list_is_left_out_with_a_sentence);
    tcase_add_test(tcase,
                   a_folder_that_others_may_write_is_refused_and_so_is_a_secret_that_they_may_read);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

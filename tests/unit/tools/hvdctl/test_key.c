/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl key`: two files or none; a node's folder and its list. */
#include "base/place.h"
#include "base/status.h"
#include "tests/unit/hvt_file.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvdctl/hvt_program.h"

#include <limits.h>
#include <pwd.h>
#include <sched.h>
#include <sys/stat.h>

static void write_file(const char *name, const char *text)
{
    hvt_write_file(hvt_path(name), 0644, text);
}

static void read_file(const char *name, char *text_p, size_t size)
{
    FILE *file = fopen(hvt_path(name), "re");
    ck_assert_ptr_nonnull(file);
    text_p[fread(text_p, 1, size - 1, file)] = '\0';
    fclose(file);
}

static bool is_there(const char *name)
{
    return access(hvt_path(name), F_OK) == 0;
}

START_TEST(two_files_that_only_their_owner_reads_know_each_other)
{
    char server[256], client[256];
    struct stat st;
    hvt_run("key new @/k");
    hvt_expect_end(0, "");
    ck_assert_ptr_eq(strstr(hvt_out, "made /tmp/hvt-ctl-"), hvt_out);
    ck_assert_ptr_nonnull(strstr(hvt_out, "/k.client for those that join\n"));
    read_file("k.server", server, sizeof server);
    read_file("k.client", client, sizeof client);
    const char *secret = strstr(server, "secret ");
    ck_assert_ptr_nonnull(secret);
    ck_assert_int_eq(strncmp(server, client, (size_t)(secret - server)), 0);
    ck_assert_str_ne(server, client);
    ck_assert_int_eq(stat(hvt_path("k.client"), &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert_ptr_null(strstr(hvt_out, secret + strlen("secret ")));
}
END_TEST

START_TEST(json_says_what_was_made)
{
    hvt_run("key new @/k --json");
    hvt_expect_end(0, "");
    cJSON *document = hvt_document();
    const char *done = cJSON_GetStringValue(cJSON_GetObjectItem(document, "done"));
    ck_assert_ptr_nonnull(strstr(done, "/k.server for the node that listens"));
    cJSON_Delete(document);
}
END_TEST

START_TEST(a_file_that_is_there_stays_as_it_is_and_no_other_is_made)
{
    static const char *const names[] = {"k.server", "k.client"};
    char text[64];
    write_file(names[_i], "mine\n");
    hvt_run("key new @/k --json");
    hvt_expect_end(1, "hvdctl: cannot make the key file /tmp/hvt-ctl-");
    ck_assert_ptr_nonnull(strstr(hvt_err, names[_i]));
    ck_assert_ptr_nonnull(strstr(hvt_err, ": File exists\n"));
    hvt_expect_error(HVI_ERR_INVALID);
    read_file(names[_i], text, sizeof text);
    ck_assert_str_eq(text, "mine\n");
    ck_assert(!is_there(names[1 - _i]));
}
END_TEST

START_TEST(a_folder_that_is_not_there_and_a_path_that_is_too_long_are_told)
{
    static char words[PATH_MAX + 64] = "key new /";
    hvt_run("key new @/none/k");
    hvt_expect_end(1, "none/k.server: No such file or directory\n");
    ck_assert_str_eq(hvt_out, "");
    memset(words + strlen(words), 'x', PATH_MAX);
    hvt_run(words);
    hvt_expect_end(1, "hvdctl: cannot make the key file /xxx");
}
END_TEST

/* ---- a node's folder ---- */

static void remove_folder(void)
{
    char command[PATH_MAX];
    snprintf(command, sizeof command, "rm -r %s", hvt_path("keys"));
    ck_assert_int_eq(system(command), 0);
}

static mode_t mode_of(const char *name)
{
    struct stat st;
    ck_assert_int_eq(stat(hvt_path(name), &st), 0);
    return st.st_mode & 0777;
}

START_TEST(a_node_has_a_secret_for_its_service_alone_and_a_key_for_everybody)
{
    char secret[256], allowed[256], shown[64];
    hvt_run("key new --node n1 --dir @/keys");
    hvt_expect_end(0, "");
    ck_assert_ptr_nonnull(strstr(hvt_out, "keys/allow/n1 for the other nodes: copy that file"));
    read_file("keys/node.key", secret, sizeof secret);
    read_file("keys/allow/n1", allowed, sizeof allowed);
    ck_assert_uint_eq(strlen(secret), strlen("secret ") + 41);
    ck_assert_uint_eq(strlen(allowed), 41);
    ck_assert_uint_eq(mode_of("keys/node.key"), 0600);
    ck_assert_uint_eq(mode_of("keys/allow/n1"), 0644);
    ck_assert_uint_eq(mode_of("keys/allow"), 0755);
    hvt_run("key show --dir @/keys");
    hvt_expect_end(0, "");
    ck_assert_str_eq(hvt_out, allowed);
    snprintf(shown, sizeof shown, "%.40s", allowed);
    hvt_run("key show --dir @/keys --json");
    cJSON *document = hvt_document();
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(document, "key")), shown);
    cJSON_Delete(document);
    hvt_run("key new --node n2 --dir @/keys"); /* it has one */
    hvt_expect_end(1, "keys/node.key: File exists\n");
    ck_assert(!is_there("keys/allow/n2"));
    remove_folder();
}
END_TEST

START_TEST(a_node_has_the_name_of_its_host)
{
    char name[HOST_NAME_MAX + 1], path[128];
    if (hvt_skip_if(geteuid() != 0 || unshare(CLONE_NEWUTS) != 0, "only root can name a host"))
        return;
    memset(name, 'x', HOST_NAME_MAX);
    name[HOST_NAME_MAX] = '\0';
    ck_assert_int_eq(sethostname(name, HOST_NAME_MAX), 0);
    hvt_run("key new --node --dir @/keys");
    snprintf(path, sizeof path, "'%s' is no name of a node: 1 to 63 letters", name);
    hvt_expect_end(2, path);
    name[HVI_NODE_NAME_MAX] = '\0';
    ck_assert_int_eq(sethostname(name, HVI_NODE_NAME_MAX), 0);
    hvt_run("key new --node --dir @/keys");
    hvt_expect_end(0, "");
    snprintf(path, sizeof path, "keys/allow/%s", name);
    ck_assert(is_there(path));
    remove_folder();
}
END_TEST

/* The folder of a machine's service; it is not made. */
START_TEST(root_makes_no_key_for_a_service_whose_user_is_not_there)
{
    if (hvt_skip_if(geteuid() != 0 || getpwnam("hvdd") != NULL, "only root, without that user"))
        return;
    hvt_run("key new --node n1");
    hvt_expect_end(1, "hvdctl: there is no user hvdd, to whom the key has to belong: run "
                      "systemd-sysusers first\n");
    ck_assert_int_ne(access("/etc/hvdd/keys/node.key", F_OK), 0);
}
END_TEST

START_TEST(a_key_is_allowed_once_and_another_one_of_the_same_name_is_not)
{
    static const char one[] = "aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd";
    static const char other[] = "eeeeeeeeeebbbbbbbbbbccccccccccdddddddddd";
    char words[128], text[256];
    hvt_run("key new --node n1 --dir @/keys");
    for (int i = 0; i < 2; i++) {
        snprintf(words, sizeof words, "key allow n2 %s --dir @/keys", one);
        hvt_run(words);
        hvt_expect_end(0, "");
        ck_assert_ptr_nonnull(strstr(hvt_out, "keys/allow/n2\n"));
    }
    snprintf(words, sizeof words, "key allow n2 %s --dir @/keys", other);
    hvt_run(words);
    hvt_expect_end(1, "n2: it is there with another key; remove it first");
    read_file("keys/allow/n2", text, sizeof text);
    ck_assert_int_eq(strncmp(text, one, 40), 0);
    remove_folder();
}
END_TEST

START_TEST(a_key_may_come_from_standard_input)
{
    static const char one[] = "aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd";
    char text[256], in_path[128];
    hvt_run("key new --node n1 --dir @/keys");
    hvt_run("key allow n2 - --dir @/keys"); /* which is empty */
    hvt_expect_end(2, "'' is no key: it has the 40 characters");
    ck_assert(!is_there("keys/allow/n2"));
    snprintf(text, sizeof text, "%s\r\nwhat follows does not count\n", one);
    write_file("in", text);
    snprintf(in_path, sizeof in_path, "%s", hvt_path("in"));
    hvt_in_path = in_path;
    hvt_run("key allow n2 - --dir @/keys");
    hvt_expect_end(0, "");
    read_file("keys/allow/n2", text, sizeof text);
    ck_assert_uint_eq(strlen(text), 41);
    ck_assert_int_eq(strncmp(text, one, 40), 0);
    remove_folder();
}
END_TEST

static const struct {
    const char *text, *why;
} bad_keys[] = {
    {"", "it has no key in its first line"},
    {"# a comment alone\n\n", "it has no key in its first line"},
    {"secret short\n", "it has no key in its first line"},
    {"public aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd\n", "it has no key in its first line"},
};

START_TEST(a_file_without_a_key_is_told_and_one_may_have_comments)
{
    char text[256];
    hvt_run("key new --node n1 --dir @/keys");
    read_file("keys/node.key", text, sizeof text);
    char *commented;
    ck_assert_int_gt(asprintf(&commented, "# of n1\n\n%s", text), 0);
    write_file("keys/node.key", commented);
    free(commented);
    hvt_run("key show --dir @/keys");
    hvt_expect_end(0, "");
    write_file("keys/node.key", bad_keys[_i].text);
    hvt_run("key show --dir @/keys");
    hvt_expect_end(1, bad_keys[_i].why);
    ck_assert_str_eq(hvt_out, "");
    remove_folder();
}
END_TEST

START_TEST(a_folder_that_cannot_be_made_or_used_is_told)
{
    char words[PATH_MAX + 64] = "key show --dir /";
    write_file("file", "");
    hvt_run("key new --node n1 --dir @/none/keys");
    hvt_expect_end(1, "none/keys: No such file or directory");
    hvt_run("key new --node n1 --dir @/file");
    hvt_expect_end(1, "file/allow: Not a directory");
    hvt_run("key allow n1 aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd --dir @/none");
    hvt_expect_end(1, "none/allow/n1: No such file or directory");
    memset(words + strlen(words), 'x', PATH_MAX);
    hvt_run(words);
    hvt_expect_end(2, "--dir takes the path of a folder");
}
END_TEST

START_TEST(a_node_whose_name_has_another_key_gets_none)
{
    ck_assert_int_eq(mkdir(hvt_path("keys"), 0755), 0);
    ck_assert_int_eq(mkdir(hvt_path("keys/allow"), 0755), 0);
    write_file("keys/allow/n1", "aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd\n");
    hvt_run("key new --node n1 --dir @/keys");
    hvt_expect_end(1, "n1: it is there with another key; remove it first");
    ck_assert(!is_there("keys/node.key"));
    remove_folder();
}
END_TEST

START_TEST(without_a_node_key_show_says_how_to_make_one)
{
    hvt_run("key show --dir @/none --json");
    hvt_expect_end(1, "none/node.key: No such file or directory; hvdctl key new --node makes one");
    hvt_expect_error(HVI_ERR_NOT_FOUND);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdctl/key");
    TCase *tests = tcase_create("key");
    tcase_add_checked_fixture(tests, hvt_program_setup, hvt_program_teardown);
    tcase_add_test(tests, two_files_that_only_their_owner_reads_know_each_other);
    tcase_add_test(tests, a_node_has_a_secret_for_its_service_alone_and_a_key_for_everybody);
    tcase_add_test(tests, a_node_has_the_name_of_its_host);
    tcase_add_test(tests, root_makes_no_key_for_a_service_whose_user_is_not_there);
    tcase_add_test(tests, a_key_is_allowed_once_and_another_one_of_the_same_name_is_not);
    tcase_add_test(tests, a_key_may_come_from_standard_input);
    tcase_add_loop_test(tests, a_file_without_a_key_is_told_and_one_may_have_comments, 0,
                        sizeof bad_keys / sizeof bad_keys[0]);
    tcase_add_test(tests, a_folder_that_cannot_be_made_or_used_is_told);
    tcase_add_test(tests, a_node_whose_name_has_another_key_gets_none);
    tcase_add_test(tests, without_a_node_key_show_says_how_to_make_one);
    tcase_add_test(tests, json_says_what_was_made);
    tcase_add_loop_test(tests, a_file_that_is_there_stays_as_it_is_and_no_other_is_made, 0, 2);
    tcase_add_test(tests, a_folder_that_is_not_there_and_a_path_that_is_too_long_are_told);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * Key files of the mesh: pairs that fit, files that only their owner reads, and no half of a file. */
#include "tools/common/mesh_key.h"

#include "tests/unit/hvt_main.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <signal.h>
#include <zmq.h>

static char server[MESH_KEY_TEXT], client[MESH_KEY_TEXT];
static char root[64], path[96];
static const char *why;

static void setup(void)
{
    snprintf(root, sizeof root, "/tmp/hvt-mesh-key-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    snprintf(path, sizeof path, "%s/key", root);
}

static void teardown(void)
{
    unlink(path);
    ck_assert_int_eq(rmdir(root), 0); /* nothing else was left there */
}

static void read_words(const char *text, char server_p[41], char client_p[41], char secret_p[41])
{
    char end;
    ck_assert_int_eq(
        sscanf(text, "server %40s client %40s secret %40s %c", server_p, client_p, secret_p, &end),
        3);
    ck_assert_int_eq(text[strlen(text) - 1], '\n');
}

START_TEST(each_side_has_the_secret_of_its_own_public_key)
{
    char server_of[2][41], client_of[2][41], secret_of[2][41], public[41];
    ck_assert_int_eq(mesh_key_make(server, client, &why), 0);
    read_words(server, server_of[0], client_of[0], secret_of[0]);
    read_words(client, server_of[1], client_of[1], secret_of[1]);
    ck_assert_str_eq(server_of[0], server_of[1]);
    ck_assert_str_eq(client_of[0], client_of[1]);
    ck_assert_int_eq(zmq_curve_public(public, secret_of[0]), 0);
    ck_assert_str_eq(public, server_of[0]);
    ck_assert_int_eq(zmq_curve_public(public, secret_of[1]), 0);
    ck_assert_str_eq(public, client_of[0]);
}
END_TEST

START_TEST(keys_are_fresh_each_time)
{
    char server_again[MESH_KEY_TEXT], client_again[MESH_KEY_TEXT];
    ck_assert_int_eq(mesh_key_make(server, client, &why), 0);
    ck_assert_int_eq(mesh_key_make(server_again, client_again, &why), 0);
    ck_assert_str_ne(server, server_again);
    ck_assert_str_ne(client, client_again);
}
END_TEST

START_TEST(only_the_owner_reads_the_file)
{
    struct stat st;
    char found[MESH_KEY_TEXT] = "";
    umask(0);
    ck_assert_int_eq(mesh_key_make(server, client, &why), 0);
    ck_assert_int_eq(mesh_key_write(path, server), 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 07777, 0600);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq((int)read(fd, found, sizeof found - 1), (int)strlen(server));
    close(fd);
    ck_assert_str_eq(found, server);
}
END_TEST

START_TEST(even_a_strict_umask_leaves_the_owner_a_file_to_read)
{
    struct stat st;
    umask(0777);
    ck_assert_int_eq(mesh_key_write(path, "x"), 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 07777, 0600);
}
END_TEST

START_TEST(what_is_there_is_never_replaced)
{
    char other[128];
    struct stat st;
    ck_assert_int_eq(mesh_key_write(path, "first"), 0);
    ck_assert_int_eq(mesh_key_write(path, "second and longer"), -1);
    ck_assert_int_eq(errno, EEXIST);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq((int)st.st_size, 5);
    ck_assert_int_eq(unlink(path), 0);
    snprintf(other, sizeof other, "%s/elsewhere", root);
    ck_assert_int_eq(symlink(other, path), 0);
    ck_assert_int_eq(mesh_key_write(path, "x"), -1);
    ck_assert_int_eq(access(other, F_OK), -1);
}
END_TEST

START_TEST(half_a_file_is_taken_away)
{
    struct rlimit before, limit;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 4;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const int result = mesh_key_write(path, "longer");
    const int error = errno;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    ck_assert_int_eq(result, -1);
    ck_assert_int_eq(error, EFBIG);
    ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

START_TEST(a_nodes_public_key_follows_from_its_secret_one_and_is_no_option)
{
    char public[MESH_KEY_ROOM], secret[MESH_KEY_ROOM], again[MESH_KEY_ROOM];
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(mesh_key_pair(public, secret, &why), 0);
        ck_assert(isalnum((unsigned char)public[0]));
        ck_assert(mesh_key_is(public) && mesh_key_is(secret));
        ck_assert_int_eq(mesh_key_public(secret, again), 0);
        ck_assert_str_eq(public, again);
    }
    ck_assert_int_eq(mesh_key_public("too short", again), -1);
}
END_TEST

START_TEST(forty_letters_of_the_alphabet_are_a_key)
{
    ck_assert(mesh_key_is("aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd"));
    ck_assert(!mesh_key_is("aaaaaaaaaabbbbbbbbbbccccccccccddddddddd"));
    ck_assert(!mesh_key_is("aaaaaaaaaabbbbbbbbbbccccccccccddddddddddd"));
    ck_assert(!mesh_key_is("aaaaaaaaaabbbbbbbbbbccccccccccddddddddd "));
    ck_assert(!mesh_key_is(""));
}
END_TEST

START_TEST(a_folder_that_is_not_there_is_an_error)
{
    char missing[128];
    snprintf(missing, sizeof missing, "%s/none/key", root);
    ck_assert_int_eq(mesh_key_write(missing, "x"), -1);
    ck_assert_int_eq(errno, ENOENT);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/common/mesh_key");
    TCase *tests = tcase_create("mesh_key");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, each_side_has_the_secret_of_its_own_public_key);
    tcase_add_test(tests, keys_are_fresh_each_time);
    tcase_add_test(tests, only_the_owner_reads_the_file);
    tcase_add_test(tests, even_a_strict_umask_leaves_the_owner_a_file_to_read);
    tcase_add_test(tests, what_is_there_is_never_replaced);
    tcase_add_test(tests, half_a_file_is_taken_away);
    tcase_add_test(tests, a_folder_that_is_not_there_is_an_error);
    tcase_add_test(tests, a_nodes_public_key_follows_from_its_secret_one_and_is_no_option);
    tcase_add_test(tests, forty_letters_of_the_alphabet_are_a_key);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}

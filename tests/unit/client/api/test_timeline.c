/* SPDX-License-Identifier: Apache-2.0
 * The file of a timeline, which this process opens and the engine writes; and what starts one at hvd_open. */
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/hvt-client-timeline-XXXXXX", path[64];
static struct hvt_fake *fake;
static struct hvd_session *session;

static void set_up(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/timeline.json", folder);
    fake = NULL;
    session = NULL;
}

static void tear_down(void)
{
    hvd_close(session);
    if (fake)
        hvt_fake_stop(fake);
    unlink(path);
    rmdir(folder);
}

static void open_session(void)
{
    fake = hvt_fake_start(&(struct hvt_fake_script){0});
    session = hvt_fake_open(fake);
}

static struct hvt_fake_timeline asked(void)
{
    return hvt_fake_timeline(hvt_fake_session(fake, 0));
}

static void expect(int rc, int status, const char *words)
{
    ck_assert_msg(rc == status, "%s: %s", hvd_status_name(rc), hvd_last_error());
    ck_assert_msg(strstr(hvd_last_error(), words) != NULL, "'%s' is not in '%s'", words,
                  hvd_last_error());
}

static void write_file(const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (int)strlen(text));
    close(fd);
}

static void expect_file(const char *text)
{
    char bytes[64] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(read(fd, bytes, sizeof bytes - 1), (int)strlen(text));
    ck_assert_str_eq(bytes, text);
    close(fd);
}

/* ---- by a call ---- */

START_TEST(the_engine_gets_the_file_open_and_is_told_when_it_is_over)
{
    open_session();
    ck_assert_int_eq(hvd_timeline_start(session, path, _i), HVD_OK);
    struct hvt_fake_timeline timeline = asked();
    ck_assert_str_eq(timeline.path, path);
    ck_assert_int_eq(timeline.mark_cycles, _i);
    ck_assert_int_eq(write(timeline.fd, "[]", 2), 2);
    expect_file("[]");
    ck_assert_uint_eq(timeline.stops, 0);
    ck_assert_int_eq(hvd_timeline_stop(session), HVD_OK);
    ck_assert_uint_eq(asked().stops, 1);
}
END_TEST

START_TEST(a_start_that_is_refused_leaves_the_file_as_it_was)
{
    const struct hvt_fake_script script = {
        .timeline_status = HVD_ERR_EXISTS,
        .timeline_text = "job 'fake' writes a timeline already, to '/x': stop it first"};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    write_file("an older one");
    expect(hvd_timeline_start(session, path, 0), HVD_ERR_EXISTS, script.timeline_text);
    expect_file("an older one");
}
END_TEST

START_TEST(a_file_that_cannot_be_opened_is_refused_with_its_name)
{
    char words[128];
    open_session();
    expect(hvd_timeline_start(session, NULL, 0), HVD_ERR_INVALID, "path is NULL");
    expect(hvd_timeline_start(session, "", 0), HVD_ERR_INVALID, "path is empty");
    expect(hvd_timeline_start(session, "/tmp/hvt-there-is-nothing/x", 0), HVD_ERR_INVALID,
           "cannot open '/tmp/hvt-there-is-nothing/x': No such file or directory");
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* that nobody reads: it would block */
    snprintf(words, sizeof words, "cannot open '%s'", path);
    expect(hvd_timeline_start(session, path, 0), HVD_ERR_INVALID, words);
    expect(hvd_timeline_start(NULL, path, 0), HVD_ERR_INVALID, "NULL");
    expect(hvd_timeline_stop(NULL), HVD_ERR_INVALID, "NULL");
    ck_assert_uint_eq(asked().starts, 0);
}
END_TEST

START_TEST(a_name_that_is_no_text_is_not_shown)
{
    open_session();
    path[strlen(path) - 1] = '\xe9';
    ck_assert_int_eq(hvd_timeline_start(session, path, 0), HVD_OK);
    ck_assert_str_eq(asked().path, "");
    ck_assert_int_eq(access(path, W_OK), 0);
}
END_TEST

/* ---- by the environment ---- */

static void log_it(void *user, enum hvd_log_level level, const char *text)
{
    if (level == HVD_LOG_WARN)
        snprintf(user, 512, "%s", text);
}

/* As rank `rank` of 2. */
static void open_as(int rank, char warning_p[512])
{
    struct hvd_options options;
    warning_p[0] = '\0';
    fake = hvt_fake_start(&(struct hvt_fake_script){0});
    hvd_options_init(&options);
    options.address = hvt_fake_dir(fake);
    options.rank = rank;
    options.size = 2;
    options.job = "fake";
    options.log = log_it;
    options.log_user = warning_p;
    ck_assert_int_eq(hvd_open(&options, &session), HVD_OK);
}

static const struct {
    int rank;
    const char *own, *horovods, *mark;
    bool starts, marks;
} environments[] = {
    {0, path, NULL, NULL, true, false},
    {0, NULL, path, "1", true, true},
    {0, path, "/tmp/hvt-there-is-nothing", "0", true, false},
    {1, path, NULL, NULL, false, false},
    {0, "DYNAMIC", NULL, NULL, false, false},
    {0, "", path, NULL, false, false},
    {0, NULL, NULL, "1", false, false},
};

START_TEST(rank_0_starts_the_one_that_its_environment_names)
{
    char warning[512];
    if (environments[_i].own)
        setenv("HVD_TIMELINE", environments[_i].own, 1);
    if (environments[_i].horovods)
        setenv("HOROVOD_TIMELINE", environments[_i].horovods, 1);
    if (environments[_i].mark)
        setenv("HOROVOD_TIMELINE_MARK_CYCLES", environments[_i].mark, 1);
    open_as(environments[_i].rank, warning);
    ck_assert_uint_eq(asked().starts, environments[_i].starts);
    ck_assert_int_eq(asked().mark_cycles, environments[_i].marks);
    ck_assert_str_eq(asked().path, environments[_i].starts ? path : "");
    ck_assert_str_eq(warning, "");
}
END_TEST

START_TEST(a_session_opens_without_the_timeline_that_cannot_be_and_says_so)
{
    char warning[512];
    setenv("HVD_TIMELINE", "/tmp/hvt-there-is-nothing/x", 1);
    open_as(0, warning);
    ck_assert_ptr_nonnull(strstr(warning, "no timeline will be written: "));
    ck_assert_ptr_nonnull(strstr(warning, "cannot open '/tmp/hvt-there-is-nothing/x'"));
    ck_assert_int_eq(hvd_session_status(session), HVD_OK);
    ck_assert_uint_eq(asked().starts, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client timeline");
    TCase *tcase = tcase_create("timeline");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_loop_test(tcase, the_engine_gets_the_file_open_and_is_told_when_it_is_over, 0, 2);
    tcase_add_test(tcase, a_start_that_is_refused_leaves_the_file_as_it_was);
    tcase_add_test(tcase, a_file_that_cannot_be_opened_is_refused_with_its_name);
    tcase_add_test(tcase, a_name_that_is_no_text_is_not_shown);
    tcase_add_loop_test(tcase, rank_0_starts_the_one_that_its_environment_names, 0,
                        (int)(sizeof environments / sizeof environments[0]));
    tcase_add_test(tcase, a_session_opens_without_the_timeline_that_cannot_be_and_says_so);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

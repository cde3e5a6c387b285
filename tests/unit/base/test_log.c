/* SPDX-License-Identifier: Apache-2.0
 * Log lines: their form, their sinks, and sinks that fail. Each test runs in its own process (check
 * forks), so it may replace stderr. */
#include "base/log.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int saved_stderr;

/* Stderr becomes an unnamed file; returns its descriptor. */
static int capture(void)
{
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    int fd = fcntl(fileno(file), F_DUPFD_CLOEXEC, 3);
    fclose(file);
    ck_assert_int_ge(fd, 0);
    fcntl(fd, F_SETFL, O_APPEND);
    saved_stderr = dup(STDERR_FILENO);
    ck_assert_int_eq(dup2(fd, STDERR_FILENO), STDERR_FILENO);
    hvi_log_init("prog", HVI_LOG_INFO);
    return fd;
}

/* What was logged since, up to `size`; stderr is the old one again. */
static size_t captured(int fd, char *text, size_t size)
{
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    ssize_t bytes = pread(fd, text, size - 1, 0);
    ck_assert_int_ge(bytes, 0);
    text[bytes] = '\0';
    close(fd);
    return (size_t)bytes;
}

static void replace_stderr(int fd)
{
    saved_stderr = dup(STDERR_FILENO);
    ck_assert_int_eq(dup2(fd, STDERR_FILENO), STDERR_FILENO);
    close(fd);
    hvi_log_init("prog", HVI_LOG_INFO);
}

/* What follows "TIME prog[PID] ". */
static const char *after_prefix(const char *line)
{
    int year, month, day, hour, minute, second, ms, pid, used = 0;
    int found = sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ prog[%d] %n", &year, &month, &day, &hour,
                       &minute, &second, &ms, &pid, &used);
    ck_assert_msg(found == 8 && used > 0, "prefix of: %s", line);
    ck_assert_int_ge(year, 2024);
    ck_assert_int_eq(pid, getpid());
    return line + used;
}

START_TEST(a_line_has_the_promised_form)
{
    char text[8192];
    int fd = capture();
    HVI_LOG(HVI_LOG_WARN, "stall", "op-stalled", "waiting for ranks 2,3", "job=%s age_ms=%d", "a",
            60001);
    HVI_LOG(HVI_LOG_ERROR, "job", "gone", "no pairs", "");
    captured(fd, text, sizeof(text));
    char *second = strchr(text, '\n');
    ck_assert_ptr_nonnull(second);
    *second++ = '\0';
    ck_assert_str_eq(after_prefix(text),
                     "warning stall op-stalled: waiting for ranks 2,3 job=a age_ms=60001");
    ck_assert_str_eq(after_prefix(second), "error job gone: no pairs\n");
    ck_assert_uint_eq(hvi_log_lost(), 0);
}
END_TEST

START_TEST(arguments_cannot_forge_a_line)
{
    char text[8192];
    int fd = capture();
    HVI_LOG(HVI_LOG_WARN, "t", "i", "first\nsecond", "name=%s",
            "a\r\n\x1b[2J\x7f\\\t\xc2\x9b\xff\xe2\x82z\xe2\x80\xae ä€😀");
    captured(fd, text, sizeof(text));
    ck_assert_str_eq(after_prefix(text),
                     "warning t i: first\\nsecond "
                     "name=a\\x0d\\n\\x1b[2J\\x7f\\\\\\x09\\xc2\\x9b\\xff\\xe2\\x82z"
                     "\\xe2\\x80\\xae ä€😀\n");
}
END_TEST

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        count++;
    return count;
}

START_TEST(lines_that_a_user_causes_have_a_measure)
{
    static char text[100000];
    int fd = capture();
    uint64_t begin_ns = hvi_clock_ns();
    for (int i = 0; i < 500; i++)
        HVI_LOG_OF(7, HVI_LOG_WARN, "t", "first", "too many", "");
    for (int i = 0; i < 10; i++) {
        HVI_LOG_OF(7, HVI_LOG_WARN, "t", "second", "of another id", "");
        HVI_LOG_OF(8, HVI_LOG_WARN, "t", "first", "of another user", "");
    }
    uint64_t took_ns = hvi_clock_ns() - begin_ns;
    captured(fd, text, sizeof(text));
    ck_assert_int_ge(count_of(text, "too many"), 100);
    ck_assert_uint_le((uint64_t)count_of(text, "too many"), 100 + took_ns / (100 * HVI_NS_MS));
    ck_assert_int_eq(count_of(text, "of another"), 20);
    ck_assert_int_eq(count_of(text, "of another id suppressed"), 0);

    int written = count_of(text, "too many"), again = 0;
    char wanted[64];
    fd = capture();
    usleep(150000);
    HVI_LOG_OF(7, HVI_LOG_WARN, "t", "first", "too many", "");
    HVI_LOG_OF(8, HVI_LOG_WARN, "t", "first", "of another user", "");
    captured(fd, text, sizeof(text));
    again = count_of(text, "suppressed=");
    snprintf(wanted, sizeof(wanted), "too many suppressed=%d\n", 500 - written);
    ck_assert_msg(written > 100 || strstr(text, wanted) != NULL, "%s", text);
    ck_assert_int_eq(again, 1);
}
END_TEST

START_TEST(many_users_together_have_no_more_lines_than_there_are_measures)
{
    static char text[2000000];
    int fd = capture();
    uint64_t begin_ns = hvi_clock_ns();

    for (uint32_t uid = 0; uid < 500; uid++) {
        for (int i = 0; i < 150; i++)
            HVI_LOG_OF(uid, HVI_LOG_WARN, "t", "x", "much", "");
    }
    uint64_t took_ns = hvi_clock_ns() - begin_ns;
    captured(fd, text, sizeof(text));
    ck_assert_uint_le((uint64_t)count_of(text, "much"), 64 * (101 + took_ns / (100 * HVI_NS_MS)));
}
END_TEST

START_TEST(
    a_process_that_serves_one_user_has_that_users_measure_for_all_lines_but_those_of_debugging)
{
    static char text[200000];
    int fd = capture();

    hvi_log_set_level(HVI_LOG_DEBUG);
    hvi_log_set_user(7);
    uint64_t begin_ns = hvi_clock_ns();
    for (int i = 0; i < 300; i++) {
        HVI_LOG(HVI_LOG_WARN, "t", "first", "too many", "");
        HVI_LOG(HVI_LOG_DEBUG, "t", "second", "as wished", "");
    }
    uint64_t took_ns = hvi_clock_ns() - begin_ns;
    captured(fd, text, sizeof(text));
    ck_assert_int_ge(count_of(text, "too many"), 100);
    ck_assert_uint_le((uint64_t)count_of(text, "too many"), 100 + took_ns / (100 * HVI_NS_MS));
    ck_assert_int_eq(count_of(text, "as wished"), 300);
}
END_TEST

START_TEST(a_long_line_is_cut_and_stays_a_line)
{
    static char name[9000];
    char text[20000];
    memset(name, 'x', sizeof(name) - 1);
    int fd = capture();
    HVI_LOG(HVI_LOG_WARN, "t", "i", "long", "name=%s", name);
    HVI_LOG(HVI_LOG_WARN, "t", "i", name, "");
    memset(name, '\n', sizeof(name) - 1);
    HVI_LOG(HVI_LOG_WARN, "t", "i", "long", "name=%s", name);
    size_t bytes = captured(fd, text, sizeof(text));
    int lines = 0;
    for (char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1, lines++)
        ck_assert_int_le(end + 1 - at, 4096);
    ck_assert_int_eq(lines, 3);
    ck_assert_uint_gt(bytes, 3 * 4000);
    ck_assert_int_eq(text[bytes - 1], '\n');
}
END_TEST

START_TEST(a_cut_does_not_split_a_character)
{
    static char name[9000];
    char text[8192];
    for (size_t shift = 0; shift < 3; shift++) {
        memset(name, 'x', shift);
        for (size_t i = 0; i < 2900; i++)
            memcpy(name + shift + 3 * i, "€", 4);
        int fd = capture();
        HVI_LOG(HVI_LOG_WARN, "t", "i", name, "");
        size_t bytes = captured(fd, text, sizeof(text));
        ck_assert_uint_gt(bytes, 4000);
        ck_assert(hvi_utf8_valid(text, bytes));
    }
}
END_TEST

static int calls;
static int count_call(void)
{
    return ++calls;
}

START_TEST(a_level_below_costs_nothing_and_says_nothing)
{
    char text[8192];
    int fd = capture();
    HVI_LOG(HVI_LOG_DEBUG, "t", "i", "quiet", "n=%d", count_call());
    ck_assert_int_eq(calls, 0);
    hvi_log_set_level(HVI_LOG_DEBUG);
    ck_assert_int_eq(hvi_log_level(), HVI_LOG_DEBUG);
    HVI_LOG(HVI_LOG_DEBUG, "t", "i", "loud", "n=%d", count_call());
    HVI_LOG(HVI_LOG_TRACE, "t", "i", "quiet", "n=%d", count_call());
    captured(fd, text, sizeof(text));
    ck_assert_str_eq(after_prefix(text), "debug t i: loud n=1\n");
    ck_assert_int_eq(calls, 1);
}
END_TEST

START_TEST(levels_parse_as_people_write_them)
{
    ck_assert_int_eq(hvi_log_level_parse("error"), HVI_LOG_ERROR);
    ck_assert_int_eq(hvi_log_level_parse("FATAL"), HVI_LOG_ERROR);
    ck_assert_int_eq(hvi_log_level_parse("Warning"), HVI_LOG_WARN);
    ck_assert_int_eq(hvi_log_level_parse("warn"), HVI_LOG_WARN);
    ck_assert_int_eq(hvi_log_level_parse("INFO"), HVI_LOG_INFO);
    ck_assert_int_eq(hvi_log_level_parse("debug"), HVI_LOG_DEBUG);
    ck_assert_int_eq(hvi_log_level_parse("trace"), HVI_LOG_TRACE);
    const char *const strangers[] = {"", " info", "infos", "0", "warnin", "verbose"};
    for (size_t i = 0; i < sizeof(strangers) / sizeof(strangers[0]); i++)
        ck_assert_int_eq(hvi_log_level_parse(strangers[i]), -1);
    for (int level = HVI_LOG_ERROR; level <= HVI_LOG_TRACE; level++)
        ck_assert_int_eq(hvi_log_level_parse(hvi_log_level_text((enum hvi_log_level)level)), level);
}
END_TEST

START_TEST(a_full_disk_costs_the_line_and_is_counted)
{
    replace_stderr(open("/dev/full", O_WRONLY | O_CLOEXEC));
    errno = E2BIG;
    for (int i = 0; i < 3; i++)
        HVI_LOG(HVI_LOG_ERROR, "t", "i", "lost", "");
    ck_assert_int_eq(errno, E2BIG);
    ck_assert_uint_eq(hvi_log_lost(), 3);
}
END_TEST

START_TEST(a_closed_stderr_costs_the_line_and_is_counted)
{
    close(STDERR_FILENO);
    hvi_log_init("prog", HVI_LOG_INFO);
    HVI_LOG(HVI_LOG_ERROR, "t", "i", "lost", "");
    ck_assert_uint_eq(hvi_log_lost(), 1);
}
END_TEST

START_TEST(a_closed_pipe_does_not_kill)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    signal(SIGPIPE, SIG_DFL);
    close(ends[0]);
    replace_stderr(ends[1]);
    HVI_LOG(HVI_LOG_ERROR, "t", "i", "lost", "");
    ck_assert_uint_eq(hvi_log_lost(), 1);
    sigset_t blocked;
    ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, NULL, &blocked), 0);
    ck_assert_int_eq(sigismember(&blocked, SIGPIPE), 0);
}
END_TEST

START_TEST(a_pipe_that_nobody_reads_does_not_stop_the_caller)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    replace_stderr(ends[1]);
    uint64_t deadline_ns = hvi_deadline_after(10 * (int64_t)HVI_NS_SEC);
    for (int i = 0; i < 3000 && hvi_log_lost() < 3; i++)
        HVI_LOG(HVI_LOG_ERROR, "t", "i", "a line of some length, so that the pipe gets full", "");
    ck_assert_uint_eq(hvi_log_lost(), 3);
    ck_assert(!hvi_deadline_passed(deadline_ns));
    close(ends[0]);
}
END_TEST

static void *log_many(void *letter)
{
    char name[200];
    memset(name, *(char *)letter, sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    for (int i = 0; i < 300; i++)
        HVI_LOG(HVI_LOG_WARN, "t", "i", "many", "name=%s", name);
    return NULL;
}

START_TEST(lines_of_threads_do_not_mix)
{
    static char text[1 << 20];
    char letters[4] = {'a', 'b', 'c', 'd'};
    pthread_t threads[4];
    int fd = capture();
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, log_many, &letters[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    captured(fd, text, sizeof(text));
    int lines = 0;
    for (char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1, lines++) {
        *end = '\0';
        const char *name = strstr(after_prefix(at), "name=");
        ck_assert_ptr_nonnull(name);
        ck_assert_uint_eq(strlen(name + 5), 199);
        ck_assert_uint_eq(strspn(name + 5, (char[]){name[5], '\0'}), 199);
    }
    ck_assert_int_eq(lines, 1200);
}
END_TEST

/* A journal of our own: a socket where the journal's would be, in a mount namespace of this test.
 */
static int fake_journal(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", "/run", "tmpfs", 0, NULL) != 0)
        return -1;
    mkdir("/run/systemd", 0755);
    mkdir("/run/systemd/journal", 0755);
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/run/systemd/journal/socket"};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void set_journal_stream(int fd, unsigned long skew)
{
    struct stat info;
    char stream[64];
    ck_assert_int_eq(fstat(fd, &info), 0);
    snprintf(stream, sizeof(stream), "%lu:%lu", (unsigned long)info.st_dev,
             (unsigned long)info.st_ino + skew);
    setenv("JOURNAL_STREAM", stream, 1);
}

START_TEST(the_journal_gets_fields_when_stderr_leads_to_it)
{
    int journal = fake_journal();
    if (hvt_skip_if(journal < 0, "nothing can be mounted here"))
        return;
    char text[8192];
    int fd = capture();
    set_journal_stream(fd, 0);
    hvi_log_init("prog", HVI_LOG_INFO);
    HVI_LOG(HVI_LOG_WARN, "stall", "op-stalled", "waiting", "job=%s", "a\nb");
    ck_assert_uint_eq(captured(fd, text, sizeof(text)), 0);
    ssize_t bytes = recv(journal, text, sizeof(text) - 1, 0);
    ck_assert_int_gt(bytes, 0);
    text[bytes] = '\0';
    ck_assert_ptr_nonnull(strstr(text, "MESSAGE=stall op-stalled: waiting job=a\\nb\n"));
    ck_assert_ptr_nonnull(strstr(text, "PRIORITY=4\n"));
    ck_assert_ptr_nonnull(strstr(text, "SYSLOG_IDENTIFIER=prog\n"));
    ck_assert_ptr_nonnull(strstr(text, "HVD_TOPIC=stall\n"));
    ck_assert_ptr_nonnull(strstr(text, "HVD_ID=op-stalled\n"));
    close(journal);
}
END_TEST

START_TEST(a_journal_that_stands_still_costs_lines_and_no_time)
{
    int journal = fake_journal();
    if (hvt_skip_if(journal < 0, "nothing can be mounted here"))
        return;
    char text[8192];
    int fd = capture();
    set_journal_stream(fd, 0);
    hvi_log_init("prog", HVI_LOG_INFO);
    uint64_t begin_ns = hvi_clock_ns();
    for (int i = 0; i < 2000; i++)
        HVI_LOG(HVI_LOG_WARN, "t", "i", "nobody reads this", "");
    ck_assert_uint_lt(hvi_clock_ns() - begin_ns, hvt_patience(500 * HVI_NS_MS));
    ck_assert_uint_eq(captured(fd, text, sizeof(text)), 0);
    uint64_t lost = hvi_log_lost(), read = 0;
    while (recv(journal, text, sizeof(text), 0) > 0)
        read++;
    ck_assert_uint_gt(lost, 0);
    ck_assert_uint_eq(lost + read, 2000);
    HVI_LOG(HVI_LOG_WARN, "t", "i", "it reads again", "");
    ck_assert_int_gt(recv(journal, text, sizeof(text), 0), 0);
    close(journal);
}
END_TEST

START_TEST(a_redirected_stderr_is_not_the_journal)
{
    char text[8192];
    int fd = capture();
    set_journal_stream(fd, 1);
    hvi_log_init("prog", HVI_LOG_INFO);
    HVI_LOG(HVI_LOG_WARN, "t", "i", "here", "");
    captured(fd, text, sizeof(text));
    ck_assert_str_eq(after_prefix(text), "warning t i: here\n");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/log");
    TCase *tcase = tcase_create("lines");
    tcase_add_test(tcase, a_line_has_the_promised_form);
    tcase_add_test(tcase, arguments_cannot_forge_a_line);
    tcase_add_test(tcase, lines_that_a_user_causes_have_a_measure);
    tcase_add_test(tcase, many_users_together_have_no_more_lines_than_there_are_measures);
    tcase_add_test(
        tcase,
        a_process_that_serves_one_user_has_that_users_measure_for_all_lines_but_those_of_debugging);
    tcase_add_test(tcase, a_long_line_is_cut_and_stays_a_line);
    tcase_add_test(tcase, a_cut_does_not_split_a_character);
    tcase_add_test(tcase, a_level_below_costs_nothing_and_says_nothing);
    tcase_add_test(tcase, levels_parse_as_people_write_them);
    tcase_add_test(tcase, lines_of_threads_do_not_mix);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("sinks");
    tcase_add_test(tcase, a_full_disk_costs_the_line_and_is_counted);
    tcase_add_test(tcase, a_closed_stderr_costs_the_line_and_is_counted);
    tcase_add_test(tcase, a_closed_pipe_does_not_kill);
    tcase_add_test(tcase, a_pipe_that_nobody_reads_does_not_stop_the_caller);
    tcase_add_test(tcase, the_journal_gets_fields_when_stderr_leads_to_it);
    tcase_add_test(tcase, a_journal_that_stands_still_costs_lines_and_no_time);
    tcase_add_test(tcase, a_redirected_stderr_is_not_the_journal);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

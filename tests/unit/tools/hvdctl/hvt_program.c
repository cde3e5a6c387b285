/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/tools/hvdctl/hvt_program.h"

#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <spawn.h>

#define WORDS_MAX 24

char hvt_root[64];
int hvt_code;
char hvt_out[32768], hvt_err[8192];
const char *hvt_out_path, *hvt_in_path;

void hvt_program_setup(void)
{
    snprintf(hvt_root, sizeof hvt_root, "/tmp/hvt-ctl-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(hvt_root));
    setenv("HVD_ADDRESS", hvt_root, 1);
    setenv("XDG_RUNTIME_DIR", hvt_root, 1);
    setenv("LC_ALL", "C", 1);
    hvt_out_path = hvt_in_path = NULL;
    hvt_forgive_libzmq(hvt_root);
}

void hvt_program_teardown(void)
{
    DIR *stream = opendir(hvt_root);
    const struct dirent *entry;
    ck_assert_ptr_nonnull(stream);
    while ((entry = readdir(stream)) != NULL)
        unlinkat(dirfd(stream), entry->d_name, 0);
    closedir(stream);
    ck_assert_int_eq(rmdir(hvt_root), 0);
}

const char *hvt_path(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", hvt_root, name);
    return path;
}

/* ---- hvdctl ---- */

/* In the place of each @ the folder. */
static void fill_in(const char *words, char *line_p, size_t size)
{
    size_t used = 0;
    for (; *words != '\0'; words++) {
        const int length = *words == '@' ? snprintf(line_p + used, size - used, "%s", hvt_root)
                                         : snprintf(line_p + used, size - used, "%c", *words);
        used += (size_t)length;
        ck_assert_uint_lt(used, size);
    }
}

static pid_t spawn(char **argv, const char *out_path, const char *err_path)
{
    static const int create = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_t actions;
    char program[512];
    pid_t pid = 0;
    ck_assert_ptr_nonnull(getenv("HVD_BUILD_DIR"));
    snprintf(program, sizeof program, "%s/bin/hvdctl", getenv("HVD_BUILD_DIR"));
    ck_assert_int_eq(posix_spawn_file_actions_init(&actions), 0);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO,
                                     hvt_in_path != NULL ? hvt_in_path : "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out_path, create, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err_path, create, 0600);
    ck_assert_int_eq(posix_spawn(&pid, program, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

void hvt_read(const char *path, char *text_p, size_t size)
{
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    const size_t length = fread(text_p, 1, size, file);
    fclose(file);
    ck_assert_uint_lt(length, size);
    text_p[length] = '\0';
}

static pid_t start(const char *words, const char *out_path, const char *err_path)
{
    static char line[8192];
    char *argv[WORDS_MAX + 1] = {(char[]){"hvdctl"}};
    char *rest;
    int argc = 1;
    fill_in(words, line, sizeof line);
    for (char *word = strtok_r(line, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        ck_assert_int_lt(argc, WORDS_MAX);
        argv[argc++] = word;
    }
    return spawn(argv, out_path, err_path);
}

pid_t hvt_start(const char *words, const char *name)
{
    char out_path[128], err_path[128];
    snprintf(out_path, sizeof out_path, "%s/%s.out", hvt_root, name);
    snprintf(err_path, sizeof err_path, "%s/%s.err", hvt_root, name);
    return start(words, out_path, err_path);
}

void hvt_run(const char *words)
{
    char err_path[128];
    snprintf(err_path, sizeof err_path, "%s/err", hvt_root);
    const int status = hvt_wait_child(
        start(words, hvt_out_path != NULL ? hvt_out_path : hvt_path("out"), err_path));
    hvt_out[0] = '\0';
    if (hvt_out_path == NULL)
        hvt_read(hvt_path("out"), hvt_out, sizeof hvt_out);
    hvt_read(hvt_path("err"), hvt_err, sizeof hvt_err);
    ck_assert_msg(WIFEXITED(status), "hvdctl %s: wait status %d: %s", words, status, hvt_err);
    hvt_code = WEXITSTATUS(status);
}

void hvt_expect_end(int code, const char *complaint)
{
    ck_assert_msg(hvt_code == code, "exit status %d: %s%s", hvt_code, hvt_out, hvt_err);
    if (complaint[0] == '\0')
        ck_assert_str_eq(hvt_err, "");
    ck_assert_msg(strstr(hvt_err, complaint) != NULL, "'%s' is not in '%s'", complaint, hvt_err);
}

cJSON *hvt_document(void)
{
    const char *end = NULL;
    cJSON *document = cJSON_ParseWithOpts(hvt_out, &end, 0);
    ck_assert_msg(document != NULL, "no JSON: %s", hvt_out);
    ck_assert_str_eq(end, "\n");
    return document;
}

void hvt_expect_error(int status)
{
    cJSON *document = hvt_document();
    const cJSON *error = cJSON_GetObjectItem(document, "error");
    ck_assert_msg((int)cJSON_GetNumberValue(cJSON_GetObjectItem(error, "status")) == status, "%s",
                  hvt_out);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(error, "name")),
                     hvi_status_name(status));
    ck_assert_ptr_nonnull(
        strstr(hvt_err, cJSON_GetStringValue(cJSON_GetObjectItem(error, "text"))));
    cJSON_Delete(document);
}

/* ---- what doctor has found ---- */

static const char *string(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItem(object, name));
}

cJSON *hvt_findings(void)
{
    cJSON *document = hvt_document();
    const cJSON *object;
    int problems = 0;
    cJSON_ArrayForEach(object, cJSON_GetObjectItem(document, "checks")) problems +=
        strcmp(string(object, "result"), "problem") == 0;
    ck_assert_int_eq((int)cJSON_GetNumberValue(cJSON_GetObjectItem(document, "problems")),
                     problems);
    hvt_expect_end(problems == 0 ? 0 : 1, "");
    return document;
}

const cJSON *hvt_finding(const cJSON *document, const char *check)
{
    const cJSON *object;
    cJSON_ArrayForEach(
        object, cJSON_GetObjectItem(document, "checks")) if (strcmp(string(object, "check"),
                                                                    check) == 0) return object;
    return NULL;
}

void hvt_expect_finding(const cJSON *document, const char *check, const char *result,
                        const char *value, const char *next)
{
    const cJSON *object = hvt_finding(document, check);
    ck_assert_msg(object != NULL, "no check %s", check);
    ck_assert_msg(strstr(string(object, "value"), value) != NULL, "%s", string(object, "value"));
    ck_assert_str_eq(string(object, "result"), result);
    if (next[0] == '\0')
        ck_assert_str_eq(string(object, "next"), "");
    ck_assert_msg(strstr(string(object, "next"), next) != NULL, "%s", string(object, "next"));
}

/* ---- with hvdd ---- */

static void run_words(const void *words)
{
    hvt_run(words);
}

void hvt_run_played(const struct hvt_line *lines, size_t count, const char *words)
{
    hvt_play(hvt_root, lines, count, run_words, words);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/ssh.h"

#include "base/clock.h"
#include "tools/common/text.h"
#include "tools/hvdrun/self.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SSH_FAILED      255 /* ssh's exit status when the connection or the login fails */
#define ROLE_ROOM       16
#define CONNECT_S_LEAST 1u
#define CONNECT_S_MOST  10u
#define CONNECTIONS                                                                                \
    4u /* one after the other within the start timeout: of a relay, by it, and from here */

static bool add(struct run_ssh *ssh, size_t *count, const char *word)
{
    if (*count >= RUN_SSH_WORDS_MAX)
        return false;
    ssh->argv[(*count)++] = (char *)(uintptr_t)word;
    return true;
}

/* 'a'\''b': one word for any shell. */
static bool quote(const char *word, char *out, size_t size)
{
    size_t used = 0;
    out[used++] = '\'';
    for (; *word != '\0'; word++) {
        const char *piece = *word == '\'' ? "'\\''" : (char[]){*word, '\0'};
        if (used + strlen(piece) + 2 > size)
            return false;
        memcpy(out + used, piece, strlen(piece));
        used += strlen(piece);
    }
    out[used++] = '\'';
    out[used] = '\0';
    return true;
}

/* The user's words, with blanks between them. */
static bool add_command(struct run_ssh *ssh, size_t *count, const char *command)
{
    char *rest;
    bool room = true;
    ssh->command = strdup(command);
    if (ssh->command == NULL)
        return false;
    for (char *word = strtok_r(ssh->command, " \t", &rest); word != NULL && room;
         word = strtok_r(NULL, " \t", &rest))
        room = add(ssh, count, word);
    return room && *count > 0;
}

static bool is_ssh(const char *program)
{
    const char *slash = strrchr(program, '/');
    return strcmp(slash != NULL ? slash + 1 : program, "ssh") == 0;
}

static bool add_options(struct run_ssh *ssh, size_t *count, const struct run_options *options)
{
    /* The user's configuration asks for terminals, forwardings and masters for sessions of people. A
     * connection that is there already may be the only way in without a question: ControlPath stays. */
    static const char *const ours[] = {"-T",
                                       "-o",
                                       "BatchMode=yes",
                                       "-o",
                                       "ControlMaster=no",
                                       "-o",
                                       "ClearAllForwardings=yes",
                                       "-o",
                                       "ServerAliveInterval=5",
                                       "-o",
                                       "ServerAliveCountMax=3",
                                       "-o"};
    bool room = true;
    if (is_ssh(ssh->argv[0])) {
        uint64_t seconds = options->start_timeout_ns / CONNECTIONS / HVI_NS_SEC;
        seconds = seconds < CONNECT_S_LEAST ? CONNECT_S_LEAST : seconds;
        seconds = seconds > CONNECT_S_MOST ? CONNECT_S_MOST : seconds;
        snprintf(ssh->own, sizeof ssh->own, "ConnectTimeout=%u", (unsigned)seconds);
        for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
            room = room && add(ssh, count, ours[i]);
        room = room && add(ssh, count, ssh->own);
    }
    if (options->ssh_port != NULL)
        room = room && add(ssh, count, "-p") && add(ssh, count, options->ssh_port);
    if (options->ssh_identity != NULL)
        room = room && add(ssh, count, "-i") && add(ssh, count, options->ssh_identity);
    return room;
}

static const char *command_of(const struct run_options *options)
{
    const char *named = options->ssh_command != NULL ? options->ssh_command : getenv("HVD_SSH");
    return named != NULL && named[strspn(named, " \t")] != '\0' ? named : "ssh";
}

int run_ssh_make(const struct run_options *options, const struct run_host *host,
                 enum run_ssh_role role, struct run_ssh *ssh_p, char *text_p, size_t text_size)
{
    size_t count = 0;
    memset(ssh_p, 0, sizeof *ssh_p);
    ssh_p->role = role == RUN_SSH_RELAY ? "--relay" : "--node";
    if (host->here || options->remote_hvdrun == NULL)
        run_self_path(ssh_p->hvdrun, sizeof ssh_p->hvdrun);
    else
        snprintf(ssh_p->hvdrun, sizeof ssh_p->hvdrun, "%s", options->remote_hvdrun);
    if (host->here || role == RUN_SSH_BESIDE) {
        ssh_p->argv[0] = ssh_p->hvdrun;
        ssh_p->argv[1] = (char *)(uintptr_t)ssh_p->role;
        return 0;
    }
    if (quote(ssh_p->hvdrun, ssh_p->remote, sizeof ssh_p->remote - ROLE_ROOM) &&
        add_command(ssh_p, &count, command_of(options)) && add_options(ssh_p, &count, options) &&
        add(ssh_p, &count, host->name) && add(ssh_p, &count, ssh_p->remote)) {
        snprintf(ssh_p->remote + strlen(ssh_p->remote), ROLE_ROOM, " %s", ssh_p->role);
        return 0;
    }
    snprintf(text_p, text_size, "the words for ssh are too many: %s", command_of(options));
    run_ssh_fini(ssh_p);
    return -1;
}

void run_ssh_fini(struct run_ssh *ssh)
{
    free(ssh->command);
    ssh->command = NULL;
}

/* ---- failures ---- */

static bool exited_with(struct hvi_fate fate, int code)
{
    return fate.kind == HVI_FATE_EXITED && fate.code == code;
}

bool run_ssh_was_dropped(struct hvi_fate fate, const char *words)
{
    static const char *const signs[] = {"kex_exchange_identification",
                                        "ssh_exchange_identification", "Connection reset by",
                                        "Connection closed by", "Exceeded MaxStartups"};
    if (!exited_with(fate, SSH_FAILED))
        return false;
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        if (strstr(words, signs[i]) != NULL)
            return true;
    return false;
}

/* The last line that says something; the others are warnings and banners as a rule. */
static void last_line(const char *words, char *line_p, size_t size)
{
    char safe[2048];
    size_t length = strlen(words);
    while (length > 0 && (words[length - 1] == '\n' || words[length - 1] == '\r'))
        length--;
    size_t start = length;
    while (start > 0 && words[start - 1] != '\n')
        start--;
    snprintf(safe, sizeof safe, "%.*s", (int)(length - start), words + start);
    text_safe(safe, line_p, size);
}

/* The loader exits with 127 then, as a shell does where there is no such program. */
#define LOADER_FAILED ": error while loading shared libraries: "

/* What to do where ssh's own words do not say it. "": they do, or it is not known. */
static void advise(const char *words, const char *host, char *advice_p, size_t size)
{
    advice_p[0] = '\0';
    if (strstr(words, "REMOTE HOST IDENTIFICATION HAS CHANGED") != NULL)
        snprintf(advice_p, size,
                 " Its key is another one than before: if that is right, forget the old one with "
                 "ssh-keygen -R, and log in once with: ssh %s",
                 host);
    else if (strstr(words, "Host key verification failed") != NULL)
        snprintf(advice_p, size,
                 " Its key is not known here yet: log in once with: ssh %s, or take the keys of "
                 "new hosts with HVD_SSH=\"ssh -o StrictHostKeyChecking=accept-new\"",
                 host);
    else if (strstr(words, "Permission denied") != NULL)
        snprintf(advice_p, size,
                 " It has to let you in without a password: try ssh-copy-id %s, or name the key "
                 "with -i",
                 host);
}

void run_ssh_explain(const struct run_ssh *ssh, const struct run_host *host, struct hvi_fate fate,
                     const char *words, char *text_p, size_t text_size)
{
    char line[1024];
    char how[128];
    char advice[512];
    last_line(words, line, sizeof line);
    advise(words, host->name, advice, sizeof advice);
    hvi_fate_describe(fate, how, sizeof how);
    if (!host->here && exited_with(fate, SSH_FAILED))
        snprintf(text_p, text_size, "cannot be reached: %s%s",
                 line[0] != '\0' ? line : "ssh does not say why", advice);
    else if (exited_with(fate, 127) && strstr(line, LOADER_FAILED) != NULL)
        snprintf(text_p, text_size,
                 "hvdrun cannot be run there: %s; install what it needs (scripts/deps.sh run)",
                 line);
    else if (exited_with(fate, 127))
        snprintf(text_p, text_size,
                 "there is no %s; install the same version there, or say where it is with "
                 "--remote-hvdrun",
                 ssh->hvdrun);
    else if (exited_with(fate, 126))
        snprintf(text_p, text_size, "%s cannot be run there%s%s; is it for another architecture?",
                 ssh->hvdrun, line[0] != '\0' ? ": " : "", line);
    else
        snprintf(text_p, text_size, "%s %s before it was ready%s%s", ssh->argv[0], how,
                 line[0] != '\0' ? ": " : "", line);
}

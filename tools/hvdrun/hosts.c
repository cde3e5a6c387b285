/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/hosts.h"

#include "tools/common/text.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define SLOTS_MAX 1000000L
#define HOSTS_MAX 65536u
#define BLANKS    " \t\r\n"

/* ---- is it here? ---- */

static bool is_loopback(int family, const void *address)
{
    struct in_addr four;
    if (family == AF_INET6)
        return memcmp(address, &in6addr_loopback, sizeof in6addr_loopback) == 0;
    memcpy(&four, address, sizeof four);
    return ntohl(four.s_addr) >> 24 == 127;
}

static bool has_address(const struct ifaddrs *at, int family, const void *address)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    if (at->ifa_addr == NULL || at->ifa_addr->sa_family != family)
        return false;
    if (family == AF_INET) {
        memcpy(&four, at->ifa_addr, sizeof four);
        return memcmp(&four.sin_addr, address, sizeof four.sin_addr) == 0;
    }
    memcpy(&six, at->ifa_addr, sizeof six);
    return memcmp(&six.sin6_addr, address, sizeof six.sin6_addr) == 0;
}

static bool is_our_address(const char *host)
{
    unsigned char wanted[sizeof(struct in6_addr)];
    char plain[RUN_HOST_NAME_MAX + 1];
    struct ifaddrs *list = NULL;
    bool found = false;
    snprintf(plain, sizeof plain, "%.*s", (int)strcspn(host, "%"), host); /* fe80::1%eth0 */
    const int family = strchr(plain, ':') != NULL ? AF_INET6 : AF_INET;
    if (inet_pton(family, plain, wanted) != 1)
        return false;
    if (is_loopback(family, wanted))
        return true;
    if (getifaddrs(&list) != 0)
        return false;
    for (const struct ifaddrs *at = list; at != NULL && !found; at = at->ifa_next)
        found = has_address(at, family, wanted);
    freeifaddrs(list);
    return found;
}

/* What `hostname -f` says, where `name` is its first part. It may be a question to a name server, so only then is it asked. */
static bool is_our_full_name(const char *host, const char *name)
{
    const struct addrinfo hints = {.ai_flags = AI_CANONNAME};
    const size_t length = strlen(name);
    struct addrinfo *found = NULL;
    if (length == 0 || strncasecmp(host, name, length) != 0 || host[length] != '.' ||
        getaddrinfo(name, NULL, &hints, &found) != 0)
        return false;
    const bool same = found->ai_canonname != NULL && strcasecmp(host, found->ai_canonname) == 0;
    freeaddrinfo(found);
    return same;
}

/* By full name, by its first part, or by address. */
static bool is_this_machine(const char *host)
{
    char name[RUN_HOST_NAME_MAX + 1] = "";
    gethostname(name, sizeof name - 1);
    if (strcmp(host, "localhost") == 0 || strcasecmp(host, name) == 0 || is_our_address(host) ||
        is_our_full_name(host, name))
        return true;
    name[strcspn(name, ".")] = '\0';
    return name[0] != '\0' && strcasecmp(host, name) == 0;
}

/* ---- one host ---- */

/* A name could be taken for an option of ssh, or for another host. */
static bool is_name(const char *text, size_t length, const char *marks)
{
    if (length == 0 || length > RUN_HOST_NAME_MAX || text[0] == '-')
        return false;
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && strchr(marks, text[i]) == NULL)
            return false;
    return true;
}

/* "4" after the colon. */
static bool parse_slots(const char *text, size_t length, long *slots_p)
{
    char number[16];
    for (size_t i = 0; i < length; i++)
        if (!isdigit((unsigned char)text[i]))
            return false;
    if (length == 0 || length >= sizeof number)
        return false;
    snprintf(number, sizeof number, "%.*s", (int)length, text);
    return text_parse_int(number, 0, SLOTS_MAX, slots_p) == 0;
}

/* "me@" before the bracket of an IPv6 address; its length. */
static size_t user_length(const char *entry, size_t length)
{
    const char *at = memchr(entry, '@', length);
    const size_t user = at != NULL ? (size_t)(at - entry) : 0;
    return user > 0 && user + 1 < length && at[1] == '[' && is_name(entry, user, "_.-") ? user + 1
                                                                                        : 0;
}

/* "name", "name:4", "[::1]", "me@[::1]:4". False for anything else. */
static bool split(const char *entry, size_t length, struct run_host *host_p)
{
    const size_t user = user_length(entry, length);
    const bool bracket = length > user && entry[user] == '[';
    const char *name = entry + user + (bracket ? 1 : 0);
    const char *past = memchr(entry, bracket ? ']' : ':', length);
    const size_t name_length =
        past != NULL ? (size_t)(past - name) : length - (size_t)(name - entry);
    if ((bracket && past == NULL) || user + name_length > RUN_HOST_NAME_MAX ||
        !is_name(name, name_length, bracket ? ":.%-_" : "_.-@"))
        return false;
    *host_p = (struct run_host){.slots = 1};
    snprintf(host_p->name, sizeof host_p->name, "%.*s%.*s", (int)user, entry, (int)name_length,
             name);
    const char *rest = bracket ? past + 1 : past != NULL ? past : entry + length;
    const size_t left = length - (size_t)(rest - entry);
    if (left == 0)
        return true;
    return rest[0] == ':' && parse_slots(rest + 1, left - 1, &host_p->slots);
}

static int add(struct run_hosts *hosts, const struct run_host *host, char *text_p, size_t size)
{
    for (size_t i = 0; i < hosts->count; i++)
        if (strcmp(hosts->list[i].name, host->name) == 0) {
            hosts->list[i].slots += host->slots;
            return 0;
        }
    struct run_host *list =
        hosts->count < HOSTS_MAX ? realloc(hosts->list, (hosts->count + 1) * sizeof *list) : NULL;
    if (list == NULL) {
        snprintf(text_p, size, "too many hosts");
        return -1;
    }
    hosts->list = list;
    list[hosts->count] = *host;
    list[hosts->count++].here = is_this_machine(host->name);
    return 0;
}

/* ---- -H ---- */

/* Blanks around an entry do not count. */
static bool split_stripped(const char *entry, size_t length, struct run_host *host_p)
{
    const size_t blanks = strspn(entry, BLANKS);
    const char *begin = entry + (blanks < length ? blanks : length);
    const char *end = entry + length;
    while (end > begin && strchr(BLANKS, end[-1]) != NULL)
        end--;
    return split(begin, (size_t)(end - begin), host_p);
}

static int parse_list(const char *hosts, struct run_hosts *hosts_p, char *text_p, size_t text_size)
{
    struct run_host host;
    for (const char *entry = hosts;; entry++) {
        const size_t length = strcspn(entry, ",");
        if (!split_stripped(entry, length, &host)) {
            snprintf(text_p, text_size,
                     "Invalid host input, please make sure it has format as : "
                     "worker-0:2,worker-1:2.");
            return -1;
        }
        if (add(hosts_p, &host, text_p, text_size) != 0)
            return -1;
        entry += length;
        if (*entry == '\0')
            return 0;
    }
}

int run_hosts_parse(const char *hosts, struct run_hosts *hosts_p, char *text_p, size_t text_size)
{
    *hosts_p = (struct run_hosts){.count = 0};
    const int status = parse_list(hosts, hosts_p, text_p, text_size);
    if (status != 0)
        run_hosts_fini(hosts_p);
    return status;
}

/* ---- --hostfile ---- */

/* "slots=2"; *given_p says that there was a number. */
static bool take_word(const char *word, struct run_host *host, bool *given_p)
{
    static const char *const ignored[] = {"max_slots=", "max-slots="};
    long number;
    for (size_t i = 0; i < 2; i++)
        if (strncmp(word, ignored[i], strlen(ignored[i])) == 0)
            return text_parse_int(word + strlen(ignored[i]), 0, SLOTS_MAX, &number) == 0;
    if (strncmp(word, "slots=", 6) != 0 || *given_p ||
        text_parse_int(word + 6, 0, SLOTS_MAX, &host->slots) != 0)
        return false;
    *given_p = true;
    return true;
}

/* "slots = 2" is written as often as "slots=2". */
static void drop_blanks_around_equals(char *line)
{
    char *out = line;
    for (const char *at = line; *at != '\0'; at++) {
        const char *next = at + strspn(at, BLANKS);
        if (next > at && (*next == '=' || (out > line && out[-1] == '=')))
            at = next;
        if (*at == '\0')
            break;
        *out++ = *at;
    }
    *out = '\0';
}

/* One line of a hostfile. */
static int take_line(char *line, struct run_hosts *hosts, char *text_p, size_t size)
{
    char *rest;
    struct run_host host;
    line[strcspn(line, "#")] = '\0';
    drop_blanks_around_equals(line);
    const char *word = strtok_r(line, BLANKS, &rest);
    if (word == NULL)
        return 0;
    bool good = split(word, strlen(word), &host);
    bool given = good && strlen(word) > strlen(host.name) + (strchr(word, '[') != NULL ? 2 : 0);
    while (good && (word = strtok_r(NULL, BLANKS, &rest)) != NULL)
        good = take_word(word, &host, &given);
    if (good)
        return add(hosts, &host, text_p, size);
    snprintf(text_p, size, "a line is a host and its slots, as in: worker-0 slots=4");
    return -1;
}

int run_hosts_read(const char *path, struct run_hosts *hosts_p, char *text_p, size_t text_size)
{
    char reason[512];
    char *line = NULL;
    size_t room = 0;
    int status = 0;
    *hosts_p = (struct run_hosts){.count = 0};
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        snprintf(text_p, text_size, "cannot read the hostfile %s: %s", path, strerror(errno));
        return -1;
    }
    for (int number = 1; status == 0 && getline(&line, &room, file) >= 0; number++) {
        status = take_line(line, hosts_p, reason, sizeof reason);
        if (status != 0)
            snprintf(text_p, text_size, "%s:%d: %s", path, number, reason);
    }
    if (status == 0 && ferror(file)) {
        snprintf(text_p, text_size, "cannot read the hostfile %s: %s", path, strerror(errno));
        status = -1;
    }
    free(line);
    fclose(file);
    if (status != 0)
        run_hosts_fini(hosts_p);
    return status;
}

/* ---- ranks ---- */

long run_hosts_slots(const struct run_hosts *hosts)
{
    long slots = 0;
    for (size_t i = 0; i < hosts->count; i++)
        slots += hosts->list[i].slots;
    return slots;
}

void run_hosts_fill(struct run_hosts *hosts, int ranks)
{
    size_t kept = 0;
    int next = 0;
    for (size_t i = 0; i < hosts->count; i++) {
        struct run_host *host = &hosts->list[i];
        host->first_rank = next;
        host->ranks = host->slots < ranks - next ? (int)host->slots : ranks - next;
        next += host->ranks;
        if (host->ranks > 0)
            hosts->list[kept++] = *host;
    }
    hosts->count = kept;
}

bool run_hosts_are_spread(const struct run_hosts *hosts)
{
    return hosts->count > 1 || (hosts->count == 1 && !hosts->list[0].here);
}

void run_hosts_cross(const struct run_hosts *hosts, size_t host, int local_rank, int *cross_rank_p,
                     int *cross_size_p)
{
    *cross_rank_p = 0;
    *cross_size_p = 0;
    for (size_t i = 0; i < hosts->count; i++) {
        if (hosts->list[i].ranks <= local_rank)
            continue;
        *cross_rank_p += i < host ? 1 : 0;
        *cross_size_p += 1;
    }
}

void run_hosts_fini(struct run_hosts *hosts)
{
    free(hosts->list);
    *hosts = (struct run_hosts){.count = 0};
}

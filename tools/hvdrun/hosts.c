/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/hosts.h"

#include "tools/common/text.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS_MAX  1000000L
#define NAME_BYTES 256

static bool is_our_address(const char *host)
{
    struct in_addr wanted;
    struct ifaddrs *list = NULL;
    bool found = false;
    if (inet_pton(AF_INET, host, &wanted) != 1)
        return false;
    if (ntohl(wanted.s_addr) >> 24 == 127)
        return true;
    if (getifaddrs(&list) != 0)
        return false;
    for (const struct ifaddrs *at = list; at != NULL && !found; at = at->ifa_next) {
        struct sockaddr_in address;
        if (at->ifa_addr == NULL || at->ifa_addr->sa_family != AF_INET)
            continue;
        memcpy(&address, at->ifa_addr, sizeof address);
        found = address.sin_addr.s_addr == wanted.s_addr;
    }
    freeifaddrs(list);
    return found;
}

/* By full name, by its first part, or by address. */
static bool is_this_machine(const char *host)
{
    char name[NAME_BYTES] = "";
    gethostname(name, sizeof name - 1);
    if (strcmp(host, "localhost") == 0 || strcmp(host, name) == 0 || is_our_address(host))
        return true;
    name[strcspn(name, ".")] = '\0';
    return name[0] != '\0' && strcmp(host, name) == 0;
}

/* "name:4". False for anything else. */
static bool split(const char *entry, size_t length, char name_p[NAME_BYTES], long *slots_p)
{
    char number[16];
    const char *colon = memchr(entry, ':', length);
    if (colon == NULL || colon == entry || colon - entry >= NAME_BYTES)
        return false;
    const size_t name_length = (size_t)(colon - entry);
    const size_t digits = length - name_length - 1;
    for (size_t i = 0; i < name_length; i++)
        if (!isalnum((unsigned char)entry[i]) && strchr("_.-", entry[i]) == NULL)
            return false;
    for (size_t i = 0; i < digits; i++)
        if (!isdigit((unsigned char)colon[1 + i]))
            return false;
    if (digits == 0 || digits >= sizeof number)
        return false;
    snprintf(name_p, NAME_BYTES, "%.*s", (int)name_length, entry);
    snprintf(number, sizeof number, "%.*s", (int)digits, colon + 1);
    return text_parse_int(number, 0, SLOTS_MAX, slots_p) == 0;
}

static int refuse_remote(const char *host, char *text_p, size_t size)
{
    snprintf(text_p, size,
             "%s is not this machine, and hvdrun starts processes on this machine only: name "
             "localhost, or leave the hosts out",
             host);
    return -1;
}

int run_hosts_parse(const char *hosts, long *slots_p, char *text_p, size_t text_size)
{
    char name[NAME_BYTES];
    long slots = 0;
    for (const char *entry = hosts;; entry++) {
        long more;
        const size_t length = strcspn(entry, ",");
        if (!split(entry, length, name, &more)) {
            snprintf(text_p, text_size,
                     "Invalid host input, please make sure it has format as : "
                     "worker-0:2,worker-1:2.");
            return -1;
        }
        if (!is_this_machine(name))
            return refuse_remote(name, text_p, text_size);
        slots += more;
        entry += length;
        if (*entry == '\0')
            break;
    }
    *slots_p = slots;
    return 0;
}

/* One line of a hostfile. */
static int take_line(char *line, long *slots_p, char *text_p, size_t size)
{
    char *rest;
    long more;
    const char *name = strtok_r(line, " \t\r\n", &rest);
    if (name == NULL || name[0] == '#')
        return 0;
    const char *slots = strtok_r(NULL, " \t\r\n", &rest);
    if (slots == NULL || strncmp(slots, "slots=", 6) != 0 ||
        text_parse_int(slots + 6, 0, SLOTS_MAX, &more) != 0) {
        snprintf(text_p, size, "a line is a host and its slots, as in: localhost slots=4");
        return -1;
    }
    if (!is_this_machine(name))
        return refuse_remote(name, text_p, size);
    *slots_p += more;
    return 0;
}

int run_hosts_read(const char *path, long *slots_p, char *text_p, size_t text_size)
{
    char reason[512];
    char *line = NULL;
    size_t room = 0;
    long slots = 0;
    int status = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        snprintf(text_p, text_size, "cannot read the hostfile %s: %s", path, strerror(errno));
        return -1;
    }
    for (int number = 1; status == 0 && getline(&line, &room, file) >= 0; number++) {
        status = take_line(line, &slots, reason, sizeof reason);
        if (status != 0)
            snprintf(text_p, text_size, "%s:%d: %s", path, number, reason);
    }
    if (status == 0 && ferror(file)) {
        snprintf(text_p, text_size, "cannot read the hostfile %s: %s", path, strerror(errno));
        status = -1;
    }
    free(line);
    fclose(file);
    if (status == 0)
        *slots_p = slots;
    return status;
}

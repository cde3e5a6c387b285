/* SPDX-License-Identifier: Apache-2.0 */
#include "base/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Digits, up to `end`, which is the first character after them. */
static bool parse_port(const char *text, const char *end, uint32_t *port_p)
{
    char *after;
    unsigned long port = strtoul(text, &after, 10);

    if (text[0] < '0' || text[0] > '9' || after != end || port > UINT16_MAX)
        return false;
    *port_p = (uint32_t)port;
    return true;
}

bool hvi_place_split(const char *text, char *host_p, size_t size, uint32_t *port_p)
{
    const bool bracket = text[0] == '[';
    const char *host = text + bracket, *after = host + strcspn(host, bracket ? "]" : ":");

    if (!bracket && *after == ':' && strchr(after + 1, ':') != NULL)
        after = host + strlen(host); /* an address of IPv6 */
    const size_t length = (size_t)(after - host);
    if (bracket && *after++ != ']')
        return false;
    if (length == 0 || length >= size || (*after != '\0' && *after != ':'))
        return false;
    if (*after == ':' && !parse_port(after + 1, after + strlen(after), port_p))
        return false;
    snprintf(host_p, size, "%.*s", (int)length, host);
    return true;
}

void hvi_place_join(const char *host, uint32_t port, char *text_p, size_t size)
{
    snprintf(text_p, size, strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u", host, (unsigned)port);
}

bool hvi_place_ports(const char *text, uint32_t *first_p, uint32_t *last_p)
{
    const char *minus = strchr(text, '-');
    uint32_t first, last;

    if (minus == NULL || !parse_port(text, minus, &first) ||
        !parse_port(minus + 1, minus + strlen(minus), &last) || first == 0 || first > last)
        return false;
    *first_p = first;
    *last_p = last;
    return true;
}

bool hvi_place_is_node_name(const char *text)
{
    static const char letters[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_:";
    const size_t length = strlen(text);

    return length > 0 && length <= HVI_NODE_NAME_MAX && text[0] != '.' &&
           strspn(text, letters) == length;
}

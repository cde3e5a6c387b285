/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdctl/resolve.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESOLVE_NS (3 * (int64_t)HVI_NS_SEC)

/* Until it is over, or the time is. */
static int await(struct gaicb *request)
{
    const struct gaicb *const list[] = {request};
    const uint64_t deadline_ns = hvi_deadline_after(RESOLVE_NS);
    int status;
    while ((status = gai_error(request)) == EAI_INPROGRESS && !hvi_deadline_passed(deadline_ns)) {
        const uint64_t left_ns = hvi_deadline_left(deadline_ns);
        const struct timespec left = {.tv_sec = (time_t)(left_ns / HVI_NS_SEC),
                                      .tv_nsec = (long)(left_ns % HVI_NS_SEC)};
        gai_suspend(list, 1, &left);
    }
    return status;
}

const char *ctl_resolve(const char *host, struct addrinfo **list_p)
{
    static const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct gaicb *request = calloc(1, sizeof *request + strlen(host) + 1);
    if (request == NULL)
        return "out of memory";
    request->ar_name = strcpy((char *)(request + 1), host);
    request->ar_request = &hints;
    int status = getaddrinfo_a(GAI_NOWAIT, &request, 1, NULL);
    if (status == 0)
        status = await(request);
    if (status ==
        EAI_INPROGRESS) /* the request stays, with the name: a thread of the C library has it */
        return "no name server answers within 3 s";
    if (status == 0)
        *list_p = request->ar_result;
    free(request);
    return status == 0 ? NULL : gai_strerror(status);
}

void ctl_address_text(const struct sockaddr *address, socklen_t length, char *text_p, size_t size)
{
    static const char mapped[] = "::ffff:";
    char text[NI_MAXHOST];
    if (getnameinfo(address, length, text, sizeof text, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(text, sizeof text, "?");
    const bool is_mapped =
        strncmp(text, mapped, sizeof mapped - 1) == 0 && strchr(text, '.') != NULL;
    snprintf(text_p, size, "%s", is_mapped ? text + sizeof mapped - 1 : text);
}

void ctl_addresses_text(const struct addrinfo *list, char *text_p, size_t size)
{
    size_t used = 0;
    text_p[0] = '\0';
    for (const struct addrinfo *one = list; one != NULL; one = one->ai_next) {
        char text[64];
        ctl_address_text(one->ai_addr, one->ai_addrlen, text, sizeof text);
        if (used + strlen(text) + 2 < size)
            used +=
                (size_t)snprintf(text_p + used, size - used, "%s%s", used > 0 ? ", " : "", text);
    }
}

const char *ctl_resolve_text(const char *host, char *text_p, size_t size)
{
    struct addrinfo *list = NULL;
    const char *why = ctl_resolve(host, &list);
    if (why != NULL)
        return why;
    ctl_addresses_text(list, text_p, size);
    freeaddrinfo(list);
    return NULL;
}

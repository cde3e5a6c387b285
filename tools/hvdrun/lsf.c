/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/lsf.h"

#include "tools/hvdrun/hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_BYTES 400u /* of "h1:4,h2:4" in the sentence */

/* What -H takes, of "h1 h1 h2" or, `counted`, of "h1 2 h2 1". NULL without memory. */
static char *make_list(const char *words, bool counted)
{
    char *copy = strdup(words);
    char *list = copy != NULL ? calloc(1, strlen(words) + 1) : NULL;
    char *rest;
    size_t used = 0;
    size_t count = 0;
    for (char *word = list != NULL ? strtok_r(copy, " ", &rest) : NULL; word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        if (count > 0)
            list[used++] = counted && count % 2 == 1 ? ':' : ',';
        memcpy(list + used, word, strlen(word));
        used += strlen(word);
        count++;
    }
    free(copy);
    return list;
}

static bool read_variable(const char *name, bool counted, struct run_hosts *hosts_p)
{
    char text[512];
    const char *words = getenv(name);
    char *list = words != NULL ? make_list(words, counted) : NULL;
    const bool read = list != NULL && run_hosts_parse(list, hosts_p, text, sizeof text) == 0;
    free(list);
    return read;
}

/* LSF leaves LSB_HOSTS out where it would be long. */
static bool read_hosts(struct run_hosts *hosts_p)
{
    char text[512];
    const char *file = getenv("LSB_DJOB_HOSTFILE");
    if (file != NULL && run_hosts_read(file, hosts_p, text, sizeof text) == 0)
        return true;
    return read_variable("LSB_MCPU_HOSTS", true, hosts_p) ||
           read_variable("LSB_HOSTS", false, hosts_p);
}

/* As many as have room. */
static void print_list(const struct run_hosts *hosts, char list_p[LIST_BYTES])
{
    size_t used = 0;
    for (size_t i = 0; i < hosts->count; i++) {
        const struct run_host *host = &hosts->list[i];
        if (used + strlen(host->name) + 16 > LIST_BYTES) {
            snprintf(list_p + used, LIST_BYTES - used, ",...");
            break;
        }
        used += (size_t)snprintf(list_p + used, LIST_BYTES - used, "%s%s:%ld", i > 0 ? "," : "",
                                 host->name, host->slots);
    }
}

bool run_lsf_has_hosts(int ranks, char *text_p, size_t text_size)
{
    const char *job = getenv("LSB_JOBID");
    struct run_hosts hosts = {.count = 0};
    char list[LIST_BYTES] = "";
    if (job == NULL || !read_hosts(&hosts))
        return false;
    const bool several = hosts.count > 1;
    print_list(&hosts, list);
    if (several)
        snprintf(
            text_p, text_size,
            "LSF has given job %.32s %zu hosts, and no option names one: give -H with slots "
            "for each (-H %s by LSF's, without the host that only launches, if there is one), or "
            "-H localhost:%d for this host alone",
            job, hosts.count, list, ranks > 0 ? ranks : 1);
    run_hosts_fini(&hosts);
    return several;
}

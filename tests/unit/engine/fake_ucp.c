/* SPDX-License-Identifier: Apache-2.0
 * In the place of libucp.so.0: it notes what it is told. FAKE_UCP is its version; the step that FAKE_UCP_FAILS names fails. Built
 * with FAKE_UCP_LACKS, it lacks a function. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/type/status.h>

static char said[512];

static ucs_status_t step(const char *name, const char *value)
{
    const char *fails = getenv("FAKE_UCP_FAILS");
    const size_t used = strlen(said);

    snprintf(said + used, sizeof said - used, "%s=%s\n", name, value);
    return fails && strcmp(fails, name) == 0 ? UCS_ERR_NO_DEVICE : UCS_OK;
}

/* What it has been told so far, a line each. */
const char *fake_ucp_said(void);
const char *fake_ucp_said(void)
{
    return said;
}

const char *ucs_status_string(ucs_status_t status)
{
    return status == UCS_ERR_NO_DEVICE          ? "no such device"
           : status == UCS_ERR_BUFFER_TOO_SMALL ? "too small"
                                                : "another status";
}

void ucp_get_version(unsigned *major_p, unsigned *minor_p, unsigned *release_p);
void ucp_get_version(unsigned *major_p, unsigned *minor_p, unsigned *release_p)
{
    const char *version = getenv("FAKE_UCP");
    char *end;

    *major_p = (unsigned)strtoul(version, &end, 10);
    *minor_p = (unsigned)strtoul(end + 1, NULL, 10);
    *release_p = 0;
}

const char *ucp_get_version_string(void);
const char *ucp_get_version_string(void)
{
    return getenv("FAKE_UCP");
}

ucs_status_t ucp_config_read(const char *prefix, const char *file, void **config_p);
ucs_status_t ucp_config_read(const char *prefix, const char *file, void **config_p)
{
    *config_p = said;
    return step("read", prefix || file ? "something" : "nothing");
}

ucs_status_t ucp_config_modify(void *config, const char *name, const char *value);
ucs_status_t ucp_config_modify(void *config, const char *name, const char *value)
{
    (void)config;
    return step(name, value);
}

void ucp_config_release(void *config);
void ucp_config_release(void *config)
{
    (void)config;
    step("released", "config");
}

ucs_status_t ucp_init_version(unsigned major, unsigned minor, const void *params,
                              const void *config, void **context_p);
ucs_status_t ucp_init_version(unsigned major, unsigned minor, const void *params,
                              const void *config, void **context_p)
{
    char version[32];

    (void)params, (void)config;
    snprintf(version, sizeof version, "%u.%u", major, minor);
    *context_p = said;
    return step("init", version);
}

void ucp_cleanup(void *context);
void ucp_cleanup(void *context)
{
    step("cleanup", context == said ? "context" : "another");
}

ucs_status_t ucp_worker_create(void *context, const void *params, void **worker_p);
ucs_status_t ucp_worker_create(void *context, const void *params, void **worker_p)
{
    (void)context, (void)params;
    *worker_p = said;
    return step("worker", "created");
}

void ucp_worker_destroy(void *worker);
void ucp_worker_destroy(void *worker)
{
    step("destroyed", worker == said ? "worker" : "another");
}

ucs_status_t ucp_worker_get_efd(void *worker, int *fd_p);
ucs_status_t ucp_worker_get_efd(void *worker, int *fd_p)
{
    (void)worker;
    *fd_p = -1;
    return step("efd", "got");
}

/* One that is too long. */
ucs_status_t ucp_worker_get_address(void *worker, void **address_p, size_t *bytes_p);
ucs_status_t ucp_worker_get_address(void *worker, void **address_p, size_t *bytes_p)
{
    (void)worker;
    *address_p = said;
    *bytes_p = 1u << 20;
    return step("address", "got");
}

void ucp_worker_release_address(void *worker, void *address);
void ucp_worker_release_address(void *worker, void *address)
{
    (void)worker;
    step("released", address == said ? "address" : "another");
}

/* No test comes as far as that. */
#define NEVER(name)                                                                                \
    void ucp_##name(void);                                                                         \
    void ucp_##name(void)                                                                          \
    {                                                                                              \
        abort();                                                                                   \
    }

NEVER(worker_arm)
NEVER(worker_progress)
NEVER(ep_create)
NEVER(ep_close_nbx)
NEVER(ep_flush_nbx)
NEVER(tag_send_nbx)
#ifndef FAKE_UCP_LACKS
NEVER(tag_send_sync_nbx)
#endif
NEVER(tag_recv_nbx)
NEVER(request_cancel)
NEVER(mem_map)
NEVER(mem_unmap)
NEVER(request_free)

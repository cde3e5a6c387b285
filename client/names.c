/* SPDX-License-Identifier: Apache-2.0 */
#include "client/names.h"

#include "base/assert.h"
#include "base/types.h"
#include "base/utf8.h"
#include "hvd/hvd.h"
#include "shm/abi.h"

#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

struct client_name {
    uint32_t id;
    bool in_flight, defined;
    uint32_t holders; /* ops that are not released */
    size_t bytes;
    size_t capacity; /* of text, with NUL */
    char *text;
    struct client_name *older, *newer;
    UT_hash_handle hh;
};

/* More ids than ops: give_away always finds one. */
_Static_assert(HVI_TENSOR_IDS > HVD_OPS_MAX, "an id for every op and one to spare");

static void unlink_entry(struct client_names *names, struct client_name *entry)
{
    if (entry->older)
        entry->older->newer = entry->newer;
    else
        names->oldest = entry->newer;
    if (entry->newer)
        entry->newer->older = entry->older;
    else
        names->newest = entry->older;
}

static void append(struct client_names *names, struct client_name *entry)
{
    entry->older = names->newest;
    entry->newer = NULL;
    if (names->newest)
        names->newest->newer = entry;
    else
        names->oldest = entry;
    names->newest = entry;
}

static void touch(struct client_names *names, struct client_name *entry)
{
    if (names->newest == entry)
        return;
    unlink_entry(names, entry);
    append(names, entry);
}

static struct client_name *find(struct client_names *names, const char *name, size_t bytes)
{
    struct client_name *entry = names->last;
    if (entry && entry->bytes == bytes && memcmp(entry->text, name, bytes) == 0)
        return entry;
    HASH_FIND(hh, names->by_name, name, bytes, entry);
    return entry;
}

static bool set_text(struct client_name *entry, const char *name, size_t bytes)
{
    if (entry->capacity < bytes + 1) {
        char *text = realloc(entry->text, bytes + 1);
        if (!text)
            return false;
        entry->text = text;
        entry->capacity = bytes + 1;
    }
    memcpy(entry->text, name, bytes);
    entry->text[bytes] = '\0';
    entry->bytes = bytes;
    return true;
}

static bool add_to_hash(struct client_names *names, struct client_name *entry)
{
    HASH_ADD_KEYPTR(hh, names->by_name, entry->text, entry->bytes, entry);
    return entry->hh.tbl != NULL;
}

/* A new id, as long as there are any. */
static struct client_name *add(struct client_names *names, const char *name, size_t bytes)
{
    struct client_name *entry = calloc(1, sizeof(*entry));
    if (!entry || !set_text(entry, name, bytes) || !add_to_hash(names, entry)) {
        if (entry)
            free(entry->text);
        free(entry);
        return NULL;
    }
    entry->id = names->count++;
    append(names, entry);
    return entry;
}

/* The id of the least recently used name that no op holds. On failure the entry is nameless until
 * the next try. */
static struct client_name *give_away(struct client_names *names, const char *name, size_t bytes)
{
    struct client_name *entry = names->oldest;
    while (entry->holders > 0)
        entry = entry->newer;
    if (entry->hh.tbl)
        HASH_DELETE(hh, names->by_name, entry);
    memset(&entry->hh, 0, sizeof(entry->hh));
    if (names->last == entry)
        names->last = NULL;
    entry->defined = false;
    if (!set_text(entry, name, bytes) || !add_to_hash(names, entry))
        return NULL;
    touch(names, entry);
    return entry;
}

int client_names_claim(struct client_names *names, const char *name, struct client_name **entry_p)
{
    size_t bytes = strnlen(name, HVI_NAME_MAX + 1);
    struct client_name *entry = find(names, name, bytes);
    if (!entry) {
        if (bytes == 0 || bytes > HVI_NAME_MAX || !hvi_utf8_valid(name, bytes))
            return HVD_ERR_INVALID;
        entry =
            names->count < HVI_TENSOR_IDS ? add(names, name, bytes) : give_away(names, name, bytes);
        if (!entry)
            return HVD_ERR_NO_MEMORY;
    }
    names->last = entry;
    if (entry->in_flight)
        return HVD_ERR_DUPLICATE_NAME;
    entry->in_flight = true;
    entry->holders++;
    touch(names, entry);
    *entry_p = entry;
    return HVD_OK;
}

void client_names_landed(struct client_name *entry)
{
    HVI_ASSERT(entry->in_flight);
    entry->in_flight = false;
}

void client_names_put(struct client_name *entry)
{
    HVI_ASSERT(entry->holders > 0);
    entry->holders--;
}

uint32_t client_names_id(const struct client_name *entry)
{
    return entry->id;
}

const char *client_names_text(const struct client_name *entry)
{
    return entry->text;
}

size_t client_names_bytes(const struct client_name *entry)
{
    return entry->bytes;
}

bool client_names_is_defined(const struct client_name *entry)
{
    return entry->defined;
}

void client_names_set_defined(struct client_name *entry)
{
    entry->defined = true;
}

void client_names_fini(struct client_names *names)
{
    HASH_CLEAR(hh, names->by_name);
    while (names->oldest) {
        struct client_name *entry = names->oldest;
        unlink_entry(names, entry);
        free(entry->text);
        free(entry);
    }
    memset(names, 0, sizeof(*names));
}

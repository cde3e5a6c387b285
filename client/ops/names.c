/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ops/names.h"

#include "base/assert.h"
#include "base/types.h"
#include "base/utf8.h"
#include "hvd/hvd.h"
#include "shm/abi.h"

#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>
#include <utlist.h>

/* What the hash table looks up: the process set, then the name. */
#define PREFIX sizeof(int)

struct key {
    size_t bytes; /* of prefix and name */
    char text[PREFIX + HVI_NAME_MAX + 1];
};

struct client_name {
    uint32_t id;
    int process_set;
    bool in_flight, defined;
    uint32_t holders; /* ops that are not released */
    size_t bytes;     /* of the key */
    size_t capacity;  /* of the key, with NUL */
    char *key;
    struct client_grant grant;
    struct client_name *prev, *next;
    UT_hash_handle hh;
};

/* More ids than ops: give_away always finds one. */
_Static_assert(HVI_TENSOR_IDS > HVD_OPS_MAX, "an id for every op and one to spare");

static void touch(struct client_names *names, struct client_name *entry)
{
    if (names->oldest->prev == entry) /* utlist: the head's prev is the tail */
        return;
    DL_DELETE(names->oldest, entry);
    DL_APPEND(names->oldest, entry);
}

static void make_key(int process_set, const char *name, size_t bytes, struct key *key_p)
{
    memcpy(key_p->text, &process_set, PREFIX);
    memcpy(key_p->text + PREFIX, name, bytes);
    key_p->text[PREFIX + bytes] = '\0';
    key_p->bytes = PREFIX + bytes;
}

static bool is_last(const struct client_name *entry, int process_set, const char *name,
                    size_t bytes)
{
    return entry && entry->process_set == process_set && entry->bytes == PREFIX + bytes &&
           memcmp(entry->key + PREFIX, name, bytes) == 0;
}

static struct client_name *find(struct client_names *names, const struct key *key)
{
    struct client_name *entry;
    HASH_FIND(hh, names->by_name, key->text, key->bytes, entry);
    return entry;
}

static bool set_key(struct client_name *entry, const struct key *key)
{
    if (entry->capacity < key->bytes + 1) {
        char *text = realloc(entry->key, key->bytes + 1);
        if (!text)
            return false;
        entry->key = text;
        entry->capacity = key->bytes + 1;
    }
    memcpy(entry->key, key->text, key->bytes + 1);
    memcpy(&entry->process_set, key->text, PREFIX);
    entry->bytes = key->bytes;
    return true;
}

static bool add_to_hash(struct client_names *names, struct client_name *entry)
{
    HASH_ADD_KEYPTR(hh, names->by_name, entry->key, entry->bytes, entry);
    return entry->hh.tbl != NULL;
}

/* A new id, as long as there are any. */
static struct client_name *add(struct client_names *names, const struct key *key)
{
    struct client_name *entry = calloc(1, sizeof(*entry));
    if (!entry || !set_key(entry, key) || !add_to_hash(names, entry)) {
        if (entry)
            free(entry->key);
        free(entry);
        return NULL;
    }
    entry->id = names->count++;
    DL_APPEND(names->oldest, entry);
    return entry;
}

/* The id of the least recently used name that no op holds. On failure the entry is nameless until
 * the next try. */
static struct client_name *give_away(struct client_names *names, const struct key *key)
{
    struct client_name *entry = names->oldest;
    while (entry->holders > 0)
        entry = entry->next;
    if (entry->hh.tbl)
        HASH_DELETE(hh, names->by_name, entry);
    memset(&entry->hh, 0, sizeof(entry->hh));
    if (names->last == entry)
        names->last = NULL;
    entry->defined = false;
    entry->grant.valid = false;
    if (!set_key(entry, key) || !add_to_hash(names, entry))
        return NULL;
    touch(names, entry);
    return entry;
}

/* The entry for a name that was not the last one looked up. */
static int look_up(struct client_names *names, int process_set, const char *name, size_t bytes,
                   struct client_name **entry_p)
{
    struct key key;
    if (bytes == 0 || bytes > HVI_NAME_MAX)
        return HVD_ERR_INVALID;
    make_key(process_set, name, bytes, &key);
    struct client_name *entry = find(names, &key);
    if (!entry && !hvi_utf8_valid(name, bytes))
        return HVD_ERR_INVALID;
    if (!entry)
        entry = names->count < HVI_TENSOR_IDS ? add(names, &key) : give_away(names, &key);
    if (!entry)
        return HVD_ERR_NO_MEMORY;
    *entry_p = entry;
    return HVD_OK;
}

int client_names_claim(struct client_names *names, int process_set, const char *name,
                       struct client_name **entry_p)
{
    size_t bytes = strnlen(name, HVI_NAME_MAX + 1);
    struct client_name *entry = names->last;
    if (!is_last(entry, process_set, name, bytes)) {
        int rc = look_up(names, process_set, name, bytes, &entry);
        if (rc != HVD_OK)
            return rc;
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

struct client_grant *client_names_grant(struct client_name *entry)
{
    return &entry->grant;
}

uint32_t client_names_id(const struct client_name *entry)
{
    return entry->id;
}

const char *client_names_text(const struct client_name *entry)
{
    return entry->key + PREFIX;
}

size_t client_names_bytes(const struct client_name *entry)
{
    return entry->bytes - PREFIX;
}

bool client_names_is_defined(const struct client_name *entry)
{
    return entry->defined;
}

void client_names_set_defined(struct client_name *entry)
{
    entry->defined = true;
}

void client_names_forget_set(struct client_names *names, int process_set)
{
    for (struct client_name *entry = names->oldest; entry; entry = entry->next) {
        if (entry->process_set != process_set)
            continue;
        entry->defined = false;
        entry->grant.valid = false;
    }
}

void client_names_fini(struct client_names *names)
{
    HASH_CLEAR(hh, names->by_name);
    while (names->oldest) {
        struct client_name *entry = names->oldest;
        DL_DELETE(names->oldest, entry);
        free(entry->key);
        free(entry);
    }
    memset(names, 0, sizeof(*names));
}

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

struct client_name_entry {
    struct client_name name; /* what others see of it */
    int process_set;
    bool in_flight;
    uint32_t holders; /* ops that are not released */
    char *key;        /* where .name.text lies */
    struct client_name_entry *prev, *next;
    UT_hash_handle hh;
};

static struct client_name_entry *entry_of(struct client_name *name)
{
    return (struct client_name_entry *)name;
}

/* More ids than ops: give_away always finds one. */
_Static_assert(HVI_TENSOR_IDS > HVD_OPS_MAX, "an id for every op and one to spare");

static void touch(struct client_names *names, struct client_name_entry *entry)
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

static bool is_last(const struct client_name_entry *entry, int process_set, const char *name,
                    size_t bytes)
{
    return entry && entry->process_set == process_set && entry->name.bytes == bytes &&
           memcmp(entry->name.text, name, bytes) == 0;
}

static bool set_key(struct client_name_entry *entry, const struct key *key)
{
    char *text = realloc(entry->key, key->bytes + 1);
    if (!text)
        return false;
    memcpy(text, key->text, key->bytes + 1);
    entry->key = text;
    memcpy(&entry->process_set, key->text, PREFIX);
    entry->name.text = entry->key + PREFIX;
    entry->name.bytes = key->bytes - PREFIX;
    return true;
}

static bool add_to_hash(struct client_names *names, struct client_name_entry *entry)
{
    HASH_ADD_KEYPTR(hh, names->by_name, entry->key, PREFIX + entry->name.bytes, entry);
    return entry->hh.tbl != NULL;
}

/* A new id, as long as there are any. */
static struct client_name_entry *add(struct client_names *names, const struct key *key)
{
    struct client_name_entry *entry = calloc(1, sizeof(*entry));
    if (!entry || !set_key(entry, key) || !add_to_hash(names, entry)) {
        if (entry)
            free(entry->key);
        free(entry);
        return NULL;
    }
    entry->name.id = names->count++;
    DL_APPEND(names->oldest, entry);
    return entry;
}

/* The id of the least recently used name that no op holds. On failure the entry is nameless until
 * the next try. */
static struct client_name_entry *give_away(struct client_names *names, const struct key *key)
{
    struct client_name_entry *entry = names->oldest;
    while (entry->holders > 0)
        entry = entry->next;
    if (entry->hh.tbl)
        HASH_DELETE(hh, names->by_name, entry);
    memset(&entry->hh, 0, sizeof(entry->hh));
    if (names->last == entry)
        names->last = NULL;
    entry->name.defined = false;
    entry->name.grant.valid = false;
    if (!set_key(entry, key) || !add_to_hash(names, entry))
        return NULL;
    touch(names, entry);
    return entry;
}

/* The entry for a name that was not the last one looked up. */
static int look_up(struct client_names *names, int process_set, const char *name, size_t bytes,
                   struct client_name_entry **entry_p)
{
    struct client_name_entry *entry;
    struct key key;
    if (bytes == 0 || bytes > HVI_NAME_MAX)
        return HVD_ERR_INVALID;
    make_key(process_set, name, bytes, &key);
    HASH_FIND(hh, names->by_name, key.text, key.bytes, entry);
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
                       struct client_name **name_p)
{
    size_t bytes = strnlen(name, HVI_NAME_MAX + 1);
    struct client_name_entry *entry = names->last;
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
    *name_p = &entry->name;
    return HVD_OK;
}

void client_names_landed(struct client_name *name)
{
    HVI_ASSERT(entry_of(name)->in_flight);
    entry_of(name)->in_flight = false;
}

void client_names_put(struct client_name *name)
{
    HVI_ASSERT(entry_of(name)->holders > 0);
    entry_of(name)->holders--;
}

void client_names_forget_set(struct client_names *names, int process_set)
{
    for (struct client_name_entry *entry = names->oldest; entry; entry = entry->next) {
        if (entry->process_set != process_set)
            continue;
        entry->name.defined = false;
        entry->name.grant.valid = false;
    }
}

void client_names_fini(struct client_names *names)
{
    HASH_CLEAR(hh, names->by_name);
    while (names->oldest) {
        struct client_name_entry *entry = names->oldest;
        DL_DELETE(names->oldest, entry);
        free(entry->key);
        free(entry);
    }
    memset(names, 0, sizeof(*names));
}

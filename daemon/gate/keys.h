/* SPDX-License-Identifier: Apache-2.0
 * Keys of the mesh, each of 40 characters of Z85. A pair of files is for a mesh of one listener: lines of "server KEY",
 * "client KEY" (one or more) and "secret KEY"; the listener's file has the server's secret, a joiner's file its own. A
 * folder is for a mesh of nodes that have a key each: DIR/node.key has the node's "secret KEY", and DIR/allow is the
 * allow-list, a file NAME with the KEY of each node. */
#ifndef HVD_GATE_KEYS_H
#define HVD_GATE_KEYS_H

#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>

#define GATE_KEY_TEXT    41 /* with its end */
#define GATE_CLIENTS_MAX 1024u

struct gate_keys {
    char server[GATE_KEY_TEXT], secret[GATE_KEY_TEXT];
    char (*clients)[GATE_KEY_TEXT]; /* allocated */
    size_t client_count;
    bool of_node;                      /* from a folder */
    char (*names)[HVI_WIRE_NODE_NAME]; /* allocated: of the clients, where they are from a folder */
};

/* Reads PATH, or where that does not exist PATH.server (to listen) or PATH.client (to join). The file
 * must belong to the caller's user and be closed to others. HVI_OK, or HVI_ERR_REFUSED with a sentence
 * that says what to do. */
int gate_keys_read(const char *path, bool listens, struct gate_keys *keys_p, char *text_p,
                   size_t text_size);
/* The contents of such a file; any bytes. HVI_OK, or HVI_ERR_INVALID with a sentence. */
int gate_keys_parse(const char *contents, size_t length, struct gate_keys *keys_p, char *text_p,
                    size_t text_size);

/* The secret of DIR/node.key, whose file must belong to the caller's user and be closed to others, and the allow-list; the
 * server's key is for the caller to fill in. As gate_keys_read. */
int gate_keys_read_node(const char *dir, struct gate_keys *keys_p, char *text_p, size_t text_size);
/* The allow-list anew, sorted by name. No one but root and the caller's user may be able to write it. HVI_OK: *changed_p says
 * whether it differs from the last one, and *text_p what was left out, or is "". Else a sentence, and the list is as before. */
int gate_keys_read_allowed(const char *dir, struct gate_keys *keys, bool *changed_p, char *text_p,
                           size_t text_size);
/* The contents of a file with one key, after `word` ("secret ", or ""); lines that begin with # do not count. Any bytes. False:
 * it is something else. */
bool gate_keys_parse_one(const char *contents, size_t length, const char *word,
                         char key_p[GATE_KEY_TEXT]);
/* What the allow-list calls the node of this key; NULL: it is not there. */
const char *gate_keys_name(const struct gate_keys *keys, const char *key);
/* The key of the node of this name; NULL: it is not there. */
const char *gate_keys_of(const struct gate_keys *keys, const char *name);
/* Forgets the secret. */
void gate_keys_fini(struct gate_keys *keys);

#endif

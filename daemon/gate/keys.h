/* SPDX-License-Identifier: Apache-2.0
 * The mesh's key file: lines of "server KEY", "client KEY" (one or more) and "secret KEY", each KEY 40
 * characters of Z85. The listener's file has the server's secret, a joiner's file its own. */
#ifndef HVD_GATE_KEYS_H
#define HVD_GATE_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#define GATE_KEY_TEXT    41 /* with its end */
#define GATE_CLIENTS_MAX 1024u

struct gate_keys {
    char server[GATE_KEY_TEXT], secret[GATE_KEY_TEXT];
    char (*clients)[GATE_KEY_TEXT]; /* allocated */
    size_t client_count;
};

/* Reads PATH, or where that does not exist PATH.server (to listen) or PATH.client (to join). The file
 * must belong to the caller's user and be closed to others. HVI_OK, or HVI_ERR_REFUSED with a sentence
 * that says what to do. */
int gate_keys_read(const char *path, bool listens, struct gate_keys *keys_p, char *text_p,
                   size_t text_size);
/* The contents of such a file; any bytes. HVI_OK, or HVI_ERR_INVALID with a sentence. */
int gate_keys_parse(const char *contents, size_t length, struct gate_keys *keys_p, char *text_p,
                    size_t text_size);
/* Forgets the secret. */
void gate_keys_fini(struct gate_keys *keys);

#endif

/* SPDX-License-Identifier: Apache-2.0
 * Keys for the mesh between nodes: what stands in key files (hvdd --mesh-key). */
#ifndef HVI_TOOLS_MESH_KEY_H
#define HVI_TOOLS_MESH_KEY_H

#include <stdbool.h>

#define MESH_KEY_TEXT 160 /* room for a file */
#define MESH_KEY_ROOM 41  /* and for one key */

/* Fresh ones: the node that listens has `server_p`, those that join have `client_p`. Three lines each.
 * 0, or -1 with a reason. */
int mesh_key_make(char server_p[MESH_KEY_TEXT], char client_p[MESH_KEY_TEXT], const char **why_p);
/* A new file of mode 0600. 0, or -1 with errno; nothing is left then. */
int mesh_key_write(const char *path, const char *text);

/* A node's pair. The public key begins with a letter or digit, so it is no option on a command line. 0, or -1 with a reason. */
int mesh_key_pair(char public_p[MESH_KEY_ROOM], char secret_p[MESH_KEY_ROOM], const char **why_p);
/* Of a secret one. 0, or -1. */
int mesh_key_public(const char *secret, char public_p[MESH_KEY_ROOM]);
/* Whether it has the form of a key. */
bool mesh_key_is(const char *text);

#endif

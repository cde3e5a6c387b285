/* SPDX-License-Identifier: Apache-2.0
 * Keys for the mesh between nodes: what stands in a key file (hvdd --mesh-key). */
#ifndef HVI_TOOLS_MESH_KEY_H
#define HVI_TOOLS_MESH_KEY_H

#define MESH_KEY_TEXT 160 /* room for a file */

/* Fresh ones: the node that listens has `server_p`, those that join have `client_p`. Three lines each.
 * 0, or -1 with a reason. */
int mesh_key_make(char server_p[MESH_KEY_TEXT], char client_p[MESH_KEY_TEXT], const char **why_p);
/* A new file of mode 0600. 0, or -1 with errno; nothing is left then. */
int mesh_key_write(const char *path, const char *text);

#endif

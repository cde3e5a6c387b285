/* SPDX-License-Identifier: Apache-2.0
 * As whom the engine runs. Before it has read anything of a trainer, and before its first thread. */
#ifndef ENGINE_USER_H
#define ENGINE_USER_H

/* Becomes the user of the process at the other end of `trainer_fd`, for good, where this process may; gives up every
 * capability in any case, but for root's engine of root's job. -1: no trainer is known, so the user stays. HVI_OK, or
 * HVI_ERR_REFUSED, logged: the engine must end. */
int engine_user_become(int trainer_fd);

#endif

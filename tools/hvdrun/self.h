/* SPDX-License-Identifier: Apache-2.0
 * hvdrun's own process: descriptors, signals, names. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_SELF_H
#define HVI_TOOLS_HVDRUN_SELF_H

#include "tools/hvdrun/procs.h"

/* 0, 1 and 2 must be taken, or a pipe of ours would become a child's stdin. */
void run_self_fill_fds(void);
/* Signals come through this descriptor, and SIGPIPE is ignored; those that were ignored at our start
 * (nohup) stay so, but for SIGCHLD: the kernel would drop how a child has ended. What a child must get
 * back is in *heritage_p. -1 and errno. */
int run_self_open_signals(struct run_heritage *heritage_p);
/* The user, or a service manager, wants hvdrun to end. */
bool run_self_asks_to_end(int signal_number);
/* Readable while a signal that asks to end has come. -1 and errno. */
int run_self_open_ends(void);
/* Takes one; 0: none has come. */
int run_self_take_end(int ends_fd);
/* Room for the descriptors of `ranks` ranks, as far as the hard limit goes. */
void run_self_raise_fds(struct run_heritage *heritage, int ranks);
/* Hexadecimal digits from the kernel's random source, at most 64, and a zero. */
void run_self_random_hex(char *text_p, size_t length);
/* Where this program lies; "" when that is not to be found out. */
void run_self_path(char *path_p, size_t size);

#endif

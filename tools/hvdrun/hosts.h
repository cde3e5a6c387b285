/* SPDX-License-Identifier: Apache-2.0
 * Which hosts a job is to run on: all of them must be this machine. Names are compared and never
 * looked up, so that nothing waits for a name server. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_HOSTS_H
#define HVI_TOOLS_HVDRUN_HOSTS_H

#include <stddef.h>

/* The slots of "localhost:2,127.0.0.1:2" together in *slots_p. 0, or -1 with a sentence. */
int run_hosts_parse(const char *hosts, long *slots_p, char *text_p, size_t text_size);
/* The same of a file with lines "localhost slots=2"; empty lines and those that begin with # are
 * skipped. */
int run_hosts_read(const char *path, long *slots_p, char *text_p, size_t text_size);

#endif

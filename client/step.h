/* SPDX-License-Identifier: Apache-2.0
 * Named places between two steps of something that must survive a death at any instruction. In a
 * build with HVD_STEPS (the tests' own copy of the library) a test is called there and may stop or
 * kill the process; otherwise nothing is left of it. */
#ifndef HVD_CLIENT_STEP_H
#define HVD_CLIENT_STEP_H

/* The tests' program defines it. */
void hvt_step(const char *name);

#ifdef HVD_STEPS
#define client_step(name) hvt_step(name)
#define CLIENT_STEP       hvt_step
#else
#define client_step(name) ((void)0)
#define CLIENT_STEP       NULL /* for those that call it below client/ */
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0
 * All flights, and the session they use. crew_start never waits for other ranks: a flight's end is told to
 * TensorFlow by the submitting thread, where it is over at once, or else by the one thread of crew.c.
 * Flights that find no room in the library are kept, in order, until there is some. */
#ifndef PYTHON_NATIVE_CREW_H
#define PYTHON_NATIVE_CREW_H

#include "python/native/flight.h"

/* The session that kernels use from now on. */
HVD_API void hvd_tf_attach(struct hvd_session *session);
/* Before hvd_close: from the return on no thread is inside the session on a kernel's behalf. */
HVD_API void hvd_tf_park(void);
/* After hvd_close: kernels that were in flight fail; returns when they have. `quiet`: hvd_close says that nobody works on
 * their ops any more. Otherwise their memory is never used again. */
HVD_API void hvd_tf_detach(bool quiet);

/* The session, to be given back by crew_leave; NULL: there is none, or it is another process'. */
struct hvd_session *crew_enter(void);
void crew_leave(void);
#define CREW_NOT_OPEN "Horovod has not been initialized; use hvd.init()."

/* Tells the session of memory that it does not know yet. */
void crew_share(void);

/* Submits a flight and sees to its end. Takes it over, also when it fails. */
void crew_start(struct flight *flight);

#endif

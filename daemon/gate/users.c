/* SPDX-License-Identifier: Apache-2.0
 * A user without connections is remembered as long as its burst is not paid for: connecting anew does not help. */
#include "daemon/gate/users.h"

#include "base/clock.h"
#include "base/rate.h"
#include "base/types.h"

#include <stdlib.h>

#include <utlist.h>

static void forget(struct gate_users *users, struct gate_user *user)
{
    DL_DELETE(users->all, user);
    free(user);
}

static void forget_idle(struct gate_users *users, uint64_t now_ns)
{
    struct gate_user *user, *spare;

    DL_FOREACH_SAFE(users->all, user, spare)
    {
        if (user->connections == 0 && user->paid_ns <= now_ns)
            forget(users, user);
    }
}

struct gate_user *gate_users_get(struct gate_users *users, uid_t uid, uint64_t now_ns)
{
    struct gate_user *user;

    DL_SEARCH_SCALAR(users->all, user, uid, uid);
    if (user != NULL)
        return user;
    forget_idle(users, now_ns);
    user = calloc(1, sizeof(*user));
    if (user == NULL)
        return NULL;
    user->uid = uid;
    DL_APPEND(users->all, user);
    return user;
}

static void turn_second(struct gate_user *user, uint64_t now_ns)
{
    uint64_t age_ns = now_ns - user->second_ns;

    if (age_ns < HVI_NS_SEC)
        return;
    user->asked_before = age_ns < 2 * HVI_NS_SEC ? user->asked : 0;
    user->asked = 0;
    user->second_ns = now_ns;
}

uint64_t gate_user_ask(struct gate_user *user, uint64_t now_ns, uint32_t per_second)
{
    uint64_t wait_ns =
        hvi_rate_take(&user->paid_ns, now_ns, HVI_NS_SEC / per_second, HVI_RANKS_MAX);

    turn_second(user, now_ns);
    user->asked += wait_ns == 0;
    return wait_ns;
}

uint64_t gate_user_wait(const struct gate_user *user, uint64_t now_ns, uint32_t per_second)
{
    uint64_t paid_ns = user->paid_ns;

    return hvi_rate_take(&paid_ns, now_ns, HVI_NS_SEC / per_second, HVI_RANKS_MAX);
}

uint32_t gate_user_asked(struct gate_user *user, uint64_t now_ns)
{
    turn_second(user, now_ns);
    return user->asked > user->asked_before ? user->asked : user->asked_before;
}

void gate_users_fini(struct gate_users *users)
{
    while (users->all != NULL)
        forget(users, users->all);
}

/* SPDX-License-Identifier: Apache-2.0
 * Users are kept apart, and remembered until their burst is paid for. */
#include "base/clock.h"
#include "base/types.h"
#include "daemon/gate/users.h"
#include "tests/unit/hvt_main.h"

#define NOW_NS (1000 * HVI_NS_SEC)

static struct gate_users users;

static unsigned known(void)
{
    unsigned count = 0;
    for (const struct gate_user *user = users.all; user != NULL; user = user->next)
        count++;
    return count;
}

static void teardown(void)
{
    gate_users_fini(&users);
}

static void use_up(struct gate_user *user, uint64_t now_ns)
{
    for (int i = 0; i < HVI_RANKS_MAX; i++)
        ck_assert_uint_eq(gate_user_ask(user, now_ns, 100), 0);
    ck_assert_uint_eq(gate_user_wait(user, now_ns, 100), 10 * HVI_NS_MS);
    ck_assert_uint_eq(gate_user_ask(user, now_ns, 100), 10 * HVI_NS_MS);
}

START_TEST(what_one_user_asks_costs_no_other)
{
    struct gate_user *one = gate_users_get(&users, 1, NOW_NS), *two;
    use_up(one, NOW_NS);
    two = gate_users_get(&users, 2, NOW_NS);
    ck_assert_ptr_ne(one, two);
    ck_assert_uint_eq(gate_user_ask(two, NOW_NS, 100), 0);
    ck_assert_uint_eq(gate_user_asked(one, NOW_NS), HVI_RANKS_MAX);
    ck_assert_uint_eq(gate_user_asked(one, NOW_NS + HVI_NS_SEC), HVI_RANKS_MAX);
    ck_assert_uint_eq(gate_user_asked(one, NOW_NS + 3 * HVI_NS_SEC), 0);
    ck_assert_uint_eq(gate_user_asked(two, NOW_NS), 1);
}
END_TEST

START_TEST(a_user_who_comes_anew_is_known_until_it_has_paid)
{
    struct gate_user *one = gate_users_get(&users, 1, NOW_NS);
    use_up(one, NOW_NS);
    gate_users_get(&users, 2, NOW_NS + HVI_NS_SEC);
    ck_assert_ptr_eq(gate_users_get(&users, 1, NOW_NS + HVI_NS_SEC), one);
    gate_users_get(&users, 3, NOW_NS + 11 * HVI_NS_SEC);
    ck_assert_uint_eq(known(), 1);
}
END_TEST

START_TEST(a_user_with_a_connection_stays)
{
    struct gate_user *one = gate_users_get(&users, 1, NOW_NS);
    one->connections = 1;
    gate_users_get(&users, 2, NOW_NS);
    gate_users_get(&users, 3, NOW_NS);
    ck_assert_uint_eq(known(), 2);
    ck_assert_ptr_eq(gate_users_get(&users, 1, NOW_NS), one);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gate/users");
    TCase *tcase = tcase_create("users");
    tcase_add_checked_fixture(tcase, NULL, teardown);
    tcase_add_test(tcase, what_one_user_asks_costs_no_other);
    tcase_add_test(tcase, a_user_who_comes_anew_is_known_until_it_has_paid);
    tcase_add_test(tcase, a_user_with_a_connection_stays);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

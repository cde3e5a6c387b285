/* SPDX-License-Identifier: Apache-2.0
 * Interning: one tensor per name, gone with its last reference. */
#include "daemon/engine/engine.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>

static struct engine_tensors tensors;

static struct engine_tensor *named(const char *name)
{
    struct engine_tensor *tensor =
        engine_tensor_get_named(&tensors, 0, name, (uint32_t)strlen(name));
    ck_assert_ptr_nonnull(tensor);
    return tensor;
}

START_TEST(equal_names_are_one_tensor)
{
    struct engine_tensor *a = named("w1"), *b = named("w2");

    ck_assert_ptr_eq(named("w1"), a);
    ck_assert_ptr_ne(a, b);
    ck_assert_uint_eq(a->refs, 2);
    engine_tensor_put(&tensors, a);
    engine_tensor_put(&tensors, a);
    engine_tensor_put(&tensors, b);
    ck_assert_uint_eq(tensors.count, 0);
    engine_tensors_fini(&tensors);
}
END_TEST

START_TEST(unnamed_ops_meet_by_kind_and_number_and_never_a_name)
{
    char name[HVI_NAME_MAX + 1];
    struct engine_tensor *a = engine_tensor_get_anon(&tensors, 0, HVI_KIND_ALLREDUCE, 7);

    ck_assert_ptr_eq(engine_tensor_get_anon(&tensors, 0, HVI_KIND_ALLREDUCE, 7), a);
    struct engine_tensor *b = engine_tensor_get_anon(&tensors, 0, HVI_KIND_BROADCAST, 7);
    struct engine_tensor *c = engine_tensor_get_anon(&tensors, 0, HVI_KIND_ALLREDUCE, 8);
    struct engine_tensor *d = named("allreduce.noname.7");
    ck_assert(a != b && a != c && a != d);
    engine_tensor_name(a, name);
    ck_assert_str_eq(name, "allreduce.noname.7");
    engine_tensor_put(&tensors, a);
    engine_tensor_put(&tensors, a);
    engine_tensor_put(&tensors, b);
    engine_tensor_put(&tensors, c);
    engine_tensor_put(&tensors, d);
    engine_tensors_fini(&tensors);
}
END_TEST

START_TEST(an_unnamed_tensor_is_reused_without_allocation)
{
    struct engine_tensor *first = engine_tensor_get_anon(&tensors, 0, HVI_KIND_ALLREDUCE, 1);

    engine_tensor_put(&tensors, first);
    for (uint64_t i = 2; i < 100; i++) {
        struct engine_tensor *tensor = engine_tensor_get_anon(&tensors, 0, HVI_KIND_BARRIER, i);
        ck_assert_ptr_eq(tensor, first);
        ck_assert_uint_eq(tensor->anon_seq, i);
        engine_tensor_put(&tensors, tensor);
    }
    engine_tensors_fini(&tensors);
}
END_TEST

START_TEST(thousands_of_names_can_be_told_apart)
{
    static struct engine_tensor *all[30000];
    char name[32];

    for (int i = 0; i < 30000; i++) {
        snprintf(name, sizeof name, "layer.%d.weight", i);
        all[i] = named(name);
    }
    ck_assert_uint_eq(tensors.count, 30000);
    for (int i = 0; i < 30000; i++) {
        snprintf(name, sizeof name, "layer.%d.weight", i);
        if (named(name) != all[i])
            ck_abort_msg("%s is another tensor", name);
        engine_tensor_put(&tensors, all[i]);
        engine_tensor_put(&tensors, all[i]);
    }
    ck_assert_uint_eq(tensors.count, 0);
}
END_TEST

START_TEST(a_long_name_is_cut_at_a_character_in_sentences)
{
    char name[HVI_NAME_MAX + 1], label[ENGINE_LABEL];

    memset(name, 'x', sizeof name);
    for (int i = 1; i + 2 < 1000; i += 2)
        memcpy(name + i, "\xc3\xa4", 2);
    name[1000] = '\0';
    struct engine_tensor *tensor = named(name);
    engine_tensor_label(tensor, label);
    size_t length = strlen(label);
    ck_assert_uint_lt(length, ENGINE_LABEL);
    ck_assert_str_eq(label + length - 3, "...");
    ck_assert_int_eq(label[length - 4], (char)0xa4);
    engine_tensor_put(&tensors, tensor);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/tensor");
    TCase *tcase = tcase_create("tensor");

    tcase_add_test(tcase, equal_names_are_one_tensor);
    tcase_add_test(tcase, unnamed_ops_meet_by_kind_and_number_and_never_a_name);
    tcase_add_test(tcase, an_unnamed_tensor_is_reused_without_allocation);
    tcase_add_test(tcase, thousands_of_names_can_be_told_apart);
    tcase_add_test(tcase, a_long_name_is_cut_at_a_character_in_sentences);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0
 * From a failing program to a small one: drop phases (halves first), ops, ranks; make every number
 * usual, or smaller; keep what still fails, until nothing changes any more or time is up. */
#include "tests/property/prop.h"

#include <stdlib.h>
#include <string.h>

struct shrinking {
    struct hvt_program *best;
    hvt_fails_fn fails;
    void *user;
    int64_t until_ns;
    char *text_p;
    bool progress;
};

static bool is_over(const struct shrinking *s)
{
    return hvt_now_ns() > s->until_ns;
}

/* Takes `program`. True: it fails, too, and is the best now. */
static bool offer(struct shrinking *s, struct hvt_program *program)
{
    char text[HVT_TEXT];

    if (is_over(s) || !s->fails(s->user, program, text)) {
        hvt_program_free(program);
        return false;
    }
    memcpy(s->text_p, text, sizeof text);
    hvt_program_free(s->best);
    s->best = program;
    s->progress = true;
    return true;
}

static void drop_phases(struct shrinking *s)
{
    for (int span = (s->best->phases + 1) / 2; span > 0 && !is_over(s); span /= 2) {
        for (int from = 0; from + span <= s->best->phases;) {
            struct hvt_program *copy = hvt_program_copy(s->best);
            copy->phases -= span;
            memmove(copy->phase + from, copy->phase + from + span,
                    (size_t)(copy->phases - from) * sizeof *copy->phase);
            if (copy->phases == 0) {
                hvt_program_free(copy);
                break;
            }
            if (!offer(s, copy))
                from += span;
        }
    }
}

static void drop_ops(struct shrinking *s)
{
    for (int at = 0; at < s->best->phases; at++) {
        for (int op = 0; op < s->best->phase[at].ops;) {
            struct hvt_program *copy = hvt_program_copy(s->best);
            struct hvt_phase *phase = &copy->phase[at];
            phase->ops--;
            memmove(phase->op + op, phase->op + op + 1,
                    (size_t)(phase->ops - op) * sizeof *phase->op);
            if (!offer(s, copy))
                op++;
        }
    }
}

static void drop_ranks(struct shrinking *s)
{
    for (int ranks = 1; ranks < s->best->ranks; ranks++) {
        struct hvt_program *copy = hvt_program_copy(s->best);
        copy->ranks = ranks;
        if (offer(s, copy))
            return;
    }
}

/* The usual value, or something half as far from 0, or one less. */
static void simplify(struct shrinking *s, const struct hvt_field *field, int phase, int op)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        struct hvt_program *copy = hvt_program_copy(s->best);
        char *base = op < 0 ? (char *)&copy->phase[phase] : (char *)&copy->phase[phase].op[op];
        int value, simple = field->usual;
        memcpy(&value, base + field->at, sizeof value);
        bool is_usual = value == simple;
        if (attempt > 0)
            simple = field->words || value < 2 ? value : attempt == 1 ? value / 2 : value - 1;
        if (is_usual || value == simple || strcmp(field->name, "kind") == 0 ||
            strcmp(field->name, "name") == 0) {
            hvt_program_free(copy);
            continue;
        }
        memcpy(base + field->at, &simple, sizeof simple);
        if (offer(s, copy))
            return;
    }
}

static void simplify_numbers(struct shrinking *s)
{
    for (int at = 0; at < s->best->phases && !is_over(s); at++) {
        for (const struct hvt_field *field = hvt_phase_fields; field->name; field++)
            simplify(s, field, at, -1);
        for (int op = 0; op < s->best->phase[at].ops; op++) {
            for (const struct hvt_field *field = hvt_op_fields; field->name; field++)
                simplify(s, field, at, op);
        }
    }
}

struct hvt_program *hvt_shrink(struct hvt_program *program, hvt_fails_fn fails, void *user,
                               int64_t until_ns, char *text_p)
{
    struct shrinking s = {program, fails, user, until_ns, text_p, true};

    while (s.progress && !is_over(&s)) {
        s.progress = false;
        drop_phases(&s);
        drop_ranks(&s);
        drop_ops(&s);
        simplify_numbers(&s);
    }
    return s.best;
}

/* SPDX-License-Identifier: Apache-2.0
 * An aligned text table. Cells are added row by row; text of foreign origin is made safe for
 * terminals here. One thread. Running out of memory ends the program with a message: these are
 * short-lived tools. */
#ifndef HVI_TOOLS_HVDCTL_TABLE_H
#define HVI_TOOLS_HVDCTL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* `memory`, which NULL is not: that ends the program. */
void *ctl_must(void *memory);

enum ctl_style { CTL_PLAIN, CTL_BOLD, CTL_GOOD, CTL_NOTE, CTL_BAD };

struct ctl_column {
    const char *title;
    bool right; /* numbers */
};

struct ctl_table;

/* `columns` must outlive the table. */
struct ctl_table *ctl_table_new(const struct ctl_column *columns, size_t count);
/* The next cell; the row is full after as many as there are columns. */
void ctl_table_add(struct ctl_table *table, enum ctl_style style, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
size_t ctl_table_rows(const struct ctl_table *table);
/* The title line and the rows; no trailing blanks. */
void ctl_table_print(const struct ctl_table *table, FILE *out, bool colours);
void ctl_table_free(struct ctl_table *table);

/* The escape sequences for a style, "" without colours. */
const char *ctl_style_on(enum ctl_style style, bool colours);
const char *ctl_style_off(enum ctl_style style, bool colours);

#endif

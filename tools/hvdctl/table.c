/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdctl/table.h"

#include "tools/common/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct cell {
    char *text;
    enum ctl_style style;
};

struct ctl_table {
    const struct ctl_column *columns;
    size_t column_count;
    struct cell *cells;
    size_t used, room;
};

void *ctl_must(void *memory)
{
    if (memory == NULL) {
        fputs("hvdctl: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

struct ctl_table *ctl_table_new(const struct ctl_column *columns, size_t count)
{
    struct ctl_table *table = ctl_must(calloc(1, sizeof *table));
    table->columns = columns;
    table->column_count = count;
    return table;
}

void ctl_table_add(struct ctl_table *table, enum ctl_style style, const char *format, ...)
{
    char raw[2048];
    char safe[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    text_safe(raw, safe, sizeof safe);
    if (table->used == table->room) {
        table->room = table->room == 0 ? 64 : 2 * table->room;
        table->cells = ctl_must(realloc(table->cells, table->room * sizeof *table->cells));
    }
    table->cells[table->used++] = (struct cell){.text = ctl_must(strdup(safe)), .style = style};
}

size_t ctl_table_rows(const struct ctl_table *table)
{
    return table->used / table->column_count;
}

const char *ctl_style_on(enum ctl_style style, bool colours)
{
    static const char *const codes[] = {"", "\033[1m", "\033[32m", "\033[33m", "\033[31m"};
    return colours ? codes[style] : "";
}

const char *ctl_style_off(enum ctl_style style, bool colours)
{
    return colours && style != CTL_PLAIN ? "\033[0m" : "";
}

static size_t column_width(const struct ctl_table *table, size_t column)
{
    size_t widest = text_width(table->columns[column].title);
    for (size_t i = column; i < table->used; i += table->column_count) {
        const size_t width = text_width(table->cells[i].text);
        widest = width > widest ? width : widest;
    }
    return widest;
}

/* Blanks are printed only before something, so no line ends with them; *owed_p carries them over. */
static void print_cell(FILE *out, const struct cell *cell, size_t width, bool right, bool colours,
                       size_t *owed_p)
{
    const size_t blanks = width - text_width(cell->text);
    const size_t before = *owed_p + (right ? blanks : 0);
    if (cell->text[0] == '\0') {
        *owed_p += width + 2;
        return;
    }
    fprintf(out, "%*s%s%s%s", (int)before, "", ctl_style_on(cell->style, colours), cell->text,
            ctl_style_off(cell->style, colours));
    *owed_p = 2 + (right ? 0 : blanks);
}

static void print_line(const struct ctl_table *table, FILE *out, bool colours, const size_t *widths,
                       const struct cell *cells)
{
    size_t owed = 0;
    for (size_t i = 0; i < table->column_count; i++)
        print_cell(out, &cells[i], widths[i], table->columns[i].right, colours, &owed);
    fputc('\n', out);
}

void ctl_table_print(const struct ctl_table *table, FILE *out, bool colours)
{
    const size_t count = table->column_count;
    size_t *widths = ctl_must(calloc(count, sizeof *widths));
    struct cell *titles = ctl_must(calloc(count, sizeof *titles));
    for (size_t i = 0; i < count; i++) {
        widths[i] = column_width(table, i);
        titles[i].text = (char *)(uintptr_t)table->columns[i].title;
        titles[i].style = CTL_BOLD;
    }
    print_line(table, out, colours, widths, titles);
    for (size_t i = 0; i + count <= table->used; i += count)
        print_line(table, out, colours, widths, &table->cells[i]);
    free(titles);
    free(widths);
}

void ctl_table_free(struct ctl_table *table)
{
    for (size_t i = 0; i < table->used; i++)
        free(table->cells[i].text);
    free(table->cells);
    free(table);
}

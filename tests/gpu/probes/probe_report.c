/* SPDX-License-Identifier: Apache-2.0
 * Records become lines and one JSON object. */
#include "probe_report.h"

#include "probe.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

const char *report_outcome(const struct report *r)
{
    static const char *const names[] = {"measured", "refused", "failed", "crashed", "hung"};
    return names[r->outcome];
}

static void put_json_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(f, "\\%c", *c);
        else if (*c < 0x20 || *c > 0x7e)
            fprintf(f, "\\u%04x", *c);
        else
            fputc(*c, f);
    }
    fputc('"', f);
}

static void put_json_rows(FILE *f, const struct report *r, const char *kinds)
{
    const char *comma = "";
    for (int i = 0; i < r->count; i++) {
        const struct report_row *row = &r->rows[i];
        if (!strchr(kinds, row->kind))
            continue;
        fputs(comma, f);
        comma = ", ";
        if (row->kind == 'N') {
            put_json_text(f, row->value);
        } else if (row->kind == 'I') {
            put_json_text(f, row->name);
            fputs(": ", f);
            put_json_text(f, row->value);
        } else {
            fputs("{\"name\": ", f);
            put_json_text(f, row->name);
            fputs(", \"value\": ", f);
            if (row->kind == 'F')
                fputs(row->value, f);
            else
                put_json_text(f, row->value);
            fputs(", \"unit\": ", f);
            put_json_text(f, row->unit);
            fputc('}', f);
        }
    }
}

void report_json(FILE *f, const struct report *r, int is_quick, double seconds)
{
    char date[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    fprintf(f, "{\"probe\": %d, \"title\": ", probe.number);
    put_json_text(f, probe.title);
    fprintf(f, ", \"date\": \"%s\", \"quick\": %s, \"outcome\": \"%s\", \"reason\": ", date,
            is_quick ? "true" : "false", report_outcome(r));
    put_json_text(f, r->reason);
    fprintf(f, ", \"seconds\": %.1f, \"facts\": {", seconds);
    put_json_rows(f, r, "I");
    fputs("}, \"figures\": [", f);
    put_json_rows(f, r, "FA");
    fputs("], \"notes\": [", f);
    put_json_rows(f, r, "N");
    fputs("]}\n", f);
}

/* A number JSON can hold; printf's inf and nan become text. */
static int is_number(const char *text)
{
    return text[strspn(text, "-+.0123456789eE")] == 0 && text[strcspn(text, "0123456789")] != 0;
}

void report_add(struct report *r, char kind, const char *name, const char *value, const char *unit)
{
    if (r->count == REPORT_ROWS)
        return;
    struct report_row *row = &r->rows[r->count++];
    row->kind = kind;
    snprintf(row->name, sizeof row->name, "%s%s", kind == 'N' || kind == 'I' ? "" : r->prefix,
             name);
    snprintf(row->value, sizeof row->value, "%s", value);
    snprintf(row->unit, sizeof row->unit, "%s", unit);
    if (kind == 'N')
        printf("note %s\n", row->value);
    else if (kind == 'I')
        printf("fact %s %s\n", row->name, row->value);
    else
        printf("probe%d %s %s %s\n", probe.number, row->name, row->value, row->unit);
    fflush(stdout);
}

static void take_fact(struct report *r, const char *name, const char *value)
{
    for (int i = 0; i < r->count; i++) {
        if (r->rows[i].kind == 'I' && strcmp(r->rows[i].name, name) == 0)
            return; /* each role says it */
    }
    report_add(r, 'I', name, value, "");
}

void report_take(struct report *r, char *line)
{
    char kind = line[0], *text = line + 2, *rest, *unit;
    switch (kind) {
    case 'N':
        report_add(r, 'N', "", text, "");
        break;
    case 'S':
        snprintf(r->step, sizeof r->step, "%s", text);
        break;
    case 'R':
    case 'E':
        if (!r->is_error_known)
            snprintf(r->reason, sizeof r->reason, "%s", text);
        if (!r->is_error_known && kind == 'R')
            r->outcome = REFUSED;
        else if (!r->is_error_known)
            r->outcome = FAILED;
        r->is_error_known = 1;
        break;
    case 'F':
    case 'A':
    case 'I':
        text = strtok_r(text, " ", &rest);
        if (!text || !rest)
            break;
        unit = kind == 'F' ? strchr(rest, ' ') : NULL;
        if (unit)
            *unit++ = 0;
        if (kind == 'I')
            take_fact(r, text, rest);
        else
            report_add(r, kind == 'F' && is_number(rest) ? 'F' : 'A', text, rest, unit ? unit : "");
        break;
    default:
        break;
    }
}

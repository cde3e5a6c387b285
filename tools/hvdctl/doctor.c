/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdctl/doctor.h"

#include "tools/hvdctl/table.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void ctl_found(struct ctl_finding *finding, enum ctl_verdict verdict, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    finding->verdict = verdict;
    vsnprintf(finding->value, sizeof finding->value, format, args);
    va_end(args);
}

void ctl_next(struct ctl_finding *finding, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(finding->next, sizeof finding->next, format, args);
    va_end(args);
}

static const char *verdict_text(enum ctl_verdict verdict)
{
    static const char *const words[] = {"ok", "note", "problem"};
    return words[verdict];
}

static size_t count_problems(const struct ctl_finding *findings, size_t count)
{
    size_t problems = 0;
    for (size_t i = 0; i < count; i++)
        problems += findings[i].verdict == CTL_CHECK_PROBLEM;
    return problems;
}

static void print_json(const struct ctl *ctl, const struct ctl_check *checks,
                       const struct ctl_finding *findings, size_t count)
{
    cJSON *document = cJSON_CreateObject();
    cJSON *array = cJSON_AddArrayToObject(document, "checks");
    for (size_t i = 0; i < count; i++) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddItemToArray(array, object);
        cJSON_AddStringToObject(object, "check", checks[i].name);
        cJSON_AddStringToObject(object, "result", verdict_text(findings[i].verdict));
        cJSON_AddStringToObject(object, "value", findings[i].value);
        cJSON_AddStringToObject(object, "next", findings[i].next);
        for (const struct ctl_figure *figure = findings[i].figures;
             figure < findings[i].figures + 2 && figure->name != NULL; figure++)
            cJSON_AddNumberToObject(object, figure->name, (double)figure->value);
    }
    cJSON_AddNumberToObject(document, "problems", (double)count_problems(findings, count));
    char *text = cJSON_Print(document);
    cJSON_Delete(document);
    fprintf(ctl->out, "%s\n", text != NULL ? text : "{}");
    free(text);
}

static void print_table(const struct ctl *ctl, const struct ctl_check *checks,
                        const struct ctl_finding *findings, size_t count)
{
    static const struct ctl_column columns[] = {{"", false}, {"CHECK", false}, {"FOUND", false}};
    static const enum ctl_style styles[] = {CTL_GOOD, CTL_NOTE, CTL_BAD};
    struct ctl_table *table = ctl_table_new(columns, 3);
    for (size_t i = 0; i < count; i++) {
        ctl_table_add(table, styles[findings[i].verdict], "%s", verdict_text(findings[i].verdict));
        ctl_table_add(table, CTL_PLAIN, "%s", checks[i].name);
        ctl_table_add(table, CTL_PLAIN, "%s", findings[i].value);
        if (findings[i].next[0] == '\0')
            continue;
        ctl_table_add(table, CTL_PLAIN, "%s", "");
        ctl_table_add(table, CTL_PLAIN, "%s", "");
        ctl_table_add(table, styles[findings[i].verdict], "-> %s", findings[i].next);
    }
    ctl_table_print(table, ctl->out, ctl->colours);
    ctl_table_free(table);
    const size_t problems = count_problems(findings, count);
    if (problems == 0)
        fprintf(ctl->out, "\nno problem found\n");
    else
        fprintf(ctl->out, "\n%zu problem%s\n", problems, problems == 1 ? "" : "s");
}

static size_t look_at(const struct ctl *ctl, const struct ctl_check *list,
                      struct ctl_check *checks_p, struct ctl_finding *findings_p, size_t room)
{
    size_t count = 0;
    for (; list[count].name != NULL && count < room; count++) {
        checks_p[count] = list[count];
        list[count].look(ctl, &findings_p[count]);
    }
    return count;
}

static int report(const struct ctl *ctl, const struct ctl_check *checks,
                  const struct ctl_finding *findings, size_t count)
{
    (ctl->json ? print_json : print_table)(ctl, checks, findings, count);
    return count_problems(findings, count) == 0 ? CTL_OK : CTL_REFUSED;
}

int ctl_doctor(const struct ctl *ctl)
{
    static struct ctl_check checks[CTL_CHECKS_MAX];
    static struct ctl_finding findings[CTL_CHECKS_MAX];
    size_t count = 0;
    if (ctl->peer == NULL)
        count = look_at(ctl, ctl_checks, checks, findings, CTL_CHECKS_MAX);
    count +=
        look_at(ctl, ctl_network_checks, checks + count, findings + count, CTL_CHECKS_MAX - count);
    if (ctl->peer != NULL)
        count += ctl_peer_look(ctl, checks + count, findings + count, CTL_CHECKS_MAX - count);
    return report(ctl, checks, findings, count);
}

int ctl_doctor_gpu(const struct ctl *ctl)
{
    static struct ctl_check checks[CTL_CHECKS_MAX];
    static struct ctl_finding findings[CTL_CHECKS_MAX];
    return report(ctl, checks, findings,
                  look_at(ctl, ctl_gpu_checks, checks, findings, CTL_CHECKS_MAX));
}

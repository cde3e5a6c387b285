/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdctl/doctor.h"

#include "tools/common/text.h"
#include "tools/hvdctl/table.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#define CHECKS_MAX 32

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
    char summary[64];
    const size_t problems = count_problems(findings, count);
    text_plural(problems, "problem", summary, sizeof summary);
    fprintf(ctl->out, "\n%s\n", problems == 0 ? "no problem found" : summary);
}

void ctl_doctor_print(const struct ctl *ctl, const struct ctl_check *checks,
                      const struct ctl_finding *findings, size_t count)
{
    if (ctl->json)
        print_json(ctl, checks, findings, count);
    else
        print_table(ctl, checks, findings, count);
}

int ctl_doctor(const struct ctl *ctl)
{
    static struct ctl_finding findings[CHECKS_MAX];
    size_t count = 0;
    while (ctl_checks[count].name != NULL && count < CHECKS_MAX) {
        memset(&findings[count], 0, sizeof findings[count]);
        ctl_checks[count].look(ctl, &findings[count]);
        count++;
    }
    ctl_doctor_print(ctl, ctl_checks, findings, count);
    return count_problems(findings, count) == 0 ? CTL_OK : CTL_REFUSED;
}

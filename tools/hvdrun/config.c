/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/config.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#define KEY_BYTES 256

struct reading {
    const char *path;
    yaml_document_t document;
    run_config_take *take;
    void *context;
    char *text;
    size_t text_size;
};

static const char *text_of(const yaml_node_t *node)
{
    return (const char *)node->data.scalar.value;
}

static size_t line_of(const yaml_node_t *node)
{
    return node->start_mark.line + 1;
}

static int complain(const struct reading *reading, const yaml_node_t *node, const char *sentence)
{
    snprintf(reading->text, reading->text_size, "%s:%zu: %s", reading->path, line_of(node),
             sentence);
    return -1;
}

static bool is_one_of(const char *text, const char *const *list)
{
    for (; *list != NULL; list++)
        if (strcasecmp(text, *list) == 0)
            return true;
    return false;
}

/* "Yes" is "true" unless it is quoted; NULL for nothing. */
static const char *value_of(const yaml_node_t *node)
{
    static const char *const truths[] = {"true", "yes", "on", NULL};
    static const char *const untruths[] = {"false", "no", "off", NULL};
    static const char *const nothings[] = {"", "~", "null", NULL};
    if (node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return text_of(node);
    if (is_one_of(text_of(node), nothings))
        return NULL;
    if (is_one_of(text_of(node), truths))
        return "true";
    return is_one_of(text_of(node), untruths) ? "false" : text_of(node);
}

static int take_scalar(struct reading *reading, const char *section, const yaml_node_t *key,
                       const yaml_node_t *value)
{
    char name[KEY_BYTES];
    char reason[512];
    struct run_config_entry entry = {.path = reading->path, .line = line_of(key), .key = name};
    snprintf(name, sizeof name, "%s%s%s", section, section[0] != '\0' ? "." : "", text_of(key));
    entry.value = value_of(value);
    if (entry.value == NULL || reading->take(reading->context, &entry, reason, sizeof reason) == 0)
        return 0;
    return complain(reading, key, reason);
}

static int take_mapping(struct reading *reading, const char *section, const yaml_node_t *mapping);

static int take_pair(struct reading *reading, const char *section, const yaml_node_pair_t *pair)
{
    const yaml_node_t *key = yaml_document_get_node(&reading->document, pair->key);
    const yaml_node_t *value = yaml_document_get_node(&reading->document, pair->value);
    if (key->type != YAML_SCALAR_NODE || strlen(text_of(key)) > KEY_BYTES / 2 - 1)
        return complain(reading, key, "a key is a word");
    if (value->type == YAML_SCALAR_NODE)
        return take_scalar(reading, section, key, value);
    if (value->type == YAML_MAPPING_NODE && section[0] == '\0')
        return take_mapping(reading, text_of(key), value);
    return complain(reading, key, "the value is to be one word or number");
}

static int take_mapping(struct reading *reading, const char *section, const yaml_node_t *mapping)
{
    const yaml_node_pair_t *pair = mapping->data.mapping.pairs.start;
    for (; pair < mapping->data.mapping.pairs.top; pair++)
        if (take_pair(reading, section, pair) != 0)
            return -1;
    return 0;
}

static int take_document(struct reading *reading)
{
    const yaml_node_t *root = yaml_document_get_root_node(&reading->document);
    if (root == NULL)
        return 0;
    if (root->type == YAML_SCALAR_NODE && value_of(root) == NULL)
        return 0;
    if (root->type != YAML_MAPPING_NODE)
        return complain(reading, root, "the file is to consist of lines `key: value`");
    return take_mapping(reading, "", root);
}

static int parse(struct reading *reading, FILE *file)
{
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) {
        snprintf(reading->text, reading->text_size, "out of memory");
        return -1;
    }
    yaml_parser_set_input_file(&parser, file);
    int status = -1;
    if (yaml_parser_load(&parser, &reading->document)) {
        status = take_document(reading);
        yaml_document_delete(&reading->document);
    } else if (ferror(file)) {
        snprintf(reading->text, reading->text_size, "cannot read %s: %s", reading->path,
                 strerror(errno));
    } else {
        snprintf(reading->text, reading->text_size, "%s:%zu: no YAML: %s", reading->path,
                 parser.problem_mark.line + 1,
                 parser.problem != NULL ? parser.problem : "out of memory");
    }
    yaml_parser_delete(&parser);
    return status;
}

int run_config_read(const char *path, run_config_take *take, void *context, char *text_p,
                    size_t text_size)
{
    struct reading reading = {
        .path = path, .take = take, .context = context, .text = text_p, .text_size = text_size};
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        snprintf(text_p, text_size, "cannot read the configuration file %s: %s", path,
                 strerror(errno));
        return -1;
    }
    const int status = parse(&reading, file);
    fclose(file);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 * Root: stale reports.
 *
 * A failure reaches nodes that have not reported the op. What such a node says of the op before it has seen the verdict
 * (.seen) is of the op that failed, and is dropped, once. If that was a member of a group, the rest of the node's group
 * fails as well. So the root has to hear the reports of a node in the order in which it said them. */
#include "daemon/engine/order/root_stale.h"

#include <stdlib.h>
#include <string.h>

void engine_root_stale_free(struct engine_root *root, struct engine_root_stale *stale)
{
    engine_tensor_put(&root->tensors, stale->tensor);
    free(stale->text);
    free(stale);
}

struct engine_root_stale *engine_root_stale_new(const struct engine_op *op, uint64_t number,
                                                int status, const char *text, int32_t culprit)
{
    struct engine_root_stale *stale = calloc(1, sizeof *stale);

    if (!stale)
        return NULL;
    stale->tensor = op->tensor;
    stale->tensor->refs++;
    stale->number = number;
    stale->status = status;
    stale->culprit = culprit;
    stale->text = strdup(text);
    return stale;
}

void engine_root_stale_remember(struct engine_root_node *node, struct engine_root_stale *stale)
{
    if (!stale)
        return;
    *node->last = stale;
    node->last = &stale->next;
}

void engine_root_stale_forget(struct engine_root *root, struct engine_root_node *node,
                              uint64_t seen)
{
    while (node->first && node->first->number <= seen) {
        struct engine_root_stale *stale = node->first;
        node->first = stale->next;
        if (!node->first)
            node->last = &node->first;
        engine_root_stale_free(root, stale);
    }
}

struct engine_root_stale *engine_root_stale_take(struct engine_root_node *node,
                                                 const struct engine_tensor *tensor)
{
    struct engine_root_stale **link = &node->first, *stale;

    while (*link && (*link)->tensor != tensor)
        link = &(*link)->next;
    stale = *link;
    if (!stale)
        return NULL;
    *link = stale->next;
    if (!stale->next)
        node->last = link;
    stale->next = NULL;
    return stale;
}

void engine_root_stale_drop_group(struct engine_root *root, struct engine_root_node *node)
{
    if (node->dropped)
        engine_root_stale_free(root, node->dropped);
    if (node->open)
        engine_tensor_put(&root->tensors, node->open);
    node->dropped = NULL;
    node->open = NULL;
}

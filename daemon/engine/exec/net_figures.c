/* SPDX-License-Identifier: Apache-2.0
 * What has gone over the lanes, as their ports say. The main thread asks, the net thread closes: so a port is in
 * the table, under the lock, as long as it is open. */
#include "daemon/engine/exec/net_thread.h"

#include <stdlib.h>

static void look(const struct engine_wire *net, const struct engine_wire_figure *figure,
                 struct engine_lane_row *row_p)
{
    *row_p = figure->last;
    if (figure->port)
        net->transport->count(figure->port, row_p);
}

static struct engine_wire_figure *find(struct engine_wire *net, const struct engine_wire_lane *lane)
{
    for (uint32_t i = 0; i < net->figure_count; i++) {
        if (net->figures[i].node == lane->node->number && net->figures[i].lane == lane->number)
            return &net->figures[i];
    }
    return NULL;
}

static struct engine_wire_figure *add(struct engine_wire *net, const struct engine_wire_lane *lane)
{
    struct engine_wire_figure *figures =
        realloc(net->figures, (net->figure_count + 1u) * sizeof *figures);

    if (!figures)
        return NULL;
    net->figures = figures;
    figures += net->figure_count++;
    *figures = (struct engine_wire_figure){
        .node = lane->node->number,
        .lane = lane->number,
        .last = {.node = lane->node->number,
                 .lane = lane->number,
                 .transport = net->transport->name},
    };
    return figures;
}

void engine_wire_figures_open(struct engine_wire *net, const struct engine_wire_lane *lane)
{
    pthread_mutex_lock(&net->lock);
    struct engine_wire_figure *figure = find(net, lane);
    if (!figure)
        figure = add(net, lane);
    if (figure)
        figure->port = lane->port;
    pthread_mutex_unlock(&net->lock);
}

void engine_wire_figures_close(struct engine_wire *net, const struct engine_wire_lane *lane)
{
    pthread_mutex_lock(&net->lock);
    struct engine_wire_figure *figure = find(net, lane);
    if (figure) {
        struct engine_lane_row row;
        look(net, figure, &row);
        figure->last = row;
        figure->port = NULL;
    }
    pthread_mutex_unlock(&net->lock);
}

bool engine_wire_backend_row(void *context, size_t index, struct engine_lane_row *row_p)
{
    struct engine_wire *net = context;

    if (!net)
        return false;
    pthread_mutex_lock(&net->lock);
    bool found = index < net->figure_count;
    if (found)
        look(net, &net->figures[index], row_p);
    pthread_mutex_unlock(&net->lock);
    return found;
}

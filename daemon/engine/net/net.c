/* SPDX-License-Identifier: Apache-2.0
 * From the roster on: which nodes there are, and what is left at the end. */
#include "daemon/engine/net/net.h"

#include "base/assert.h"
#include "base/status.h"
#include "daemon/engine/net/conn.h"

#include <stdio.h>
#include <stdlib.h>

static int take_peer(struct engine_net_node *node, const struct engine_net_peer *peer,
                     char text_p[ENGINE_NET_TEXT])
{
    if (peer->port == 0 ||
        engine_net_address_parse(peer->address, peer->port, &node->address) != HVI_OK) {
        snprintf(text_p, ENGINE_NET_TEXT,
                 "the roster has no usable address of %.64s: '%.64s', port %u", peer->name,
                 peer->address, (unsigned)peer->port);
        return HVI_ERR_INVALID;
    }
    engine_net_address_host(&node->address, node->host);
    engine_net_address_place(&node->address, node->place);
    snprintf(node->name, sizeof node->name, "%s", peer->name);
    return HVI_OK;
}

int engine_net_start(struct engine_net *net, const struct engine_net_config *config,
                     char text_p[ENGINE_NET_TEXT])
{
    int status = HVI_OK;

    HVI_ASSERT(!net->nodes && config->node < config->nodes);
    struct engine_net_node *nodes = calloc(config->nodes, sizeof *nodes);
    if (!nodes) {
        snprintf(text_p, ENGINE_NET_TEXT, "out of memory");
        return HVI_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < config->nodes && status == HVI_OK; i++)
        status = take_peer(&nodes[i], &config->peers[i], text_p);
    if (status != HVI_OK) {
        free(nodes);
        return status;
    }
    engine_net_identity_init(&net->identity, config->job, config->epoch, config->key, config->node,
                             config->nodes);
    net->identity.encrypts = config->encrypts;
    net->calls = config->calls;
    net->user = config->user;
    net->nodes = nodes;
    engine_net_listen_resume(net);
    return HVI_OK;
}

void engine_net_describe(const struct engine_net *net, uint32_t node, char text_p[ENGINE_NET_TEXT])
{
    snprintf(text_p, ENGINE_NET_TEXT, "node %u (%s)", node, net->nodes[node].name);
}

void engine_net_gone(struct engine_net *net, uint32_t node, enum engine_net_purpose purpose,
                     uint32_t lane)
{
    const uint16_t bit = engine_net_conn_bit(purpose, lane);

    net->nodes[node].handed &= (uint16_t)~bit;
    net->nodes[node].gone |= bit;
}

void engine_net_close(struct engine_net *net)
{
    engine_net_wish_close_all(net);
    engine_net_listen_close(net);
    free(net->nodes);
    net->nodes = NULL;
    engine_net_identity_fini(&net->identity);
}

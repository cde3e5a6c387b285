/* SPDX-License-Identifier: Apache-2.0
 * The configuration file of hvdd with arbitrary contents: it is either refused with a sentence that
 * names the file, or gives values in range, which survive being printed and read back. */
#include "fuzz.h"

#include "base/status.h"
#include "daemon/node/config.h"

#include <string.h>

static void check_values(const struct node_config *config)
{
    char value[HVI_WIRE_PATH], text[NODE_CONFIG_ERROR];
    struct node_config again;

    node_config_defaults(&again);
    for (size_t i = 0; i < node_config_row_count; i++) {
        const struct node_config_row *row = &node_config_rows[i];
        node_config_format(config, row, value, sizeof value);
        HVT_FUZZ_REQUIRE(node_config_set(&again, row, value, text, sizeof text) == HVI_OK);
        HVT_FUZZ_REQUIRE(!node_config_differs(row, config, &again));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct node_config config;
    char text[NODE_CONFIG_ERROR] = "";

    node_config_defaults(&config);
    int status = node_config_parse(&config, "fuzz", (const char *)data, size, text, sizeof text);
    HVT_FUZZ_REQUIRE(status == HVI_OK || strncmp(text, "fuzz:", 5) == 0);
    check_values(&config);
    return 0;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    static const char *const seeds[] = {
        "# comment\n[hvdd]\nmax-jobs = 3\nengine = /opt/x ; inline\n",
        "drain-timeout = 1.5s\nstall_warn: 500ms\nidle-exit = 2h\n",
        "region-limit = 1.5G\nadmin-mode = 0660\nprivate = auto\nlog-level = debug\n",
        "max-jobs = 99999999999999999999\n",
        "no-such = 1\n",
    };
    if (index >= sizeof seeds / sizeof seeds[0])
        return 0;
    size_t length = strlen(seeds[index]);
    HVT_FUZZ_REQUIRE(length <= room);
    memcpy(bytes_p, seeds[index], length);
    return length;
}

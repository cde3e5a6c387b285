/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/words.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* Names; a star at one end stands for anything. */
static const char *const kept_here[] = {
    /* Horovod's own list; its patterns match beginnings. */
    "BASH_FUNC_*", "OLDPWD*", "*CUDA_VISIBLE_DEVICES", "_HOROVOD_SECRET_KEY*",
    /* The login there is another one, perhaps another user's. */
    "HOME", "USER", "LOGNAME", "SHELL", "MAIL", "PWD", "SHLVL", "_", "HOSTNAME", "HOST", "SSH_*",
    "XDG_RUNTIME_DIR", "XDG_SESSION_*", "XDG_SEAT*", "XDG_VTNR", "DBUS_*", "DISPLAY",
    "WAYLAND_DISPLAY", "XAUTHORITY", "TMUX*", "STY", "WINDOWID",
    /* A service manager's words to this process alone. */
    "NOTIFY_SOCKET", "WATCHDOG_*", "LISTEN_*", "JOURNAL_STREAM", "INVOCATION_ID", "MANAGERPID",
    /* How hvdrun itself is told about other hosts. */
    "HVD_SSH"};

static bool matches(const char *pattern, const char *name, size_t length)
{
    const size_t whole = strlen(pattern);
    if (pattern[0] == '*')
        return length >= whole - 1 &&
               memcmp(name + length - (whole - 1), pattern + 1, whole - 1) == 0;
    if (pattern[whole - 1] == '*')
        return length >= whole - 1 && memcmp(name, pattern, whole - 1) == 0;
    return length == whole && memcmp(name, pattern, whole) == 0;
}

bool run_words_travel(const char *entry)
{
    const size_t length = strcspn(entry, "=");
    if (length == 0 || entry[length] == '\0')
        return false;
    for (size_t i = 0; i < sizeof kept_here / sizeof kept_here[0]; i++)
        if (matches(kept_here[i], entry, length))
            return false;
    return true;
}

int run_words_pack(char *const *list, bool (*chosen)(const char *entry), struct run_buffer *out)
{
    for (; *list != NULL; list++)
        if ((chosen == NULL || chosen(*list)) &&
            run_buffer_append(out, *list, strlen(*list) + 1) != HVI_OK)
            return HVI_ERR_NO_MEMORY;
    return HVI_OK;
}

char **run_words_unpack(unsigned char *bytes, size_t length)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += bytes[i] == '\0' ? 1 : 0;
    char **list = calloc(count + 1, sizeof *list);
    char *at = (char *)bytes;
    for (size_t i = 0; list != NULL && i < count; i++, at += strlen(at) + 1)
        list[i] = at;
    return list;
}

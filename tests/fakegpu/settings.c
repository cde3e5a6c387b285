/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fakegpu/settings.h"

#include "gpu/cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 32

struct row {
    char *name, *value;
    int calls;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct row settings[2 * ROWS + 1], faults[ROWS + 1];

/* Splits "a=b;c" into rows; an empty value is "". Returns the end of them. */
static struct row *split(const char *variable, const char *between, struct row *rows)
{
    const char *text = getenv(variable);
    char *next = text == NULL || *text == '\0' ? NULL : strdup(text);

    for (int i = 0; i < ROWS && next != NULL && *next != '\0'; i++, rows++) {
        rows->name = strsep(&next, ";");
        rows->value = rows->name + strcspn(rows->name, between);
        if (*rows->value != '\0')
            *rows->value++ = '\0';
    }
    return rows;
}

/* "PROGRAM/what": "what" in that program, else nothing. */
static void choose_program(struct row *row)
{
    char *slash = strchr(row->name, '/');

    if (slash == NULL)
        return;
    *slash = '\0';
    row->name = strcmp(row->name, program_invocation_short_name) == 0 ? slash + 1 : slash;
}

static void read_environment(void)
{
    split("FAKEGPU", "=", split("FAKEGPU_NODE", "=", settings)); /* the first of two counts */
    split("FAKEGPU_FAULT", "@", faults);
    for (struct row *row = faults; row->name != NULL; row++)
        choose_program(row);
}

static struct row *find(struct row *rows, const char *name)
{
    pthread_once(&once, read_environment);
    for (struct row *row = rows; row->name != NULL; row++) {
        if (strcmp(row->name, name) == 0)
            return row;
    }
    return NULL;
}

const char *fake_setting(const char *name)
{
    const struct row *row = find(settings, name);
    return row == NULL ? NULL : row->value;
}

int fake_number(const char *name, int otherwise)
{
    const char *value = fake_setting(name);
    return value == NULL ? otherwise : atoi(value);
}

bool fake_says(const char *name, const char *value)
{
    const char *said = fake_setting(name);
    return said != NULL && strcmp(said, value) == 0;
}

static int fault_number(const struct row *row)
{
    return row == NULL ? 0 : *row->value == '\0' ? 1 : atoi(row->value);
}

int fake_fault(const char *what)
{
    return fault_number(find(faults, what));
}

static int count(const char *what, int *wanted_p)
{
    struct row *row = find(faults, what);

    *wanted_p = fault_number(row);
    if (row == NULL)
        return -1;
    pthread_mutex_lock(&lock);
    int calls = ++row->calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

bool fake_fault_now(const char *what)
{
    int wanted;
    return count(what, &wanted) == wanted;
}

bool fake_fault_from_now(const char *what)
{
    int wanted, calls = count(what, &wanted);
    return calls > 0 && calls >= wanted;
}

int fake_device_total(void)
{
    int devices = fake_number("devices", 1);
    return devices < 0 ? 0 : devices > FAKE_DEVICES ? FAKE_DEVICES : devices;
}

int fake_instance_total(void)
{
    const int room = FAKE_DEVICES - fake_device_total();
    const int wanted = fake_setting("mig") == NULL ? 0 : fake_number("instances", 2);

    return wanted < room ? wanted : room;
}

int fake_device_of(int physical)
{
    return physical < fake_device_total() ? physical : fake_number("mig", -1);
}

bool fake_device_denied(int physical)
{
    return fake_fault("denied") == fake_device_of(physical) + 1;
}

bool fake_linked(int one, int other)
{
    const char *links = fake_setting("nvlink");
    char pair[16], turned[16];

    if (links == NULL || strcmp(links, "all") == 0)
        return true;
    snprintf(pair, sizeof(pair), "%d-%d", one, other);
    snprintf(turned, sizeof(turned), "%d-%d", other, one);
    for (const char *at = links; *at != '\0'; at += strspn(at, "+")) {
        const size_t length = strcspn(at, "+");
        if ((strlen(pair) == length && strncmp(at, pair, length) == 0) ||
            (strlen(turned) == length && strncmp(at, turned, length) == 0))
            return true;
        at += length;
    }
    return false;
}

void fake_device_uuid(int physical, unsigned char bytes_p[16])
{
    memcpy(bytes_p, "fake gpu of no  ", 16);
    bytes_p[14] = (unsigned char)fake_number("node", 0);
    bytes_p[15] = (unsigned char)physical;
}

size_t fake_device_memory(void)
{
    return (size_t)fake_number("memory", 1000) << 20;
}

size_t fake_device_taken(int physical)
{
    const char *value = fake_setting("taken");
    unsigned device, mib;

    if (value == NULL || sscanf(value, "%u:%u", &device, &mib) != 2 || (int)device != physical)
        return 0;
    return (size_t)mib << 20;
}

void fake_device_name(int physical, char *text_p, size_t size)
{
    struct hvi_cu_uuid uuid;
    char text[HVI_GPU_UUID_TEXT];

    fake_device_uuid(physical, uuid.bytes);
    hvi_gpu_uuid_format(&uuid, text);
    snprintf(text_p, size, "%s%s", physical < fake_device_total() ? "GPU" : "MIG", text + 3);
}

int fake_device_named(const char *name, size_t length)
{
    char text[HVI_GPU_UUID_TEXT], number[16];

    for (int i = 0; i < fake_device_total() + fake_instance_total(); i++) {
        fake_device_name(i, text, sizeof(text));
        snprintf(number, sizeof(number), "%d", i);
        if ((strlen(text) == length && strncasecmp(name, text, length) == 0) ||
            (strlen(number) == length && strncmp(name, number, length) == 0))
            return i;
    }
    return -1;
}

void fake_blame(const char *format, ...)
{
    va_list arguments;

    flockfile(stderr);
    fputs("fakegpu: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    funlockfile(stderr);
    abort();
}

/* SPDX-License-Identifier: Apache-2.0
 * The operands of the ops that are in flight at a time. Shared, registered and adopted memory is one
 * piece for all of them, as a program has it that knows hvdd; ordinary memory is one malloc per tensor, aligned
 * as frameworks align theirs (64 bytes), as a program has it that does not. */
#include "tools/hvd-perf/perf.h"

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN_SMALL  64u
#define ALIGN_LARGE  4096u
#define TENSORS_MOST HVD_OPS_MAX

static uint64_t round_up(uint64_t bytes)
{
    const uint64_t align = bytes < ALIGN_LARGE ? ALIGN_SMALL : ALIGN_LARGE;
    return (bytes + align - 1) / align * align;
}

/* ---- sizes from a file ---- */

static int bad_line(const char *path, long number, const char *line, char *text_p, size_t size)
{
    snprintf(text_p, size,
             "%s:%ld: a line begins with the number of elements of a tensor, not '%.*s'", path,
             number, (int)strcspn(line, "\n"), line);
    return -1;
}

static int read_lines(FILE *file, const char *path, uint64_t *counts, long *used_p, char *text_p,
                      size_t size)
{
    char line[512];
    for (long number = 1; fgets(line, sizeof line, file) != NULL; number++) {
        char *end;
        if (line[strspn(line, " \t\n")] == '\0' || line[0] == '#')
            continue;
        const long long elements = strtoll(line, &end, 10);
        if (elements <= 0 || strchr(" \t\n", *end) == NULL)
            return bad_line(path, number, line, text_p, size);
        if (*used_p == TENSORS_MOST) {
            snprintf(text_p, size, "%s has more than %d tensors", path, TENSORS_MOST);
            return -1;
        }
        counts[(*used_p)++] = (uint64_t)elements;
    }
    if (*used_p > 0)
        return 0;
    snprintf(text_p, size, "%s has no tensor", path);
    return -1;
}

int perf_sizes_read(const char *path, uint64_t **counts_p, long *count_p, char *text_p,
                    size_t text_size)
{
    long used = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        snprintf(text_p, text_size, "cannot read %s: %s", path, strerror(errno));
        return -1;
    }
    uint64_t *counts = calloc(TENSORS_MOST, sizeof *counts);
    int result = -1;
    if (counts == NULL)
        snprintf(text_p, text_size, "no memory for the sizes of %s", path);
    else
        result = read_lines(file, path, counts, &used, text_p, text_size);
    fclose(file);
    if (result != 0) {
        free(counts);
        return -1;
    }
    *counts_p = counts;
    *count_p = used;
    return 0;
}

/* ---- memory ---- */

static int complain(const struct perf_tensors *tensors, const char *what, int status)
{
    perf_complain(hvd_rank(tensors->session), "%s: %s: %s", what, hvd_status_name(status),
                  hvd_last_error());
    return status;
}

static int get_ordinary(const struct perf_tensors *tensors, uint64_t bytes, uint64_t align,
                        void **memory_p)
{
    if (posix_memalign(memory_p, align, bytes) != 0) {
        *memory_p = NULL;
        perf_complain(hvd_rank(tensors->session), "no memory for %" PRIu64 " bytes of tensors",
                      bytes);
        return HVD_ERR_NO_MEMORY;
    }
    memset(*memory_p, 0, bytes);
    return HVD_OK;
}

/* One piece for all tensors. */
static int get_piece(const struct perf_tensors *tensors, uint64_t bytes, unsigned char **piece_p)
{
    void *memory = NULL;
    int status;
    if (tensors->options->memory == PERF_SHARED) {
        status = hvd_alloc(tensors->session, bytes, &memory);
        if (status != HVD_OK)
            return complain(tensors, "hvd_alloc", status);
        *piece_p = memory;
        return HVD_OK;
    }
    const bool adopt = tensors->options->memory == PERF_ADOPTED;
    if (adopt)
        mallopt(M_MMAP_THRESHOLD, ALIGN_LARGE); /* small pieces, too, get pages of their own */
    status = get_ordinary(tensors, bytes, ALIGN_LARGE, &memory);
    if (status != HVD_OK)
        return status;
    status = adopt ? hvd_adopt(tensors->session, memory, bytes)
                   : hvd_register(tensors->session, memory, bytes);
    if (status != HVD_OK) {
        complain(tensors, adopt ? "hvd_adopt" : "hvd_register", status);
        free(memory);
        return status;
    }
    *piece_p = memory;
    return HVD_OK;
}

static void put_piece(struct perf_tensors *tensors, unsigned char *piece)
{
    if (piece == NULL)
        return;
    if (tensors->options->memory == PERF_SHARED) {
        hvd_free(tensors->session, piece);
        return;
    }
    hvd_deregister(tensors->session, piece);
    free(piece);
}

uint64_t perf_in_count(enum perf_op op, int ranks, uint64_t bytes, size_t element)
{
    const uint64_t n = (uint64_t)ranks;
    const bool divided = op == PERF_ALLGATHER || op == PERF_ALLTOALL || op == PERF_REDUCESCATTER;
    const uint64_t parts = bytes / (element * (divided ? n : 1));
    const uint64_t count = parts > 0 ? parts : 1;
    return op == PERF_ALLTOALL || op == PERF_REDUCESCATTER ? count * n : count;
}

uint64_t perf_out_count(enum perf_op op, int ranks, uint64_t in_count)
{
    const uint64_t n = (uint64_t)ranks;
    return op == PERF_ALLGATHER ? in_count * n : op == PERF_REDUCESCATTER ? in_count / n : in_count;
}

static uint64_t in_bytes(const struct perf_tensors *tensors, const struct perf_tensor *tensor)
{
    return tensor->room * hvd_dtype_size(tensors->options->dtype);
}

static uint64_t out_bytes(const struct perf_tensors *tensors, const struct perf_tensor *tensor)
{
    return perf_out_count(tensors->options->op, hvd_size(tensors->session), tensor->room) *
           hvd_dtype_size(tensors->options->dtype);
}

bool perf_out_of_place(const struct perf_options *options)
{
    return options->op == PERF_ALLGATHER || options->op == PERF_ALLTOALL ||
           options->op == PERF_REDUCESCATTER || options->out_of_place;
}

static int get_one_by_one(struct perf_tensors *tensors)
{
    int status = HVD_OK;
    const bool two = perf_out_of_place(tensors->options);
    for (long k = 0; k < tensors->count && status == HVD_OK; k++) {
        struct perf_tensor *tensor = &tensors->list[k];
        status = get_ordinary(tensors, in_bytes(tensors, tensor), ALIGN_SMALL, &tensor->in);
        tensor->out = tensor->in;
        if (status == HVD_OK && two)
            status = get_ordinary(tensors, out_bytes(tensors, tensor), ALIGN_SMALL, &tensor->out);
    }
    return status;
}

static int get_pieces(struct perf_tensors *tensors)
{
    uint64_t in = 0;
    uint64_t out = 0;
    const bool two = perf_out_of_place(tensors->options);
    for (long k = 0; k < tensors->count; k++) {
        in += round_up(in_bytes(tensors, &tensors->list[k]));
        out += round_up(out_bytes(tensors, &tensors->list[k]));
    }
    int status = get_piece(tensors, in, &tensors->in);
    if (status == HVD_OK && two)
        status = get_piece(tensors, out, &tensors->out);
    if (status != HVD_OK)
        return status;
    in = out = 0;
    for (long k = 0; k < tensors->count; k++) {
        struct perf_tensor *tensor = &tensors->list[k];
        tensor->in = tensors->in + in;
        tensor->out = two ? tensors->out + out : tensor->in;
        in += round_up(in_bytes(tensors, tensor));
        out += round_up(out_bytes(tensors, tensor));
    }
    return HVD_OK;
}

/* ---- the list ---- */

static int make_list(struct perf_tensors *tensors, const uint64_t *counts, long count)
{
    const struct perf_options *options = tensors->options;
    const uint64_t same = perf_in_count(options->op, hvd_size(tensors->session), options->bytes_max,
                                        hvd_dtype_size(options->dtype));
    tensors->list = calloc((size_t)count, sizeof *tensors->list);
    if (tensors->list == NULL) {
        perf_complain(hvd_rank(tensors->session), "no memory for a list of %ld tensors", count);
        return HVD_ERR_NO_MEMORY;
    }
    tensors->count = count;
    for (long k = 0; k < count; k++) {
        tensors->list[k].room = counts != NULL ? counts[k] : same;
        tensors->list[k].count = counts != NULL ? counts[k] : 0;
    }
    return HVD_OK;
}

static int make_list_of_file(struct perf_tensors *tensors)
{
    char text[512];
    uint64_t *counts;
    long count;
    if (perf_sizes_read(tensors->options->sizes, &counts, &count, text, sizeof text) != 0) {
        perf_complain(hvd_rank(tensors->session), "%s", text);
        return HVD_ERR_INVALID;
    }
    const int status = make_list(tensors, counts, count);
    free(counts);
    return status;
}

int perf_tensors_get(struct perf_tensors *tensors, struct hvd_session *session,
                     const struct perf_options *options)
{
    *tensors = (struct perf_tensors){.session = session, .options = options};
    const int status = options->op == PERF_GRADIENTS
                           ? make_list_of_file(tensors)
                           : make_list(tensors, NULL, options->outstanding);
    if (status != HVD_OK || options->op == PERF_BARRIER)
        return status;
    return options->memory == PERF_MALLOC ? get_one_by_one(tensors) : get_pieces(tensors);
}

void perf_tensors_put(struct perf_tensors *tensors)
{
    const bool mine = tensors->options->memory == PERF_MALLOC;
    for (long k = 0; mine && k < tensors->count; k++) {
        if (tensors->list[k].out != tensors->list[k].in)
            free(tensors->list[k].out);
        free(tensors->list[k].in);
    }
    put_piece(tensors, tensors->in);
    put_piece(tensors, tensors->out);
    free(tensors->list);
    *tensors = (struct perf_tensors){.options = tensors->options};
}

/* SPDX-License-Identifier: Apache-2.0
 * digits.c: trains a small network on handwritten digits, data-parallel, with nothing but hvd.h and
 * libm.
 *
 * Every rank holds the whole model (64 -> 128 ReLU -> 10, softmax cross entropy, SGD with momentum)
 * and computes the gradients of its share of each batch. The gradients live in hvd_alloc memory and
 * are summed in place; layer 2 is submitted before layer 1 is computed, so that the reduction of
 * one overlaps the backward pass of the other.
 *
 * The same curve for any number of ranks: a batch is the same images in the same order whatever the
 * number of ranks, each rank takes a contiguous part of it, an image's forward and backward pass is
 * float arithmetic that depends on that image and the parameters alone, and gradients are summed in
 * double, where the order of summation is lost in the rounding to float. The same bits for the same
 * number of ranks: hvdd sums in rank order.
 *
 *     hvdrun -np 4 ./digits --epochs 20
 *
 * Alone: make (see Makefile), or cc -O2 digits.c $(pkg-config --cflags --libs hvd) -lm -o digits */
#include <hvd/hvd.h>

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PIXELS = 64, HIDDEN = 128, CLASSES = 10 };
enum { LAYER1 = HIDDEN * (PIXELS + 1), LAYER2 = CLASSES * (HIDDEN + 1), PARAMS = LAYER1 + LAYER2 };
enum { TEST_EVERY = 5 }; /* each fifth image is for testing and never trained on */

#define MOMENTUM 0.9

struct image {
    float pixel[PIXELS]; /* 0 .. 1 */
    int digit;
};

struct options {
    int epochs, batch, slow_ms, timeout_s;
    uint64_t seed;
    size_t big_bytes;
    double lr;
    const char *data, *csv;
    bool hash;
};

/* Weights of a layer are row-major [outputs][inputs], then its biases; layer 1 first. */
struct trainer {
    struct options opt;
    struct hvd_session *session;
    int rank, size;
    struct image *train, *test;
    int train_count, test_count, steps; /* steps: of one epoch */
    int *order;                         /* this epoch's permutation of the training images */
    uint64_t random;
    float *param;     /* [PARAMS] */
    double *gradient; /* [PARAMS], summed over this rank's part of the batch, then over ranks */
    double *velocity; /* [PARAMS] */
    double *metrics;  /* [2 + steps]: right in training, right in test, loss of each step */
    float *ballast;   /* --big */
    FILE *csv;
};

/* What the forward pass of one image leaves for the backward pass. */
struct activation {
    float hidden[HIDDEN];
    float chance[CLASSES];
};

/* ---- errors
 * -------------------------------------------------------------------------------------------------------
 */

/* The time goes with the message so that a reader can tell how long after a peer's death it was
 * known (compare with `date +%s%N`). */
static _Noreturn void fail_hvd(struct trainer *t, const char *what, int status, const char *text)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    fprintf(stderr, "digits: rank %d: %s: %s: %s at_ns=%lld%09ld\n", t->rank, what,
            hvd_status_name(status), text, (long long)now.tv_sec, now.tv_nsec);
    fflush(stderr);
    hvd_close(t->session);
    exit(1);
}

static void check(struct trainer *t, const char *what, int status)
{
    if (status != HVD_OK)
        fail_hvd(t, what, status, hvd_last_error());
}

static _Noreturn void fail_file(const char *path, const char *why)
{
    fprintf(stderr, "digits: %s: %s\n", path, why);
    exit(1);
}

static void *allocate(size_t count, size_t size)
{
    void *p = calloc(count, size);
    if (!p)
        fail_file("memory", strerror(errno));
    return p;
}

/* ---- options
 * ------------------------------------------------------------------------------------------------------
 */

static const char usage_text[] =
    "usage: digits [options]\n"
    "Trains a 64-128-10 network on handwritten digits; one process per rank (see hvdrun).\n"
    "  --epochs N      passes over the training images (20)\n"
    "  --batch N       images per step, all ranks together (64)\n"
    "  --seed N        of the first parameters and of the order of the images (1)\n"
    "  --lr X          learning rate (0.05)\n"
    "  --data FILE     the images (digits.csv beside this program)\n"
    "  --csv FILE      rank 0 writes epoch,step,loss there\n"
    "  --hash          print a hash of the final parameters\n"
    "  --slow MS       sleep after each step, to have time to watch\n"
    "  --big BYTES     one more allreduce of that size per step\n"
    "  --timeout S     give up on an op after that long (60)\n"
    "  --help\n";

static _Noreturn void usage_error(const char *name, const char *value)
{
    fprintf(stderr, "digits: bad value for --%s: '%s'\n%s", name, value, usage_text);
    exit(2);
}

static long long parse_whole(const char *name, const char *value, long long least, long long most)
{
    char *end;
    errno = 0;
    long long n = strtoll(value, &end, 10);
    if (errno || end == value || *end || n < least || n > most)
        usage_error(name, value);
    return n;
}

static double parse_real(const char *name, const char *value)
{
    char *end;
    double x = strtod(value, &end);
    if (end == value || *end || !isfinite(x) || x <= 0)
        usage_error(name, value);
    return x;
}

static void set_option(struct options *o, int key, const char *name, const char *value)
{
    switch (key) {
    case 'e':
        o->epochs = (int)parse_whole(name, value, 0, 1000000);
        break;
    case 'b':
        o->batch = (int)parse_whole(name, value, 1, 100000);
        break;
    case 's':
        o->seed = (uint64_t)parse_whole(name, value, 0, LLONG_MAX);
        break;
    case 'l':
        o->lr = parse_real(name, value);
        break;
    case 'd':
        o->data = value;
        break;
    case 'c':
        o->csv = value;
        break;
    case 'H':
        o->hash = true;
        break;
    case 'w':
        o->slow_ms = (int)parse_whole(name, value, 0, 60000);
        break;
    case 'B':
        o->big_bytes = (size_t)parse_whole(name, value, 0, 1LL << 36);
        break;
    case 't':
        o->timeout_s = (int)parse_whole(name, value, 1, 1000000);
        break;
    case 'h':
        fputs(usage_text, stdout);
        exit(0);
    default:
        fputs(usage_text, stderr);
        exit(2);
    }
}

static void parse_options(int argc, char **argv, struct options *o)
{
    static const struct option table[] = {
        {"epochs", required_argument, NULL, 'e'}, {"batch", required_argument, NULL, 'b'},
        {"seed", required_argument, NULL, 's'},   {"lr", required_argument, NULL, 'l'},
        {"data", required_argument, NULL, 'd'},   {"csv", required_argument, NULL, 'c'},
        {"hash", no_argument, NULL, 'H'},         {"slow", required_argument, NULL, 'w'},
        {"big", required_argument, NULL, 'B'},    {"timeout", required_argument, NULL, 't'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
    };
    *o = (struct options){.epochs = 20, .batch = 64, .seed = 1, .lr = 0.05, .timeout_s = 60};
    for (;;) {
        int index = 0;
        int key = getopt_long(argc, argv, "", table, &index);
        if (key == -1)
            break;
        set_option(o, key, table[index].name, optarg);
    }
    if (optind < argc) {
        fprintf(stderr, "digits: unexpected argument '%s'\n%s", argv[optind], usage_text);
        exit(2);
    }
}

/* ---- data
 * ---------------------------------------------------------------------------------------------------------
 */

static void parse_image(const char *path, int line, char *text, struct image *image_p)
{
    char where[32];
    snprintf(where, sizeof where, "line %d is not an image", line);
    for (int i = 0; i <= PIXELS; i++) {
        char *end;
        long value = strtol(text, &end, 10);
        long most = i < PIXELS ? 16 : CLASSES - 1;
        if (end == text || value < 0 || value > most || *end != (i < PIXELS ? ',' : '\n'))
            fail_file(path, where);
        text = end + 1;
        if (i < PIXELS)
            image_p->pixel[i] = (float)value / 16.0f;
        else
            image_p->digit = (int)value;
    }
}

static struct image *read_images(const char *path, int *count_p)
{
    struct image *images = NULL;
    int count = 0, room = 0;
    char line[1024];
    FILE *file = fopen(path, "re");
    if (!file)
        fail_file(path, strerror(errno));
    while (fgets(line, sizeof line, file)) {
        if (count == room) {
            room = room ? 2 * room : 2048;
            images = realloc(images, (size_t)room * sizeof *images);
            if (!images)
                fail_file(path, strerror(errno));
        }
        parse_image(path, count + 1, line, &images[count]);
        count++;
    }
    fclose(file);
    if (count < TEST_EVERY)
        fail_file(path, "too few images");
    *count_p = count;
    return images;
}

/* The file that lies beside this program. */
static void default_data_path(char *path_p, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path_p, size - sizeof "digits.csv");
    path_p[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(path_p, '/');
    strcpy(slash ? slash + 1 : path_p, "digits.csv");
}

static void load_data(struct trainer *t)
{
    char beside[PATH_MAX];
    int count;
    default_data_path(beside, sizeof beside);
    struct image *all = read_images(t->opt.data ? t->opt.data : beside, &count);
    t->train = allocate((size_t)count, sizeof *t->train);
    t->test = allocate((size_t)count, sizeof *t->test);
    for (int i = 0; i < count; i++) {
        if (i % TEST_EVERY == TEST_EVERY - 1)
            t->test[t->test_count++] = all[i];
        else
            t->train[t->train_count++] = all[i];
    }
    free(all);
    t->steps = (t->train_count + t->opt.batch - 1) / t->opt.batch;
    t->order = allocate((size_t)t->train_count, sizeof *t->order);
    for (int i = 0; i < t->train_count; i++)
        t->order[i] = i;
}

/* splitmix64: small, good enough, and the same everywhere. */
static uint64_t next_random(struct trainer *t)
{
    uint64_t z = (t->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void shuffle(struct trainer *t)
{
    for (int i = t->train_count - 1; i > 0; i--) {
        int j = (int)(next_random(t) % (uint64_t)(i + 1));
        int other = t->order[j];
        t->order[j] = t->order[i];
        t->order[i] = other;
    }
}

/* ---- the network
 * --------------------------------------------------------------------------------------------------
 */

static void dense(const float *weight, const float *bias, int outputs, int inputs, const float *in,
                  float *out_p)
{
    for (int o = 0; o < outputs; o++) {
        float sum = bias[o];
        for (int i = 0; i < inputs; i++)
            sum += weight[o * inputs + i] * in[i];
        out_p[o] = sum;
    }
}

/* Turns ten scores into ten chances that add up to one. */
static void softmax(float *v)
{
    float top = v[0], sum = 0;
    for (int c = 1; c < CLASSES; c++)
        top = fmaxf(top, v[c]);
    for (int c = 0; c < CLASSES; c++)
        sum += v[c] = expf(v[c] - top);
    for (int c = 0; c < CLASSES; c++)
        v[c] /= sum;
}

static void forward(const float *param, const struct image *image, struct activation *a_p)
{
    const float *layer2 = param + LAYER1;
    dense(param, param + HIDDEN * PIXELS, HIDDEN, PIXELS, image->pixel, a_p->hidden);
    for (int h = 0; h < HIDDEN; h++)
        a_p->hidden[h] = fmaxf(a_p->hidden[h], 0);
    dense(layer2, layer2 + CLASSES * HIDDEN, CLASSES, HIDDEN, a_p->hidden, a_p->chance);
    softmax(a_p->chance);
}

static int guess(const struct activation *a)
{
    int best = 0;
    for (int c = 1; c < CLASSES; c++)
        if (a->chance[c] > a->chance[best])
            best = c;
    return best;
}

/* Adds d(loss)/d(weight) and d(loss)/d(bias) of one image, given d(loss)/d(output). */
static void add_gradient(double *gradient, int outputs, int inputs, const float *delta,
                         const float *in)
{
    double *bias = gradient + outputs * inputs;
    for (int o = 0; o < outputs; o++) {
        for (int i = 0; i < inputs; i++)
            gradient[o * inputs + i] += (double)(delta[o] * in[i]);
        bias[o] += (double)delta[o];
    }
}

/* delta2 = d(loss)/d(scores) = chance - truth, and so it replaces the chances. */
static void backward2(struct trainer *t, struct activation *a, const struct image *image)
{
    a->chance[image->digit] -= 1.0f;
    add_gradient(t->gradient + LAYER1, CLASSES, HIDDEN, a->chance, a->hidden);
}

static void backward1(struct trainer *t, const struct activation *a, const struct image *image)
{
    const float *weight2 = t->param + LAYER1;
    float delta1[HIDDEN];
    for (int h = 0; h < HIDDEN; h++) {
        float sum = 0;
        for (int c = 0; c < CLASSES; c++)
            sum += weight2[c * HIDDEN + h] * a->chance[c];
        delta1[h] = a->hidden[h] > 0 ? sum : 0;
    }
    add_gradient(t->gradient, HIDDEN, PIXELS, delta1, image->pixel);
}

static void init_parameters(struct trainer *t)
{
    const double scale1 = sqrt(6.0 / PIXELS), scale2 = sqrt(6.0 / HIDDEN);
    for (int i = 0; i < PARAMS; i++) {
        double uniform = (double)(next_random(t) >> 11) * 0x1p-53; /* [0, 1) */
        bool bias = (i >= HIDDEN * PIXELS && i < LAYER1) || i >= LAYER1 + CLASSES * HIDDEN;
        double value = (2 * uniform - 1) * (i < LAYER1 ? scale1 : scale2);
        t->param[i] = bias ? 0 : (float)value;
    }
}

/* ---- collective ops
 * -----------------------------------------------------------------------------------------------
 */

static struct hvd_op *start_sum(struct trainer *t, const char *name, void *data,
                                enum hvd_dtype dtype, int64_t count)
{
    struct hvd_tensor tensor = hvd_tensor_1d(data, dtype, count);
    struct hvd_op *op;
    check(t, name, hvd_allreduce_async(t->session, name, &tensor, &tensor, HVD_SUM, NULL, &op));
    return op;
}

static void finish(struct trainer *t, struct hvd_op *op)
{
    int status = hvd_wait(op, (int64_t)t->opt.timeout_s * 1000000000);
    if (status != HVD_OK)
        fail_hvd(t, hvd_op_name(op), status, hvd_last_error());
    hvd_op_free(op);
}

/* The part of `count` things that is this rank's. */
static void share(const struct trainer *t, int count, int *from_p, int *to_p)
{
    *from_p = (int)((int64_t)count * t->rank / t->size);
    *to_p = (int)((int64_t)count * (t->rank + 1) / t->size);
}

/* ---- training
 * -----------------------------------------------------------------------------------------------------
 */

static void update(struct trainer *t, int batch)
{
    for (int i = 0; i < PARAMS; i++) {
        t->velocity[i] = MOMENTUM * t->velocity[i] + t->gradient[i] / batch;
        t->param[i] = (float)((double)t->param[i] - t->opt.lr * t->velocity[i]);
    }
}

/* One batch: images order[first .. first + batch). Leaves this rank's part of the loss in metrics.
 */
static void train_step(struct trainer *t, int step, struct activation *a)
{
    int first = step * t->opt.batch, from, to;
    int batch = t->train_count - first < t->opt.batch ? t->train_count - first : t->opt.batch;
    struct hvd_op *big = NULL;
    share(t, batch, &from, &to);
    memset(t->gradient, 0, PARAMS * sizeof *t->gradient);
    if (t->ballast)
        big = start_sum(t, "ballast", t->ballast, HVD_FLOAT32,
                        (int64_t)(t->opt.big_bytes / sizeof *t->ballast));
    for (int i = from; i < to; i++) {
        const struct image *image = &t->train[t->order[first + i]];
        forward(t->param, image, &a[i]);
        t->metrics[0] += guess(&a[i]) == image->digit;
        t->metrics[2 + step] -= log(fmax((double)a[i].chance[image->digit], 1e-30)) / batch;
        backward2(t, &a[i], image);
    }
    struct hvd_op *sum2 = start_sum(t, "layer2", t->gradient + LAYER1, HVD_FLOAT64, LAYER2);
    for (int i = from; i < to; i++)
        backward1(t, &a[i], &t->train[t->order[first + i]]);
    struct hvd_op *sum1 = start_sum(t, "layer1", t->gradient, HVD_FLOAT64, LAYER1);
    finish(t, sum2);
    finish(t, sum1);
    if (big)
        finish(t, big);
    update(t, batch);
    if (t->opt.slow_ms)
        usleep((useconds_t)t->opt.slow_ms * 1000);
}

static void test_images(struct trainer *t)
{
    struct activation a;
    int from, to;
    share(t, t->test_count, &from, &to);
    for (int i = from; i < to; i++) {
        forward(t->param, &t->test[i], &a);
        t->metrics[1] += guess(&a) == t->test[i].digit;
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void report(struct trainer *t, int epoch, double took_s)
{
    double loss = 0;
    for (int step = 0; step < t->steps; step++) {
        loss += t->metrics[2 + step] / t->steps;
        if (t->csv)
            fprintf(t->csv, "%d,%d,%.17g\n", epoch, step + 1, t->metrics[2 + step]);
    }
    printf("epoch %2d/%d  loss %.6f  train %5.1f %%  test %5.1f %%  %.0f images/s\n", epoch,
           t->opt.epochs, loss, 100 * t->metrics[0] / t->train_count,
           100 * t->metrics[1] / t->test_count, t->train_count / took_s);
    fflush(stdout);
}

static void train_epoch(struct trainer *t, int epoch, struct activation *a)
{
    double started = seconds();
    memset(t->metrics, 0, (size_t)(2 + t->steps) * sizeof *t->metrics);
    shuffle(t);
    for (int step = 0; step < t->steps; step++)
        train_step(t, step, a);
    double took_s = seconds() - started;
    test_images(t);
    finish(t, start_sum(t, "metrics", t->metrics, HVD_FLOAT64, 2 + t->steps));
    if (t->rank == 0)
        report(t, epoch, took_s);
}

/* FNV-1a of the parameters' bits. Every rank must have the same. */
static void print_hash(struct trainer *t)
{
    uint64_t hash = 0xcbf29ce484222325u;
    const unsigned char *byte = (const unsigned char *)t->param;
    for (size_t i = 0; i < PARAMS * sizeof *t->param; i++)
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    struct hvd_tensor mine = hvd_tensor_1d(&hash, HVD_INT64, 1), all;
    struct hvd_op *op;
    check(t, "hash", hvd_allgather_async(t->session, "hash", &mine, NULL, NULL, &op));
    int status = hvd_wait(op, (int64_t)t->opt.timeout_s * 1000000000);
    if (status == HVD_OK)
        status = hvd_op_result(op, &all);
    check(t, "hash", status);
    for (int r = 0; r < t->size; r++) {
        if (((const uint64_t *)all.data)[r] == hash)
            continue;
        fprintf(stderr, "digits: rank %d: rank %d ended with other parameters\n", t->rank, r);
        exit(1);
    }
    hvd_op_free(op);
    if (t->rank == 0)
        printf("hash %016" PRIx64 " (the same on all %d ranks)\n", hash, t->size);
}

static void open_session(struct trainer *t)
{
    struct hvd_tensor param;
    struct hvd_op *op;
    t->rank = -1; /* not known yet, if opening fails */
    check(t, "open", hvd_open(NULL, &t->session));
    t->rank = hvd_rank(t->session);
    t->size = hvd_size(t->session);
    check(t, "alloc", hvd_alloc(t->session, PARAMS * sizeof(float), (void **)&t->param));
    check(t, "alloc", hvd_alloc(t->session, PARAMS * sizeof(double), (void **)&t->gradient));
    if (t->opt.big_bytes >= sizeof(float))
        check(t, "alloc", hvd_alloc(t->session, t->opt.big_bytes, (void **)&t->ballast));
    t->velocity = allocate(PARAMS, sizeof *t->velocity);
    t->metrics = allocate((size_t)(2 + t->steps), sizeof *t->metrics);
    t->random = t->opt.seed;
    if (t->rank == 0)
        init_parameters(t);
    t->random = ~t->opt.seed; /* the order of the images is every rank's to know */
    param = hvd_tensor_1d(t->param, HVD_FLOAT32, PARAMS);
    check(t, "parameters",
          hvd_broadcast_async(t->session, "parameters", &param, &param, 0, NULL, &op));
    finish(t, op);
}

static void open_csv(struct trainer *t)
{
    if (!t->opt.csv || t->rank != 0)
        return;
    t->csv = fopen(t->opt.csv, "we");
    if (!t->csv)
        fail_file(t->opt.csv, strerror(errno));
    fprintf(t->csv, "epoch,step,loss\n");
}

static void close_all(struct trainer *t)
{
    if (t->csv && (ferror(t->csv) | fclose(t->csv)))
        fail_file(t->opt.csv, "could not be written");
    int status = hvd_close(t->session);
    t->session = NULL;
    check(t, "close", status);
    free(t->metrics);
    free(t->velocity);
    free(t->order);
    free(t->train);
    free(t->test);
}

int main(int argc, char **argv)
{
    struct trainer t = {0};
    parse_options(argc, argv, &t.opt);
    load_data(&t);
    open_session(&t);
    open_csv(&t);
    if (t.rank == 0)
        printf("%d images for training, %d for testing; %d ranks, %d images per step\n",
               t.train_count, t.test_count, t.size, t.opt.batch);
    struct activation *a = allocate((size_t)t.opt.batch, sizeof *a);
    for (int epoch = 1; epoch <= t.opt.epochs; epoch++)
        train_epoch(&t, epoch, a);
    free(a);
    if (t.opt.hash)
        print_hash(&t);
    close_all(&t);
    return 0;
}

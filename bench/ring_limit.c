/* SPDX-License-Identifier: Apache-2.0
 * The limit of an allreduce between nodes: a pipelined ring over plain TCP connections, one process
 * per node, float32 sum, and nothing else. It has no names, negotiation, checks of the peer, or
 * hand-over to another process. bench/README.md compares hvdd with it.
 *
 *   ring_limit --rank R --addresses A,B[,...] [--port P] [--connections 1,2] [--locals L]
 *              [--rounds N] [--seconds S] [--spin I] BYTES...
 *   ring_limit --rank R --addresses A,B [--port P] --seconds S --beats MS
 *
 * It is started once per node; A, B, ... are the nodes' addresses. In each of N rounds every size is
 * run with each number of connections to a neighbour. Rank 0 prints one JSON object per size and
 * number of connections: medians over the rounds, and the median of each round.
 *
 *             step 0 .. n-2: reduce-scatter        step n-1 .. 2n-3: allgather
 *   sends     block rank - step                    block rank + 1 - (step - (n-1))
 *   receives  block rank - step - 1, and adds it   block rank - (step - (n-1)), into place
 *
 * A block is sent in chunks. Chunk c goes over connection c mod K, and may be sent in a step as soon
 * as it has been received in the step before. Both sides know all sizes, hence there are no headers.
 *
 * With L local buffers the process stands for a node of L ranks whose buffers it has mapped. Their
 * sum is made where a block is touched anyway: at the first send of a block, or in the pass that adds
 * a received chunk. That pass also writes the final sum to all local buffers.
 *
 * Up to 4 KiB whole vectors go round instead, and every node sums them in the order of the nodes.
 *
 * With --beats two nodes do nothing but tell each other every MS milliseconds that they are there, and
 * the row has the share of a core that this costs: the limit of engines that are idle. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NODES_MAX       16
#define CONNECTIONS_MAX 8
#define LOCALS_MAX      8
#define SIZES_MAX       16
#define ROUNDS_MAX      100
#define SAMPLES_MAX     20000
#define SAMPLES_LEAST   5
#define SMALL_FLOATS    1024u
#define CHUNK_MOST      (256u * 1024u) /* of one connection; of K connections that divided by K */
#define CHUNK_LEAST     (64u * 1024u)
#define SILENCE_MS      10000

/* How far one direction of one connection is: the next chunk, and the bytes of it that are done. */
struct place {
    int step;
    size_t chunk, done;
};

struct connection {
    int in, out; /* from the rank before, to the rank after */
    struct place came, went;
    bool summed; /* the local buffers have been added in the chunk that is about to be sent first */
    char *scratch;
    size_t held; /* bytes in scratch: less than one float, between two receives */
};

struct ring {
    int rank, nodes, locals, spin;
    int all, used; /* connections: those there are, and those that the op uses */
    struct connection connections[CONNECTIONS_MAX];
    float *buffers[LOCALS_MAX];
    size_t floats, chunk,
        chunks; /* of the op: floats, bytes of a chunk, chunks of the largest block */
};

struct figures {
    double median, p99, least, mean;
};

struct plan {
    const char *addresses[NODES_MAX];
    int port, rounds;
    int connections[CONNECTIONS_MAX], variants;
    size_t sizes[SIZES_MAX];
    int size_count;
    double seconds, beat_s; /* beat_s 0: sums */
};

static int my_rank = -1;

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "ring_limit: rank %d: ", my_rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- connections ---- */

static struct addrinfo *resolve(const char *address, int port, int flags)
{
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV},
                    *found;
    snprintf(service, sizeof service, "%d", port);
    int error = getaddrinfo(address, service, &hints, &found);
    if (error)
        fail("%s: %s", address, gai_strerror(error));
    return found;
}

/* Without pacing (bbr's), which would be the limit here instead of the wire. A connection that has begun with it keeps it. */
static int unpaced_socket(int family)
{
    int made = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made >= 0 && setsockopt(made, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) &&
        setsockopt(made, IPPROTO_TCP, TCP_CONGESTION, "reno", 4))
        fail("cannot choose a congestion control: %s", strerror(errno));
    return made;
}

static int listen_at(const char *address, int port)
{
    struct addrinfo *own = resolve(address, port, AI_PASSIVE);
    int one = 1, listener = unpaced_socket(own->ai_family);
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        bind(listener, own->ai_addr, own->ai_addrlen) || listen(listener, CONNECTIONS_MAX))
        fail("cannot listen at %s port %d: %s", address, port, strerror(errno));
    freeaddrinfo(own);
    return listener;
}

/* The next rank may not listen yet. */
static int connect_to(const char *address, int port)
{
    struct addrinfo *peer = resolve(address, port, 0);
    double deadline_s = now_s() + SILENCE_MS / 1000.0;
    for (;;) {
        int out = unpaced_socket(peer->ai_family);
        if (out >= 0 && connect(out, peer->ai_addr, peer->ai_addrlen) == 0) {
            freeaddrinfo(peer);
            return out;
        }
        if (now_s() > deadline_s)
            fail("cannot connect to %s port %d: %s", address, port, strerror(errno));
        close(out);
        usleep(20000);
    }
}

static void wait_for(int socket, short events)
{
    struct pollfd wanted = {.fd = socket, .events = events};
    if (poll(&wanted, 1, SILENCE_MS) != 1)
        fail("a neighbour was silent for %d s", SILENCE_MS / 1000);
}

static void send_all(int out, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t sent = send(out, (const char *)data + done, bytes - done, MSG_NOSIGNAL);
        if (sent > 0)
            done += (size_t)sent;
        else if (errno == EAGAIN)
            wait_for(out, POLLOUT);
        else
            fail("send: %s", strerror(errno));
    }
}

/* Spins before it sleeps. */
static void receive_all(const struct ring *ring, int in, void *data, size_t bytes)
{
    int idle = 0;
    for (size_t done = 0; done < bytes;) {
        ssize_t got = recv(in, (char *)data + done, bytes - done, MSG_DONTWAIT);
        if (got > 0)
            done += (size_t)got;
        else if (got == 0)
            fail("a neighbour has closed its connection");
        else if (errno != EAGAIN)
            fail("recv: %s", strerror(errno));
        else if (++idle > ring->spin)
            wait_for(in, POLLIN);
    }
}

static void prepare_socket(int socket)
{
    int one = 1;
    if (setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) ||
        fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK))
        fail("cannot set up a socket: %s", strerror(errno));
}

/* Each connection begins with its number, as they need not be accepted in order. */
static void connect_ring(struct ring *ring, const struct plan *plan)
{
    int listener = listen_at(plan->addresses[ring->rank], plan->port);
    const char *next = plan->addresses[(ring->rank + 1) % ring->nodes];
    for (int i = 0; i < ring->all; i++) {
        ring->connections[i].out = connect_to(next, plan->port);
        send_all(ring->connections[i].out, &i, sizeof i);
    }
    for (int i = 0; i < ring->all; i++) {
        int number = -1;
        wait_for(listener, POLLIN);
        int in = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (in < 0)
            fail("accept: %s", strerror(errno));
        receive_all(ring, in, &number, sizeof number);
        if (number < 0 || number >= ring->all)
            fail("a stranger has connected");
        ring->connections[number].in = in;
    }
    close(listener);
    for (int i = 0; i < ring->all; i++) {
        prepare_socket(ring->connections[i].in);
        prepare_socket(ring->connections[i].out);
        ring->connections[i].scratch = malloc(CHUNK_MOST);
        if (!ring->connections[i].scratch)
            fail("out of memory");
    }
}

/* ---- the ring ---- */

static int steps(const struct ring *ring)
{
    return 2 * (ring->nodes - 1);
}

static bool reduces(const struct ring *ring, int step)
{
    return step < ring->nodes - 1;
}

static int block_sent(const struct ring *ring, int step)
{
    int block =
        reduces(ring, step) ? ring->rank - step : ring->rank + 1 - (step - (ring->nodes - 1));
    return (block + 2 * ring->nodes) % ring->nodes;
}

static int block_received(const struct ring *ring, int step)
{
    return (block_sent(ring, step) + ring->nodes - 1) % ring->nodes;
}

/* Where a chunk of a block lies, in bytes; its length may be zero. */
static size_t chunk_at(const struct ring *ring, int block, size_t chunk, size_t *bytes_p)
{
    size_t nodes = (size_t)ring->nodes;
    size_t begin = ring->floats * (size_t)block / nodes * sizeof(float);
    size_t end = ring->floats * ((size_t)block + 1) / nodes * sizeof(float);
    size_t at = begin + chunk * ring->chunk;
    *bytes_p = at >= end ? 0 : end - at < ring->chunk ? end - at : ring->chunk;
    return at;
}

static bool is_over(const struct ring *ring, const struct place *place)
{
    return place->step == steps(ring);
}

/* To the connection's next chunk. */
static void advance(const struct ring *ring, struct place *place, int number)
{
    place->done = 0;
    place->chunk += (size_t)ring->used;
    if (place->chunk >= ring->chunks) {
        place->chunk = (size_t)number;
        place->step++;
    }
}

static bool may_send(const struct ring *ring, const struct connection *connection)
{
    const struct place *went = &connection->went, *came = &connection->came;
    if (is_over(ring, went))
        return false;
    return went->step == 0 || came->step > went->step - 1 ||
           (came->step == went->step - 1 && came->chunk > went->chunk);
}

static void add_locals(const struct ring *ring, size_t at, size_t bytes)
{
    float *restrict sum = ring->buffers[0] + at / sizeof(float);
    for (int l = 1; l < ring->locals; l++) {
        const float *restrict other = ring->buffers[l] + at / sizeof(float);
        for (size_t i = 0; i < bytes / sizeof(float); i++)
            sum[i] += other[i];
    }
}

static void copy_to_locals(const struct ring *ring, size_t at, size_t bytes)
{
    for (int l = 1; l < ring->locals; l++)
        memcpy((char *)ring->buffers[l] + at, (char *)ring->buffers[0] + at, bytes);
}

/* Two local buffers, the usual case, in one pass. */
static void add_pair(const struct ring *ring, size_t at, const float *restrict in, size_t count,
                     bool last)
{
    float *restrict first = ring->buffers[0] + at / sizeof(float);
    float *restrict second = ring->buffers[1] + at / sizeof(float);
    if (!last)
        for (size_t i = 0; i < count; i++)
            first[i] += second[i] + in[i];
    else
        for (size_t i = 0; i < count; i++)
            second[i] = first[i] = first[i] + second[i] + in[i];
}

static void add_received(const struct ring *ring, size_t at, const float *restrict in, size_t count,
                         bool last)
{
    if (ring->locals == 2) {
        add_pair(ring, at, in, count, last);
        return;
    }
    float *restrict sum = ring->buffers[0] + at / sizeof(float);
    for (size_t i = 0; i < count; i++)
        sum[i] += in[i];
    add_locals(ring, at, count * sizeof(float));
    if (last)
        copy_to_locals(ring, at, count * sizeof(float));
}

static bool did_transfer(ssize_t bytes, const char *what)
{
    if (bytes > 0)
        return true;
    if (bytes == 0)
        fail("a neighbour has closed its connection");
    if (errno != EAGAIN)
        fail("%s: %s", what, strerror(errno));
    return false;
}

/* Sends while the socket takes something and there is something to send. */
static bool pump_out(struct ring *ring, int number)
{
    struct connection *connection = &ring->connections[number];
    struct place *went = &connection->went;
    bool moved = false;
    while (may_send(ring, connection)) {
        size_t bytes, at = chunk_at(ring, block_sent(ring, went->step), went->chunk, &bytes);
        if (went->step == 0 && !connection->summed) {
            add_locals(ring, at, bytes);
            connection->summed = true;
        }
        if (went->done < bytes) {
            const char *from = (const char *)ring->buffers[0] + at + went->done;
            ssize_t sent = send(connection->out, from, bytes - went->done, MSG_NOSIGNAL);
            if (!did_transfer(sent, "send"))
                return moved;
            went->done += (size_t)sent;
        }
        moved = true;
        if (went->done == bytes) {
            advance(ring, went, number);
            connection->summed = false;
        }
    }
    return moved;
}

/* Bytes that have become part of the result; -1: there was nothing to receive. */
static ssize_t receive_and_add(const struct ring *ring, struct connection *connection, size_t at,
                               size_t left)
{
    ssize_t got =
        recv(connection->in, connection->scratch + connection->held, left - connection->held, 0);
    if (!did_transfer(got, "recv"))
        return -1;
    size_t have = connection->held + (size_t)got, whole = have / sizeof(float) * sizeof(float);
    bool last = connection->came.step == ring->nodes - 2;
    add_received(ring, at, (const float *)connection->scratch, whole / sizeof(float), last);
    connection->held = have - whole;
    memmove(connection->scratch, connection->scratch + whole, connection->held);
    return (ssize_t)whole;
}

static ssize_t receive_in_place(const struct ring *ring, struct connection *connection, size_t at,
                                size_t left)
{
    ssize_t got = recv(connection->in, (char *)ring->buffers[0] + at, left, 0);
    if (!did_transfer(got, "recv"))
        return -1;
    copy_to_locals(ring, at, (size_t)got);
    return got;
}

/* Receives until a chunk is complete, so that sending has its turn, or there is nothing. */
static bool pump_in(struct ring *ring, int number)
{
    struct connection *connection = &ring->connections[number];
    struct place *came = &connection->came;
    bool moved = false;
    while (!is_over(ring, came)) {
        size_t bytes, at = chunk_at(ring, block_received(ring, came->step), came->chunk, &bytes);
        if (came->done < bytes) {
            ssize_t got =
                reduces(ring, came->step)
                    ? receive_and_add(ring, connection, at + came->done, bytes - came->done)
                    : receive_in_place(ring, connection, at + came->done, bytes - came->done);
            if (got < 0)
                return moved;
            came->done += (size_t)got;
            moved = true;
        }
        if (came->done == bytes) {
            advance(ring, came, number);
            return true;
        }
    }
    return moved;
}

static void sleep_until_ready(const struct ring *ring)
{
    struct pollfd wanted[2 * CONNECTIONS_MAX];
    nfds_t count = 0;
    for (int i = 0; i < ring->used; i++) {
        const struct connection *connection = &ring->connections[i];
        if (!is_over(ring, &connection->came))
            wanted[count++] = (struct pollfd){.fd = connection->in, .events = POLLIN};
        if (may_send(ring, connection))
            wanted[count++] = (struct pollfd){.fd = connection->out, .events = POLLOUT};
    }
    if (poll(wanted, count, SILENCE_MS) < 1)
        fail("nothing moved for %d s", SILENCE_MS / 1000);
}

/* Half a block, so that sending and receiving overlap, within limits. */
static size_t chunk_for(const struct ring *ring, size_t block)
{
    size_t most = CHUNK_MOST / (size_t)ring->used / sizeof(float) * sizeof(float);
    size_t half = (block / sizeof(float) + 1) / 2 * sizeof(float);
    size_t least = most < CHUNK_LEAST ? most : CHUNK_LEAST;
    if (ring->used == 1)
        least = most; /* each further wake-up costs more than the overlap gains */
    return half < least ? least : half > most ? most : half;
}

static void run_large(struct ring *ring, size_t floats, int connections)
{
    size_t block = (floats + (size_t)ring->nodes - 1) / (size_t)ring->nodes * sizeof(float);
    ring->floats = floats;
    ring->used = connections;
    ring->chunk = chunk_for(ring, block);
    ring->chunks = (block + ring->chunk - 1) / ring->chunk;
    if ((size_t)ring->used > ring->chunks)
        ring->used = (int)ring->chunks;
    for (int i = 0; i < ring->used; i++) {
        struct connection *connection = &ring->connections[i];
        connection->came = connection->went = (struct place){.chunk = (size_t)i};
        connection->summed = false;
    }
    for (int idle = 0;;) {
        bool moved = false, over = true;
        for (int i = 0; i < ring->used; i++) {
            moved |= pump_in(ring, i);
            moved |= pump_out(ring, i);
            over &= is_over(ring, &ring->connections[i].came) &&
                    is_over(ring, &ring->connections[i].went);
        }
        if (over)
            return;
        idle = moved ? 0 : idle + 1;
        if (idle > ring->spin)
            sleep_until_ready(ring);
    }
}

static void run_small(struct ring *ring, size_t floats)
{
    static float vectors[NODES_MAX][SMALL_FLOATS];
    int nodes = ring->nodes, rank = ring->rank;
    add_locals(ring, 0, floats * sizeof(float));
    memcpy(vectors[rank], ring->buffers[0], floats * sizeof(float));
    for (int step = 0; step < nodes - 1; step++) {
        float *mine = vectors[(rank - step + nodes) % nodes];
        float *theirs = vectors[(rank - step - 1 + nodes) % nodes];
        send_all(ring->connections[0].out, mine, floats * sizeof(float));
        receive_all(ring, ring->connections[0].in, theirs, floats * sizeof(float));
    }
    for (size_t i = 0; i < floats; i++) {
        float sum = vectors[0][i];
        for (int node = 1; node < nodes; node++)
            sum += vectors[node][i];
        ring->buffers[0][i] = sum;
    }
    copy_to_locals(ring, 0, floats * sizeof(float));
}

static void allreduce(struct ring *ring, size_t floats, int connections)
{
    if (floats <= SMALL_FLOATS)
        run_small(ring, floats);
    else
        run_large(ring, floats, connections);
}

/* ---- measuring ---- */

/* Sums of small whole numbers, which are exact in any order. */
static void check_sums(struct ring *ring, size_t floats, int connections)
{
    int ranks = ring->nodes * ring->locals;
    for (int l = 0; l < ring->locals; l++)
        for (size_t i = 0; i < floats; i++)
            ring->buffers[l][i] = (float)(ring->rank * ring->locals + l + 1 + (int)(i % 7));
    allreduce(ring, floats, connections);
    for (int l = 0; l < ring->locals; l++) {
        for (size_t i = 0; i < floats; i++) {
            float right = (float)(ranks * (ranks + 1) / 2 + ranks * (int)(i % 7));
            if (ring->buffers[l][i] != right)
                fail("a wrong result: element %zu of buffer %d is %g, not %g", i, l,
                     (double)ring->buffers[l][i], (double)right);
        }
        memset(ring->buffers[l], 0, floats * sizeof(float)); /* the sums stay zero */
    }
}

/* Rank 0's number on every rank. */
static uint64_t from_first(const struct ring *ring, uint64_t number)
{
    if (ring->rank > 0)
        receive_all(ring, ring->connections[0].in, &number, sizeof number);
    if (ring->rank < ring->nodes - 1)
        send_all(ring->connections[0].out, &number, sizeof number);
    return number;
}

/* On rank 0: each sample of the rank that was slowest. */
static void keep_slowest(const struct ring *ring, double *samples, size_t count)
{
    static double others[SAMPLES_MAX];
    if (ring->rank != 1) {
        receive_all(ring, ring->connections[0].in, others, count * sizeof *others);
        for (size_t i = 0; i < count; i++)
            if (others[i] > samples[i])
                samples[i] = others[i];
    }
    if (ring->rank > 0)
        send_all(ring->connections[0].out, samples, count * sizeof *samples);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median_of(double *values, size_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static struct figures figures_of(double *samples, size_t count)
{
    struct figures figures = {.median = median_of(samples, count), .least = samples[0]};
    for (size_t i = 0; i < count; i++)
        figures.mean += samples[i] / (double)count;
    figures.p99 = samples[(count * 99 + 99) / 100 - 1];
    return figures;
}

/* How many ops fit into the time; the same on every rank. Warms up. */
static size_t count_for(struct ring *ring, size_t floats, int connections, double seconds)
{
    const double targets_s[] = {seconds / 10, seconds};
    size_t count = 3;
    for (int pass = 0; pass < 2; pass++) {
        double began_s = now_s();
        for (size_t i = 0; i < count; i++)
            allreduce(ring, floats, connections);
        double fitting = targets_s[pass] * (double)count / (now_s() - began_s);
        double limited = fitting < SAMPLES_LEAST ? SAMPLES_LEAST
                         : fitting > SAMPLES_MAX ? SAMPLES_MAX
                                                 : fitting;
        count = from_first(ring, (uint64_t)limited);
    }
    return count;
}

/* In microseconds; right on rank 0. */
static struct figures run_round(struct ring *ring, size_t floats, int connections, double seconds,
                                size_t *count_p)
{
    static double samples[SAMPLES_MAX];
    *count_p = count_for(ring, floats, connections, seconds);
    for (size_t i = 0; i < *count_p; i++) {
        double began_s = now_s();
        allreduce(ring, floats, connections);
        samples[i] = (now_s() - began_s) * 1e6;
    }
    keep_slowest(ring, samples, *count_p);
    return figures_of(samples, *count_p);
}

static double median_over_rounds(const struct figures *rounds, int count, size_t offset)
{
    double values[ROUNDS_MAX];
    for (int i = 0; i < count; i++)
        memcpy(&values[i], (const char *)&rounds[i] + offset, sizeof values[i]);
    return median_of(values, (size_t)count);
}

static void print_row(const struct ring *ring, size_t bytes, int connections,
                      const struct figures *rounds, int round_count, size_t iterations)
{
    printf(
        "{\"op\": \"allreduce\", \"bytes\": %zu, \"np\": %d, \"nodes\": %d, \"connections\": %d, ",
        bytes, ring->nodes * ring->locals, ring->nodes, connections);
    printf(
        "\"time_us\": %.3f, \"time_us_p99\": %.3f, \"time_us_min\": %.3f, \"time_us_mean\": %.3f, ",
        median_over_rounds(rounds, round_count, offsetof(struct figures, median)),
        median_over_rounds(rounds, round_count, offsetof(struct figures, p99)),
        median_over_rounds(rounds, round_count, offsetof(struct figures, least)),
        median_over_rounds(rounds, round_count, offsetof(struct figures, mean)));
    printf("\"errors\": 0, \"iterations\": %zu, \"rounds_us\": [", iterations);
    for (int i = 0; i < round_count; i++)
        printf("%s%.3f", i ? ", " : "", rounds[i].median);
    printf("]}\n");
    fflush(stdout);
}

static void measure(struct ring *ring, const struct plan *plan)
{
    static struct figures rounds[SIZES_MAX][CONNECTIONS_MAX][ROUNDS_MAX];
    size_t iterations = 0;
    for (int round = 0; round < plan->rounds; round++)
        for (int i = 0; i < plan->size_count; i++)
            for (int k = 0; k < plan->variants; k++) {
                size_t floats = plan->sizes[i] / sizeof(float);
                check_sums(ring, floats, plan->connections[k]);
                rounds[i][k][round] =
                    run_round(ring, floats, plan->connections[k], plan->seconds, &iterations);
                if (ring->rank == 0 && round == plan->rounds - 1)
                    print_row(ring, plan->sizes[i], plan->connections[k], rounds[i][k],
                              plan->rounds, iterations);
            }
}

/* ---- beats ---- */

static double used_s(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

/* A beat that is nearly due when the other one's comes goes with it: two wakes of the one that was
 * first, and one of the other. */
static void beat_until(int socket, double beat_s, double end_s)
{
    char beat[16] = {0};
    double due_s = now_s() + beat_s;
    for (double at_s; (at_s = now_s()) < end_s;) {
        struct pollfd wanted = {.fd = socket, .events = POLLIN};
        double left_s = due_s - at_s;
        if (poll(&wanted, 1, left_s > 0 ? (int)(left_s * 1e3) + 1 : 0) > 0)
            (void)did_transfer(recv(socket, beat, sizeof beat, MSG_DONTWAIT), "recv");
        if (now_s() < due_s - beat_s / 6)
            continue;
        send_all(socket, beat, sizeof beat);
        due_s = now_s() + beat_s;
    }
}

static void measure_beats(const struct ring *ring, const struct plan *plan)
{
    const struct connection *connection = &ring->connections[0];
    double began_s = now_s(), before_s = used_s();
    beat_until(ring->rank == 0 ? connection->out : connection->in, plan->beat_s,
               began_s + plan->seconds);
    double share = 100 * (used_s() - before_s) / (now_s() - began_s);
    struct ring other = {.rank = ring->rank, .nodes = 2, .connections = {ring->connections[1]}};
    keep_slowest(&other, &share, 1);
    (void)from_first(&other, 0); /* the other one stays as long as this one beats */
    if (ring->rank == 0)
        printf("{\"op\": \"beats\", \"np\": 2, \"cpu_percent\": %.4f}\n", share);
    fflush(stdout);
}

/* ---- the command line ---- */

__attribute__((noreturn)) static void misused(void)
{
    fputs("usage: ring_limit --rank R --addresses A,B[,...] [--port P] [--connections 1,2] "
          "[--locals L]\n"
          "                  [--rounds N] [--seconds S] [--spin I] BYTES...\n"
          "       ring_limit --rank R --addresses A,B [--port P] --seconds S --beats MS\n",
          stderr);
    exit(2);
}

static int number_of(const char *text, int least, int most)
{
    char *end;
    long number = strtol(text, &end, 10);
    if (end == text || *end || number < least || number > most)
        misused();
    return (int)number;
}

static void take_addresses(struct plan *plan, struct ring *ring, char *list)
{
    for (char *each = strtok(list, ","); each; each = strtok(NULL, ",")) {
        if (ring->nodes == NODES_MAX)
            misused();
        plan->addresses[ring->nodes++] = each;
    }
}

static void take_connections(struct plan *plan, struct ring *ring, char *list)
{
    plan->variants = 0;
    for (char *each = strtok(list, ","); each && plan->variants < CONNECTIONS_MAX;
         each = strtok(NULL, ",")) {
        int count = number_of(each, 1, CONNECTIONS_MAX);
        plan->connections[plan->variants++] = count;
        ring->all = count > ring->all ? count : ring->all;
    }
}

static bool take_option(struct plan *plan, struct ring *ring, int option)
{
    switch (option) {
    case 'r':
        ring->rank = number_of(optarg, 0, NODES_MAX - 1);
        return true;
    case 'a':
        take_addresses(plan, ring, optarg);
        return true;
    case 'p':
        plan->port = number_of(optarg, 1, 65535);
        return true;
    case 'k':
        take_connections(plan, ring, optarg);
        return true;
    case 'l':
        ring->locals = number_of(optarg, 1, LOCALS_MAX);
        return true;
    case 'n':
        plan->rounds = number_of(optarg, 1, ROUNDS_MAX);
        return true;
    case 's':
        plan->seconds = strtod(optarg, NULL);
        return plan->seconds > 0;
    case 'b':
        plan->beat_s = number_of(optarg, 1, 100000) / 1e3;
        return true;
    case 'i':
        ring->spin = number_of(optarg, 0, 1000000);
        return true;
    default:
        return false;
    }
}

static void parse(struct plan *plan, struct ring *ring, int argc, char **argv)
{
    static const struct option options[] = {
        {"rank", 1, NULL, 'r'},   {"addresses", 1, NULL, 'a'},
        {"port", 1, NULL, 'p'},   {"locals", 1, NULL, 'l'},
        {"rounds", 1, NULL, 'n'}, {"connections", 1, NULL, 'k'},
        {"spin", 1, NULL, 'i'},   {"seconds", 1, NULL, 's'},
        {"beats", 1, NULL, 'b'},  {0},
    };
    char usual[] = "1,2";
    take_connections(plan, ring, usual);
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;)
        if (!take_option(plan, ring, option))
            misused();
    for (; optind < argc && plan->size_count < SIZES_MAX; optind++)
        plan->sizes[plan->size_count++] =
            (size_t)number_of(argv[optind], (int)sizeof(float), INT32_MAX);
    bool beats = plan->beat_s > 0;
    if (optind < argc || beats == (plan->size_count > 0) || (beats && ring->nodes != 2) ||
        ring->nodes < 2 || ring->rank < 0 || ring->rank >= ring->nodes || plan->variants == 0 ||
        (beats && ring->all < 2))
        misused();
}

static void make_buffers(struct ring *ring, const struct plan *plan)
{
    size_t most = 0;
    for (int i = 0; i < plan->size_count; i++)
        most = plan->sizes[i] > most ? plan->sizes[i] : most;
    for (int l = 0; l < ring->locals; l++) {
        ring->buffers[l] =
            mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (ring->buffers[l] == MAP_FAILED)
            fail("no memory for %zu bytes: %s", most, strerror(errno));
        (void)madvise(ring->buffers[l], most, MADV_HUGEPAGE); /* as memory of hvd_alloc */
        memset(ring->buffers[l], 0, most);
    }
}

int main(int argc, char **argv)
{
    static struct ring ring = {.rank = -1, .locals = 1, .spin = 1};
    static struct plan plan = {.port = 9300, .rounds = 1, .seconds = 1};
    parse(&plan, &ring, argc, argv);
    my_rank = ring.rank;
    if (plan.beat_s == 0)
        make_buffers(&ring, &plan);
    connect_ring(&ring, &plan);
    if (plan.beat_s > 0)
        measure_beats(&ring, &plan);
    else
        measure(&ring, &plan);
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// One measurement of Gloo over TCP on the loopback device, done as hvd-perf does it: every op is clocked on
// every rank, an iteration counts as its slowest rank, and the median over the iterations is the figure.
//
//   gloo_bench RANKS ring|bcube OP BYTES SECONDS [barrier]
//
// OP: allreduce (in place, float32, sum), allgather, broadcast, alltoall. The ranks are forked here; they
// meet by files in a temporary directory and leave their times in shared memory. Prints one JSON line.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <time.h>
#include <vector>

namespace
{

constexpr long samples_most = 200000;

struct Shared {
    int64_t times_ns[samples_most]; // the slowest rank's, after the ranks have taken turns
    double mean_ns;
};

struct Bench {
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::string algorithm, op;
    int rank, size;
    long bytes, count;
    double seconds;
    bool barrier;
    std::vector<float> in, out;
    Shared *shared;
};

int64_t clock_ns()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

void wait_for_all(Bench &bench)
{
    gloo::BarrierOptions options(bench.context);
    gloo::barrier(options);
}

void run_op(Bench &bench)
{
    const size_t count = bench.in.size();
    if (bench.op == "allreduce") {
        gloo::AllreduceOptions options(bench.context);
        options.setOutput(bench.in.data(), count);
        options.setReduceFunction(
            static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
        options.setAlgorithm(bench.algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                        : gloo::AllreduceOptions::Algorithm::RING);
        gloo::allreduce(options);
    } else if (bench.op == "allgather") {
        gloo::AllgatherOptions options(bench.context);
        options.setInput(bench.in.data(), count);
        options.setOutput(bench.out.data(), bench.out.size());
        gloo::allgather(options);
    } else if (bench.op == "broadcast") {
        gloo::BroadcastOptions options(bench.context);
        options.setRoot(0);
        options.setOutput(bench.in.data(), count);
        gloo::broadcast(options);
    } else if (bench.op == "alltoall") {
        gloo::AlltoallOptions options(bench.context);
        options.setInput(bench.in.data(), count);
        options.setOutput(bench.out.data(), count);
        gloo::alltoall(options);
    } else {
        throw std::runtime_error("what is '" + bench.op + "'?");
    }
}

void check(Bench &bench)
{
    const bool separate = bench.op == "allgather" || bench.op == "alltoall";
    const float sum = static_cast<float>(bench.size * (bench.size + 1) / 2);
    std::fill(bench.in.begin(), bench.in.end(), 1.0f + static_cast<float>(bench.rank));
    run_op(bench);
    const auto &out = separate ? bench.out : bench.in;
    const size_t part = out.size() / static_cast<size_t>(bench.size);
    for (size_t i = 0; i < out.size(); i++) {
        const float want = separate                  ? 1.0f + static_cast<float>(i / part)
                           : bench.op == "broadcast" ? 1.0f
                                                     : sum;
        if (out[i] != want)
            throw std::runtime_error("a wrong result");
    }
    std::fill(bench.in.begin(), bench.in.end(), 0.0f);
}

std::vector<int64_t> iterate(Bench &bench, long iterations)
{
    std::vector<int64_t> times(static_cast<size_t>(iterations));
    for (auto &time : times) {
        if (bench.barrier)
            wait_for_all(bench);
        const int64_t start = clock_ns();
        run_op(bench);
        time = clock_ns() - start;
    }
    return times;
}

// Every rank in turn does this to the shared memory.
void in_turn(Bench &bench, const std::function<void()> &action)
{
    for (int rank = 0; rank < bench.size; rank++) {
        if (rank == bench.rank)
            action();
        wait_for_all(bench);
    }
}

long agree(Bench &bench)
{
    double mean = 0;
    for (long looks : {3L, 30L}) {
        const int64_t start = clock_ns();
        iterate(bench, looks);
        mean = static_cast<double>(clock_ns() - start) / static_cast<double>(looks);
        if (mean * 30 > 1e9)
            break;
    }
    in_turn(bench, [&] { bench.shared->mean_ns = std::max(bench.shared->mean_ns, mean); });
    return std::clamp(static_cast<long>(bench.seconds * 1e9 / bench.shared->mean_ns), 5L,
                      samples_most);
}

void print_result(Bench &bench, long n)
{
    int64_t *times = bench.shared->times_ns;
    double sum = 0;
    std::sort(times, times + n);
    for (long i = 0; i < n; i++)
        sum += static_cast<double>(times[i]);
    const double median =
        (static_cast<double>(times[(n - 1) / 2]) + static_cast<double>(times[n / 2])) / 2;
    printf("{\"op\": \"%s\", \"bytes\": %ld, \"np\": %d, \"time_us\": %.3f, \"time_us_p99\": %.3f, "
           "\"time_us_min\": %.3f, \"time_us_mean\": %.3f, \"errors\": 0, \"iterations\": %ld, "
           "\"outstanding\": 1}\n",
           bench.op.c_str(), bench.bytes, bench.size, median * 1e-3,
           static_cast<double>(times[(n * 99 + 99) / 100 - 1]) * 1e-3,
           static_cast<double>(times[0]) * 1e-3, sum / static_cast<double>(n) * 1e-3, n);
    fflush(stdout);
}

void be_rank(Bench &bench, const std::string &directory)
{
    gloo::transport::tcp::attr attr;
    attr.iface = "lo";
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(directory);
    bench.context = std::make_shared<gloo::rendezvous::Context>(bench.rank, bench.size);
    bench.context->connectFullMesh(store, device);
    const long shares = bench.op == "allgather" ? bench.size : 1;
    bench.count = std::max(bench.bytes / 4 / shares, 1L);
    bench.bytes = bench.count * 4 * shares;
    bench.in.resize(static_cast<size_t>(bench.count));
    bench.out.resize(static_cast<size_t>(bench.count * shares));
    check(bench);
    const long n = agree(bench);
    const auto times = iterate(bench, n);
    in_turn(bench, [&] {
        for (size_t i = 0; i < times.size(); i++)
            bench.shared->times_ns[i] = std::max(bench.shared->times_ns[i], times[i]);
    });
    if (bench.rank == 0)
        print_result(bench, n);
    wait_for_all(bench);
}

// With BENCH_CORE_EACH=1 a core of its own, or its turn of one.
void take_a_core(int rank)
{
    cpu_set_t cores, mine;
    if (getenv("BENCH_CORE_EACH") == nullptr || sched_getaffinity(0, sizeof cores, &cores) != 0)
        return;
    int before = rank % CPU_COUNT(&cores), core = 0;
    while (!CPU_ISSET(core, &cores) || before-- > 0)
        core++;
    CPU_ZERO(&mine);
    CPU_SET(core, &mine);
    sched_setaffinity(0, sizeof mine, &mine);
}

int fork_ranks(Bench &bench, const std::string &directory)
{
    int result = 0;
    std::vector<pid_t> pids;
    for (bench.rank = 0; bench.rank < bench.size; bench.rank++) {
        const pid_t pid = fork();
        if (pid == 0) {
            try {
                take_a_core(bench.rank);
                be_rank(bench, directory);
                _exit(0);
            } catch (const std::exception &error) {
                fprintf(stderr, "gloo_bench: rank %d: %s\n", bench.rank, error.what());
                _exit(1);
            }
        }
        pids.push_back(pid);
    }
    for (const pid_t pid : pids) {
        int status = 0;
        waitpid(pid, &status, 0);
        if (status != 0)
            result = 1;
    }
    return result;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: gloo_bench RANKS ring|bcube OP BYTES SECONDS [barrier]\n");
        return 2;
    }
    Bench bench{};
    bench.size = atoi(argv[1]);
    bench.algorithm = argv[2];
    bench.op = argv[3];
    bench.bytes = atol(argv[4]);
    bench.seconds = atof(argv[5]);
    bench.barrier = argc > 6 && std::string(argv[6]) == "barrier";
    void *memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    std::string directory = (std::filesystem::temp_directory_path() / "gloo-bench-XXXXXX").string();
    if (memory == MAP_FAILED || mkdtemp(directory.data()) == nullptr) {
        perror("gloo_bench");
        return 1;
    }
    bench.shared = static_cast<Shared *>(memory);
    const int result = fork_ranks(bench, directory);
    std::filesystem::remove_all(directory);
    return result;
}

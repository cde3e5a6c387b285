#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that .ci/run has no time for. All steps together take more than the 100 minutes on two cores over which it warns, so they
# are mostly run in parts (docs/design/testing.md). Goes on after a step that fails; the exit status is 0 if none failed. Writes
# build-nightly/report.md and, for each step, build-nightly/STEP.log.
#
#   scripts/nightly.sh [STEP...]
#
# o3          gcc at -O3, as packagers build: there gcc warns of more
# arm         built for aarch64; unit tests under an emulator
# clang       unit, contract and property at clang's -O2, which .ci/run has with ThreadSanitizer only
# tensorflow  hvd.tensorflow and hvd.keras on TensorFlow 2.15, and with Keras 2, optimizers of TensorFlow 1 and other numbers of ranks
#             on the newest; its examples
# asan        the tests that .ci/run leaves out of its steps asan and tsan because they take minutes there (tests/skips.txt: ci-asan,
# tsan        ci-tsan); tsan with gcc, where .ci/run has clang
# slow        what takes minutes: other numbers of ranks and long scripts on PyTorch, integration.bench and .regress,
#             property.selftest
# huge        tensors of more than 4 GiB
# launchers   jobs on one node and on two that torchrun, Open MPI, Slurm, MPICH and Intel MPI have started
# nodes       scripts/nodes.sh: scripts for Horovod on PyTorch, TensorFlow and Keras, and a C program, on two nodes; a cut cable
# gpus        ops on memory of GPUs of two nodes, on the fake driver: all layouts; scripts/gpu.sh without a GPU
# ucx         jobs on several nodes over UCX: the contract suite, every fault, every op
# coverage    lines of C and Python that unit, contract and Python tests reach, against tests/coverage.txt
# debian13    demo and tests in a bare Debian 13
# booted      hvdd's units under a systemd that has booted; two machines in a mesh, upgraded from an older commit
# containers  examples/container built and run without Docker, with hvdd outside and inside
# service     tests/fault with hvdd as a user of its own and the trainers as another, whose engines are hvdd's user, and then theirs
# fuzz        every fuzzer for ten minutes: 80 minutes at the lowest priority, beside the other steps
# soak        half an hour of kills, kills on several nodes, thousands of lies, ten thousand simulated ranks, 50,000 kills at a hundred a
#             second; beside them half an hour of random programs with a seed from the clock
#
# A change of what a step covers comes with a run of that step: its report is committed as docs/measurements/DATE-nightly.md.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(o3 arm clang tensorflow asan tsan slow huge launchers nodes gpus ucx coverage debian13 booted containers service fuzz soak)
folder=$PWD/build-nightly
budget_s=6000
rows=()
failed=0
declare -A group=() began=()

# The build that huge, nodes, service and soak run on; CI's, where CI has run here.
build_release() {
    cmake --preset release >/dev/null
    cmake --build build-release -j "$(nproc)"
}
# A command on it, held to CI's rules of what may be skipped and how many tests may be late.
judged() { tests/harness/run-ctest build-release -- "$@"; }
judged_ctest() {
    judged ctest --test-dir build-release --output-junit "$PWD/build-release/Testing/junit.xml" --output-on-failure \
        --no-tests=error "$@"
}
judged_pytest() { judged tests/harness/run-pytest -rs "$@"; }

step_o3() {
    cmake -S . -B build-o3 -G Ninja -DCMAKE_BUILD_TYPE=Release -DHVD_TESTS=OFF -DHVD_WERROR=ON
    cmake --build build-o3 -j "$(nproc)"
}
step_arm() { scripts/arm.sh; }
step_tensorflow() { scripts/test.sh tensorflow -C Nightly -R 'tf215|tf_keras|tf221.(environment|optimizer_v1|examples|.*.nightly)'; }
# What .ci/run leaves out as it takes minutes, as a regular expression.
left_out() { sed -n "s/^\([a-z_.]*\) *$1 *minutes there.*/\1/p" tests/skips.txt | paste -sd '|'; }
step_asan() { scripts/test.sh asan -R "^($(left_out ci-asan))\$"; }
step_tsan() { scripts/test.sh tsan -R "^($(left_out ci-tsan))\$"; }
# What differs between compilers is seen from inside, and end to end by random programs.
step_clang() { CC=clang scripts/test.sh release --only unit,contract,property; }
step_slow() { scripts/test.sh release -C Nightly -R 'python.(environment|.*.nightly)|integration.(bench|regress)|property.selftest'; }
step_huge() {
    build_release
    HVT_HUGE=1 judged_pytest -q tests/integration/test_huge.py
}
step_launchers() { scripts/test.sh release -C Nightly -R 'python.(environment|(node_)?launchers)'; }
step_nodes() {
    build_release
    scripts/nodes.sh --build-dir build-release
}
step_gpus() { scripts/test.sh release -C Nightly -R 'contract.device.nodes|integration.gpu_script'; }
step_ucx() {
    scripts/test.sh release -C Nightly -R 'contract.span_ucx|fault.nodes_ucx'
    # But strangers, whom UCX believes, encryption, which it has not, and ports, which it takes itself.
    HVT_TRANSPORT=ucx judged_pytest -q -k 'not strangers and not encrypted and not lanes_and_ports' \
        tests/fault/test_nodes_faults.py tests/integration/test_nodes.py tests/integration/test_nodes_pairs.py
}
step_coverage() { scripts/coverage.sh; }
step_debian13() { scripts/debian13.sh; }
step_booted() { scripts/booted.sh; }
step_containers() { scripts/containers.sh; }
step_service() {
    local name status=0 files=()
    # The others have hvdds for several users in any case, or nodes, GPUs or namespaces.
    for name in daemon_killed engine_killed express foreign garbage gate large liar lifecycle many_kills memory_cgroup cpuset_cgroup pages \
        random_kills resources silent_memory stall trainer_killed; do
        files+=("tests/fault/test_$name.py")
    done
    build_release
    for name in hvdd users; do
        HVT_SERVICE=$name judged_pytest -q "${files[@]}" || status=$?
    done
    return "$status"
}
step_fuzz() { nice -n 19 scripts/fuzz.sh 600; }
step_soak() {
    local status=0 property
    build_release
    build-release/tests/hvt-property --seed clock --seconds 1800 --verbose >"$folder/property.log" 2>&1 &
    property=$!
    judged_pytest -s --soak -m soak tests/fault/test_liar.py \
        tests/fault/test_random_kills.py tests/fault/test_node_kills.py tests/fault/test_nodes_faults.py \
        tests/integration/test_hvdrun_tree.py tests/integration/test_nodes.py ||
        status=$?
    # Not by run-ctest itself, which tries once more what failed.
    judged_ctest -C Nightly -L '^sim$' || status=$?
    judged_ctest -C Long -R '^long[.]kills$' || status=$?
    wait "$property" || status=$?
    tail -n 20 "$folder/property.log"
    return "$status"
}

begin_step() {
    echo "==== nightly: $1, $((SECONDS / 60)) min so far"
    began[$1]=$(date +%s)
    set -m # a process group of its own, which end_steps ends
    "step_$1" </dev/null >"$folder/$1.log" 2>&1 & # in the background errexit stays in force
    group[$1]=$!
    set +m
}

# finish_step NAME: its row of the report. It ended when it last wrote a line.
finish_step() {
    local status=0 result=ok said took
    wait "${group[$1]}" || status=$?
    unset "group[$1]"
    took=$(($(date -r "$folder/$1.log" +%s) - began[$1]))
    if [ "$status" != 0 ]; then
        result="FAILED ($status)"
        failed=$((failed + 1))
        tail -n 40 "$folder/$1.log"
    fi
    said=$(grep -v '^[[:space:]]*$' "$folder/$1.log" | tail -n 1 | tr '|' '/' || true)
    rows+=("| $1 | $result | $took s | ${said:0:120} |")
    write_report >"$folder/report.md"
    echo "==== nightly: $1 $result after $took s"
}

end_steps() {
    local leader
    for leader in "${group[@]}"; do
        kill -TERM -- "-$leader"
    done
    exit 130
}

write_report() {
    echo "# Nightly run of $(date -u +%Y-%m-%d)"
    echo
    echo "Commit $(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD || echo ', with changes'), $(nproc) cores, Linux $(uname -r)," \
        "$SECONDS s. Written by scripts/nightly.sh."
    echo
    echo "| step | result | time | its last line |"
    echo "|---|---|---|---|"
    printf '%s\n' "${rows[@]}"
}

for name in "$@"; do
    case " ${all[*]} " in
    *" $name "*) ;;
    *)
        echo "usage: scripts/nightly.sh [${all[*]}]" >&2
        exit 2
        ;;
    esac
done
[ $# -gt 0 ] || set -- "${all[@]}"

trap end_steps INT TERM
mkdir -p "$folder"
export CLICOLOR=0 NO_COLOR=1
scripts/deps.sh nightly
case " $* " in *" fuzz "*) begin_step fuzz ;; esac
for name in "$@"; do
    [ "$name" != fuzz ] || continue
    begin_step "$name"
    finish_step "$name"
done
[ -z "${group[fuzz]:-}" ] || finish_step fuzz
cat "$folder/report.md"
[ "$SECONDS" -le "$budget_s" ] || echo "nightly: WARNING: $SECONDS s, over the budget of $budget_s s"
echo "nightly: $(($# - failed)) of $# steps ok, report: build-nightly/report.md"
[ "$failed" = 0 ]

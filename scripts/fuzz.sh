#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the libFuzzer targets (preset fuzz) and runs each for SECONDS (default 60), as many at a time as there are cores.
#   scripts/fuzz.sh [SECONDS] [TARGET...]
# Starts no more targets after the first crash, hang or leak; the input that caused it is in build-fuzz/fuzz/crashes/.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
[ $# -gt 0 ] && shift
case $seconds in
'' | *[!0-9]*)
    echo "usage: scripts/fuzz.sh [SECONDS] [TARGET...]" >&2
    exit 2
    ;;
esac

build="build-fuzz"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

level=()
[ "$seconds" -ge 60 ] || level=(-DCMAKE_C_FLAGS=-O0) # as the preset has it, compiling would take longer than all the rest
cmake --preset fuzz "${level[@]}" >"$log" || { cat "$log" >&2; exit 1; }
cmake --build "$build" --target fuzzers -j "$(nproc)" >"$log" || { cat "$log" >&2; exit 1; }

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for path in "$build"/fuzz/fuzz_*; do
        targets+=("${path##*/fuzz_}")
    done
fi

mkdir -p "$build/fuzz/crashes"

fuzz_one() {
    local target=$1 corpus=$build/fuzz/corpus/$1 log status=0
    log=$(mktemp)
    mkdir -p "$corpus"
    "$build/fuzz/replay_$target" --write "$corpus"
    "$build/fuzz/fuzz_$target" -max_total_time="$seconds" -max_len=131072 -timeout=10 \
        -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/fuzz/crashes/$target-" "$corpus" >"$log" 2>&1 || status=$?
    if [ "$status" != 0 ]; then
        tail -n 60 "$log" >&2
        echo "fuzz $target: FAILED; repeat with $build/fuzz/fuzz_$target $build/fuzz/crashes/..." >&2
        rm -f "$log"
        return 255 # for xargs: no more
    fi
    awk -v target="$target" -v seconds="$seconds" '
        /^stat::number_of_executed_units/ { runs = $2 }
        /^stat::average_exec_per_sec/ { rate = $2 }
        / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") cov = $(i + 1) }
        END { printf "fuzz %-16s %9d runs in %d s, %6d execs/s, %d edges\n", target, runs, seconds, rate, cov }
    ' "$log"
    rm -f "$log"
}
export -f fuzz_one
export build seconds
# shellcheck disable=SC2016 # the inner shell expands it
printf '%s\n' "${targets[@]}" |
    xargs -P "$(nproc)" -I '{}' bash -euo pipefail -c 'fuzz_one "$1"' - '{}'

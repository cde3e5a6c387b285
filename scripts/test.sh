#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds and runs the tests: all of them, or those that the arguments select.
#
#   scripts/test.sh [PRESET] [--only LABELS] [ctest arguments]      PRESET: release (default), debug, asan, tsan
#   scripts/test.sh asan -L unit
#   scripts/test.sh tensorflow [ctest arguments]    hvd.tensorflow and hvd.keras on the newest TensorFlow, with Keras 3, Keras
#                                                   on PyTorch and a little with Keras 2; by default only a small set
#   scripts/test.sh release -C Whole                also what the default leaves out to take less time,
#                                                   but not what is left to scripts/nightly.sh
#   scripts/test.sh tsan --leave-out ci-tsan        without what tests/skips.txt leaves out so, as .ci/run does; prints it
#
# --only unit,contract builds no more than tests with these labels need, and runs them: unit, contract, property, fuzz.
# CC=clang builds with clang, in build-PRESET-clang. What was skipped or late is listed at the end; a skip that tests/skips.txt does
# not allow fails. The last line is ctest's summary.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    echo "test: $*" >&2
    exit 2
}

preset=release
if [ "${1:-}" = tensorflow ]; then
    shift
    set -- release -C Whole -L tensorflow "$@"
fi
case ${1:-} in
release | debug | asan | tsan)
    preset=$1
    shift
    ;;
-*) ;;
?*) usage "'$1' is no preset (release, debug, asan, tsan), nor tensorflow" ;;
esac
targets=()
if [ "${1:-}" = --only ]; then
    [[ ${2:-} =~ ^(unit|contract|property|fuzz)(,(unit|contract|property|fuzz))*$ ]] ||
        usage "--only takes labels of unit, contract, property, fuzz with commas between them"
    read -ra targets <<<"--target tests-${2//,/ tests-}"
    set -- -L "^(${2//,/|})\$" "${@:3}"
fi
compiler=${CC:-gcc}
folder=build-$preset
case $compiler in
*clang*) folder=$folder-clang ;;
esac
export CC=$compiler

scripts/deps.sh test

# What the surrounding session says about ranks and daemons is not for the tests.
unset "${!HVD_@}" "${!HOROVOD_@}"

cores=$(nproc)
echo "test: $preset, $compiler, in $folder"
cmake --preset "$preset" -B "$folder" -DHVD_WERROR=ON >"$folder.log" 2>&1 || {
    cat "$folder.log" >&2
    exit 1
}
rm -f "$folder.log"
cmake --build "$folder" -j "$cores" "${targets[@]}"

# The sanitizers reserve fixed address ranges, which a kernel that randomises widely may have taken.
run=()
case $preset in
asan | tsan) ! setarch -R true 2>/dev/null || run=(setarch -R) ;;
esac
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
# A copy, since programs of another user read it too, who may not enter the folder of this clone.
suppressions=$(mktemp)
install -m 0644 tests/tsan.supp "$suppressions"
export TSAN_OPTIONS=${TSAN_OPTIONS:-second_deadlock_stack=1 suppressions=$suppressions}
# Four slots a core: a test that computes takes three (hvd_computes); one that mostly waits takes one.
tests=("${run[@]}" tests/harness/run-ctest "$folder" --output-on-failure --no-tests=error -j $((4 * cores)))

# A virtual machine that its host stops for seconds, up to a minute, breaks every deadline of that moment. When that was seen,
# and only then, what failed is run once more.
watch_the_clock() {
    local before=${EPOCHREALTIME//[.,]/} now never
    exec {never}<> <(:)
    while true; do
        read -rt 0.5 -u "$never" || true
        now=${EPOCHREALTIME//[.,]/}
        [ $((now - before)) -lt 3000000 ] ||
            printf 'test: the machine stood still for %d s at %(%T)T\n' $(((now - before) / 1000000)) $((before / 1000000))
        before=$now
    done
}
still=$(mktemp)
watch_the_clock >"$still" &
watcher=$!
trap 'kill "$watcher" 2>/dev/null; rm -f "$still" "$suppressions"' EXIT

status=0
"${tests[@]}" "$@" || status=$?
if [ "$status" = 8 ] && [ -s "$still" ]; then # 8: tests failed
    cat "$still"
    echo 'test: what failed is run once more'
    status=0
    "${tests[@]}" --rerun-failed "$@" || status=$?
fi
exit "$status"

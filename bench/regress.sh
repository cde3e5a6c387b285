#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds two commits and times them in alternating turns: has hvdd become slower? Without peers. See bench/README.md.
#
#   bench/regress.sh [--only LIST] [--turns N] [--seconds S] [--minutes M] OLD NEW
#
#   OLD, NEW       commits
#   --only LIST    measures whose names match ('allreduce-*,gradients-*,rate-*'); measures.py lists them. Those of Python
#                  take what bench/compare.sh has installed
#   --turns N      turns of each measure, at least 6 (12)
#   --seconds S    time of each run (0.5)
#   --minutes M    no turn begins later than so many minutes after the first (30)
#
# A measure is slower when the 95 % interval of NEW's times over OLD's, turn by turn, lies above 1.03. Both are built (Release)
# in a folder under ${TMPDIR:-/tmp}, which is removed in the end; a build may take 15 minutes. Exit status 0: no measure is
# slower; 1: some are; 2: wrong usage; 3: none is slower, but some could not be judged or built.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
source_dir=$(dirname "$here")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvd-bench
build_s=900
options=() commits=()

usage() {
    sed -n '3,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit "$1"
}

fail() {
    echo "regress.sh: $2" >&2
    exit "$1"
}

while [ $# -gt 0 ]; do
    case $1 in
    --only | --turns | --seconds | --minutes) options+=("$1" "${2:?$1 takes a value}") && shift ;;
    -h | --help) usage 0 ;;
    -*)
        echo "regress.sh: what is '$1'?" >&2
        usage 2 >&2
        ;;
    *) commits+=("$1") ;;
    esac
    shift
done
[ ${#commits[@]} -eq 2 ] || usage 2 >&2
for commit in "${commits[@]}"; do
    git -C "$source_dir" rev-parse --verify --quiet "$commit^{commit}" >/dev/null || fail 2 "there is no commit '$commit'"
done
timing=(python3 "$here/regress.py" --cache "$cache" "${options[@]}")
"${timing[@]}" --check
unset HVD_ADDRESS # each side starts its own hvdd

place=$(mktemp -d "${TMPDIR:-/tmp}/hvd-regress.XXXXXX")
child=''

# In the background, as bash hears of a signal only while it waits; in a process group of its own, to be ended as one.
run() {
    set -m
    "$@" </dev/null &
    child=$!
    set +m
    local status=0
    wait "$child" || status=$?
    child=''
    return "$status"
}

cleanup() {
    trap '' INT TERM
    if [ -n "$child" ]; then
        kill -- "-$child" 2>/dev/null || true
        wait "$child" || true
    fi
    for side in old new; do
        [ ! -e "$place/$side" ] || git -C "$source_dir" worktree remove --force "$place/$side" || true
    done
    rm -rf "$place"
    git -C "$source_dir" worktree prune
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

build() {
    cmake -S "$place/$1" -B "$place/$1-build" -DCMAKE_BUILD_TYPE=Release -DHVD_TESTS=OFF &&
        timeout "$build_s" cmake --build "$place/$1-build" -j "$(nproc)"
}

side=old
for commit in "${commits[@]}"; do
    echo "building $side: $commit, $(git -C "$source_dir" log -1 --format='%h %s' "$commit")"
    git -C "$source_dir" worktree add --quiet --detach "$place/$side" "$commit"
    if ! run build "$side" >"$place/$side.log" 2>&1; then
        tail -20 "$place/$side.log" >&2
        fail 3 "$commit does not build within $build_s s; above is the end of what it said"
    fi
    side=new
done

run "${timing[@]}" --old "$place/old-build" "$place/old" --new "$place/new-build" "$place/new"

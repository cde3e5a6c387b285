#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures hvdd beside its peers, side by side in one run, and writes table, CSV and plots. See bench/README.md.
#
#   bench/compare.sh [--quick] [--out DIR] [--peers a,b,...] [--only LIST] [--rounds N] [--seconds S] [--bin DIR]
#       [--dirty]
#
#   --quick        a subset, one round: under five minutes once the peers are installed
#   --out DIR      where the results go (docs/measurements/<date>-compare)
#   --peers LIST   some of openmpi,impi,gloo,torch,horovod (these) and tf221,tf215,horovod-tf,horovod-tf215; none for
#                  hvdd alone
#   --python       what is measured through hvd.torch: --peers torch,horovod --only 'python-*'
#   --tensorflow   through hvd.tensorflow: --peers tf221,tf215,horovod-tf,horovod-tf215 --only 'tensorflow-*'
#   --nodes        between nodes, which are namespaces of this machine (root): --peers openmpi,impi,torch,horovod,iperf3
#   --untuned      with --nodes: peers without algorithms that are chosen for this machine, divided cores and huge pages
#   --only LIST    measures whose names match, e.g. 'allreduce-64M-*,idle-*'
#   --rounds N     rounds per measure (5; quick: 1)
#   --seconds S    time of each run (1; quick: 0.3)
#   --bin DIR      hvd-perf of this build instead of a release build of this tree; the results say so
#   --dirty        measure although the tree has changes that no commit has; the results say so
#
# Peers are installed under ${XDG_CACHE_HOME:-~/.cache}/hvd-bench, once. HVD_BENCH_TORCH_PIP: further arguments for
# pip when it installs torch, e.g. an index of CPU-only wheels. Exit status 0: measured, whatever the bars say;
# 1: not measured; 2: refused, wrong usage or a dirty tree.
set -euo pipefail

unset HVD_ADDRESS # each run starts its own hvdd, of the build that is measured
here=$(cd "$(dirname "$0")" && pwd)
source_dir=$(dirname "$here")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvd-bench
out='' binaries='' foreign='' dirty='' nodes='' untuned=''
loadavg=$(cut -d' ' -f1-3 /proc/loadavg) # before this program adds to it
peers=openmpi,impi,gloo,torch,horovod
run_options=()

usage() {
    sed -n '3,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit "$1"
}

while [ $# -gt 0 ]; do
    case $1 in
    --quick) run_options+=(--quick) ;;
    --out) out=${2:?--out takes a directory} && shift ;;
    --peers) peers=${2:?--peers takes a list} && shift ;;
    --python) peers=torch,horovod && run_options+=(--only 'python-*') ;;
    --tensorflow) peers=tf221,tf215,horovod-tf,horovod-tf215 && run_options+=(--only 'tensorflow-*') ;;
    --nodes) peers=openmpi,impi,torch,horovod,iperf3 nodes=1 && run_options+=(--nodes) ;;
    --untuned) untuned=1 && run_options+=(--untuned) ;;
    --only | --rounds | --seconds) run_options+=("$1" "${2:?$1 takes a value}") && shift ;;
    --dirty) dirty=1 ;;
    --bin) binaries=${2:?--bin takes a directory} && shift ;;
    -h | --help) usage 0 ;;
    *)
        echo "compare.sh: what is '$1'?" >&2
        usage 2 >&2
        ;;
    esac
    shift
done
[ "$peers" != none ] || peers=
if [ -z "$dirty" ] && ! python3 "$here/machine.py" --source "$source_dir" --clean-only; then
    echo "compare.sh: figures are of a commit: commit first, or give --dirty, which marks the results" >&2
    exit 2
fi
[ -z "$binaries" ] || foreign='The programs are from --bin: of which commit they are is not known.'
[ -z "$untuned" ] || foreign="${foreign:+$foreign }Peers are untuned: no algorithm is chosen for them, cores are not divided, pages are ordinary."
out=${out:-$source_dir/docs/measurements/$(date +%F)-compare}
mkdir -p "$cache" "$out"
out=$(cd "$out" && pwd)

# One file per peer says what came of it: "ok VERSION" or "failed WHY". A failed one is tried again each time.
# shellcheck source=bench/peers/install.sh
. "$here/peers/install.sh"

for peer in ${peers//,/ }; do
    install_peer "$peer"
done

if [ -n "$nodes" ] && ! build_ring; then
    echo "compare.sh: the bare ring does not build; the whole log is $cache/ring_limit.log" >&2
    exit 1
fi

if [ -z "$binaries" ]; then
    echo "building hvdd (Release)"
    build=$cache/build-$(printf %s "$source_dir" | cksum | cut -d' ' -f1) # CMake wants one per source directory
    if ! { cmake -S "$source_dir" -B "$build" -DCMAKE_BUILD_TYPE=Release -DHVD_TESTS=OFF &&
        cmake --build "$build" -j "$(nproc)"; } >"$build.log" 2>&1; then
        tail -20 "$build.log" >&2
        echo "compare.sh: hvdd does not build; the whole log is $build.log" >&2
        exit 1
    fi
    binaries=$build/bin
fi

python3 "$here/machine.py" --cache "$cache" --source "$source_dir" --peers "$peers" --loadavg "$loadavg" \
    --binaries "$foreign" >"$out/machine.json"
usable=$(python3 -c 'import json, sys
print(",".join(name for name, peer in json.load(open(sys.argv[1]))["peers"].items() if peer["ok"]))' "$out/machine.json")
status=0
python3 "$here/run.py" --bin "$binaries" --cache "$cache" --out "$out" --peers "$usable" "${run_options[@]}" || status=$?
[ "$status" = 2 ] || python3 "$here/report.py" "$out" # also of what was measured before a failure
exit "$status"

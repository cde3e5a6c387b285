#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Asks a GPU the eleven questions of docs/design/gpu-facts.md: builds the probes (tests/gpu/probes) with the CUDA toolkit and a
# C compiler and nothing else, runs them one after the other, and writes one Markdown table and one JSON file. Needs no
# network, no package manager and no CMake; takes less than five minutes, hung probes included.
set -uo pipefail
export LC_ALL=C
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
readonly root probes=$root/tests/gpu/probes
readonly most_s=60 # for one probe, which gets an equal share of what is left
budget_s=285       # for everything

help() {
    cat <<END
Usage: scripts/gpu.sh [OPTION]...
Measures what the GPU of this machine allows (docs/design/gpu-facts.md), in less than five minutes.

  --only N[,N]...   only these probes, 1 to 11
  --within SECONDS  for all probes together; each gets an equal share of what is left, at most $most_s ($budget_s)
  --quick           smaller sizes, fewer repetitions
  --out DIR         where gpu-probes.md and gpu-probes.json go (build-gpu/)
  --device N        the N-th visible GPU (0)
  --programs DIR    run the programs probe1 to probe11 of DIR, build nothing
  --build-only      build the probes into build-gpu/ and run nothing
  --suite           no probe: the tests of hvdd's way of GPUs, on the real driver, from a build that is there; what they say
                    goes to gpu-suite.txt in DIR as well. Takes many minutes; some want two GPUs
  --help            this text

Environment: CUDA_HOME (else nvcc from PATH, else /usr/local/cuda), CC (else cc, gcc or clang), HVD_NCCL_LIB (else NCCL's
wheel beside PyTorch, else libnccl.so.2 by the loader), HVD_PYTHON (python3; the one that has PyTorch). For --suite:
HVD_BUILD_DIR (build-release/), HVD_PYTHON_ENV (python-env in it: with PyTorch for GPUs, Keras and pytest), HVD_TENSORFLOW_ENV
(none: with TensorFlow for GPUs; without it the tests of TensorFlow are left out).

Exit status: 0 all were measured, or refused with a reason (in the table); 1 one failed, crashed or hung (the table says
which, the others are measured); 2 wrong usage; 77 nothing can be measured here: no NVIDIA driver, driver too old, no CUDA
toolkit. With 77 and 2 nothing is written.
END
}

usage() {
    echo "gpu.sh: $*" >&2
    echo "Try --help." >&2
    exit 2
}

refuse() {
    echo "gpu.sh: $*" >&2
    exit 77
}

only=(1 2 3 4 5 6 7 8 9 10 11)
out=$root/build-gpu
arguments=()
programs=
build_only=
suite=

take_only() {
    [[ $1 =~ ^([1-9]|1[01])(,([1-9]|1[01]))*$ ]] || usage "--only $1: probes are 1 to 11, separated by commas"
    IFS=, read -ra only <<<"$1"
}

while [ $# -gt 0 ]; do
    case $1 in
        --only | --within | --out | --device | --programs)
            [ $# -ge 2 ] || usage "$1 needs a value"
            case $1 in
                --only) take_only "$2" ;;
                --within)
                    [[ $2 =~ ^[1-9][0-9]{1,3}$ ]] || usage "--within $2: not a number of seconds from 10 to 9999"
                    budget_s=$2
                    ;;
                --out) out=$2 ;;
                --device)
                    [[ $2 =~ ^[0-9]{1,3}$ ]] || usage "--device $2: not a device number"
                    arguments+=(--device "$2")
                    ;;
                --programs) programs=$2 ;;
            esac
            shift 2
            ;;
        --quick) arguments+=(--quick) && shift ;;
        --build-only) build_only=1 && shift ;;
        --suite) suite=1 && shift ;;
        --help) help && exit 0 ;;
        *) usage "unexpected argument: $1" ;;
    esac
done

python=${HVD_PYTHON:-python3}

# contract.device on the real driver, with all layouts of one node whose GPUs are there. Below a minute; it has deadlines of its own.
run_contract() {
    LD_LIBRARY_PATH=$HVD_BUILD_DIR/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout -k 5 240 "$HVD_BUILD_DIR/tests/test_contract_device" 2>&1 |
        tee -a "$out/gpu-suite.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ]
}

# The tests that have a meaning on a real driver, contract.device first, then one file after the other; what only the fake can be told
# is skipped by them. Ends the script.
run_suite() {
    local file status=0 devices=(/dev/nvidia[0-9]*) pytest=(-m pytest -v -rs -p no:cacheprovider --confcutdir="$root/tests/python")
    export HVD_BUILD_DIR=${HVD_BUILD_DIR:-$root/build-release} HVT_GPU=real
    export HVD_PYTHON_ENV=${HVD_PYTHON_ENV:-$HVD_BUILD_DIR/python-env}
    [ -e "${devices[0]}" ] || refuse "no GPU: there is no /dev/nvidia0"
    [ -x "$HVD_BUILD_DIR/libexec/hvdd/hvdd-gpu" ] || refuse "no build in $HVD_BUILD_DIR: build the release preset, or set HVD_BUILD_DIR"
    mkdir -p "$out" || exit 1
    {
        date -u +%Y-%m-%dT%H:%M:%SZ
        nvidia-smi -L
        "$HVD_BUILD_DIR/libexec/hvdd/hvdd-gpu" --can
    } | tee "$out/gpu-suite.txt"
    run_contract || status=1
    for file in integration/test_gpu.py fault/test_gpu_kills.py; do
        "$root/tests/harness/run-pytest" -v "$root/tests/$file" 2>&1 | tee -a "$out/gpu-suite.txt"
        [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    done
    "$HVD_PYTHON_ENV/bin/python" "${pytest[@]}" "$root/tests/python/test_torch_cuda.py" 2>&1 | tee -a "$out/gpu-suite.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    if [ -n "${HVD_TENSORFLOW_ENV:-}" ]; then
        "$HVD_TENSORFLOW_ENV/bin/python" "${pytest[@]}" "$root/tests/python/tensorflow/test_gpu.py" 2>&1 | tee -a "$out/gpu-suite.txt"
        [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    else
        echo "gpu.sh: no tests of TensorFlow: HVD_TENSORFLOW_ENV is not set" | tee -a "$out/gpu-suite.txt"
    fi
    "$HVD_BUILD_DIR/bin/hvdctl" doctor gpu 2>&1 | tee -a "$out/gpu-suite.txt"
    echo "gpu.sh: $out/gpu-suite.txt" >&2
    exit "$status"
}

[ -n "$suite" ] && run_suite

# in_wheels PATH: the first file of that name below a folder that Python imports from.
in_wheels() {
    "$python" -c 'import os, sys
print(next((f for f in (os.path.join(p, sys.argv[1]) for p in sys.path) if os.path.isfile(f)), ""))' "$1" 2>/dev/null
}

find_nvcc() {
    local candidate
    for candidate in ${CUDA_HOME:+"$CUDA_HOME/bin/nvcc"} "$(command -v nvcc)" /usr/local/cuda/bin/nvcc /usr/local/cuda-*/bin/nvcc; do
        [ -x "$candidate" ] && readlink -f "$candidate" && return
    done
    return 1
}

find_compiler() {
    local candidate
    for candidate in "${CC:-cc}" gcc clang; do
        command -v "$candidate" && return
    done
    return 1
}

# The options for nccl.h, if it is anywhere but in the toolkit's own folder.
nccl_include() {
    local header
    [ -e "$1/nccl.h" ] && return
    header=$(in_wheels nvidia/nccl/include/nccl.h)
    [ -n "$header" ] && echo "-isystem ${header%/*}"
}

# build DIR: eleven programs in DIR. What fails to build is a row of the table later: its program is missing.
build() {
    local dir=$1 nvcc cc include flags file number objects=() jobs=()
    nvcc=$(find_nvcc) || refuse "no CUDA toolkit: nvcc is neither in CUDA_HOME, in PATH nor in /usr/local/cuda"
    cc=$(find_compiler) || refuse "no C compiler: set CC"
    include=$(dirname "$(dirname "$nvcc")")/include
    [ -e "$include/cuda.h" ] || refuse "no CUDA toolkit: no cuda.h in $include"
    mkdir -p "$dir" || return 1
    rm -f "$dir"/probe[1-9] "$dir"/probe[1-9][0-9]
    read -ra flags <<<"-std=gnu17 -O2 -g -Wall -D_GNU_SOURCE -isystem $include $(nccl_include "$include")"
    echo "gpu.sh: building with $nvcc and $cc" >&2
    if [ ! "$dir/kernels.fatbin" -nt "$probes/kernels.cu" ]; then
        read -ra file <<<"$(cat "$probes/nvcc-options")"
        "$nvcc" "${file[@]}" -o "$dir/kernels.fatbin" "$probes/kernels.cu" || return 1
    fi
    flags+=("-DPROBE_FATBIN=\"$dir/kernels.fatbin\"" "-DPROBE_FOLDER=\"$probes\"")
    for file in probe probe_report probe_role probe_mps probe_cuda probe_nccl; do
        "$cc" "${flags[@]}" -c "$probes/$file.c" -o "$dir/$file.o" &
        jobs+=($!)
        objects+=("$dir/$file.o")
    done
    for file in "${jobs[@]}"; do
        wait "$file" || return 1
    done
    for number in 1 2 3 4 5 6 7 8 9 10 11; do
        "$cc" "${flags[@]}" "$probes"/probe"${number}"_*.c "${objects[@]}" -o "$dir/probe$number" -ldl -lpthread &
    done
    wait
}

if [ -z "$programs" ]; then
    programs=$root/build-gpu
    build "$programs" || { echo "gpu.sh: the probes do not build" >&2 && exit 1; }
fi
[ -n "$build_only" ] && exit 0
[ -x "$programs/probe${only[0]}" ] || { echo "gpu.sh: no program $programs/probe${only[0]}" >&2 && exit 1; }
if [ -z "${HVD_NCCL_LIB:-}" ]; then
    HVD_NCCL_LIB=$(in_wheels nvidia/nccl/lib/libnccl.so.2)
fi
export HVD_NCCL_LIB

raw=$(mktemp -d "${TMPDIR:-/tmp}/hvd-gpu-XXXXXX") || exit 1
child=
# shellcheck disable=SC2317  # called by the trap
clean_up() {
    [ -n "$child" ] && kill "$child" 2>/dev/null && wait "$child"
    rm -rf "$raw"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# Whether this machine can run any probe at all; says why not. The fifth needs least: one process, no IPC.
check=$programs/probe5
[ -x "$check" ] || check=$programs/probe${only[0]}
check_s=$((budget_s < 60 ? budget_s : 60))
timeout -k 5 "$check_s" "$check" --check --deadline $((check_s - 4)) "${arguments[@]}" >"$raw/check" 2>"$raw/why"
status=$?
if [ "$status" -ne 0 ]; then
    why=$(tail -n 1 "$raw/why")
    [ "$status" -eq 77 ] && refuse "${why#probe*: }"
    echo "gpu.sh: the first look at the device failed (status $status): $why" >&2
    exit 1
fi

# run_probe N HOW_MANY: leaves $raw/N (its lines), $raw/N.json (one line), $raw/N.outcome (one line). HOW_MANY: with it,
# are still to come.
run_probe() {
    local n=$1 left=$(((budget_s - SECONDS) / $2)) status last
    [ "$left" -gt "$most_s" ] && left=$most_s
    if [ "$left" -lt 5 ]; then
        echo "failed: not run, the $budget_s s are over" >"$raw/$n.outcome"
        return
    fi
    echo "gpu.sh: probe $n" >&2
    timeout -k 1 "$left" "$programs/probe$n" --deadline $((left - 4)) "${arguments[@]}" >"$raw/$n" 2>"$raw/$n.err" &
    child=$!
    wait "$child"
    status=$?
    child=
    last=$(tail -n 1 "$raw/$n")
    if [[ $last == "{\"probe\": $n, "*"}" ]] && grep -q '^outcome ' "$raw/$n"; then
        printf '%s\n' "$last" >"$raw/$n.json"
        sed -n 's/^outcome //p' "$raw/$n" >"$raw/$n.outcome"
    elif [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        echo "hung: ended after $left s, without a report" >"$raw/$n.outcome"
    else
        echo "crashed: exit status $status, without a report" >"$raw/$n.outcome"
    fi
}

for i in "${!only[@]}"; do
    run_probe "${only[i]}" $((${#only[@]} - i))
done

fact() { sed -n "s/^fact $1 //p" "$raw/check" "$raw"/[1-9] "$raw"/[1-9][0-9] 2>/dev/null | head -n 1; }

mps_state() {
    local pipe=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}
    command -v nvidia-cuda-mps-control >/dev/null || { echo "not installed" && return; }
    if [ -e "$pipe/control" ]; then
        echo "installed; a server of somebody else's was running and not used"
    else
        echo "installed; none was running"
    fi
}

facts=(device uuid memory compute_capability driver cuda_driver cuda_toolkit nccl)
date=$(date -u +%Y-%m-%dT%H:%M:%SZ)
seconds=$SECONDS

json_text() { printf '%s' "$1" | sed 's/[\\"]/\\&/g; s/[[:cntrl:]]/ /g'; }

write_json() {
    local name n comma=
    printf '{"date": "%s", "seconds": %d, "mps": "%s"' "$date" "$seconds" "$(json_text "$(mps_state)")"
    for name in "${facts[@]}"; do
        printf ', "%s": "%s"' "$name" "$(json_text "$(fact "$name")")"
    done
    printf ', "probes": ['
    for n in "${only[@]}"; do
        printf '%s\n' "$comma"
        comma=,
        if [ -e "$raw/$n.json" ]; then
            tr -d '\n' <"$raw/$n.json"
        else
            printf '{"probe": %d, "outcome": "%s", "reason": "%s", "facts": {}, "figures": [], "notes": []}' "$n" \
                "$(cut -d: -f1 "$raw/$n.outcome")" "$(json_text "$(sed 's/^[a-z]*: //' "$raw/$n.outcome")")"
        fi
    done
    printf '\n]}\n'
}

write_table() {
    local name n
    echo "# What a GPU allowed on $date"
    echo
    echo "Written by scripts/gpu.sh in $seconds s; the questions: docs/design/gpu-facts.md."
    echo
    for name in "${facts[@]}"; do
        echo "- $name: $(fact "$name")"
    done
    echo "- mps: $(mps_state)"
    echo
    echo "| probe | what | value | unit |"
    echo "|---|---|---|---|"
    for n in "${only[@]}"; do
        echo "| $n | **outcome** | $(sed 's/|/\\|/g' "$raw/$n.outcome") | |"
        [ -e "$raw/$n" ] && awk -v n="$n" '
            { gsub(/\|/, "\\|") }
            $1 == "probe" n && NF == 4 && $3 ~ /^[-+.0-9eE]+$/ { printf "| %s | %s | %s | %s |\n", n, $2, $3, $4; next }
            $1 == "probe" n { what = $2; sub(/^[^ ]+ [^ ]+ /, ""); sub(/ +$/, ""); printf "| %s | %s | %s | |\n", n, what, $0 }
            $1 == "note" { sub(/^note /, ""); printf "| %s | note | %s | |\n", n, $0 }' "$raw/$n"
    done
    return 0
}

mkdir -p "$out" || exit 1
write_table >"$raw/table" && write_json >"$raw/json" || exit 1
# Both at once as far as that goes: a reader sees a whole file or the one before.
cp "$raw/table" "$out/.gpu-probes.md" && cp "$raw/json" "$out/.gpu-probes.json" || exit 1
mv "$out/.gpu-probes.md" "$out/gpu-probes.md" && mv "$out/.gpu-probes.json" "$out/gpu-probes.json" || exit 1
echo "gpu.sh: $out/gpu-probes.md and $out/gpu-probes.json" >&2
grep -qE '^(failed|crashed|hung)' "$raw"/*.outcome && exit 1
exit 0

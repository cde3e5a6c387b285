#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds examples/container/Dockerfile without Docker, runs it, and tries what docs/containers.md says: two ranks in two
# containers beside a hvdd outside, as root and as a user without rights; hvdd in a container; a rank that is killed; what it costs.
#
#   scripts/containers.sh [WHEEL]      a wheel of hvd; without one it is built, which takes minutes
#
# debootstrap is the Dockerfile's FROM, chroot its RUN, and unshare its container, with mount, pid, uts, ipc and perhaps user
# namespaces. All processes and mounts end with this script. The network is this machine's. build-containers/ keeps the bare root
# and apt's packages for the next run. Needs root.
set -euo pipefail

# --inside ROOT DIRECTORY PLACE COMMAND..., as process 1 of new namespaces: the command in that root, where the directory is mounted
# at PLACE.
if [ "${1:-}" = --inside ]; then
    mount --rbind "$2" /mnt
    mount -t proc proc /mnt/proc
    mount --rbind /dev /mnt/dev
    mount --rbind /sys /mnt/sys # what it says of huge pages is asked
    mount --rbind "$3" "/mnt$4"
    cd /mnt
    shift 4
    exec chroot . "$@"
fi

cd "$(dirname "$0")/.."
. scripts/debian.sh

self=$PWD/scripts/containers.sh
place=$PWD/build-containers
recipe=$PWD/examples/container
isolated=(unshare --mount --pid --uts --ipc --fork --kill-child --propagation private)
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# ---- the image

# One instruction of the Dockerfile. COPY has one source.
instruct() {
    local words
    case $1 in
    ARG | FROM | '#'* | '') ;; # the bare root
    RUN) setpriv --pdeathsig KILL env -i "PATH=$path" LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "${proxies[@]}" \
        "${isolated[@]}" "$self" --inside "$image" "$place/archives" /var/cache/apt/archives sh -c "$2" ;;
    COPY)
        read -ra words <<<"$2"
        mkdir -p "$image$(dirname "${words[1]}x")"
        # shellcheck disable=SC2086 # a pattern
        cp "$place"/context/${words[0]} "$image${words[1]}"
        ;;
    ENV) echo "$2" >>"$place/environment" ;;
    CMD) python3 -c 'import json, sys; print("\n".join(json.loads(sys.argv[1])))' "$2" >"$place/command" ;;
    *)
        echo "containers: what is '$1' in the Dockerfile?" >&2
        exit 1
        ;;
    esac
}

make_image() {
    local word rest
    image=$place/image
    rm -rf "$image" "$place/environment"
    cp -a "$place/bare" "$image"
    debian_network "$image"
    mkdir "$image/run/hvd"
    while read -r -u 3 word rest; do
        instruct "$word" "$rest"
    done 3< <(sed -e ':again; /\\$/ {N; s/\\\n//; b again}' "$recipe/Dockerfile")
}

# ---- the trials, in namespaces that are "the machine": its process 1

summary=()
failures=0

# check TEXT COMMAND...
check() {
    local text=$1 result=ok
    shift
    "$@" || {
        result=FAILED
        failures=$((failures + 1))
    }
    summary+=("$(printf '%-7s %s' "$result" "$text")")
}

# These three do not return.
outside() {
    exec env HVD_ADDRESS=/run/hvd "$@"
}

container() {
    exec env "${settings[@]}" "${isolated[@]}" /run/self --inside /run/image /run/hvd /run/hvd "$@"
}

rootless() {
    exec setpriv "--reuid=$user" "--regid=$user" --clear-groups env "${settings[@]}" "${isolated[@]}" --user --map-root-user \
        /run/self --inside /run/image /run/hvd /run/hvd "$@"
}

wait_for() {
    local i
    for ((i = 0; i < 300; i++)); do
        ! "$@" || return 0
        sleep 0.1
    done
    echo "containers: not within 30 s: $*" >&2
    return 1
}

# start_hvdd outside|container
start_hvdd() {
    rm -rf /run/hvd
    install -d -m 700 -o "$user" -g "$user" /run/hvd
    ("$1" setpriv "--reuid=$user" "--regid=$user" --clear-groups hvdd --private=yes --runtime-dir /run/hvd) &
    hvdd=$!
    wait_for test -S /run/hvd/attach.sock
}

# In a container it is the child of unshare, which takes no signals.
stop_hvdd() {
    local target=$hvdd
    [ "$(<"/proc/$hvdd/comm")" = hvdd ] || target=$(<"/proc/$hvdd/task/$hvdd/children")
    kill -TERM "${target// /}"
    wait "$hvdd" || true
}

# ranks NAME COMMAND...: two ranks of a job by this command, which has the options of `container`; their output is in /run/NAME.N.
ranks() {
    local name=$1 rank pids=()
    shift
    for rank in 0 1; do
        (
            export HVD_JOB_ID=$name HVD_RANK=$rank HVD_SIZE=2
            "$@"
        ) >"/run/$name.$rank" 2>&1 &
        pids+=($!)
    done
    wait "${pids[@]}" || true
    cat "/run/$name.0" "/run/$name.1"
}

# Both ranks of the job ended well, and each was process 1.
trained() {
    grep -q 'rank 0 of 2, pid 1: error 0.0000' "/run/$1.0" && grep -q 'rank 1 of 2, pid 1: error 0.0000' "/run/$1.1"
}

rows() {
    hvdctl --address /run/hvd ranks "$1" --json
}

# pid_of JOB RANK: as hvdd sees it.
pid_of() {
    rows "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["ranks"][int(sys.argv[1])]["pid"])' "$2"
}

both_train() {
    rows "$1" 2>/dev/null | python3 -c 'import json, sys; sys.exit(min(row["ops"] for row in json.load(sys.stdin)["ranks"]) < 100)' 2>/dev/null
}

try_death() {
    local job victim
    STEPS=1000000 ranks death container "${command[@]}" >/dev/null &
    job=$!
    wait_for both_train death
    hvdctl --address /run/hvd ranks death
    victim=$(pid_of death 1)
    kill -KILL "$victim"
    wait "$job" || true
    grep -o 'rank 1 (.*(SIGKILL)' /run/death.0 | head -n 1
    check "a rank that is killed is named to the other one by both of its pids" \
        grep -q "rank 1 (pid $victim, 1 in its own pid namespace) was killed by signal 9 (SIGKILL)" /run/death.0
}

# measure COMMAND...: lines for table, in /run/times.
measure() {
    local memory bytes row
    for memory in shared malloc; do
        for bytes in 4 128K 64M; do
            ranks perf "$@" hvd-perf -b "$bytes" -e "$bytes" -m "$memory" --seconds 0.5 --json >/dev/null
            row=$(python3 -c 'import json, sys; print(json.loads(sys.stdin.readline())["time_us_min"])' </run/perf.0)
            echo "$where|$memory $bytes|$row" >>/run/times
        done
    done
}

# By turns, since other work may run on the machine.
measure_all() {
    local where
    for _ in 1 2 3; do
        start_hvdd outside
        where="hvdd and ranks outside" measure outside
        where="hvdd outside, ranks in containers" measure container
        stop_hvdd
        start_hvdd container
        where="hvdd in a container, too" measure container
        stop_hvdd
    done
    awk -F'|' '
        !($1 in row) { row[$1] = ++rows; name[rows] = $1 }
        !($2 in column) { column[$2] = ++columns; head[columns] = $2 }
        !(($1, $2) in least) || $3 < least[$1, $2] { least[$1, $2] = $3 }
        END {
            printf "| least time of an allreduce of two ranks, µs |"
            for (c = 1; c <= columns; c++) printf " %s |", head[c]
            printf "\n|---|"
            for (c = 1; c <= columns; c++) printf "---|"
            for (r = 1; r <= rows; r++) {
                printf "\n| %s |", name[r]
                for (c = 1; c <= columns; c++) printf " %.1f |", least[name[r], head[c]]
            }
            print ""
        }' /run/times
}

trials() {
    user=0
    mapfile -t command <"$2/command"
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir /run/image
    mount --bind "$1" /run/image
    install -m 755 "$self" /run/self
    mapfile -t settings <"$2/environment"
    settings+=("PATH=$path")
    PATH=$(echo /run/image/usr/local/lib/python3*/dist-packages/hvd/_native_files/bin):$PATH

    start_hvdd outside
    ranks two container "${command[@]}"
    check "two ranks train in two containers, and each is process 1" trained two
    try_death
    stop_hvdd

    start_hvdd container
    ranks hidden container "${command[@]}"
    check "hvdd in a container serves two others" trained hidden
    stop_hvdd

    user=64736
    start_hvdd outside
    ranks rootless rootless "${command[@]}"
    check "a user without rights trains in containers of his own" trained rootless
    stop_hvdd

    user=0
    measure_all
    printf 'containers: %s\n' "${summary[@]}"
    exit "$((failures > 0))"
}

if [ "${1:-}" = --trials ]; then
    shift
    trials "$@"
fi

if [ "$(id -u)" != 0 ]; then
    echo "containers: needs root, for debootstrap and chroot: sudo $0 $*" >&2
    exit 1
fi
scripts/deps.sh nightly
proxies=()
for name in {http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY; do
    [ -z "${!name:-}" ] || proxies+=("$name=${!name}")
done
rm -rf "$place/context"
mkdir -p "$place/archives/partial" "$place/context"
exec {lock}>"$place/lock"
flock -n "$lock" || {
    echo "containers: another run uses $place" >&2
    exit 1
}
cp "$recipe/train.py" "$place/context"
if [ $# -gt 0 ]; then
    cp "$1" "$place/context"
else
    [ -x "$place/venv/bin/pip" ] || python3 -m venv "$place/venv"
    "$place/venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps -w "$place/context" ./python
fi
# shellcheck source=/dev/null
debian_bare "$place" "$(. /etc/os-release && echo "$VERSION_CODENAME")"
make_image
setpriv --pdeathsig KILL "${isolated[@]}" --mount-proc "$self" --trials "$image" "$place"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does in a bare Debian 13 what a new user would do there as root: clones this repository (what is committed) into its home and
# runs scripts/demo.sh and scripts/test.sh, or the command that is given.
#
#   scripts/debian13.sh [COMMAND...]      e.g. scripts/debian13.sh scripts/test.sh -L unit
#
# The root is what debootstrap calls minbase: no compiler, no Python, no git, and a host name that does not resolve. It has
# mount, pid, uts and ipc namespaces of its own, so processes and mounts end with this script, however it ends. The network
# is this machine's. apt uses this machine's mirror and proxies; pip uses its PIP_* settings, certificates and cache.
# build-debian13/ keeps the bare root and packages for the next run, and the root of a run that failed.
# Needs root, and 20 GB of disk while it runs.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/debian.sh

# In the new namespaces: mounts what a system has, and runs a command in the clone. It is their process 1 and stays so, since
# bash reaps processes whose parents have gone.
inside() {
    local archives=$2 cache=$3 status=0 name
    cd "$1"
    shift 3
    mount --bind . . && cd "$PWD"
    mount -t proc proc proc
    mount --rbind /sys sys
    mount -t tmpfs -o mode=755 tmpfs run
    mount -t tmpfs -o mode=755 tmpfs dev
    for name in null zero full random urandom tty; do
        touch "dev/$name"
        mount --bind "/dev/$name" "dev/$name"
    done
    mkdir dev/shm dev/pts
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 dev/
    mv dev/0 dev/stdin && mv dev/1 dev/stdout && mv dev/2 dev/stderr
    mkdir -p root/.cache/pip
    mount --bind "$archives" var/cache/apt/archives
    mount --bind "$cache" root/.cache/pip
    for name in ${PIP_FIND_LINKS:-}; do
        [ ! -d "$name" ] || { mkdir -p ".$name" && mount --bind -o ro "$name" ".$name"; }
    done
    hostname debian13
    # shellcheck disable=SC2016 # expands there
    chroot . bash -c 'cd "$HOME/hvdd" && exec "$@"' - "$@" || status=$?
    exit "$status"
}
if [ "${1:-}" = --inside ]; then
    shift
    inside "$@"
fi

place=$PWD/build-debian13
root=$place/root
commands=("scripts/demo.sh" "scripts/test.sh")
isolated=(unshare --mount --pid --uts --ipc --fork --kill-child --mount-proc --propagation private)
passed=(HOME=/root "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" LC_ALL=C.UTF-8)

if [ "$(id -u)" != 0 ]; then
    echo "debian13: needs root, for debootstrap and chroot: sudo $0 $*" >&2
    exit 1
fi

# What this machine knows about its network.
carry_settings() {
    local name bundle=
    debian_network "$root"
    [ ! -f /etc/pip.conf ] || cp -L /etc/pip.conf "$root/etc/pip.conf"
    for name in "${!PIP_@}" {http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY; do
        [ -z "${!name:-}" ] || passed+=("$name=${!name}")
    done
    for name in PIP_CERT REQUESTS_CA_BUNDLE SSL_CERT_FILE CURL_CA_BUNDLE; do
        [ -n "$bundle" ] || bundle=${!name:-}
    done
    if [ -f "$bundle" ]; then
        cp -L "$bundle" "$root/etc/machine-certificates.pem"
        passed+=(PIP_CERT=/etc/machine-certificates.pem SSL_CERT_FILE=/etc/machine-certificates.pem)
    fi
}

make_root() {
    rm -rf "$root"
    cp -a "$place/bare" "$root"
    carry_settings
    git clone --quiet --no-hardlinks . "$root/root/hvdd"
}

# run COMMAND...: in the clone.
run() {
    setpriv --pdeathsig KILL env -i "${passed[@]}" "${isolated[@]}" \
        "$PWD/scripts/debian13.sh" --inside "$root" "$place/archives" "$cache" "$@"
}

summary=()
failures=0
try() {
    local began=$SECONDS status=0
    echo "==== debian13: $*"
    run "$@" || status=$?
    if [ "$status" = 0 ]; then
        summary+=("$* ok, $((SECONDS - began)) s")
    else
        summary+=("$* FAILED ($status), $((SECONDS - began)) s")
        failures=$((failures + 1))
    fi
}

scripts/deps.sh nightly
cache=${PIP_CACHE_DIR:-${HOME:-/root}/.cache/pip}
unset PIP_CACHE_DIR # there it is the default
mkdir -p "$place/archives/partial" "$cache"
exec {lock}>"$place/lock"
flock -n "$lock" || {
    echo "debian13: another run uses $place" >&2
    exit 1
}
debian_bare "$place" trixie
make_root
if [ $# -gt 0 ]; then
    try "$@"
else
    for command in "${commands[@]}"; do
        try "$command"
    done
fi
[ "$failures" != 0 ] || rm -rf "$root"
printf 'debian13: %s\n' "${summary[@]}"
[ "$failures" = 0 ]

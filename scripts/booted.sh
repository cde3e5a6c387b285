#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests hvdd's units under a systemd that has booted: docs/design/testing.md, "A booted machine".
#
#   scripts/booted.sh [pytest's arguments]
#
# The build is HVD_BUILD_DIR, else build-release, which is built. build-booted/root is the root of the machines: debootstrap's
# minbase of this machine's own release, systemd, and the libraries of hvdd, which takes a minute or two.
# build-booted/older is a build of the commit below, from which the machines are upgraded. Both are made once.
# Needs root. Nothing of this machine is to be seen in a booted one: tests/harness/hvt/boot.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/debian.sh

place=$PWD/build-booted
root=$place/root
# libinih1 is for the older build.
packages=systemd,procps,libinih1,$(scripts/deps.sh list run | sed 's/|.*//' | paste -sd ,)
isolated=(unshare --mount --pid --uts --ipc --fork --kill-child --mount-proc --propagation private)

# The first commit that has a mesh of services with the wires of today (docs/design/wire.md). A change after which nodes
# of both no longer work together raises a version there, and names a newer commit here.
older=811f82dd080fae6c82e99d47e616d98352a8af05

# What would wait for hardware, reach the kernel of this machine, or begin later of its own accord.
masked='systemd-logind.service systemd-binfmt.service systemd-sysctl.service systemd-random-seed.service systemd-modules-load.service
systemd-remount-fs.service systemd-pstore.service systemd-udevd.service systemd-udev-trigger.service systemd-timesyncd.service
systemd-ask-password-console.path systemd-ask-password-wall.path
getty.target console-getty.service getty@tty1.service dev-hugepages.mount dev-mqueue.mount
sys-fs-fuse-connections.mount sys-kernel-config.mount sys-kernel-debug.mount sys-kernel-tracing.mount
proc-sys-fs-binfmt_misc.automount proc-sys-fs-binfmt_misc.mount
apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer
systemd-tmpfiles-clean.timer'

if [ "$(id -u)" != 0 ]; then
    echo "booted: needs root, for debootstrap and namespaces: sudo $0 $*" >&2
    exit 1
fi

set_up() {
    local each number=2001
    for each in $masked; do
        ln -sf /dev/null "$root/etc/systemd/system/$each"
    done
    ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
    for each in alice bob; do
        echo "$each:x:$number:$number::/home/$each:/bin/sh" >>"$root/etc/passwd"
        echo "$each:x:$number:" >>"$root/etc/group"
        install -d -m 700 -o "$number" -g "$number" "$root/home/$each"
        number=$((number + 1))
    done
    echo 127.0.0.1 localhost >"$root/etc/hosts"
    tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id" # without one it would be a first boot
    rm -f "$root"/var/cache/apt/archives/*.deb
}

make_root() {
    local from codename
    [ ! -e "$root/complete" ] || return 0
    rm -rf "$root"
    mkdir -p "$place"
    from=$(debian_mirror)
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME") # its libc is the one that the build was made with
    setpriv --pdeathsig KILL "${isolated[@]}" debootstrap --variant=minbase "--include=$packages" "$codename" "$root" ${from:+"$from"} \
        >"$place/debootstrap.log" || {
        tail -n 20 "$place/debootstrap.log" >&2
        exit 1
    }
    set_up
    touch "$root/complete"
}

# With a version of its own, by which `hvdctl nodes` tells the two apart; and in other/ an engine and a gate that speak other wires.
build_older() {
    local tree=$1 build=$2 wires=("$1/daemon/engine/net/handshake.h" "$1/proto/gate.h")
    sed -i 's/^project(hvdd VERSION [0-9.]*/project(hvdd VERSION 0.0.1/' "$tree/CMakeLists.txt" &&
        cmake -S "$tree" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHVD_TESTS=OFF &&
        sed -Ei 's/^(#define (ENGINE_NET_WIRE|HVI_MESH_VERSION) ).*/\11000u \/\/ was: &/' "${wires[@]}" &&
        cmake --build "$build" -j "$(nproc)" --target hvdd-engine hvdd-gate &&
        cp -r "$build/libexec/hvdd" "$build/other" &&
        sed -Ei 's/^#define (ENGINE_NET_WIRE|HVI_MESH_VERSION) .* was: //' "${wires[@]}" &&
        cmake --build "$build" -j "$(nproc)"
}

make_older() {
    local tree=$place/older-tree build=$place/older
    [ "$(cat "$build/commit" 2>/dev/null)" != "$older" ] || return 0
    rm -rf "$tree" "$build"
    mkdir -p "$tree" "$build"
    git archive "$older" | tar -x -C "$tree"
    build_older "$tree" "$build" >"$place/older.log" 2>&1 || {
        tail -n 20 "$place/older.log" >&2
        exit 1
    }
    echo "$older" >"$build/commit"
}

scripts/deps.sh nightly
make_root
make_older
if [ -z "${HVD_BUILD_DIR:-}" ]; then
    cmake --preset release >/dev/null
    cmake --build build-release -j "$(nproc)"
    export HVD_BUILD_DIR=$PWD/build-release
fi
exec tests/harness/run-ctest "$HVD_BUILD_DIR" -- tests/harness/run-pytest -q -rs -p no:cacheprovider tests/booted "$@"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds hvdd and its tests for aarch64, on a machine that is none, and runs there what an emulated processor can show:
# the unit tests of the reduction's kernels, of byte order and layouts, of the rings and of the engine's parts.
#
#   scripts/arm.sh [ctest arguments]      other tests than those, e.g. -L unit; docs/design/testing.md says which fail there
#
# The libraries are the distribution's packages for arm64, unpacked in build-arm/root by an apt that knows of nothing else:
# only a compiler and an emulator are installed, and the system stays one of one architecture. For Debian.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$PWD/build-arm/root
tests=(-R '^unit\.(base|shm|wire_rules|node|engine)'
    -E 'base_fate|shm_(bell|death|slots|region|traffic)|engine_(death|liar|pace|process|remote|silent|stall|timeline)')

scripts/deps.sh arm
mapfile -t libraries < <(scripts/deps.sh list build | grep -- -dev && echo check && echo libsubunit-dev)

# An apt of its own: its lists, its cache and its empty system are in the build folder, the sources are the machine's.
apt_arm() {
    apt-get -qq -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
        -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)" "$@"
}

make_root() {
    local apt=$root.apt package link
    rm -rf "$root" "$root.new" "$apt"
    mkdir -p "$root.new" "$apt"/state/lists/partial "$apt"/cache/archives/partial
    : >"$apt/status"
    echo "arm: unpacking ${libraries[*]} for arm64"
    apt_arm update || echo "arm: apt-get update failed; trying with the lists that came" >&2
    apt_arm -y --download-only --no-install-recommends install "${libraries[@]}" >/dev/null
    for package in "$apt"/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$root.new"
    done
    # What points to the root of the system means this one.
    find "$root.new" -type l -lname '/*' | while read -r link; do
        ln -sfnr "$root.new$(readlink "$link")" "$link"
    done
    rm -rf "$apt"
    echo "${libraries[*]}" >"$root.new/packages"
    mv "$root.new" "$root"
}

[ "$(cat "$root/packages" 2>/dev/null)" = "${libraries[*]}" ] || make_root

unset "${!HVD_@}" "${!HOROVOD_@}"
cmake --toolchain cmake/aarch64.cmake -S . -B build-arm -G Ninja -DHVD_ARM_ROOT="$root" -DHVD_WERROR=ON \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
cmake --build build-arm -j "$(nproc)"
[ $# -gt 0 ] || set -- "${tests[@]}"
# A fault that a test raises by itself would end the emulator, which takes it for one of its own; nothing runs a program that a
# test starts; and of TCP_INFO the emulator passes on only the older fields.
export CK_EXCLUDE_TAGS='played-faults programs tcp-info'
tests/harness/run-ctest build-arm --output-on-failure --no-tests=error -j "$(nproc)" "$@"

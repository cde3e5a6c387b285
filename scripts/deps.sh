#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The one list of Debian packages. Installs what is missing for a purpose and says so; when everything is there it needs
# no network, no root, and changes nothing. Tried on Debian 12 and 13.
#
#   scripts/deps.sh run      what the library, the daemons and the tools need on a machine that does not build them
#   scripts/deps.sh build    what cmake needs (the library, the daemons, the tools, man pages)
#   scripts/deps.sh demo     what scripts/demo.sh needs
#   scripts/deps.sh test     what scripts/test.sh and .ci/run need: build and more
#   scripts/deps.sh nodes    what scripts/nodes.sh needs: build, and what nodes are made of
#   scripts/deps.sh arm      what scripts/arm.sh needs: test and more
#   scripts/deps.sh nightly  what scripts/coverage.sh, debian13.sh, booted.sh and containers.sh need: test and more
#   scripts/deps.sh list [run|build|demo|test|nodes|arm|nightly]    prints the list and does nothing
#
# The services that are installed on the way, as sshd and Slurm's, are neither started nor enabled: the tests run these programs
# themselves. A service that was there already is left as it is.
#
# "a|b" is one need: either package does; a missing one is installed as the first that this system offers.
set -euo pipefail

# libprotobuf-c1 is the library's, the others are those of the daemons and the tools.
run_packages='libprotobuf-c1 libzmq5 libsystemd0 libsodium23 libssl3|libssl3t64 libcjson1 libyaml-0-2 libhwloc15'

build_packages='gcc libc6-dev cmake ninja-build pkg-config|pkgconf
libzmq3-dev libprotobuf-c-dev protobuf-c-compiler libsystemd-dev libsodium-dev libssl-dev
uthash-dev libcjson-dev libyaml-dev libhwloc-dev scdoc'

test_packages='check libucx-dev libsubunit-dev python3 python3-pytest python3-venv openmpi-bin slurm-wlm munge g++ make
clang libclang-rt-dev|libclang-rt-14-dev|libclang-common-14-dev clang-format-14|clang-format
shellcheck universal-ctags systemd git gnuplot-nox openssh-client openssh-server'

nodes_packages='iproute2 nftables openssh-client openssh-server'

arm_packages='gcc-aarch64-linux-gnu qemu-user'

# libinih-dev: the older build of scripts/booted.sh
nightly_packages='gcovr debootstrap libinih-dev'

# PACKAGE=UNIT, of those that Debian starts when it has installed them, and then at each boot: sshd listens at all addresses.
services='openssh-server=ssh munge=munge slurmd=slurmd slurmctld=slurmctld'

policy=/usr/sbin/policy-rc.d
policy_mark='Of scripts/deps.sh'

packages_for() {
    case $1 in
    run) echo "$run_packages" ;;
    build | demo) echo "$build_packages" ;;
    test) echo "$build_packages $test_packages $nodes_packages" ;;
    nodes) echo "$build_packages $nodes_packages python3 python3-venv git" ;;
    arm) echo "$build_packages $test_packages $nodes_packages $arm_packages" ;;
    nightly) echo "$build_packages $test_packages $nodes_packages $nightly_packages" ;;
    *)
        echo "usage: deps.sh run|build|demo|test|nodes|arm|nightly, or deps.sh list [run|build|demo|test|nodes|arm|nightly]" >&2
        exit 2
        ;;
    esac
}

is_installed() {
    local state
    state=$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) || return 1
    [ "$state" = installed ]
}

# The needs (in their a|b form) that no installed package meets.
missing_of() {
    local need package
    for need in "$@"; do
        for package in ${need//|/ }; do
            is_installed "$package" && continue 2
        done
        echo "$need"
    done
}

# The first package of a need that apt could install.
choose() {
    local package
    for package in ${1//|/ }; do
        if apt-cache show --no-all-versions "$package" >/dev/null 2>&1; then
            echo "$package"
            return
        fi
    done
    echo "${1%%|*}"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# Whether $policy is there and not what a run of this script that was killed has left.
has_policy() {
    [ -e "$policy" ] && ! grep -qs "$policy_mark" "$policy"
}

# Until `end_quiet`, packages start nothing that does not run already.
begin_quiet() {
    local pair
    quiet=()
    for pair in $services; do
        is_installed "${pair%=*}" || quiet+=("$pair")
    done
    trap end_quiet EXIT
    ! has_policy || return 0
    as_root tee "$policy" >/dev/null <<END
#!/bin/sh
# $policy_mark, while it installs packages.
case " \$* " in *' start '*) exit 101 ;; esac
END
    as_root chmod 755 "$policy"
}

end_quiet() {
    local pair
    trap - EXIT
    has_policy || as_root rm -f "$policy"
    for pair in "${quiet[@]}"; do
        ! is_installed "${pair%=*}" || as_root systemctl --quiet disable "${pair#*=}" ||
            echo "deps: ${pair#*=} may start with the machine: systemctl disable has failed" >&2
    done
}

install() {
    local need chosen=()
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        echo "deps: missing: $*" >&2
        echo "deps: not root, and there is no sudo; as root run: scripts/deps.sh $purpose" >&2
        exit 1
    fi
    echo "deps: missing for '$purpose': $*"
    as_root apt-get -qq -o DPkg::Lock::Timeout=300 update ||
        echo "deps: apt-get update failed; trying with the lists that are there" >&2
    for need in "$@"; do
        chosen+=("$(choose "$need")")
    done
    echo "deps: installing: ${chosen[*]}"
    begin_quiet
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Use-Pty=0 install --no-install-recommends "${chosen[@]}"
    end_quiet
}

purpose=${1:-}
if [ "$purpose" = list ]; then
    packages_for "${2:-test}" | tr -s ' \n' '\n'
    exit 0
fi
read -r -d '' -a needs < <(packages_for "$purpose") || true
[ "${#needs[@]}" -gt 0 ] || exit 2
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "deps: this is not a Debian-like system; install the like of: ${needs[*]}" >&2
    exit 1
fi
mapfile -t missing < <(missing_of "${needs[@]}")
if [ "${#missing[@]}" = 0 ]; then
    echo "deps: all ${#needs[@]} packages for '$purpose' are installed"
    exit 0
fi
install "${missing[@]}"
mapfile -t missing < <(missing_of "${needs[@]}")
if [ "${#missing[@]}" != 0 ]; then
    echo "deps: still missing: ${missing[*]}" >&2
    exit 1
fi
echo "deps: all ${#needs[@]} packages for '$purpose' are installed"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command, as a rule systemd, as process 1 of a machine of its own: docs/design/testing.md, "A booted machine".
#
#   boot.sh WORK LOWER NAME CANARY BOUNDS DIRECTORY=TYPE=OPTIONS... -- COMMAND...
#
# WORK is an empty directory. LOWER is the machine's root, as overlayfs takes it, and is not written to. CANARY is a file of this
# machine that must not be there. BOUNDS are the capabilities that it has not got, as setpriv(1) takes them. Each DIRECTORY is a
# cgroup for the machine; one for each hierarchy of the kernel.
#
# systemd changes what it finds: it cleans /tmp, makes users, mounts, and writes to the kernel's settings. So nothing of this
# machine may be there when it starts. The order is: own namespaces, own root, the old root unmounted, a check, and then the
# command. "mount -n" keeps no table in /run.
set -euo pipefail
script=$(readlink -f "$0")

fail() {
    echo "boot: $*" >&2
    exit 1
}

# Where systemd finds the hierarchies: one mount where this machine has version 2 alone, and else one for each.
mount_cgroups() {
    local each kind options folder
    if [ $# = 1 ]; then
        mount -n -t cgroup2 cgroup2 sys/fs/cgroup
        return
    fi
    mount -n -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    for each in "$@"; do
        options=${each##*=}
        kind=${each%"=$options"}
        kind=${kind##*=}
        folder=${options#none,name:}
        options=${options/:/=}
        [ "$kind" = cgroup ] || folder=unified
        mkdir "sys/fs/cgroup/$folder"
        mount -n -t "$kind" ${options:+-o "$options"} "$kind" "sys/fs/cgroup/$folder"
    done
    mount -n -o remount,ro sys/fs/cgroup # so that no other hierarchy is mounted
}

make_devices() {
    mount -n -t tmpfs -o mode=755 tmpfs dev
    mkdir dev/shm dev/pts
    mount -n -t tmpfs -o mode=1777,nosuid,nodev tmpfs dev/shm
    mount -n -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    mknod -m 666 dev/null c 1 3
    mknod -m 666 dev/zero c 1 5
    mknod -m 666 dev/full c 1 7
    mknod -m 666 dev/random c 1 8
    mknod -m 666 dev/urandom c 1 9
    mknod -m 666 dev/tty c 5 0
    ln -s /proc/self/fd dev/fd
    ln -s fd/0 dev/stdin
    ln -s fd/1 dev/stdout
    ln -s fd/2 dev/stderr
}

# make_root WORK LOWER NAME CGROUP...: leaves this process in it.
make_root() {
    local work=$1 lower=$2 name=$3 path
    shift 3
    mount -n --make-rprivate /
    mount -n -t tmpfs -o mode=755,size=1g tmpfs "$work"
    mkdir "$work/upper" "$work/work" "$work/root"
    mount -n -t overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/work" overlay "$work/root"
    cd "$work/root"
    mount -n -t proc -o nosuid,nodev,noexec proc proc
    for path in proc/sys proc/sysrq-trigger proc/irq proc/bus; do
        [ ! -e "$path" ] || { mount -n --bind "$path" "$path" && mount -n -o remount,bind,ro "$path"; }
    done
    mount -n -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
    mount_cgroups "$@"
    mount -n -t tmpfs -o mode=1777,nosuid,nodev tmpfs tmp
    mount -n -t tmpfs -o mode=755,nosuid,nodev tmpfs run
    make_devices
    hostname "$name"
    echo "$name" >etc/hostname
    mkdir .old
    pivot_root . .old
    cd /
    hash -r
    umount -n -l /.old
    rmdir /.old
}

# Whether nothing of the old root is left. What is bound is of this root's own /proc.
check_root() {
    local canary=$1 line point kind
    while read -r line; do
        read -r _ _ _ _ point _ <<<"$line"
        read -r kind _ <<<"${line##* - }"
        case $kind in
        proc | sysfs | tmpfs | devpts | cgroup | cgroup2) ;;
        overlay) [ "$point" = / ] || fail "$point is an overlay" ;;
        *) fail "$point of this machine is left: $line" ;;
        esac
    done </proc/self/mountinfo
    [ "$(stat -f -c %T /)" = overlayfs ] || fail "/ is no overlay"
    [ ! -e "$canary" ] || fail "$canary of this machine is to be seen"
    [ -z "$(ls -A /tmp)" ] || fail "/tmp is not empty"
}

inside() {
    local work=$1 lower=$2 name=$3 canary=$4 bounds=$5 cgroups=()
    shift 5
    while [ "$1" != -- ]; do
        cgroups+=("$1")
        shift
    done
    shift
    [ $$ = 1 ] || fail "there is no pid namespace"
    [ -e "$canary" ] || fail "there is no $canary, which is to be gone later"
    make_root "$work" "$lower" "$name" "${cgroups[@]}"
    check_root "$canary"
    exec </dev/null >/run/boot.log 2>&1
    exec setpriv "--bounding-set=$bounds" -- \
        env -i container=hvt PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin LC_ALL=C.UTF-8 "$@"
}

if [ "${1:-}" = --inside ]; then
    shift
    inside "$@"
fi
for each in "$@"; do
    case $each in
    --) break ;;
    /*=cgroup*=*) echo $$ >"${each%%=*}/cgroup.procs" ;; # below it, the machine's cgroup namespace begins
    esac
done
exec unshare --mount --pid --uts --ipc --net --cgroup --fork --kill-child --propagation private "$script" --inside "$@"

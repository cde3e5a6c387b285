# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# For scripts that make a root of Debian: what they know of this machine's archive and network. To be sourced.

# The archive of this machine's apt; empty where it has none of Debian's.
debian_mirror() {
    # shellcheck disable=SC2016 # apt's own variables
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
        sed -n '/^Debian|Debian|http/ {s/.*|//; p; q}'
}

# debian_network ROOT: names, and apt's proxies and checks, as they are here.
debian_network() {
    cp -L /etc/resolv.conf "$1/etc/resolv.conf"
    cp -L /etc/hosts "$1/etc/hosts"
    apt-config dump | grep -E '^Acquire::(https?|Check-|Retries|ForceIPv)' >"$1/etc/apt/apt.conf.d/99machine" || true
}

# debian_bare PLACE CODENAME: in PLACE/bare what debootstrap calls minbase, from a run before or made now, which PLACE/debootstrap.log
# tells of. Ends the script where that fails.
debian_bare() {
    local from options=()
    [ ! -e "$1/bare/complete" ] || return 0
    rm -rf "$1/bare"
    from=$(debian_mirror)
    case $from in
    https:*) options=(--include=ca-certificates) ;;
    esac
    setpriv --pdeathsig KILL unshare --mount --pid --uts --ipc --fork --kill-child --mount-proc --propagation private \
        debootstrap --variant=minbase "${options[@]}" "$2" "$1/bare" ${from:+"$from"} >"$1/debootstrap.log" || {
        tail -n 20 "$1/debootstrap.log" >&2
        exit 1
    }
    rm -f "$1"/bare/var/cache/apt/archives/*.deb
    touch "$1/bare/complete"
}

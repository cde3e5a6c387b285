#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a training job on two nodes: installs what is missing, builds, makes two nodes with a cable between them
# (namespaces of this machine, a real sshd in each), runs unmodified Horovod scripts for PyTorch, TensorFlow and Keras and a
# C program on both by horovodrun -H and hvdrun -H, cuts the cable of a training job, shows what each rank was told, and trains again
# when the cable has healed. Says what it saw; exit status 0 only if all of it was right. Needs root.
#
#   scripts/nodes.sh [--build-dir DIR]      a build folder of another name than build/, as it is configured if it is there
#
# PyTorch and TensorFlow come from PyPI into the build folder (once, some gigabytes). HVD_PYTHON_ENV and HVD_TF221_ENV name virtual
# environments that have what tests/python/requirements.txt and tests/python/tensorflow/tf221.txt list, and are taken instead.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C PIP_DISABLE_PIP_VERSION_CHECK=1
python_env=${HVD_PYTHON_ENV:-} tensorflow_env=${HVD_TF221_ENV:-}
unset "${!HVD_@}" "${!HOROVOD_@}"

build_dir=build
case "$#:${1:-}" in
0:) ;;
2:--build-dir) build_dir=$2 ;;
*)
    echo "usage: scripts/nodes.sh [--build-dir DIR]" >&2
    exit 2
    ;;
esac
if [ "$(id -u)" != 0 ]; then
    echo "nodes.sh: only root can make network namespaces: run it as root" >&2
    exit 2
fi

say() { printf '\n==== %s\n' "$*"; }

build() {
    local settings=()
    [ -f "$build_dir/CMakeCache.txt" ] || settings=(-G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DHVD_TESTS=OFF)
    cmake -S . -B "$build_dir" "${settings[@]}" >"$build_dir.log" || { cat "$build_dir.log" >&2 && exit 1; }
    rm -f "$build_dir.log"
    cmake --build "$build_dir" -j "$(nproc)"
    build_dir=$(cd "$build_dir" && pwd)
}

# The wheels of hvd and of its package horovod, from a copy, as pip writes into the tree that it builds.
build_wheels() {
    local copy
    copy=$(mktemp -d)
    git -c safe.directory='*' ls-files -co --exclude-standard -z | xargs -0 cp --parents -t "$copy"
    rm -rf "$build_dir/nodes-wheels"
    "$python_env/bin/python" -m pip wheel --quiet --no-deps -w "$build_dir/nodes-wheels" "$copy/python" "$copy/python/compat"
    rm -rf "$copy"
}

# A virtual environment with these wheels over another one that has the framework.
install_over() {
    local place=$build_dir/nodes-$1 below
    below=$("$2/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    rm -rf "$place"
    "$2/bin/python" -m venv "$place"
    "$place/bin/python" -m pip install --quiet --no-deps "$build_dir"/nodes-wheels/*.whl
    echo "$below" >"$(echo "$place"/lib/python*/site-packages)/frameworks.pth"
}

say "packages"
scripts/deps.sh nodes
say "building in $build_dir/"
build
if [ -z "$python_env" ]; then
    python_env=$build_dir/python-env
    tests/python/make-environment "$python_env" tests/python/requirements.txt HVD_PYTHON_ENV
fi
if [ -z "$tensorflow_env" ]; then
    tensorflow_env=$build_dir/tf221-env
    tests/python/make-environment "$tensorflow_env" tests/python/tensorflow/tf221.txt HVD_TF221_ENV
fi
# Their first import compiles them.
unset PYTHONDONTWRITEBYTECODE
say "installing hvd for PyTorch and for TensorFlow"
build_wheels
install_over torch "$python_env"
install_over tensorflow "$tensorflow_env"
HVD_BUILD_DIR=$build_dir exec python3 -B scripts/nodes_run.py "$python_env" "$tensorflow_env"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Which lines tests reach, per folder: of C by the unit and contract tests, of the Python package by its own tests. Fails when
# a folder is below its floor in tests/coverage.txt, or a floor is lower than it was in a commit and gives no reason.
#
#   scripts/coverage.sh            prints the table, and which floors can be raised
#   scripts/coverage.sh --raise    writes tests/coverage.txt; floors are only ever raised
#
# HVD_PYTHON_ENV and HVD_TF221_ENV name virtual environments to use instead of those that scripts/test.sh makes in
# build-release/. Which file reaches what: build-coverage/c.txt and build-coverage/python.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
'' | --raise) ;;
*)
    echo "usage: scripts/coverage.sh [--raise]" >&2
    exit 2
    ;;
esac
build=$PWD/build-coverage
python_env=${HVD_PYTHON_ENV:-}
tf221_env=${HVD_TF221_ENV:-}
unset "${!HVD_@}" "${!HOROVOD_@}"

# environment DIR LIST: one that is named, or build-release's, which is made when it is not there.
environment() {
    local dir=${1:-$PWD/build-release/$2-env}
    [ -n "$1" ] || tests/python/make-environment "$dir" "$3" "$4" >&2
    echo "$dir"
}

# overlay NAME BASE: an environment in the build folder that has what BASE has and coverage.py, which starts in each of its
# Pythons by a .pth file of its own. BASE stays as it is.
overlay() {
    local site purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
    rm -rf "${build:?}/$1-env"
    "$2/bin/python" -m venv --without-pip "$build/$1-env"
    site=$("$build/$1-env/bin/python" -c "$purelib")
    "$2/bin/python" -m pip install --quiet --disable-pip-version-check --target "$site" 'coverage>=7.13'
    echo "import site; site.addsitedir('$("$2/bin/python" -c "$purelib")')" >"$site/base.pth"
}

run_tests() { tests/harness/run-ctest "$build" --output-on-failure --no-tests=error -j $((2 * $(nproc))) "$@"; }

count_c() {
    run_tests -L '^(unit|contract)$'
    # All of them take minutes here, and these are late in this build: nightly's step ucx judges them, here their lines count.
    CK_RUN_CASE=failures run_tests -C Nightly -R '^contract.span_ucx$' || echo "coverage.sh: contract.span_ucx failed; its lines count" >&2
    # Before the Python tests, whose use of the C code does not count.
    gcovr --root . --object-directory "$build" --gcov-ignore-parse-errors --exclude 'build.*' --exclude tests/ --exclude bench/ --exclude examples/ \
        --json "$build/c.json" --txt "$build/c.txt" 2>"$build/gcovr.log" || {
        cat "$build/gcovr.log" >&2
        exit 1
    }
}

# Ranks are processes of their own, many of which end without Python's end: by a signal, os._exit() or after a fork.
count_python() {
    local data=$build/python-data
    rm -rf "$data"
    mkdir "$data"
    cat >"$build/coverage.ini" <<END
[run]
parallel = true
data_file = $data/data
source = $PWD/python/hvd
    $PWD/python/compat/horovod
sigterm = true
patch = fork, _exit
END
    COVERAGE_PROCESS_START=$build/coverage.ini run_tests -C Whole -R '^(python|tf221|torch)\.' -E 'install|launchers|programs|examples|wheel'
    # Optimizers of TensorFlow 1, and what is marked nightly but for other numbers of ranks on PyTorch.
    COVERAGE_PROCESS_START=$build/coverage.ini run_tests -C Nightly -R '^(tf221\.(optimizer_v1|.*\.nightly)|python\.(torch_device|optimizer)\.nightly)$'
    "$build/python-env/bin/python" -m coverage combine --quiet --rcfile "$build/coverage.ini"
    "$build/python-env/bin/python" -m coverage json --quiet --rcfile "$build/coverage.ini" -o "$build/python.json"
    "$build/python-env/bin/python" -m coverage report --rcfile "$build/coverage.ini" >"$build/python.txt"
}

scripts/deps.sh nightly
python_env=$(environment "$python_env" python tests/python/requirements.txt HVD_PYTHON_ENV)
tf221_env=$(environment "$tf221_env" tf221 tests/python/tensorflow/tf221.txt HVD_TF221_ENV)
rm -rf "$build" # gcov takes what older sources have left for new
cmake --preset coverage -DHVD_PYTHON_ENV="$build/python-env" -DHVD_TF221_ENV="$build/tf221-env" >/dev/null
cmake --build "$build" -j "$(nproc)"
overlay python "$python_env"
overlay tf221 "$tf221_env"
count_c
count_python
scripts/coverage_floors.py "$@" tests/coverage.txt "$build/c.json" "$build/python.json"

# SPDX-License-Identifier: Apache-2.0
"""The tables of gpu/cuda.def and daemon/gpu/nccl.def beside NVIDIA's own prototypes, where cuda.h and nccl.h are, and beside the
symbols of its libraries: a C++ compiler compares how many parameters there are, how large each is, and whether it is a pointer.
tests/unit/gpu/test_abi.c compares types and numbers."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOMES = [pathlib.Path(home) for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
TABLES = {  # header, of ours; the table; its macro; what is before the parameters of a row; library
    "cuda.h": ("gpu/cuda.h", "gpu/cuda.def", "HVI_CU", "struct hvi_cuda", "lib64/stubs/libcuda.so"),
    "nccl.h": ("daemon/gpu/nccl.h", "daemon/gpu/nccl.def", "GPU_NCCL", "struct gpu_nccl", "lib64/libnccl.so.2"),
}
COMPARE = r"""
#define _Static_assert static_assert
#include <{theirs}>
#include <type_traits>
{ours}

template <class A, class B> constexpr bool is_alike()
{{
    return sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value &&
           std::is_class<A>::value == std::is_class<B>::value && std::is_floating_point<A>::value == std::is_floating_point<B>::value;
}}
template <class A, class B> struct alike : std::false_type {{}};
template <class R, class... A, class S, class... B> struct alike<R (*)(A...), S (*)(B...)> {{
    template <bool same, class> struct each : std::false_type {{}};
    template <class T> struct each<true, T> {{ static constexpr bool value = (is_alike<A, B>() && ... && is_alike<R, S>()); }};
    static constexpr bool value = each<sizeof...(A) == sizeof...(B), R>::value;
}};
"""


def rows(table: str, macro: str) -> list[tuple[str, str]]:
    """Member and symbol of each row."""
    return re.findall(rf'^{macro}\((\w+), "(\w+)"', (ROOT / table).read_text(encoding="utf-8"), flags=re.MULTILINE)


def home_with(path: str) -> pathlib.Path:
    """The toolkit that has this file."""
    for home in HOMES:
        if (home / path).exists():
            return home
    pytest.skip(f"no {path} in {' or '.join(map(str, HOMES))}")


def compiled(text: str, home: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """What a C++ compiler says."""
    return subprocess.run(["g++", "-x", "c++", "-std=c++17", "-fsyntax-only", f"-I{ROOT}", "-isystem", home / "include", "-"], input=text,
                          capture_output=True, text=True, timeout=120, check=False)


def comparison(header: str, changed: dict[str, str]) -> str:
    """The program; `changed`: other functions for some members."""
    ours, table, macro, struct, _ = TABLES[header]
    lines = [f'static_assert(alike<decltype({struct.split()[1]}::{member}), decltype(&::{changed.get(member, symbol)})>::value, "{symbol}");'
             for member, symbol in rows(table, macro)]
    text = (ROOT / ours).read_text(encoding="utf-8")
    text = re.sub(r"typedef struct (\w+) \*\1;", r"typedef struct \1_opaque *\1;", text)  # C++ has one name for both
    return COMPARE.format(theirs=header, ours=text) + "\n".join(lines) + "\n"


@pytest.mark.parametrize("header", sorted(TABLES))
def test_each_row_has_the_parameters_of_the_function_that_it_names(header):
    home = home_with(f"include/{header}")
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    result = compiled(comparison(header, {}), home)
    assert result.returncode == 0, result.stderr
    wrong = {"cuda.h": {"free": "cuMemAlloc_v2"}, "nccl.h": {"send": "ncclBroadcast"}}[header]
    assert "static assertion failed" in compiled(comparison(header, wrong), home).stderr


@pytest.mark.parametrize("header", sorted(TABLES))
def test_each_row_names_a_symbol_of_the_library(header):
    _, table, macro, _, library = TABLES[header]
    path = home_with(library) / library
    listed = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, timeout=60, check=True).stdout
    symbols = {line.split()[-1].split("@")[0] for line in listed.splitlines()}
    missing = [symbol for _, symbol in rows(table, macro) if symbol not in symbols]
    assert not missing, f"{path} has no {', '.join(missing)}"

# SPDX-License-Identifier: Apache-2.0
"""The installed tree: what is in it, and that strangers can build and run against it."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from hvt.build import BUILD, SOURCE, cache_entry, sanitized, scaled
from hvt.install import Installation, compiler, run

PAGES = {"hvdd": "man8/hvdd.8", "hvdctl": "man1/hvdctl.1", "hvdrun": "man1/hvdrun.1", "hvd-perf": "man1/hvd-perf.1"}

# What --help leaves out to stay short.
ALIASES = {"hvdctl": {"--help", "--version"}}

CMAKE_CONSUMER = """
cmake_minimum_required(VERSION 3.22)
project(consumer C)
find_package(hvd 0.1 REQUIRED)
add_executable(first first.c)
target_link_libraries(first PRIVATE hvd::hvdclient hvd::hvdadmin)
add_executable(first_static first.c)
target_link_libraries(first_static PRIVATE hvd::hvdclient_static)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installation:
    """One installation for all tests of this file, in a place that is not the configured prefix."""
    return Installation(tmp_path_factory.mktemp("prefix"))


@pytest.fixture
def consumer(tmp_path) -> pathlib.Path:
    """A directory with first.c: the program that the README shows, word for word."""
    readme = (SOURCE / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```c\n(.*?)```", readme, re.DOTALL)
    assert len(blocks) == 1, "the README shows one C program"
    (tmp_path / "first.c").write_text(blocks[0], encoding="utf-8")
    return tmp_path


def pkg_config(installed: Installation, *arguments: str, package: str = "hvd") -> list[str]:
    return run("pkg-config", *arguments, package, environment=installed.environment()).stdout.split()


def needed(program: pathlib.Path) -> set[str]:
    """The shared libraries an ELF file asks for."""
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", str(program)).stdout))


def assert_runs(installed: Installation, program: pathlib.Path) -> None:
    """Four ranks of `first` by the installed hvdrun and, through it, the installed hvdd and engine."""
    done = run("hvdrun", "-np", "4", str(program), environment=installed.environment(), cwd=program.parent)
    lines = sorted(done.stdout.splitlines())
    assert lines == [f"[{rank}]<stdout>:rank {rank} of 4: 4 40" for rank in range(4)], done.stdout + done.stderr


def test_everything_is_where_it_belongs(installed):
    libdir = cache_entry("CMAKE_INSTALL_LIBDIR")
    wanted = {"bin/hvdd", "bin/hvdctl", "bin/hvdrun", "bin/hvd-perf", "libexec/hvdd/hvdd-engine", "libexec/hvdd/hvdd-gate", "libexec/hvdd/hvdd-gpu",
              "include/hvd/hvd.h", "include/hvd/hvd_admin.h", f"{libdir}/libhvdadmin.so", f"{libdir}/libhvdadmin.so.0",
              f"{libdir}/pkgconfig/hvdadmin.pc", f"{libdir}/libhvdclient.so", f"{libdir}/libhvdclient.so.0",
              f"{libdir}/libhvdclient.a", f"{libdir}/pkgconfig/hvd.pc", f"{libdir}/cmake/hvd/hvdConfig.cmake",
              f"{libdir}/cmake/hvd/hvdConfigVersion.cmake", "lib/systemd/system/hvdd.service",
              "lib/systemd/system/hvdd.socket", "lib/systemd/system/hvdd-admin.socket",
              "lib/systemd/system/hvdd-parts.target",
              *(f"lib/systemd/system/hvdd-{name}{kind}" for name in ("engine", "gate", "gpu") for kind in (".socket", "@.service")),
              "lib/sysusers.d/hvdd.conf", "lib/tmpfiles.d/hvdd.conf", "share/doc/hvdd/hvdd.conf.example", "share/doc/hvdd/LICENSE",
              "share/doc/hvdd/examples/digits/digits.c", "share/doc/hvdd/examples/digits/ATTRIBUTION.md",
              *(f"share/doc/hvdd/engines-as-users/{unit}.conf" for unit in ("hvdd.service", "hvdd-engine@.service"))}
    assert not wanted - installed.files()


def test_man_pages_are_installed(installed):
    if not shutil.which("scdoc"):
        pytest.skip("scdoc is not installed")
    wanted = {f"share/man/{page}" for page in (*PAGES.values(), "man5/hvdd.conf.5", "man3/hvd.h.3", "man3/hvd_admin.3")}
    assert not wanted - installed.files()


def test_nothing_but_the_expected_kinds_of_files_is_installed(installed):
    libdir = re.escape(cache_entry("CMAKE_INSTALL_LIBDIR"))
    known = re.compile(rf"bin/(hvdd|hvdctl|hvdrun|hvd-perf)|libexec/hvdd/hvdd-(engine|gate|gpu)|include/hvd/hvd(_admin)?\.h"
                       rf"|{libdir}/libhvdclient\.(a|so[.\d]*)|{libdir}/libhvdadmin\.so[.\d]*|{libdir}/libhvd_tensorflow\.so"
                       rf"|{libdir}/(pkgconfig/hvd(admin)?\.pc|cmake/hvd/.*)"
                       r"|lib/(systemd/system|sysusers\.d|tmpfiles\.d)/hvdd(-admin|-parts|-(engine|gate|gpu)@?)?\.[a-z]+|share/(man|doc/hvdd)/.*")
    assert [name for name in sorted(installed.files()) if not known.fullmatch(name)] == []


def test_the_library_has_its_soname(installed):
    dynamic = run("readelf", "-d", str(installed.libdir / "libhvdclient.so")).stdout
    assert re.search(r"\(SONAME\).*\[libhvdclient\.so\.0\]", dynamic)


def test_the_installed_programs_say_the_version_of_the_header(installed):
    header = (installed.prefix / "include/hvd/hvd.h").read_text(encoding="utf-8")
    parts = [re.search(rf"HVD_VERSION_{part} (\d+)", header).group(1) for part in ("MAJOR", "MINOR", "PATCH")]
    version = ".".join(parts)
    assert pkg_config(installed, "--modversion") == [version]
    for program in ("hvdd", "hvdctl", "hvdrun"):
        assert version in run(f"{installed.prefix}/bin/{program}", "--version").stdout


@pytest.mark.parametrize("package", ["hvd", "hvdadmin"])
def test_flags_need_no_other_package(installed, package):
    alone = dict(installed.environment(), PKG_CONFIG_LIBDIR="", PKG_CONFIG_PATH=f"{installed.libdir}/pkgconfig")
    assert "-I" in run("pkg-config", "--cflags", package, environment=alone).stdout


def test_a_consumer_builds_by_pkg_config_and_runs(installed, consumer):
    flags = pkg_config(installed, "--cflags", "--libs")
    run(*compiler(), "-Wall", "-Wextra", "-Werror", "first.c", *flags, "-o", "first", cwd=consumer)
    assert "libhvdclient.so.0" in needed(consumer / "first")
    assert_runs(installed, consumer / "first")


def test_a_consumer_of_hvd_admin_builds_by_pkg_config_and_runs(installed, tmp_path):
    (tmp_path / "ask.c").write_text("""#include <hvd/hvd_admin.h>
#include <stdio.h>
int main(void)
{
    struct hvd_admin *admin;
    int status = hvd_admin_open("/nonexistent/hvdd", &admin);
    printf("%s %d %s\\n", hvd_admin_version(), status, hvd_admin_last_error());
    return 0;
}
""", encoding="utf-8")
    flags = pkg_config(installed, "--cflags", "--libs", package="hvdadmin")
    run(*compiler(), "-Wall", "-Wextra", "-Werror", "ask.c", *flags, "-o", "ask", cwd=tmp_path)
    assert {name for name in needed(tmp_path / "ask") if "hvd" in name} == {"libhvdadmin.so.0"}
    said = run(str(tmp_path / "ask"), environment=installed.environment()).stdout
    version, = pkg_config(installed, "--modversion", package="hvdadmin")
    assert said.startswith(f"{version} -400 no hvdd is running. Tried: /nonexistent/hvdd (nothing there)."), said


def test_of_the_programs_that_serve_a_node_the_gate_alone_asks_for_zeromq(installed):
    programs = [installed.prefix / "bin/hvdd", *(installed.prefix / "libexec/hvdd").glob("hvdd-*")]
    assert len(programs) >= 4, programs
    assert [path.name for path in programs if any("zmq" in name for name in needed(path))] == ["hvdd-gate"]


def test_the_client_library_does_not_ask_for_zeromq(installed):
    assert not [name for name in needed(installed.libdir / "libhvdclient.so.0") if "zmq" in name]
    assert [name for name in needed(installed.libdir / "libhvdadmin.so.0") if "zmq" in name]


def test_a_consumer_builds_statically_by_pkg_config_and_runs(installed, consumer):
    flags = pkg_config(installed, "--static", "--cflags", "--libs")
    flags = [str(installed.libdir / "libhvdclient.a") if flag == "-lhvdclient" else flag for flag in flags]
    run(*compiler(), "first.c", *flags, "-o", "first", cwd=consumer)
    assert not [name for name in needed(consumer / "first") if "hvdclient" in name]
    assert_runs(installed, consumer / "first")


def test_a_consumer_builds_by_find_package_and_runs(installed, consumer):
    (consumer / "CMakeLists.txt").write_text(CMAKE_CONSUMER, encoding="utf-8")
    sanitize = f"-fsanitize={sanitized()}" if sanitized() else ""
    run("cmake", "-S", ".", "-B", "out", f"-DCMAKE_PREFIX_PATH={installed.prefix}", f"-DCMAKE_C_FLAGS={sanitize}",
        f"-DCMAKE_C_COMPILER={compiler()[0]}", cwd=consumer)
    run("cmake", "--build", "out", cwd=consumer)
    assert "libhvdclient.so.0" in needed(consumer / "out/first")
    assert_runs(installed, consumer / "out/first")
    assert not [name for name in needed(consumer / "out/first_static") if "hvdclient" in name]
    assert_runs(installed, consumer / "out/first_static")


def test_the_installed_example_builds_with_its_makefile_and_trains(installed, tmp_path):
    folder = tmp_path / "digits"
    shutil.copytree(installed.prefix / "share/doc/hvdd/examples/digits", folder)
    command = compiler()
    run("make", f"CC={' '.join(command)}", environment=installed.environment(), cwd=folder)
    done = run("hvdrun", "-np", "2", "./digits", "--epochs", "2", environment=installed.environment(), cwd=folder)
    assert "epoch  2/2" in done.stdout


def test_the_example_configuration_is_one_and_says_the_defaults(installed, tmp_path):
    text = (installed.prefix / "share/doc/hvdd/hvdd.conf.example").read_text(encoding="utf-8")
    names = re.findall(r"^#([a-z-]+) =", text, re.MULTILINE)
    assert len(names) >= 10
    uncommented = tmp_path / "hvdd.conf"
    uncommented.write_text(re.sub(r"^#([a-z-]+ =)", r"\1", text, flags=re.MULTILINE), encoding="utf-8")
    hvdd = f"{installed.prefix}/bin/hvdd"
    from_example = run(hvdd, f"--config={uncommented}", "--print-config").stdout
    assert from_example == run(hvdd, "--config=/dev/null", "--print-config").stdout


@pytest.mark.parametrize("program", PAGES)
def test_man_page_and_help_name_the_same_options(installed, program):
    if not shutil.which("scdoc"):
        pytest.skip("scdoc is not installed")
    page = (installed.prefix / "share/man" / PAGES[program]).read_text(encoding="utf-8")
    # Options are what begins the first line of a paragraph, in bold; elsewhere others' options may be named.
    heads = [line for line in page.replace("\\-", "-").splitlines() if line.startswith("\\fB-")]
    in_page = {name for line in heads for name in re.findall(r"--[a-z][a-z-]+", line)}
    help_text = run(f"{installed.prefix}/bin/{program}", "--help").stdout
    in_help = {name for line in help_text.splitlines()
               for name in re.findall(r"--[a-z][a-z-]+", re.split(r"(?<=\S)\s{2,}", line.strip())[0])
               if line.strip().startswith("-")}
    assert in_help - in_page == set(), "in --help and not in the man page"
    assert in_page - in_help == ALIASES.get(program, set()), "in the man page and not in --help"


def test_hvdctl_help_and_man_page_name_the_same_commands(installed):
    help_text = run(f"{installed.prefix}/bin/hvdctl", "help").stdout
    commands = re.findall(r"^  ([a-z]+(?: [a-z]+)?)", help_text.split("Options:")[0], re.MULTILINE)
    assert len(commands) >= 8
    page = (SOURCE / "docs/man/hvdctl.1.scd").read_text(encoding="utf-8")
    assert [command for command in commands if f"*{command}*" not in page] == []


def test_installing_under_destdir_keeps_the_prefix_in_the_units(tmp_path):
    environment = dict(os.environ, DESTDIR=str(tmp_path))
    run("cmake", "--install", str(BUILD), "--prefix", "/opt/hvd", environment=environment)
    for name, program in (("hvdd", "bin/hvdd "), ("hvdd-engine@", "libexec/hvdd/hvdd-engine\n"), ("hvdd-gate@", "libexec/hvdd/hvdd-gate\n"),
                          ("hvdd-gpu@", "libexec/hvdd/hvdd-gpu\n")):
        unit = (tmp_path / f"opt/hvd/lib/systemd/system/{name}.service").read_text(encoding="utf-8")
        assert f"ExecStart=/opt/hvd/{program}" in unit
        assert str(tmp_path) not in unit


def test_folders_of_ones_own_are_found_by_programs_and_units(tmp_path):
    """Configured alone, as a distribution does, with flags of its own: programs and units are told the folders then."""
    build = tmp_path / "build"
    run("cmake", "-S", str(SOURCE), "-B", str(build), "-DHVD_TESTS=OFF", "-DCMAKE_INSTALL_PREFIX=/opt/hvd",
        "-DCMAKE_INSTALL_BINDIR=/opt/programs", "-DCMAKE_INSTALL_LIBEXECDIR=lib", "-DCMAKE_INSTALL_LIBDIR=lib/here",
        "-DCMAKE_C_FLAGS=-O2 -D_FORTIFY_SOURCE=3", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DCMAKE_C_COMPILER={compiler()[0]}")
    commands = (build / "compile_commands.json").read_text(encoding="utf-8")
    assert re.findall(r'HVI_LIBEXEC=[\\"]*([^\\" ]*)', commands) == ["../hvd/lib/hvdd"]
    assert set(re.findall(r"-D_FORTIFY_SOURCE=(\d)", commands)) == {"3"}
    lists = [path.read_text(encoding="utf-8") for path in build.rglob("cmake_install.cmake")]
    assert set(re.findall(r'CMAKE_INSTALL_COMPONENT STREQUAL "(\w+)"', "".join(lists))) == {"runtime", "devel", "service", "doc"}
    assert "$ORIGIN/../hvd/lib/here" in (build / "tools/hvd-perf/cmake_install.cmake").read_text(encoding="utf-8")
    run("cmake", "-P", str(build / "systemd/cmake_install.cmake"), environment=dict(os.environ, DESTDIR=str(tmp_path)))
    units = tmp_path / "opt/hvd/lib/systemd/system"
    assert "ExecStart=/opt/programs/hvdd " in (units / "hvdd.service").read_text(encoding="utf-8")
    assert "ExecStart=/opt/hvd/lib/hvdd/hvdd-engine\n" in (units / "hvdd-engine@.service").read_text(encoding="utf-8")


def test_the_stripped_environment_of_a_service_is_enough_for_hvdd(installed, tmp_path):
    """No PATH, no HOME: hvdd finds its engine beside itself."""
    done = subprocess.run([f"{installed.prefix}/bin/hvdd", "--private=yes", f"--runtime-dir={tmp_path}/run",
                           "--idle-exit=200ms"],
                          env={"LD_LIBRARY_PATH": str(installed.libdir)}, capture_output=True, text=True,
                          timeout=scaled(30), check=False)
    assert done.returncode == 0, done.stderr

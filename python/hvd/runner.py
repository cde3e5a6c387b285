# SPDX-License-Identifier: Apache-2.0
"""hvd.run: calls a function on several ranks and returns what each gave back.

The function travels in a private folder (0700, in the temporary directory), pickled by cloudpickle where that is
installed; hvdrun starts the ranks, each of which is hvd.run_task and leaves its result there. Where hosts are named,
hvdrun brings call and results over ssh. No port is opened. The ranks' standard input is a pipe from here, so rank 0
learns when this process dies.
"""
from __future__ import annotations

import codecs
import contextvars
import locale
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TextIO

from hvd import run_task
from hvd._installation import installation

#: What a line of hvdrun's own begins with, and the line behind one about its command line.
_OWN = "hvdrun: "
_USAGE = "Try hvdrun --help."

#: hvdrun itself ends its ranks within its grace time of 5 s.
_PATIENCE_S = 15.0

#: The name that hvdrun is called by. Called horovodrun it gives ranks Horovod's variables alone.
called: contextvars.ContextVar[str] = contextvars.ContextVar("called", default="hvdrun")

_RANK = """\
import sys
{path}
if __name__ == "__main__":
    from hvd.run_task import main
    main({folder!r})
"""


def run(func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, num_proc: int = 1,
        min_num_proc: int | None = None, max_num_proc: int | None = None, slots: int | None = None,
        reset_limit: int | None = None, cooldown_range: Sequence[int] | None = None, hosts: str | None = None,
        hostfile: str | None = None, host_discovery_script: str | None = None, start_timeout: float | None = None,
        ssh_port: int | None = None, ssh_identity_file: str | None = None, disable_cache: bool | None = None,
        output_filename: str | None = None, verbose: int | None = None, use_gloo: bool | None = None,
        use_mpi: bool | None = None, mpi_args: str | None = None, network_interface: str | None = None,
        network_interfaces: str | Sequence[str] | None = None, executable: str | None = None, np: int | None = None,
        min_np: int | None = None, max_np: int | None = None, *, bind_to: str | None = None) -> list[Any]:
    """Calls `func(*args, **kwargs)` in `num_proc` processes, the ranks of one job; returns their results by rank.

    func: anything that cloudpickle can take, lambdas and functions of a notebook included; without cloudpickle, a
        function of a module. It calls hvd.init() itself. Results must be picklable.
    hosts, hostfile: where, "h1:4,h2:4" (blanks around an entry do not count) or a file with lines "h1 slots=4"; not
        given: this machine (a ValueError in a job of LSF on several hosts). ssh reaches other hosts without a question,
        and they have this Python, this package and hvdrun where they are here.
    ssh_port, ssh_identity_file, network_interfaces, bind_to: as hvdrun's options.
    start_timeout: seconds for the private hvdd to start.
    output_filename: a folder for each rank's output, which is shown here in any case.
    executable: another Python for the ranks, which must have this package.
    use_gloo, use_mpi, mpi_args, disable_cache: taken and without effect, as hvdrun then says. network_interface, np:
        deprecated names of others; np counts where num_proc is 1.
    min_num_proc, max_num_proc, slots, reset_limit, cooldown_range, host_discovery_script, min_np, max_np: of elastic
        jobs, which are not there yet: NotImplementedError.

    RuntimeError: a rank failed; the text has its number and its traceback. ValueError: arguments that contradict each
    other. Ctrl-C ends the ranks."""
    for old, new, given in (("network_interface", "network_interfaces", network_interface),
                            ("np", "num_proc", np), ("min_np", "min_num_proc", min_np),
                            ("max_np", "max_num_proc", max_np)):
        if given is not None:
            warnings.warn(f"hvd.run: {old} is deprecated, use {new}", DeprecationWarning, stacklevel=2)
    _refuse_elastic(min_num_proc=min_num_proc, max_num_proc=max_num_proc, slots=slots, reset_limit=reset_limit,
                    cooldown_range=cooldown_range, host_discovery_script=host_discovery_script, min_np=min_np,
                    max_np=max_np)
    if hosts is not None and hostfile is not None:
        raise ValueError("hvd.run: hosts and hostfile exclude each other; give one of them")
    if use_gloo and use_mpi:
        raise ValueError("hvd.run: use_gloo and use_mpi exclude each other; give neither, there is one controller")
    if network_interface is not None and network_interfaces is not None:
        raise ValueError("hvd.run: network_interface is the old name of network_interfaces; give one of them")
    interfaces = network_interfaces if network_interfaces is not None else network_interface
    if interfaces is not None and not isinstance(interfaces, str):
        interfaces = ",".join(interfaces)
    if np is not None and num_proc == 1:  # a num_proc that was given counts
        num_proc = np
    options = _options({
        "num-proc": num_proc, "hosts": hosts, "hostfile": hostfile, "start-timeout": start_timeout,
        "ssh-port": ssh_port, "ssh-identity-file": ssh_identity_file, "disable-cache": bool(disable_cache),
        "output-filename": output_filename, "verbose": bool(verbose), "gloo": bool(use_gloo), "mpi": bool(use_mpi),
        "mpi-args": mpi_args, "network-interfaces": interfaces, "bind-to": bind_to})
    with tempfile.TemporaryDirectory(prefix="hvd-run-") as folder:
        call_path = _write_call(pathlib.Path(folder), func, tuple(args), dict(kwargs or {}))
        path = f"sys.path[:] = {sys.path!r}" if _is_this_python(executable) else ""
        text = _RANK.format(path=path, folder=folder)
        if hosts is not None or hostfile is not None:  # other hosts do not see the folder
            options += ["--call-dir", folder]
            program = ["-c", text]
        else:
            program = [str(call_path.with_name("rank.py"))]
            pathlib.Path(program[0]).write_text(text, encoding="utf-8")
        status, said = _launch([*options, executable or sys.executable, *program])
        return _results(pathlib.Path(folder), num_proc, status, said)


def _refuse_elastic(**given: Any) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise NotImplementedError(f"hvd.run: {', '.join(names)}: a job has a fixed number of processes here, elastic jobs "
                                  "come later; leave it out and give num_proc")


def _options(values: Mapping[str, Any]) -> list[str]:
    """hvdrun's words for what was given: True is a switch."""
    words = []
    for name, value in values.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words.append(f"--{name}={value}")
    return words


def _is_this_python(executable: str | None) -> bool:
    return executable is None or (os.path.exists(executable) and os.path.samefile(executable, sys.executable))


def _write_call(folder: pathlib.Path, func: Callable[..., Any], args: tuple[Any, ...],
                kwargs: dict[str, Any]) -> pathlib.Path:
    """The call as a file in `folder`; its path."""
    if run_task.pickler is pickle and getattr(func, "__module__", None) == "__main__":
        raise ValueError(f"hvd.run: {func!r} belongs to the main program, which the ranks cannot import; "
                         "install cloudpickle, or move the function into a module")
    path = folder / run_task.CALL
    path.write_bytes(run_task.pickler.dumps((func, args, kwargs)))
    return path


def program(name: str) -> str:
    """The path of a native program: of this wheel, else the system's. FileNotFoundError: there is none."""
    ours = installation() / "bin" / name
    found = str(ours) if ours.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is neither in this package nor in PATH; install the package hvd with pip")
    return found


def _keep_sentences(text: str, said: list[str]) -> str:
    """Adds hvdrun's own lines to `said`. The unfinished last line comes back, or of another's the beginning, which shows that."""
    *lines, rest = text.split("\n")
    said += [line for line in lines if line.startswith(_OWN) or line == _USAGE]
    return rest if rest.startswith(_OWN) else rest[:len(_USAGE) + 1]


def _forward(source: IO[bytes], sink: TextIO, said: list[str]) -> None:
    """Shows what hvdrun prints, as it comes, where this process prints (a notebook has no descriptor 1); keeps its own
    sentences."""
    decoder = codecs.getincrementaldecoder(locale.getpreferredencoding(False))("replace")
    line = ""
    for piece in iter(lambda: os.read(source.fileno(), 1 << 16), b""):
        text = decoder.decode(piece)
        line = _keep_sentences(line + text, said)
        _show(text, sink)
    text = decoder.decode(b"", final=True)
    _keep_sentences(line + text + "\n", said)
    _show(text, sink)


def _show(text: str, sink: TextIO) -> None:
    try:
        sink.write(text)
        sink.flush()
    except (OSError, ValueError):  # a sink that was closed; hvdrun must not wait for it
        pass


def _launch(words: Sequence[str]) -> tuple[int, list[str]]:
    """Runs hvdrun to its end: its exit status and its own sentences."""
    environment = dict(os.environ)
    environment.setdefault("HVDRUN_PYTHON", sys.executable)
    said: list[str] = []
    with subprocess.Popen([called.get(), *words], executable=program("hvdrun"), env=environment, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout and process.stderr
        threads = [threading.Thread(target=_forward, args=(source, sink, said), daemon=True)
                   for source, sink in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))]
        for thread in threads:
            thread.start()
        try:
            status = process.wait()
        except BaseException:
            _end(process)
            raise
        finally:
            for thread in threads:
                thread.join(_PATIENCE_S)
    return status, said


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends hvdrun, which ends its ranks; at once when it takes too long or Ctrl-C comes again."""
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except BaseException:  # pylint: disable=broad-except
        process.kill()  # its guard process ends what is left


def _in_order(folder: pathlib.Path, failed: Mapping[int, run_task.Result]) -> list[int]:
    """The ranks that failed, the first one first. Those of one host are ordered by its clock. Hosts, whose clocks differ, are
    ordered by hvdrun's list of arrivals; without it all ranks ran on this host."""
    try:
        lines = (folder / "arrivals").read_text(encoding="ascii").splitlines()
        arrivals = [(int(rank), host) for rank, host in map(str.split, lines)]
    except FileNotFoundError:
        arrivals = [(rank, "") for rank in failed]
    hosts = dict(arrivals)
    waiting: dict[str, list[int]] = {host: [] for host in hosts.values()}
    for rank in sorted(failed, key=lambda rank: failed[rank].when_ns):
        waiting[hosts[rank]].append(rank)
    return [waiting[host].pop(0) for rank, host in arrivals if rank in failed]


def _results(folder: pathlib.Path, num_proc: int, status: int, said: Sequence[str]) -> list[Any]:
    found = {rank: run_task.Result.read(folder, rank) for rank in range(num_proc)}
    left = {rank: result for rank, result in found.items() if result is not None}
    missing = [rank for rank in range(num_proc) if rank not in left]
    failed = _in_order(folder, {rank: result for rank, result in left.items() if not result.ok})
    if not failed and not missing and status == 0:
        return [pickle.loads(left[rank].value) for rank in range(num_proc)]
    if status == 2 and said[1:] == [_USAGE]:
        raise ValueError(said[0])
    text = [f"hvd.run: rank {rank} of {num_proc} failed:\n{left[rank].error}" for rank in failed[:1]]
    if len(failed) > 1:
        text.append(f"Also failed, later: {', '.join(f'rank {rank}' for rank in failed[1:])}.")
    if missing:
        text.append(f"Without a result: {', '.join(f'rank {rank}' for rank in missing)}.")
    ends = f"hvdrun's exit status is {status}."
    if status != 0:  # as scripts that know Horovod expect to read it
        ends = ("Horovod detected that one or more processes exited with non-zero status, thus causing the job to be "
                f"terminated. {ends}")
    raise RuntimeError("\n".join([*text, ends, *said]))

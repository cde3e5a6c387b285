# SPDX-License-Identifier: Apache-2.0
"""The package horovod: its names are hvd's, its helpers do what scripts and their tests expect, and what is missing says
what to use."""
import importlib
import inspect
import io
import os
import subprocess
import sys
import threading
import time

import pytest

import conftest

sys.path.insert(1, str(conftest.SOURCE / "python" / "compat"))

import horovod
from hvd import runner
from horovod.common import process_sets, util
from horovod.common.basics import HorovodBasics
from horovod.runner import launch
from horovod.runner.common.util import (codec, config_parser, env, host_hash, hosts, safe_shell_exec, secret, settings,
                                        timeout, tiny_shell_exec)
from horovod.runner.util import network, threads

# horovod.md A1.2, A2, A4.7: what stands in scripts.
TORCH = """elastic Compression allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters allreduce
allreduce_async allreduce_ allreduce_async_ grouped_allreduce grouped_allreduce_async grouped_allreduce_
grouped_allreduce_async_ sparse_allreduce_async allgather allgather_async grouped_allgather grouped_allgather_async broadcast
broadcast_async broadcast_ broadcast_async_ alltoall alltoall_async reducescatter reducescatter_async grouped_reducescatter
grouped_reducescatter_async join barrier poll synchronize init shutdown is_initialized start_timeline stop_timeline size
local_size cross_size rank local_rank cross_rank mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built
nccl_built ddl_built ccl_built cuda_built rocm_built ProcessSet global_process_set Average Sum Adasum Min Max Product
HorovodInternalError DistributedOptimizer SyncBatchNorm""".split()
RUN = ("func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile "
       "host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose use_gloo "
       "use_mpi mpi_args network_interface network_interfaces executable np min_np max_np").split()


def test_the_names_of_horovod_torch_are_those_of_hvd_torch():
    theirs, ours = importlib.import_module("horovod.torch"), importlib.import_module("hvd.torch")
    for name in TORCH:
        found = getattr(theirs, name)
        assert name == "elastic" or found is getattr(ours, name), name
        where = next((part for part in ("mpi_ops", "functions", "compression", "optimizer", "sync_batch_norm")
                      if hasattr(importlib.import_module(f"horovod.torch.{part}"), name)), None)
        assert name == "elastic" or where, f"{name} is in no module of horovod.torch"
    assert theirs.elastic.TorchState is ours.elastic.TorchState
    assert importlib.import_module("horovod.torch.elastic.state").TorchState is ours.elastic.TorchState
    assert importlib.import_module("horovod.torch.elastic.sampler").ElasticSampler is ours.elastic.ElasticSampler


def test_run_takes_what_horovod_run_takes():
    parameters = inspect.signature(horovod.run).parameters
    assert [name for name, value in parameters.items() if value.kind != inspect.Parameter.KEYWORD_ONLY] == RUN
    assert importlib.import_module("horovod.runner").run is horovod.run
    assert {name: value.default for name, value in parameters.items() if value.default not in (None, inspect._empty)} == {
        "args": (), "num_proc": 1}


@pytest.mark.parametrize("wanted", ["0.20.0", "0.28", "0.28.1"])
def test_the_version_passes_what_scripts_compare_it_with(wanted):
    version = pytest.importorskip("packaging.version")
    assert version.parse(horovod.__version__) >= version.parse(wanted)
    assert version.parse(horovod.__version__) < version.parse("0.29")
    assert [int(part) for part in horovod.__version__.split(".")] == [0, 28, 1]


@pytest.mark.parametrize("name, says", [
    ("horovod.mxnet", "retired"), ("horovod.spark", "Spark is not supported"),
    ("horovod.ray", "Ray is not supported"), ("horovod.data", "DataLoader"), ("horovod.common.elastic", "TorchState"),
    ("horovod.runner.common.service.compute_service", "no services"),
    ("horovod.runner.elastic.driver", "come later"), ("horovod.runner.gloo_run", "no Gloo"),
    ("horovod.runner.mpi_run", "no mpirun"), ("horovod.runner.js_run", "no jsrun"),
    ("horovod.runner.http.http_server", "no rendezvous server"), ("horovod.runner.driver", "no driver service"),
    ("horovod.runner.task", "no task service"), ("horovod.runner.task_fn", "horovod.run"),
    ("horovod.runner.run_task", "horovod.run"), ("horovod._keras.callbacks", "horovod.tensorflow.keras"),
    ("horovod.runner.util.streams", "hvdrun"), ("horovod.runner.util.cache", "no cache"),
    ("horovod.runner.util.lsf", "-H"), ("horovod.runner.util.remote", "ssh"),
    ("horovod.runner.common.util.network", "no services")])
def test_what_is_missing_says_what_to_use(name, says):
    with pytest.raises(ImportError, match=says) as caught:
        importlib.import_module(name)
    assert name.startswith(caught.value.name)


def check_process_sets():
    import horovod.torch as hvd
    import hvd as ours
    hvd.init()
    for call in (hvd.add_process_set, importlib.import_module("horovod.common.process_sets").add_process_set):
        with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
            call([0])
    pair = ours.add_process_set([0])
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        hvd.remove_process_set(pair)
    assert ours.remove_process_set(pair)
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    alone = hvd.add_process_set([1])
    assert alone.included() == (hvd.rank() == 1) and hvd.remove_process_set(alone)
    hvd.shutdown()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.rank()


def test_under_the_name_horovod_process_sets_added_later_must_be_announced(ranks):
    ranks(2, check_process_sets)


def check_class_names():
    import torch
    import horovod.torch as hvd
    hvd.init()
    model = torch.nn.Linear(2, 1)
    for op in (hvd.Average, hvd.Adasum):
        made = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=op)
        assert str(type(made)) == "<class 'horovod.torch.optimizer.SGD'>"


def test_a_torch_optimizer_that_is_wrapped_is_known_by_the_name_of_its_class(ranks):
    ranks(1, check_class_names)


def check_basics():
    basics = HorovodBasics(__file__, "mpi_lib_v2")
    assert not basics.is_initialized()
    basics.init()
    assert (basics.size(), basics.local_size(), basics.cross_size(), basics.cross_rank()) == (2, 2, 1, 0)
    assert basics.rank() == basics.local_rank() and basics.is_homogeneous()
    assert not (basics.mpi_built() or basics.gloo_enabled() or basics.nccl_built())
    assert (basics.Average, basics.Sum, basics.Product) == (0, 1, 5)
    with pytest.raises(AttributeError, match="hvd.h"):
        basics.MPI_LIB_CTYPES
    alone = process_sets.ProcessSet([basics.rank()])
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        process_sets.add_process_set(alone)
    assert basics._get_process_set_ids_and_ranks() == {0: [0, 1]} and basics._process_set_size(0) == 2
    assert basics._process_set_rank(0) == basics.rank()
    assert str(process_sets.global_process_set) == "ProcessSet(process_set_id=0, ranks=[0, 1], mpi_comm=None)"
    with pytest.raises(ValueError, match="has not been registered"):
        basics._process_set_size(10)
    basics.shutdown()


def test_horovod_basics_speaks_of_the_session(ranks):
    ranks(2, check_basics)


# ---- horovodrun ----

def parse(line, **changes):
    args = launch.parse_args(line.split())
    for name, value in changes.items():
        assert getattr(args, name) == value, name
    return args


def test_parse_args_knows_horovodrun():
    parse("-np 4 -H localhost:4 --verbose python train.py --np 3", num_proc=4, hosts="localhost:4", verbose=True,
          command=["python", "train.py", "--np", "3"], use_gloo=False, hostfile=None, min_num_proc=None, autotune=None)
    parse("--num-proc 2 --min-np 1 --max-num-proc 3 --slots 2 --blacklist-cooldown-range 1 10 --network-interface a,b x",
          min_num_proc=1, max_num_proc=3, slots=2, cooldown_range=[1, 10], nics={"a", "b"})
    parse("-np 1 --network-interface a --network-interface b,c --network-interfaces a x", nics={"a", "b", "c"})
    parse("-np 1 --no-stall-check --no-autotune --log-hide-timestamp --tcp --mpi x", no_stall_check=True, autotune=False,
          log_with_timestamp=False, tcp_flag=True, use_mpi=True)
    parse("-np 1 --stall-check --no-log-hide-timestamp x", no_stall_check=False, log_with_timestamp=True)


@pytest.mark.parametrize("line", ["python x.py", "-np 2 --gloo --mpi x", "-np 2 -H a:1 --hostfile f x", "-np two x",
                                  "-np 2 --log-level LOUD x"])
def test_parse_args_refuses(line, capsys):
    with pytest.raises(SystemExit) as caught:
        launch.parse_args(line.split())
    assert caught.value.code == 2 and "error:" in capsys.readouterr().err


@pytest.mark.parametrize("line, says", [("--cycle-time-ms -1", "cycle_time_ms=-1.0 must be >= 0"),
                                        ("--fusion-threshold-mb -1", "fusion_threshold_mb=-1 must be >= 0"),
                                        ("--autotune-gaussian-process-noise 2", r"must be in \[0, 1\]")])
def test_numbers_are_checked(line, says):
    with pytest.raises(ValueError, match=says):
        launch.parse_args(["-np", "1", *line.split(), "x"])


def test_options_become_variables():
    args = parse("-np 2 --fusion-threshold-mb 32 --cycle-time-ms 2.5 --no-hierarchical-allreduce --torus-allreduce "
                 "--autotune-log-file a.csv --log-level DEBUG --log-without-timestamp --stall-check --tcp x")
    variables = config_parser.set_env_from_args({"KEPT": "1"}, args)
    assert variables == {"KEPT": "1", "HOROVOD_FUSION_THRESHOLD": str(32 << 20), "HOROVOD_CYCLE_TIME": "2.5",
                         "HOROVOD_HIERARCHICAL_ALLREDUCE": "0", "HOROVOD_TORUS_ALLREDUCE": "1",
                         "HOROVOD_LOG_LEVEL": "DEBUG", "HOROVOD_LOG_HIDE_TIME": "1", "HOROVOD_STALL_CHECK_DISABLE": "0",
                         "NCCL_IB_DISABLE": "1"}
    args = parse("-np 2 --autotune --autotune-log-file a.csv --timeline-filename t.json --timeline-mark-cycles x")
    assert config_parser.set_env_from_args({}, args) == {
        config_parser.HOROVOD_AUTOTUNE: "1", config_parser.HOROVOD_AUTOTUNE_LOG: "a.csv",
        config_parser.HOROVOD_TIMELINE: "t.json", config_parser.HOROVOD_TIMELINE_MARK_CYCLES: "1"}


CONFIG = {"controller": "gloo", "params": {"fusion_threshold_mb": 8, "cycle_time_ms": 4, "torus_allreduce": True},
          "autotune": {"enabled": True, "warmup_samples": 5}, "timeline": {"filename": "t.json", "mark_cycles": True},
          "stall_check": {"enabled": False, "warning_time_seconds": 7}, "logging": {"level": "INFO", "with_timestamp": False},
          "library_options": {"num_nccl_streams": 2}}


def test_a_configuration_counts_where_the_command_line_says_nothing():
    args = parse("-np 2 --fusion-threshold-mb 32 --no-autotune x")
    config_parser.set_args_from_config(args, CONFIG, {"fusion_threshold_mb", "autotune"})
    expected = {"fusion_threshold_mb": 32, "autotune": False, "cycle_time_ms": 4, "torus_allreduce": True,
                "autotune_warmup_samples": 5, "timeline_filename": "t.json", "timeline_mark_cycles": True,
                "no_stall_check": True, "stall_check_warning_time_seconds": 7, "log_level": "INFO",
                "log_with_timestamp": False, "num_nccl_streams": 2, "use_gloo": True, "cache_capacity": None}
    assert {name: getattr(args, name) for name in expected} == expected


def test_parse_args_reads_the_configuration_file(tmp_path):
    yaml = pytest.importorskip("yaml")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    parse(f"-np 2 --config-file {path} --stall-check --cycle-time-ms 1 x", fusion_threshold_mb=8, cycle_time_ms=1,
          no_stall_check=False, autotune=True)


def horovodrun(*words, **changes):
    return subprocess.run([sys.executable, "-m", "horovod.runner.launch", *words], capture_output=True, text=True,
                          timeout=120, check=False, env=conftest.clean_environment(**changes))


def test_horovodrun_knows_every_option_of_parse_args():
    """Each alone, with --help, so that nothing is started."""
    for action in launch._parser()._actions:
        for option in action.option_strings:
            if option in ("-h", "--help", "-v", "--version", "-cb", "--check-build"):
                continue
            values = {"nics": "lo", "log_level": "INFO", "hosts": "localhost:1", "config_file": "/dev/null"}
            value = [] if action.nargs == 0 else [values.get(action.dest, "1")]
            done = horovodrun_native(option, *value, "--help")
            assert done.returncode == 0 or "elastic" in done.stderr or "fixed size" in done.stderr, (option, done.stderr)


def horovodrun_native(*words):
    return subprocess.run(["horovodrun", *words], executable=str(conftest.BUILD / "bin" / "hvdrun"), capture_output=True,
                          text=True, timeout=60, check=False, env=conftest.clean_environment())


def test_run_gives_ranks_horovods_variables_alone(monkeypatch):
    for name in set(os.environ) - set(conftest.clean_environment()):
        monkeypatch.delenv(name)
    for name, value in conftest.clean_environment().items():
        monkeypatch.setenv(name, value)
    names = ("HOROVOD_RANK", "HVD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
    assert horovod.run(lambda: [os.environ.get(name) for name in names]) == [["0", "1", None, None, None, None]]
    assert runner.called.get() == "hvdrun"


def test_horovodrun_starts_ranks():
    done = horovodrun("-np", "2", "--gloo", "sh", "-c", "echo $HOROVOD_RANK of $HOROVOD_SIZE")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:0 of 2", "[1]<stdout>:1 of 2"]


def test_horovodrun_says_which_horovod_it_is_and_what_it_can_do():
    assert horovodrun("--version").stdout == f"{horovod.__version__}\n"
    build = horovodrun("--check-build").stdout
    assert build.startswith(f"Horovod v{horovod.__version__}:\n\nAvailable Frameworks:\n    [ ] TensorFlow\n    [X] PyTorch\n"
                            "    [ ] MXNet\n\nAvailable Controllers:\n    [ ] MPI\n    [ ] Gloo\n")
    code = "from horovod.runner.launch import check_build; check_build(verbose=True)"
    assert subprocess.run([sys.executable, "-c", code], env=conftest.clean_environment(), capture_output=True, text=True,
                          timeout=60, check=True).stdout == build


def test_horovodrun_without_hvdrun_says_so(tmp_path):
    done = horovodrun("-np", "1", "true", PATH=str(tmp_path))
    assert done.returncode == 1 and "horovodrun: hvdrun is neither in this package nor in PATH" in done.stderr


# ---- helpers ----

def test_hosts_are_filled_in_order():
    slots = hosts.get_host_assignments(hosts.parse_hosts("a:2,b:3"), 5)
    rows = [(slot.hostname, slot.rank, slot.local_rank, slot.local_size, slot.cross_rank, slot.cross_size, slot.size)
            for slot in slots]
    assert rows == [("a", 0, 0, 2, 0, 2, 5), ("a", 1, 1, 2, 0, 2, 5), ("b", 2, 0, 3, 1, 2, 5), ("b", 3, 1, 3, 1, 2, 5),
                    ("b", 4, 2, 3, 0, 1, 5)]
    assert slots[3].to_response_string() == "3,5,1,3,1,2"
    assert [slot.hostname for slot in hosts.get_host_assignments(hosts.parse_hosts("a:2,b:3"), 1, 3)] == ["a", "a", "b"]
    with pytest.raises(ValueError, match=r"Requested more processes \(6\) than there are available slots \(5\)"):
        hosts.get_host_assignments(hosts.parse_hosts("a:2,b:3"), 6)


def test_hosts_are_parsed(tmp_path):
    assert hosts.parse_hosts_and_slots("worker-0:2,b.c:1") == (["worker-0", "b.c"], {"worker-0": 2, "b.c": 1})
    with pytest.raises(ValueError, match="Invalid host input"):
        hosts.parse_hosts_and_slots("a")
    with pytest.raises(ValueError):
        hosts.parse_hosts("a:x")
    (tmp_path / "hosts").write_text("# ours\na slots=2\n\nb slots=3 # big\n", encoding="utf-8")
    assert hosts.parse_host_files(str(tmp_path / "hosts")) == "a:2,b:3"


def test_a_shell_command_is_run_with_its_output_in_lines():
    out, err = io.StringIO(), io.StringIO()
    assert safe_shell_exec.execute("echo a; echo b >&2; exit 3", stdout=out, stderr=err, index=1) == 3
    assert (out.getvalue(), err.getvalue()) == ("[1]<stdout>:a\n", "[1]<stderr>:b\n")
    assert safe_shell_exec.execute("kill -9 $$") == 137
    assert tiny_shell_exec.execute("echo a; echo b >&2; exit 3") == ("a\nb\n", 3)


def test_an_event_ends_a_shell_command_and_its_children():
    event, out, statuses = threading.Event(), io.StringIO(), []
    started = time.monotonic()
    thread = threads.in_thread(lambda: statuses.append(safe_shell_exec.execute("sleep 100 & echo; wait", stdout=out,
                                                                               events=[event])))
    while not out.getvalue():
        assert time.monotonic() < started + 60
        time.sleep(0.01)
    event.set()
    thread.join(60)
    assert statuses == [143]


def test_a_shell_command_ends_with_the_process_that_ran_it(tmp_path):
    program = f"""if True:
        from horovod.runner.common.util import safe_shell_exec
        safe_shell_exec.execute("echo $$ >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 100 & wait")"""
    deadline = time.monotonic() + 60
    with subprocess.Popen([sys.executable, "-c", program], env=conftest.clean_environment()) as runner:
        try:
            while not (tmp_path / "pid").exists():  # without a pause: the earliest moment is the hardest
                assert time.monotonic() < deadline and runner.poll() is None
        finally:
            runner.kill()
    group = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.01)


@pytest.mark.parametrize("index, prefix, expected", [
    (3, "out", "[3]<out>:10%\r[3]<out>:\u20ac 20%\r[3]<out>:\r[3]<out>:\n[3]<out>:rest"), (None, "out", None), (3, None, None)])
def test_lines_of_progress_bars_get_a_prefix_each(index, prefix, expected):
    text = "10%\r\u20ac 20%\r\r\nrest"
    reader, writer = os.pipe()
    out = io.StringIO()
    thread = threads.in_thread(safe_shell_exec.prefix_connection, (os.fdopen(reader, "rb"), out, prefix, index, False))
    for byte in text.encode():
        os.write(writer, bytes([byte]))
    os.close(writer)
    thread.join(60)
    assert out.getvalue() == (expected or text)


def test_lists_are_split_evenly():
    assert util.split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
    assert util.split_list([1, 2], 3) == [[1], [2], []]
    assert [number for number in range(-1, 10) if util.num_rank_is_power_2(number)] == [1, 2, 4, 8]
    assert util.is_iterable([1]) and util.is_iterable("a") and not util.is_iterable(3)


def test_a_cached_function_is_called_once_for_the_same_arguments():
    calls = []
    double = util._cache(lambda number: calls.append(number) or 2 * number)
    assert [double(1), double(1), double(2), double(1)] == [2, 2, 4, 2] and calls == [1, 2]


def test_the_environment_is_as_before_after_env(monkeypatch):
    monkeypatch.setenv("HVT_A", "1")
    with util.env(HVT_A=None, HVT_B="2"):
        assert env.os.environ.get("HVT_A") is None and env.os.environ["HVT_B"] == "2"
    assert env.os.environ["HVT_A"] == "1" and "HVT_B" not in env.os.environ


def test_extensions_are_there_where_hvd_has_a_module():
    assert util.extension_available("torch") and not util.extension_available("mxnet")
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match="horovod.mxnet is not available"):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")
    import torch
    assert util.gpu_available("torch") == torch.cuda.is_available() and not util.gpu_available("tensorflow")
    assert not util.mpi_built() and not util.gloo_built(verbose=True) and util.nccl_built() == 0
    assert util.is_version_greater_equal_than("2.0.1+cpu", "2.0.1")
    assert not util.is_version_greater_equal_than("1.9", "1.10.0")
    with pytest.raises(ValueError):
        util.is_version_greater_equal_than("2.0.1", "2.0")
    choose = util.get_average_backwards_compatibility_fun(HorovodBasics())
    with pytest.warns(DeprecationWarning):
        assert choose(None, False) == HorovodBasics.Sum
    with pytest.raises(ValueError, match="supersedes average"):
        choose(HorovodBasics.Sum, True)
    assert importlib.import_module("horovod.torch.mpi_ops").handle_average_backwards_compatibility(None, None) == 0


def test_small_helpers(monkeypatch):
    key = secret.make_secret_key()
    digest = secret.compute_digest(key, b"message")
    assert len(key) == len(digest) == 32 and secret.check_digest(key, b"message", digest)
    assert not secret.check_digest(key, b"massage", digest)
    assert codec.loads_base64(codec.dumps_base64({"a": 1})) == codec.loads_base64(codec.dumps_base64({"a": 1}, False)) == {
        "a": 1}
    with pytest.raises(timeout.TimeoutException, match="no answer to ping in time. Timeout after 0 seconds"):
        timeout.Timeout(0, "no answer to {activity} in time").check_time_out_for("ping")
    waiting = timeout.Timeout(100, "late")
    waiting.check_time_out_for("anything")
    assert 0 < waiting.remaining() <= 100 and not waiting.timed_out()
    for name in set(env.os.environ) - set(conftest.clean_environment()):
        monkeypatch.delenv(name)
    assert env.get_env_rank_and_size() == (0, 1) and not env.is_exportable("BASH_FUNC_x%%") and env.is_exportable("HOME")
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}.items():
        monkeypatch.setenv(name, value)
    for step, expected in (("", (0, 1)), ("4294967290", (0, 1)), ("0", (0, 4))):  # a batch script, a shell, srun's task
        monkeypatch.setenv("SLURM_STEP_ID", step)
        assert env.get_env_rank_and_size() == expected
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    assert env.get_env_rank_and_size() == (1, 3)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")  # as a cluster exports them
    assert env.get_env_rank_and_size() == (1, 3)
    monkeypatch.setenv("LOCAL_RANK", "0")  # as torchrun does
    assert env.get_env_rank_and_size() == (0, 1)
    assert host_hash.host_hash() == host_hash.host_hash() != host_hash.host_hash("salt")
    assert settings.Settings(hosts="a:1", num_proc=1).hosts == "a:1"
    assert network.filter_local_addresses(["localhost", "no-such-host.invalid"]) == ["no-such-host.invalid"]
    assert threads.execute_function_multithreaded(pow, [(2, 3), (3, 2)]) == {0: 8, 1: 9}
    with pytest.raises(ValueError, match="tuple"):
        threads.in_thread(print, args=[1])


def test_an_event_calls_a_function():
    event, stop, called = threading.Event(), threading.Event(), threading.Event()
    never = threads.on_event(threading.Event(), called.set, stop=stop, check_stop_interval_s=0.01)
    stop.set()
    never.join(60)
    assert not called.is_set()
    threads.on_event(event, called.set)
    event.set()
    assert called.wait(60)
    for given, complaint in (({"event": None}, "Event must not"), ({"args": 1}, "must be a tuple"),
                             ({"daemon": False}, "Stop event must be given")):
        with pytest.raises(ValueError, match=complaint):
            threads.on_event(**{"event": event, "func": called.set, **given})

"""The collector as a process: its arguments, its streams, how it ends, and what it leaves behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guest_service.collector.command import collector_command
from tests.collector.process import TIMEOUT_SECONDS, collect, run
from tests.nvml_library.fixture import LIBRARY, ScriptedNvml

Make = Callable[..., ScriptedNvml]

GPU_INFO = [sys.executable, "-m", "guest_service", "gpu-info"]
GUEST_SERVICE = str(Path(sys.executable).with_name("guest-service"))


@contextlib.contextmanager
def hanging(library: ScriptedNvml, ready: int) -> Iterator[subprocess.Popen[bytes]]:
    """A collector that has reached `hang`; the script prints a line before, which arrives on stderr."""
    with subprocess.Popen(
        collector_command(nvml_library=library.path), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=ready
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def open_paths(pid: int | str) -> set[str]:
    """What a process holds open; empty when it is gone."""
    try:
        return {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return set()


def test_what_a_driver_prints_goes_to_stderr_and_stdout_is_one_line(scripted_nvml: Make) -> None:
    collected = collect(scripted_nvml("load - * print loading\nnvmlInit_v2 - * print starting\nnvmlShutdown - * print ending"))
    assert collected.card["temperature_c"] == 35
    assert collected.stderr.splitlines() == ["loading", "starting", "ending"]


def test_the_library_is_loaded_from_the_loaders_path_when_none_is_named(scripted_nvml: Make) -> None:
    library = scripted_nvml("cards 3")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.path.parent)}
    done = subprocess.run(collector_command(), capture_output=True, check=True, env=environment, timeout=TIMEOUT_SECONDS)
    assert done.stdout.count(b'"index"') == 3


def test_the_public_command_prints_the_same_line(scripted_nvml: Make) -> None:
    library = scripted_nvml("cards 2")
    by_hand = run([*GPU_INFO, "--nvml-library", str(library.path)])
    assert by_hand.status == 0
    assert by_hand.stdout == collect(library).stdout
    assert run([*GPU_INFO, f"--nvml-library={library.path}"]).stdout == by_hand.stdout


def test_a_relative_library_is_that_file_and_not_one_of_the_loaders_path(
    scripted_nvml: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = scripted_nvml("cards 3")
    monkeypatch.chdir(library.path.parent)
    assert run([GUEST_SERVICE, "gpu-info", "--nvml-library", LIBRARY]).stdout.count('"index"') == 3
    assert run(collector_command(nvml_library=Path(LIBRARY))).stdout.count('"index"') == 3


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_is_printed_without_a_library(flag: str) -> None:
    shown = run([*GPU_INFO, flag])
    assert (shown.status, shown.stderr) == (0, "")
    assert shown.stdout.startswith("Usage: guest-service gpu-info [--simulate RACK] [--nvml-library FILE] [--groups LIST]\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--bogus"], "--bogus"),
        (["extra"], "extra"),
        (["--nvml-library"], "--nvml-library needs a value"),
        (["--groups", "health,"], "--groups knows identity"),
        (["--simulate="], "--simulate needs a value"),
        (["--simulate", "h200", "--nvml-library", "x"], "exclude each other"),
        (["--simulate", "no-such-rack"], "no-such-rack"),
        (["--help=yes"], "--help=yes"),
        (["\x1b[2J\n"], r"'\x1b[2J\n'"),
    ],
)
def test_wrong_arguments_exit_2_with_one_line_and_nothing_on_stdout(arguments: list[str], named: str) -> None:
    for command in (GPU_INFO, collector_command()):
        refused = run([*command, *arguments])
        assert (refused.status, refused.stdout) == (2, "")
        assert named in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_a_reader_that_leaves_early_is_no_news(scripted_nvml: Make) -> None:
    library = scripted_nvml("nvmlInit_v2 - * print ready\nnvmlDeviceGetCount_v2 - * sleep 50")
    for reader in ("head -c 1 >/dev/null", "true", "exec 0<&-"):
        piped = run(
            ["bash", "-o", "pipefail", "-c", f'"$@" | {{ {reader}; }}', "bash", *collector_command(nvml_library=library.path)]
        )
        assert piped.stderr == "ready\n"
        assert piped.status == 0
    assert library.calls("nvmlShutdown") == 3


def test_without_a_stdout_the_result_is_lost_and_that_is_no_success(scripted_nvml: Make) -> None:
    command = collector_command(nvml_library=scripted_nvml("nvmlInit_v2 - * print ready").path)
    closed = run(["bash", "-c", 'exec "$@" >&-', "bash", *command])
    said = "ready\nguest-service gpu-info: stdout cannot be written: standard output is closed\n"
    assert (closed.status, closed.stdout, closed.stderr) == (1, "", said)


def test_without_a_stderr_stdout_is_still_one_line(scripted_nvml: Make) -> None:
    command = collector_command(nvml_library=scripted_nvml("nvmlInit_v2 - * print ready").path)
    closed = run(["bash", "-c", 'exec "$@" 2>&-', "bash", *command])
    assert closed.status == 0
    assert closed.card["index"] == 0
    assert run(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", *command]).status == 1


def test_a_full_disk_is_one_line_and_not_success(scripted_nvml: Make) -> None:
    library = scripted_nvml()
    full = run(["bash", "-c", 'exec "$@" >/dev/full', "bash", *collector_command(nvml_library=library.path)])
    assert full.status == 1
    assert full.stderr == "guest-service gpu-info: stdout cannot be written: No space left on device\n"
    assert library.calls("nvmlShutdown") == 1


def test_a_pipe_that_takes_little_at_a_time_gets_the_whole_line(scripted_nvml: Make) -> None:
    command = collector_command(nvml_library=scripted_nvml("cards 32").path)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.PIPE) as process:
        os.close(write_end)
        with open(read_end, "rb", buffering=0) as reader:
            line = b"".join(iter(lambda: reader.read(512), b""))
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert line.count(b'"index"') == 32


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_inside_a_call_of_the_driver_and_without_a_traceback(
    scripted_nvml: Make, number: signal.Signals
) -> None:
    read_end, write_end = os.pipe()
    library = scripted_nvml("nvmlInit_v2 - * print ready\nnvmlInit_v2 - * hang")
    with open(read_end, "rb") as stderr, hanging(library, write_end) as process:
        os.close(write_end)
        assert stderr.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(TIMEOUT_SECONDS) == -number
        assert stderr.read() == b""
        assert process.stdout is not None
        assert process.stdout.read() == b""


def test_ctrl_c_ends_it_also_while_the_library_is_still_being_loaded(tmp_path: Path) -> None:
    source, library = tmp_path / "hang.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text(
        '#include <unistd.h>\n__attribute__((constructor)) static void hang(void) { if (write(2, "loading\\n", 8)) for (;;) pause(); }\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    read_end, write_end = os.pipe()
    command = collector_command(nvml_library=library)
    with open(read_end, "rb") as stderr, subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=write_end) as process:
        os.close(write_end)
        assert stderr.readline() == b"loading\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(TIMEOUT_SECONDS) == -signal.SIGINT
        finally:
            process.kill()


def test_a_crash_of_the_driver_prints_no_result(scripted_nvml: Make) -> None:
    crashed = run(collector_command(nvml_library=scripted_nvml("nvmlDeviceGetUUID 0 * abort").path))
    assert (crashed.status, crashed.stdout) == (-signal.SIGABRT, "")


def test_a_device_file_that_nvml_opens_is_held_by_nobody_between_samples(scripted_nvml: Make, tmp_path: Path) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    rows = f"nvmlInit_v2 - * open {device}\nnvmlShutdown - * close\n"
    read_end, write_end = os.pipe()
    held = scripted_nvml(rows + "nvmlDeviceGetCount_v2 - * print ready\nnvmlDeviceGetCount_v2 - * hang")
    with open(read_end, "rb") as stderr, hanging(held, write_end) as process:
        os.close(write_end)
        assert stderr.readline() == b"ready\n"
        assert str(device) in open_paths(process.pid)  # the check can fail
    collect(scripted_nvml(rows))
    assert not any(str(device) in open_paths(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


SOAK = """
import os, sys, threading
sys.path[:0] = [{root!r}]
from guest_service.collector.binding import binding_file, load_binding
from guest_service.collector.loaded_library import Library
from guest_service.collector.line import to_json
from guest_service.collector.nvml_lists import NvmlDriver
from guest_service.collector.parts import Whole
from guest_service.collector.sample import take_sample

def rss_kib():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])

binding = load_binding(binding_file(sys.path))
def sample():
    library = Library({library!r})
    library.initialize()
    whole = Whole()
    take_sample(NvmlDriver(library, binding), whole, lambda line: None)
    to_json(whole.tree)
    library.shutdown()

for _ in range(200):
    sample()
before = rss_kib(), sorted(os.listdir("/proc/self/fd")), os.listdir("/proc/self/task")
for _ in range(2000):
    sample()
after = rss_kib(), sorted(os.listdir("/proc/self/fd")), os.listdir("/proc/self/task")
assert after[1:] == before[1:], (before, after)
print(after[0] - before[0])
"""


@pytest.mark.cost
def test_2000_samples_with_mixed_errors_leave_no_memory_descriptor_or_thread(scripted_nvml: Make) -> None:
    script = """
        cards 4
        nvmlInit_v2 - 1000-1010 return 18
        nvmlDeviceGetCount_v2 - 500-510 return 999
        nvmlDeviceGetHandleByIndex_v2 2 * return 15
        nvmlDeviceGetPowerUsage 1 * return 3
        nvmlDeviceGetUtilizationRates 3 * set gpu=808334905
        nvmlDeviceGetUUID 0 * bytes F895A0
        nvmlDeviceGetTemperature 3 * return 77
        nvmlSystemGetConfComputeGpusReadyState - * return 999
    """
    code = SOAK.format(root=str(Path(__file__).parents[2]), library=str(scripted_nvml(script).path))
    soaked = run([sys.executable, "-c", code])
    assert soaked.status == 0, soaked.stderr
    assert int(soaked.stdout) < 2 * 1024  # KiB


def test_a_collector_whose_agent_is_gone_before_it_begins_ends_at_once(scripted_nvml: Make) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    library = scripted_nvml("nvmlInit_v2 - * sleep 3600000").path
    late = run(collector_command(nvml_library=library, parent=gone.pid))
    assert (late.status, late.stdout, late.stderr) == (0, "", "")
    mine = run(collector_command(nvml_library=scripted_nvml().path, parent=os.getpid()))
    assert len(mine.sample["gpus"]) == 1

"""`guestctl` as a process: pipes, terminals, signals."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from guest_api import guest_api_pb2
from tests.client.fake_proxy import Fleet, Guest

COMMAND = [sys.executable, "-m", "guest_client.guestctl"]


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"}}
    return kept | {"TERM": "xterm-256color"} | more


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_closes_the_pipe_ends_it_quietly(fleet: Fleet, address: str, unbuffered: str) -> None:
    fleet.guests = {f"vm{number:05}": Guest(labels={"note": "x" * 60}) for number in range(2000)}
    process = subprocess.Popen(
        [*COMMAND, "list", "--proxy", address], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=_environment(PYTHONUNBUFFERED=unbuffered),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1) == b"G"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(20) == 141


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_answer_that_cannot_be_written_is_a_failure(address: str, unbuffered: str) -> None:
    environment = _environment(PYTHONUNBUFFERED=unbuffered)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "info", "vm1", "--proxy", address], stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "guestctl: the answer cannot be written: No space left on device\n")
    closed = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -m guest_client.guestctl info vm1 --proxy {address} >&-', sys.executable],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (closed.returncode, closed.stderr) == (1, "guestctl: the answer cannot be written: standard output is closed\n")


def test_a_pipe_that_knows_ascii_only_gets_escapes_and_no_traceback(fleet: Fleet, address: str) -> None:
    fleet.guests["vm1"] = Guest(guest_api_pb2.GpuInfoResponse(gpus=[guest_api_pb2.GpuDevice(index=0, uuid="GPU-ü")]))
    done = subprocess.run(
        [*COMMAND, "gpu", "vm1", "--proxy", address],
        capture_output=True,
        check=True,
        env=_environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0"),
    )
    assert b"GPU-\\xfc" in done.stdout


def test_a_guest_behind_a_relay_that_cannot_be_reached_is_one_line(socket_folder: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "gpu", "--guest", f"hvsock:{socket_folder}/nobody:8000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1), done.stderr
    assert done.stderr.startswith("guestctl: ")


def _on_terminal(*arguments: str, **more: str) -> bytes:
    controller, terminal = pty.openpty()
    try:
        done = subprocess.run([*COMMAND, *arguments], stdout=terminal, stdin=terminal, check=True, env=_environment(**more))
        assert done.returncode == 0
        return os.read(controller, 65536)
    finally:
        os.close(terminal)
        os.close(controller)


def test_colour_is_for_terminals_and_not_with_no_color(address: str) -> None:
    assert b"\x1b[" in _on_terminal("list", "--proxy", address)
    assert b"\x1b[3" not in _on_terminal("list", "--proxy", address, NO_COLOR="1")
    piped = subprocess.run([*COMMAND, "list", "--proxy", address], capture_output=True, check=True, env=_environment())
    assert b"\x1b" not in piped.stdout


def test_a_narrow_terminal_folds_and_loses_nothing(fleet: Fleet, address: str) -> None:
    uuid = "GPU-0123456789abcdef0123456789abcdef"
    fleet.guests["vm1"] = Guest(guest_api_pb2.GpuInfoResponse(gpus=[guest_api_pb2.GpuDevice(index=0, uuid=uuid)]))
    shown = _on_terminal("gpu", "vm1", "--proxy", address, NO_COLOR="1", COLUMNS="60").decode()
    assert "…" not in shown
    assert all(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= 60 for line in shown.splitlines())
    piped = subprocess.run([*COMMAND, "gpu", "vm1", "--proxy", address], capture_output=True, check=True, env=_environment())
    assert uuid.encode() in piped.stdout


@pytest.mark.parametrize(("answer", "shut_down"), [(b"n\n", False), (b"y\n", True)])
def test_shutdown_asks_on_a_terminal(fleet: Fleet, address: str, answer: bytes, shut_down: bool) -> None:
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "shutdown", "vm1", "--proxy", address], stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert process.stderr.read(len("Power off vm1?")) == b"Power off vm1?"
        os.write(controller, answer)
        process.wait(20)
    os.close(terminal)
    os.close(controller)
    assert fleet.guests["vm1"].shut_down == shut_down
    assert process.returncode == (0 if shut_down else 130)


def test_control_c_ends_a_call_that_hangs(silent: tuple[str, threading.Event]) -> None:
    address, arrived = silent
    process = subprocess.Popen([*COMMAND, "gpu", "vm1", "--proxy", address], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert arrived.wait(20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, b"", b"guestctl: interrupted\n")


def test_a_timeout_is_obeyed_and_has_its_own_exit_status(silent: tuple[str, threading.Event]) -> None:
    done = subprocess.run(
        [*COMMAND, "--timeout", "0.3", "gpu", "vm1", "--proxy", silent[0]], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.endswith(": deadline exceeded: no answer came within this call's time\n")

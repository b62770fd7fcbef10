"""The three commands with standard streams that are full, closed, or nowhere: a status of their own, one line, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_SECONDS = 30
# Each command's quickest output, and the quickest refusal that it writes to stderr.
SAYING = {
    "guest-service": ("-m", "guest_service", "inventory"),
    "vmm-proxy": ("-m", "vmm_proxy", "--version"),
    "guestctl": ("-m", "guest_client.guestctl", "--help"),
}
REFUSING = {
    "guest-service": ("-m", "guest_service", "serve", "--http", "nowhere"),
    "vmm-proxy": ("-m", "vmm_proxy", "check-config", "--config", "/nowhere"),
    "guestctl": ("-m", "guest_client.guestctl", "gpu"),
}


def shell(redirections: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {redirections}', "bash", sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )


@pytest.mark.parametrize(
    ("command", "redirections", "reason"),
    [
        ("guest-service", ">/dev/full", "No space left on device"),
        ("guest-service", ">&-", "standard output is closed"),
        ("vmm-proxy", ">/dev/full", "No space left on device"),
        ("guestctl", ">/dev/full", "No space left on device"),
    ],
)
def test_output_that_cannot_be_written_is_one_line_and_status_1(command: str, redirections: str, reason: str) -> None:
    done = shell(redirections, *SAYING[command])
    assert (done.returncode, done.stderr) == (1, f"{command}: stdout cannot be written: {reason}\n")


@pytest.mark.parametrize(
    ("command", "redirections"),
    [("guest-service", "2>&-"), ("guest-service", "2>/dev/full"), ("vmm-proxy", "<&- >&- 2>&-"), ("guestctl", "2>/dev/full")],
)
def test_a_refusal_keeps_its_status_where_nobody_can_read_it(command: str, redirections: str) -> None:
    assert shell(redirections, *REFUSING[command]).returncode == 2


def test_the_gate_stays_shut_without_a_standard_output() -> None:
    done = shell(">&-", "-m", "guest_service", "boot-gate", "--simulate", "none")
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        ["boot gate: refused: the report cannot be written: standard output is closed"],
    )


def test_no_socket_of_a_server_takes_the_number_of_a_closed_stream(short_path: Path) -> None:
    door = short_path / "g.sock"
    program = "import os, runpy, sys; os.close(0); os.close(1); sys.argv[0] = 'x'; runpy.run_module('guest_service', run_name='__main__')"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--simulate", "none", "--grpc", f"unix:{door}", "--http", "off"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert any("listening on" in line for line in process.stderr)
        assert [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1)] == ["/dev/null"] * 2
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("module", "number"), [("guest_service", signal.SIGINT), ("vmm_proxy", signal.SIGTERM)])
def test_a_signal_while_a_server_is_still_being_imported_is_a_clean_end(module: str, number: signal.Signals) -> None:
    # Whoever asks for asyncio finds the signal already sent: it is the first big import of a server.
    program = (
        "import os, runpy, sys\n"
        "class Signals:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'asyncio': os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Signals())\n"
        f"runpy.run_module('{module}', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "serve"], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_command_searches_for_garbage_among_what_it_imports_and_keeps() -> None:
    # As many modules as the largest command has, each with what a module keeps; the last line is written when all else is over.
    program = (
        "import atexit, gc\n"
        "from guest_transport.process.standard_streams import run_command\n"
        "atexit.register(lambda: print('frozen', gc.get_freeze_count() > 50_000))\n"
        "searches = []\n"
        "gc.callbacks.append(lambda phase, info: searches.append(phase))\n"
        "kept = []\n"
        "def command():\n"
        "    kept.extend([{'name': [number]} for number in range(45_000)])\n"
        "    print('searches', len(searches) // 2)\n"
        "    return 0\n"
        "raise SystemExit(run_command('a', command))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    searches, frozen = done.stdout.splitlines()
    assert int(searches.removeprefix("searches ")) < 20, "Python's own 700 would be over a hundred"
    assert frozen == "frozen True"

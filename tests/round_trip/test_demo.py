"""`make demo`, as a person starts and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

# A card of the first guest.
CARD = "GPU-8e1f0a03-2c47-4d6b-a9f0-53b7c6d1e208"
DEMO = [sys.executable, str(Path(__file__).resolve().parents[2] / "demo" / "demo.py")]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the demo puts its folder; short, because a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gs-") as name:
        yield Path(name)


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(folder)}


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_once_shows_every_card_of_every_guest_and_leaves_nothing_behind(folder: Path) -> None:
    done = subprocess.run([*DEMO, "--once"], env=_environment(folder), capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("vm-h200x8: 8 GPUs, CC enabled ")
    assert " CC ready " in lines[0]
    assert " ago" in lines[0]
    assert lines[1] == "vm-none: no NVIDIA GPU"
    cards = [line.split() for line in lines if re.match(r"vm-h200x8 +\d", line)]
    assert [card[1] for card in cards] == [str(index) for index in range(8)]
    assert len({card[2] for card in cards}) == 8, "each has a UUID of its own"
    for card in cards:
        assert {"%", "W", "°C"} <= set(card)
    [sick] = [line for line in lines if " GPU 4 GPU-" in line]
    assert ": degraded: a memory row waits to be remapped" in sick
    assert "Stop the work on the card and reset it" in sick
    assert lines[-1] == "8 cards of 2 guests: 7 ok, 1 degraded"
    assert list(folder.iterdir()) == []


@contextlib.contextmanager
def _running(folder: Path, **more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The demo with `more` in its environment, and what it printed up to its last line."""
    process = subprocess.Popen(DEMO, env=_environment(folder) | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    shown = ""
    try:
        while "Ctrl-C" not in shown and (line := process.stdout.readline()):
            shown += line
        yield process, shown
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_all_its_processes_and_sockets(folder: Path, number: signal.Signals) -> None:
    with _running(folder) as (process, shown):
        children = _children(process.pid)
        assert len(children) >= 3, shown
        process.send_signal(number)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)
        assert (process.returncode, stderr) == (0, "")
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
    assert list(folder.iterdir()) == []


def test_the_commands_that_it_suggests_work(folder: Path) -> None:
    with _running(folder) as (_, shown):
        _, _, suggested = shown.partition("Try, in another terminal:\n")
        export, *commands = [line.strip() for line in suggested.splitlines() if line.startswith("  ")]
        assert export.startswith("export GUESTCTL_PROXY=unix:")
        assert len(commands) >= 4
        answers = {}
        for command in commands:
            # top goes on until it is told otherwise.
            bounded = f"{command} --count 1" if command.endswith(" top") else command
            done = subprocess.run(
                ["/bin/sh", "-c", f"{export}; {bounded}"], capture_output=True, text=True, check=False, timeout=30
            )
            # A card is in trouble.
            assert (done.returncode, done.stderr) == (6 if command.endswith(" health") else 0, ""), command
            answers[command.partition("guestctl ")[2]] = done.stdout
    assert "vm-h200x8" in answers["list"]
    assert "vm-none" in answers["list"]
    assert "8 GPUs" in answers["gpu vm-h200x8"]
    assert "vm-h200x8" in answers["top"]
    assert json.loads(answers["-o json sys vm-h200x8"])["total_memory"] > 0


def test_shutting_a_guest_down_does_not_power_off_the_machine_of_the_demo(folder: Path) -> None:
    # The agent would run this one: should the demo allow it after all, this test must fail and not end the machine.
    programs = folder / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text(f"#!/bin/sh\necho $* > {folder}/ran\n")
    (programs / "systemctl").chmod(0o755)
    with _running(folder, PATH=f"{programs}:{os.environ['PATH']}") as (_, shown):
        export = next(line.strip() for line in shown.splitlines() if "export GUESTCTL_PROXY" in line)
        command = f"{export}; {Path(sys.executable).parent}/guestctl shutdown --yes vm-none"
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, (folder / "ran").exists()) == (1, False)
    assert "power.allow_shutdown" in done.stderr


def test_each_guest_has_a_page_for_a_browser_and_the_proxy_one_with_every_guest_on_it(folder: Path) -> None:
    with _running(folder) as (_, shown):
        pages = re.findall(r"^guest (\S+) .* page (http://127\.0\.0\.1:\d+/)$", shown, re.MULTILINE)
        assert [name for name, _ in pages][:2] == ["vm-h200x8", "vm-none"]
        assert CARD in _read(pages[0][1])
        [page] = re.findall(r"^proxy .* page (http://127\.0\.0\.1:\d+/)$", shown, re.MULTILINE)
        text = _read(page)
        assert CARD in text
        assert 'data-guest="vm-none"' in text
        assert 'vmm_proxy_guest_up{vm_id="vm-h200x8"} 1' in _read(f"{page}metrics")


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def test_a_child_that_dies_while_it_runs_ends_the_demo_with_its_name(folder: Path) -> None:
    with _running(folder) as (process, _):
        os.kill(_children(process.pid)[0], signal.SIGKILL)
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 1
        assert stderr.startswith("demo: vm-h200x8 ended with exit status -9\n")
    assert list(folder.iterdir()) == []


def test_a_child_that_cannot_start_is_reported_in_its_own_words(folder: Path) -> None:
    broken = folder / "broken" / "guest_service"
    broken.mkdir(parents=True)
    (broken / "__init__.py").touch()
    (broken / "__main__.py").write_text("def main():\n    raise SystemExit('no such luck')\n")
    environment = _environment(folder) | {"PYTHONPATH": str(broken.parent)}
    done = subprocess.run([*DEMO, "--once"], env=environment, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ended with exit status 1\n    no such luck\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == [broken.parent]


def test_a_temporary_folder_that_is_too_deep_for_a_socket_is_refused_in_one_line(folder: Path) -> None:
    deep = folder / ("d" * 90)
    deep.mkdir()
    done = subprocess.run([*DEMO, "--once"], env=_environment(deep), capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "107 bytes" in done.stderr
    assert list(deep.iterdir()) == []

"""`make demo`, as a person starts and ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    cards = [line.split() for line in lines if line.startswith("vm-h200x8 ")]
    assert [card[1] for card in cards] == [str(index) for index in range(8)]
    assert len({card[2] for card in cards}) == 8, "each has a UUID of its own"
    for card in cards:
        assert {"%", "W", "°C"} <= set(card)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_all_its_processes_and_sockets(folder: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(DEMO, env=_environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if "Ctrl-C" in line:
            break
    children = _children(process.pid)
    assert len(children) >= 3, shown
    assert "GUESTCTL_PROXY=unix:" in shown
    process.send_signal(number)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (0, "")
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
    assert list(folder.iterdir()) == []


def test_a_child_that_cannot_start_is_reported_in_its_own_words(folder: Path) -> None:
    deep = folder / ("d" * 90)
    deep.mkdir()
    done = subprocess.run([*DEMO, "--once"], env=_environment(deep), capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "ended with exit status 2" in done.stderr
    assert "107 bytes" in done.stderr, "the reason stands in the child's own words"
    assert "Traceback" not in done.stderr
    assert list(deep.iterdir()) == []

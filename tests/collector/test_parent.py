"""A collector whose libc cannot tie it to its parent still takes its sample."""

from __future__ import annotations

import _ctypes
import subprocess

import pytest

from guest_service.collector.command import collector_command
from guest_service.collector.parent import die_with_parent


def test_a_libc_without_prctl_costs_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_program: object, name: str) -> int:
        raise OSError(f"undefined symbol: {name}")

    monkeypatch.setattr(_ctypes, "dlsym", missing)
    die_with_parent(0)


def test_a_collector_whose_parent_is_gone_ends_without_a_sample() -> None:
    command = collector_command(simulate="h200", parent=2**22 + 1)  # beyond any pid (PID_MAX_LIMIT)
    done = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, b"")

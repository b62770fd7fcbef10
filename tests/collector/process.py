"""Runs the collector as the agent does: a real process, the real binding, a scripted library."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from guest_service.collector.command import collector_command
from tests.nvml_library.fixture import ScriptedNvml

# A collector here takes a tenth of a second; a machine that is busy with other tests may be slow.
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Collected:
    """What one collector process left behind."""

    status: int
    stdout: str
    stderr: str

    @property
    def sample(self) -> dict[str, Any]:  # Any: a JSON tree
        """The one line, which must be the only one."""
        assert self.stdout.endswith("\n"), self
        assert self.stdout.count("\n") == 1, self
        return dict(json.loads(self.stdout, parse_constant=_refuse))

    @property
    def card(self) -> dict[str, Any]:  # Any: as above
        """The only card of the sample."""
        (card,) = self.sample["gpus"]
        return dict(card)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def run(command: Sequence[str]) -> Collected:
    """Run a command to its end."""
    done = subprocess.run(
        command, capture_output=True, check=False, timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL, encoding="utf-8"
    )
    return Collected(done.returncode, done.stdout, done.stderr)


def collect(library: ScriptedNvml) -> Collected:
    """One sample that must end well; a crash of the library shows here."""
    collected = run(collector_command(nvml_library=library.path))
    assert collected.status == 0, collected
    return collected

"""What each group of values costs on this library: the C program and the collector's code ask the same calls, and each tells its own time.

Each run is a process of its own, one sample, in turns; medians. Both clocks run in the process that asks, so the start of an interpreter
and of NVML is in no group's row.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gpu_check.machine import COMMAND_SECONDS
from gpu_check.verdict import CheckFailedError
from gpu_check.yardstick import HERE
from guest_contract.card_fields import GROUPS


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians over all runs, over all cards, in milliseconds."""

    wall_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Row:
    """One group, or a part of the sample that belongs to none: start (loading, nvmlInit, count), machine, open, base."""

    name: str
    in_c: Cost
    collector: Cost

    @property
    def ratio(self) -> float:
        """Wall time of the collector to that of the C program."""
        return self.collector.wall_ms / max(self.in_c.wall_ms, 0.001)

    def __str__(self) -> str:
        c, ours = self.in_c, self.collector
        return f"{self.name:12}{c.wall_ms:11.3f}{c.cpu_ms:9.3f}{ours.wall_ms:15.3f}{ours.cpu_ms:9.3f}{self.ratio:9.2f}"


HEAD = f"{'group':12}{'C, wall ms':>11}{'CPU ms':>9}{'collector, wall':>15}{'CPU ms':>9}{'ratio':>9}"


def commands(program: str, library: Path, groups: Sequence[str] = GROUPS) -> dict[str, list[str]]:
    """Both sides by name: `program` is sample.c, compiled."""
    return {
        "C program": [program, str(library), *groups],
        "collector": [sys.executable, "-I", str(HERE / "stopwatch.py"), str(library), *groups],
    }


def told(command: Sequence[str]) -> dict[str, list[int]]:
    """The `cost_us` of one run; raises CheckFailedError."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    if done.returncode != 0:
        raise CheckFailedError(f"{Path(command[0]).name} failed: {done.stderr[-200:]}")
    cost: dict[str, list[int]] = json.loads(done.stdout)["cost_us"]
    return cost


def group_costs(program: str, library: Path, runs: int, groups: Sequence[str] = GROUPS) -> list[Row]:
    """A row for each part of a sample, in the order in which they are asked."""
    both = commands(program, library, groups)
    found: dict[str, list[dict[str, list[int]]]] = {name: [] for name in both}
    for command in both.values():
        told(command)
    for _ in range(runs):
        for name, command in both.items():
            found[name].append(told(command))
    in_c, ours = ({row: _median(row, runs_of) for row in runs_of[0]} for runs_of in found.values())
    if list(in_c) != list(ours):
        raise CheckFailedError(f"the C program tells of {', '.join(in_c)}; the collector of {', '.join(ours)}")
    return [Row(name, in_c[name], ours[name]) for name in in_c]


def _median(row: str, runs: Sequence[Mapping[str, list[int]]]) -> Cost:
    wall, cpu = (median(run[row][at] for run in runs) / 1000 for at in (0, 1))
    return Cost(wall, cpu)

"""What one sample costs, from start to exit, as a process: wall time, CPU time, peak memory, of several commands in turns.

In turns (A B A B), so that a machine that slows down slows all of them; medians, and the highest memory. The timer is a C program,
because a child that Python starts counts Python's own memory as its peak. Rejected: hyperfine, which measures no memory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gpu_check.verdict import CheckFailedError, CheckSkippedError

HERE = Path(__file__).parent
ROUNDS = 5
# The design's: on a library whose nvmlInit takes the 90 ms that it takes on an H200 in confidential-computing mode.
RATIO_LIMIT = 1.12
RUN_SECONDS = 240


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over all runs of one command, its highest peak RSS, and the medians of each round."""

    wall_ms: float
    cpu_ms: float
    peak_rss_mib: float
    rounds_wall_ms: tuple[float, ...] = ()
    rounds_cpu_ms: tuple[float, ...] = ()


def compiled(name: str, folder: Path) -> str:
    """The program of the files NAME*.c; raises CheckSkippedError without gcc, CheckFailedError when it does not compile."""
    program = folder / name
    if shutil.which("gcc") is None:
        raise CheckSkippedError("gcc is not installed (Debian: gcc libc6-dev)")
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    sources = sorted(str(source) for source in HERE.glob(f"{name}*.c"))
    done = subprocess.run(["gcc", *flags, *sources, "-o", str(program), "-ldl"], capture_output=True, text=True)
    if done.returncode != 0:
        raise CheckFailedError(f"{name} does not compile: {done.stderr[-300:]}")
    return str(program)


def measured(timer: str, runs: int, command: list[str]) -> list[tuple[float, float, float]]:
    """Wall ms, CPU ms and peak RSS in MiB of each run; raises CheckFailedError when one fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run([timer, str(runs), *command], env=environment, capture_output=True, text=True, timeout=RUN_SECONDS)
    rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    if done.returncode != 0 or len(rows) != runs or any(status != 0 for *_, status in rows):
        raise CheckFailedError(f"{command[0]} failed: {done.stdout[-200:]}{done.stderr[-200:]}")
    return [(wall / 1000, cpu / 1000, rss / 1024) for wall, cpu, rss, _ in rows]


def compared(timer: str, runs: int, commands: dict[str, list[str]]) -> dict[str, Figures]:
    """The commands in turns, ROUNDS times."""
    found: dict[str, list[list[tuple[float, float, float]]]] = {name: [] for name in commands}
    for command in commands.values():
        measured(timer, 1, command)
    for _ in range(ROUNDS):
        for name, command in commands.items():
            found[name].append(measured(timer, runs, command))
    return {name: _figures(rounds) for name, rounds in found.items()}


def _figures(rounds: list[list[tuple[float, float, float]]]) -> Figures:
    rows = [row for each in rounds for row in each]
    return Figures(
        median(row[0] for row in rows),
        median(row[1] for row in rows),
        max(row[2] for row in rows),
        tuple(median(row[0] for row in each) for each in rounds),
        tuple(median(row[1] for row in each) for each in rounds),
    )

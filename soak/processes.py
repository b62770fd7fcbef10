"""What processes hold, read from /proc: memory, descriptors, threads, children, zombies. It reads and judges nothing.

Source: proc(5).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Holding:
    """What one process held at one moment; `zombies` are children that ended and were not waited for."""

    resident_bytes: int
    descriptors: int
    threads: int
    children: int
    zombies: int


def read_holding(pid: int) -> Holding | None:
    """What process `pid` holds; None when it is gone, which it may be at any moment."""
    process = PROC / str(pid)
    try:
        resident = int((process / "statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES
        descriptors = sum(1 for _ in (process / "fd").iterdir())
        threads = sum(1 for _ in (process / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return None
    states = [state_of(child) for child in children_of(pid)]
    return Holding(resident, descriptors, threads, sum(state is not None for state in states), states.count("Z"))


def waited_seconds(pid: int) -> float | None:
    """How long the main thread of process `pid` was ready to run and had no processor, all its life; None when it is gone.

    Source: Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat.
    """
    try:
        return int((PROC / str(pid) / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return None


def used_seconds(pid: int) -> float | None:
    """Processor time that process `pid` took, all its life and in all its threads; None when it is gone."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # proc_pid_stat(5): fields 14 and 15, utime and stime; the state that comes first here is field 3.
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def children_of(pid: int) -> list[int]:
    """The children of all threads of process `pid`, zombies included; none when it is gone."""
    found: list[int] = []
    for task in _entries(PROC / str(pid) / "task"):
        try:
            found += map(int, (task / "children").read_text(encoding="ascii").split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def state_of(pid: int) -> str | None:
    """The letter of the process's state (R, S, D, T, Z); None when it is gone."""
    try:
        # Its name stands in brackets and may hold anything, brackets as well.
        return (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def processes_about(folder: Path) -> dict[int, list[str]]:
    """All processes whose command line names something in `folder`, by pid, zombies left out (they have no command line)."""
    found = {}
    for process in _entries(PROC):
        if process.name.isdecimal():
            try:
                words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if any(f"{folder}/" in word for word in words):
                found[int(process.name)] = words
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []

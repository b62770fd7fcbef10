"""The serving process's own series, read from /proc/self.

Names are those of every Prometheus client library, so existing dashboards work. Reading and parsing are apart; a caller in an event loop
reads in a thread. Rejected: prometheus_client's ProcessCollector (it registers itself globally at import).

Source: proc_pid_stat(5): utime, stime, num_threads, starttime, vsize and rss are fields 14, 15, 20, 22, 23 and 24; proc_stat(5): btime.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from guest_metrics import table
from guest_metrics.exposition import Lines


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What one look at a process showed, in base units; descriptor limit None means unlimited."""

    cpu_seconds: float
    resident_bytes: int
    virtual_bytes: int
    start_seconds: float
    open_fds: int
    max_fds: int | None
    threads: int


def read_process(procfs: Path = Path("/proc")) -> ProcessFigures:
    """A look at this process; raises OSError or ValueError when procfs is not as the kernel documents it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return parse_process(
        stat=(procfs / "self/stat").read_text(encoding="utf-8", errors="replace"),
        kernel_stat=(procfs / "stat").read_text(encoding="ascii"),
        open_fds=sum(1 for _ in (procfs / "self/fd").iterdir()),
        max_fds=None if soft == resource.RLIM_INFINITY else soft,
    )


def parse_process(*, stat: str, kernel_stat: str, open_fds: int, max_fds: int | None) -> ProcessFigures:
    """The figures in the texts of /proc/self/stat and /proc/stat; raises ValueError when they are not as documented."""
    # The second field is the command in parentheses, and may itself hold spaces and parentheses.
    fields = stat.rpartition(") ")[2].split()
    boot = next((line.split()[1] for line in kernel_stat.splitlines() if line.startswith("btime ")), None)
    if len(fields) < 22 or boot is None:
        raise ValueError("/proc/self/stat or /proc/stat is not as proc(5) says")
    ticks = os.sysconf("SC_CLK_TCK")
    utime, stime, threads, start, virtual, resident = (int(fields[number - 3]) for number in (14, 15, 20, 22, 23, 24))
    return ProcessFigures(
        cpu_seconds=(utime + stime) / ticks,
        resident_bytes=resident * os.sysconf("SC_PAGE_SIZE"),
        virtual_bytes=virtual,
        start_seconds=int(boot) + start / ticks,
        open_fds=open_fds,
        max_fds=max_fds,
        threads=threads,
    )


def add_process(lines: Lines, figures: ProcessFigures) -> None:
    """The lines of one look."""
    lines.add(table.PROCESS_CPU, figures.cpu_seconds)
    lines.add(table.PROCESS_RESIDENT, figures.resident_bytes)
    lines.add(table.PROCESS_VIRTUAL, figures.virtual_bytes)
    lines.add(table.PROCESS_START, figures.start_seconds)
    lines.add(table.PROCESS_OPEN_FDS, figures.open_fds)
    if figures.max_fds is not None:
        lines.add(table.PROCESS_MAX_FDS, figures.max_fds)
    lines.add(table.PROCESS_THREADS, figures.threads)

"""How near a server is to the limits on tasks: at one of them no process is started any more, and no thread.

Each level of the control groups above the server has a limit of its own, and the machine has two; the nearest one counts. The unit's group
is looked at where there is one, else the group of whoever runs the doctor, which in a container is the server's own. Read from files only.

Source: the kernel's Documentation/admin-guide/cgroup-v2.rst (pids.max, pids.current), cgroup-v1/pids.rst, proc_sys_kernel(5),
proc_loadavg(5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from guest_transport.doctor.findings import Finding, note, ok, wrong

CGROUPS = Path("/sys/fs/cgroup")
PROCFS = Path("/proc")
# A collector or a libvirt reporter is up to five tasks, and reads that hang keep a thread each.
SPARE_TASKS = 16


@dataclass(frozen=True, slots=True)
class TaskLimit:
    """One limit: the file that holds it, how many tasks count towards it, and how many may."""

    file: Path
    used: int
    limit: int

    @property
    def spare(self) -> int:
        """How many more may be started."""
        return self.limit - self.used


def read_task_limits(unit: str, cgroups: Path = CGROUPS, procfs: Path = PROCFS) -> list[TaskLimit]:
    """The limits that hold for the service `unit` and can be read. Blocks."""
    return [*_of_groups(unit, cgroups, procfs), *_of_machine(procfs)]


def judge_task_limits(limits: Iterable[TaskLimit]) -> list[Finding]:
    """The nearest of them."""
    nearest = min(limits, key=lambda each: each.spare, default=None)
    if nearest is None:
        return [note("no limit on tasks can be read here")]
    seen = f"{nearest.used} of {nearest.limit} tasks are in use ({nearest.file})"
    if nearest.spare >= SPARE_TASKS:
        return [ok(seen)]
    return [
        wrong(
            f"{seen}: soon nothing can be started",
            "raise it: TasksMax= of the unit, the container's limit on processes, or sysctl kernel.threads-max and kernel.pid_max",
        )
    ]


def _of_groups(unit: str, cgroups: Path, procfs: Path) -> Iterator[TaskLimit]:
    # Version 2 alone, version 1, and both side by side (systemd's hybrid).
    for tree in (cgroups, cgroups / "pids", cgroups / "unified"):
        group = tree / f"system.slice/{unit}.service"
        if not group.is_dir():
            group = tree / _own_group(procfs).lstrip("/")
        while group.is_relative_to(tree):
            used, limit = _number(group / "pids.current"), _number(group / "pids.max")
            if used is not None and limit is not None:
                yield TaskLimit(group / "pids.max", used, limit)
            group = group.parent


def _own_group(procfs: Path) -> str:
    """Of this process: that of the controller of tasks, else the one of version 2."""
    try:
        lines = [line.split(":", 2) for line in (procfs / "self/cgroup").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return ""
    groups = {controllers: path for _, controllers, path in (line for line in lines if len(line) == 3)}
    return groups.get("pids", groups.get("", ""))


def _of_machine(procfs: Path) -> Iterator[TaskLimit]:
    try:
        # The fourth field: those that run, a slash, all of them.
        used = int((procfs / "loadavg").read_text(encoding="ascii").split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return
    for name in ("threads-max", "pid_max"):
        limit = _number(procfs / "sys/kernel" / name)
        if limit is not None:
            yield TaskLimit(procfs / "sys/kernel" / name, used, limit)


def _number(file: Path) -> int | None:
    """None also for `max`, which is no limit."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None

"""A process that may start nothing more: its limit on tasks is set while it runs, and taken away again.

Linux holds RLIMIT_NPROC against the tasks of the whole user, and not against root. Tests that run as root therefore start the process
as a user that nobody is, with the one capability that lets it read an interpreter in the home of root. Rejected: a cgroup of its own
(pids.max), which few places let a test make.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

# Belongs to nobody, so that no other process counts.
LIMITED_UID = 54_321


def limitable() -> tuple[str, ...]:
    """What to put in front of a command so that no_more_tasks() has an effect."""
    if os.geteuid() != 0:
        return ()
    kept = "-all,+dac_override"
    user = (f"--reuid={LIMITED_UID}", f"--regid={LIMITED_UID}", "--clear-groups")
    return ("setpriv", *user, f"--inh-caps={kept}", f"--ambient-caps={kept}", f"--bounding-set={kept}")


@contextmanager
def no_more_tasks(pid: int) -> Iterator[None]:
    """The process gets no thread and no child meanwhile."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NPROC) if os.geteuid() else resource.getrlimit(resource.RLIMIT_NPROC)
    _limit(pid, 1, hard)
    try:
        yield
    finally:
        _limit(pid, soft, hard)


def _limit(pid: int, soft: int, hard: int) -> None:
    """As the process's own user: root in a container may lack what it takes to limit another's."""
    words = ":".join("unlimited" if number == resource.RLIM_INFINITY else str(number) for number in (soft, hard))
    subprocess.run([*limitable(), "prlimit", f"--pid={pid}", f"--nproc={words}"], check=True, timeout=20)

"""Why a process or a thread could not be started, in words that say which limit to raise; the kernel's own do not.

Source: fork(2) and pipe(2) for the error numbers, systemd.exec(5) and systemd.resource-control(5) for the settings. Says nothing of a
program that is missing or may not be run: there the kernel's words are right.
"""

from __future__ import annotations

import errno

_LIMITS = {
    errno.EAGAIN: "no task is free (TasksMax= of the unit, pids.max of the container, ulimit -u)",
    errno.EMFILE: "no file descriptor is free in this process (LimitNOFILE= of the unit, ulimit -n)",
    errno.ENFILE: "no file descriptor is free on this machine (sysctl fs.file-max)",
    errno.ENOMEM: "no memory is free (MemoryMax= of the unit, or the machine's own)",
}


def why_not_started(error: OSError) -> str:
    """One line, without the program's name."""
    return _LIMITS.get(error.errno or 0) or error.strerror or str(error)


def limit_reached(error: BaseException) -> str:
    """Which limit made `error`; empty where none did. Python's own words for a thread that cannot be started are a RuntimeError."""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return _LIMITS[errno.EAGAIN]
    return _LIMITS.get(error.errno or 0, "") if isinstance(error, OSError) else ""

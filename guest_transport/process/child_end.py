"""Waits for the end of a child process without holding the event loop, also where no descriptor is free for it.

A pidfd tells at once. Where none is to be had (the limit on descriptors, seccomp) the child is looked at twenty times a second. It does not
reap: the caller's Popen does. Rejected: asyncio's child watchers (a thread per child on Python 3.11), SIGCHLD (one handler per process).
"""

from __future__ import annotations

import asyncio
import os

# Short against every bound on a child's end, and 2 µs of work each.
POLL_SECONDS = 0.05


async def child_ended(pid: int) -> None:
    """Return once the child `pid` has ended; at once when it is not, or no longer, a child of this process."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        while not _has_ended(pid):  # noqa: ASYNC110 -- nothing tells of it: that is why it is looked at
            await asyncio.sleep(POLL_SECONDS)
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _has_ended(pid: int) -> bool:
    try:
        # WNOWAIT: the status is left to whoever reaps it.
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True

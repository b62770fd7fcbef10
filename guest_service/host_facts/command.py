"""Runs a small system command (`wg show`, the shutdown command) without holding the event loop.

Its output is bounded and so is its time; the shutdown command alone outlives its starter. Rejected: asyncio's subprocesses (on Python 3.11
a thread per child, and a child that outlives its pipes is waited for without a bound).
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from guest_service.sampler.child import Child
from guest_transport.process.child_end import child_ended
from guest_transport.process.start_errors import why_not_started

# `wg show` with 1000 peers takes about 300 KiB; what is longer is cut.
OUTPUT_LIMIT_BYTES = 512 * 1024
# Words of a failing command that an operator needs to see.
ERROR_LIMIT_BYTES = 4096
# A killed process is gone in a millisecond unless it hangs in the kernel, and then no wait helps.
KILL_SECONDS = 1.0


class CommandError(Exception):
    """A command could not be started or did not end in time; the message names it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended: exit status (negative: killed by that signal), output, and the words on stderr."""

    status: int
    output: bytes
    error: str


async def run_command(command: Sequence[str], *, bound_seconds: float, error_limit_bytes: int = ERROR_LIMIT_BYTES) -> Finished:
    """Run `command`, found on PATH, to its end.

    Raises CommandError when it does not start or takes longer than `bound_seconds`; then it is killed with its whole group.
    """
    try:
        child = Child(command, stdout_limit_bytes=OUTPUT_LIMIT_BYTES, stderr_limit_bytes=error_limit_bytes)
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be started: {why_not_started(error)}") from error
    try:
        await asyncio.wait({child.ended}, timeout=bound_seconds)
    finally:
        in_time = child.ended.done()
        if not in_time:
            child.send(signal.SIGKILL)
            await asyncio.wait({child.ended}, timeout=KILL_SECONDS)
            child.abandon()
    if not in_time:
        raise CommandError(f"{command[0]} gave no answer within {bound_seconds:g} s")
    ended = child.ended.result()
    return Finished(ended.status, ended.stdout, ended.stderr.decode("utf-8", "replace").strip())


async def run_on_its_own(command: Sequence[str]) -> int:
    """Run `command` to its exit status; when this wait is cancelled, or this process ends, it goes on.

    Its output goes where our stderr goes. Raises CommandError when it does not start.
    """
    try:
        child = subprocess.Popen(  # noqa: ASYNC220 -- asyncio's own is rejected above; this takes 0.2 ms
            list(command), stdin=subprocess.DEVNULL, stdout=2, stderr=2, close_fds=True, start_new_session=True
        )
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be started: {why_not_started(error)}") from error
    try:
        await child_ended(child.pid)
    finally:
        if child.poll() is None:
            # Popen warns about a child that is left behind; here that is the point.
            child.returncode = 0
    return child.returncode

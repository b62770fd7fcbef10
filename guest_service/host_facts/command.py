"""Runs a small system command (`wg show`, the shutdown command) without holding the event loop.

Started with subprocess.Popen and watched through its pidfd, as every child of this agent: a process with gRPC loaded must not run fork
handlers. Output is bounded, stdin is empty, the child has a session of its own. Rejected: asyncio's subprocesses (on Python 3.11 a thread
per child, and a child that outlives its pipes is waited for without a bound).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

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


async def run_command(command: Sequence[str], *, bound_seconds: float) -> Finished:
    """Run `command`, found on PATH, to its end. Raises FileNotFoundError when it does not exist, CommandError when it does not start or
    takes longer than `bound_seconds`; then its whole session is killed.
    """
    try:
        child = subprocess.Popen(  # noqa: ASYNC220 -- asyncio's own start is rejected above; this one takes 0.2 ms
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=True,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be started: {error.strerror or error}") from error
    watched = _Watched(child)
    try:
        await asyncio.wait_for(watched.ended.wait(), bound_seconds)
    except TimeoutError:
        raise CommandError(f"{command[0]} gave no answer within {bound_seconds:g} s") from None
    finally:
        await watched.end()
    return Finished(child.wait(), bytes(watched.output), bytes(watched.error).decode("utf-8", "replace").strip())


async def run_on_its_own(command: Sequence[str]) -> int:
    """Run `command` to its exit status; cancelled, or at the end of this process, it goes on. Its output goes where our stderr goes.

    Raises FileNotFoundError or CommandError when it does not start.
    """
    try:
        child = subprocess.Popen(  # noqa: ASYNC220 -- as above
            list(command), stdin=subprocess.DEVNULL, stdout=2, stderr=2, close_fds=True, start_new_session=True
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be started: {error.strerror or error}") from error
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    pidfd = os.pidfd_open(child.pid)
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        if child.poll() is None:
            # Popen warns about a child that is left behind; here that is the point.
            child.returncode = 0
    return child.returncode


class _Watched:
    """A child, its exit and its two pipes, as readers of the event loop."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(child.pid)
        self._loop.add_reader(self._pidfd, self._on_exit)
        self.ended = asyncio.Event()
        self.output = bytearray()
        self.error = bytearray()
        self._pipes = [(child.stdout, self.output, OUTPUT_LIMIT_BYTES), (child.stderr, self.error, ERROR_LIMIT_BYTES)]
        for pipe, kept, limit in self._pipes:
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._loop.add_reader(pipe.fileno(), self._on_bytes, pipe, kept, limit)

    def _on_bytes(self, pipe: IO[bytes], kept: bytearray, limit: int) -> bool:
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(pipe.fileno(), 65536)
            kept += chunk[: limit - len(kept)]
            if chunk:
                return True
            self._loop.remove_reader(pipe.fileno())
        return False

    def _on_exit(self) -> None:
        # What was written before the exit is in the pipes now; a grandchild that holds them open is not waited for.
        for pipe, kept, limit in self._pipes:
            while pipe is not None and len(kept) < limit and self._on_bytes(pipe, kept, limit):
                pass
        self._loop.remove_reader(self._pidfd)
        self.ended.set()

    async def end(self) -> None:
        """Close the pipes; a child that still runs is killed with its session and reaped."""
        for pipe, _, _ in self._pipes:
            if pipe is not None:
                self._loop.remove_reader(pipe.fileno())
                pipe.close()
        self._pipes.clear()
        try:
            if not self.ended.is_set():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.ended.wait(), KILL_SECONDS)
        finally:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            # None only when it hangs in the kernel past SIGKILL; then init reaps it after this agent.
            self._child.poll()

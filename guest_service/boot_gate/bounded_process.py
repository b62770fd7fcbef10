"""Runs one foreign program within bounds: so long, so much output, and nothing of it left afterwards.

The program leads a session of its own, and its whole process group is killed at the end, however the end came: a verifier may leave
children that hold its output open. The group is killed before its leader is reaped, while its number cannot belong to anybody else.
Rejected: subprocess.run(timeout=…), which kills the leader only, then waits for the pipe that its children hold, and bounds no output.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from guest_service.boot_gate.errors import NotStartedError, UnreadableError
from guest_transport.process.start_errors import why_not_started

# A killed process is gone within milliseconds, unless it is stuck in the kernel; then waiting has no end.
REAP_SECONDS = 5.0
# The reason is at the end of what a program writes.
STDERR_TAIL_BYTES = 4096
# Linux gives a pipe 64 KiB; one read empties it.
_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that ended by itself: exit status (negative: the signal that ended it), stdout whole, the end of stderr."""

    status: int
    stdout: bytes
    stderr_tail: bytes

    def ending(self) -> str:
        """How it ended, in words, with the last line of its complaint."""
        words = f"ended by signal {-self.status}" if self.status < 0 else f"exited with status {self.status}"
        lines = [line for line in self.stderr_tail.decode("utf-8", "replace").splitlines() if line.strip()]
        return f"{words}: {lines[-1][:300]}" if lines else words


def run_bounded(
    argv: Sequence[str],
    *,
    what: str,
    seconds: float,
    stdout_limit_bytes: int,
    clock: Callable[[], float] = time.monotonic,
) -> Finished:
    """Run `argv` to its end; raises UnreadableError, starting with `what`, when it cannot start, is too slow or says too much."""
    deadline = clock() + seconds
    with contextlib.ExitStack() as held:
        child = _start(argv, what)
        for pipe in (child.stdout, child.stderr):
            assert pipe is not None, "started with pipes"  # noqa: S101 - tells the type checker what Popen was asked for
            held.enter_context(pipe)
        try:
            output = _Output(held, child, what, stdout_limit_bytes)
            while not output.wait(deadline - clock()):
                if clock() >= deadline:
                    raise UnreadableError(f"{what}: no end after {seconds:g} s; killed")
        except OSError as error:
            # A limit on descriptors, or a sandbox that forbids pidfd_open(2).
            raise UnreadableError(f"{what}: cannot be watched: {error.strerror or error}; killed") from error
        finally:
            _kill_group(child, what)
        output.drain()
        return Finished(child.returncode, bytes(output.stdout), bytes(output.stderr_tail))


def _start(argv: Sequence[str], what: str) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=True,
            start_new_session=True,
        )
    except OSError as error:
        raise NotStartedError(f"{what}: {argv[0]} cannot be started: {why_not_started(error)}") from error


def _kill_group(child: subprocess.Popen[bytes], what: str) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(REAP_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UnreadableError(f"{what}: process {child.pid} is still there {REAP_SECONDS:g} s after SIGKILL") from error


class _Output:
    """What one child says, as it comes: stdout whole up to a limit, of stderr the end."""

    def __init__(self, held: contextlib.ExitStack, child: subprocess.Popen[bytes], what: str, limit_bytes: int) -> None:
        self.stdout = bytearray()
        self.stderr_tail = bytearray()
        self._what = what
        self._limit_bytes = limit_bytes
        self._pidfd = os.pidfd_open(child.pid)
        held.callback(os.close, self._pidfd)
        self._selector = held.enter_context(selectors.DefaultSelector())
        self._selector.register(self._pidfd, selectors.EVENT_READ)
        for pipe, take in ((child.stdout, self._take_stdout), (child.stderr, self._take_stderr)):
            self._watch(pipe, take)

    def _watch(self, pipe: IO[bytes] | None, take: Callable[[bytes], None]) -> None:
        assert pipe is not None, "started with a pipe"  # noqa: S101 - as above
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, selectors.EVENT_READ, take)

    def wait(self, seconds: float) -> bool:
        """Read what has come within `seconds`; True once the child has ended."""
        ended = False
        for key, _ in self._selector.select(max(seconds, 0.0)):
            if key.fd == self._pidfd:
                ended = True
            elif not self._read(key.fd, key.data):
                self._selector.unregister(key.fileobj)
        return ended

    def drain(self) -> None:
        """Read what is still in the pipes of a child that has ended, without waiting for a process that has their other end open."""
        for key in list(self._selector.get_map().values()):
            if key.fd != self._pidfd:
                with contextlib.suppress(BlockingIOError):
                    while self._read(key.fd, key.data):
                        pass

    def _read(self, fd: int, take: Callable[[bytes], None]) -> bool:
        chunk = os.read(fd, _CHUNK_BYTES)
        take(chunk)
        return bool(chunk)

    def _take_stdout(self, chunk: bytes) -> None:
        self.stdout += chunk
        if len(self.stdout) > self._limit_bytes:
            raise UnreadableError(f"{self._what}: says more than {self._limit_bytes} bytes; killed")

    def _take_stderr(self, chunk: bytes) -> None:
        self.stderr_tail = (self.stderr_tail + chunk)[-STDERR_TAIL_BYTES:]

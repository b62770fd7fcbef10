"""One child process of the agent: started without stalling the loop, read within bounds, signalled as a group, always reaped.

The pidfd says that it ended, whatever becomes of its pipes, so a grandchild that keeps stdout open delays nothing. Rejected:
asyncio.create_subprocess_exec (its child watchers start threads or own SIGCHLD, and it waits for the pipes), fork and preexec_fn (22 ms of
loop stall against 0.2 ms, and gRPC's fork handlers; Popen without preexec_fn takes vfork).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# One read takes at most what a pipe holds by default (pipe(7)).
PIPE_BYTES = 64 * 1024

# Where no pidfd is to be had (seccomp, no free descriptor), the end of the process is looked for this often.
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: `status` as subprocess gives it (negative: the signal), and what it wrote, up to the limits."""

    status: int
    stdout: bytes
    stdout_overflowed: bool
    stderr: bytes


class _Pipe:
    """Collects what comes out of a pipe, up to a limit, and drops the rest so that the writer never blocks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_bytes: int) -> None:
        self._loop = loop
        self._limit = limit_bytes
        self._kept = bytearray()
        self.overflowed = False
        self.line: asyncio.Future[None] = loop.create_future()
        self._open = True
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)

    def watch(self, on_overflow: Callable[[], None] | None = None) -> None:
        """Read whenever something comes, until the writers are gone."""
        self._loop.add_reader(self._read_end, self._on_readable, on_overflow)

    def _on_readable(self, on_overflow: Callable[[], None] | None) -> None:
        if not self._read_once():
            self._loop.remove_reader(self._read_end)
        elif self.overflowed and on_overflow is not None:
            on_overflow()

    def _read_once(self) -> bool:
        """Whether more may come."""
        try:
            chunk = os.read(self._read_end, PIPE_BYTES)
        except BlockingIOError:
            return True
        room = self._limit - len(self._kept)
        self._kept += chunk[:room]
        self.overflowed = self.overflowed or len(chunk) > room
        if b"\n" in chunk and not self.line.done():
            self.line.set_result(None)
        return bool(chunk)

    @property
    def so_far(self) -> bytes:
        """What was kept until now."""
        return bytes(self._kept)

    def drain(self) -> bytes:
        """All that was kept, what still lies in the pipe included; closes it."""
        if self._open:
            self._open = False
            # As much as a pipe can hold and the limit allows: a grandchild that goes on writing is not followed.
            for _ in range(self._limit // PIPE_BYTES + 2):
                before = len(self._kept)
                if not self._read_once() or len(self._kept) == before:
                    break
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
        return bytes(self._kept)

    def close_write_end(self) -> None:
        """Our copy; the child has its own."""
        os.close(self.write_end)


class Child:
    """A running process, leader of a session and process group of its own, stdin at /dev/null.

    `ended` is done once the process is reaped; `on_overflow` is called when stdout exceeds its limit. Everything that is left of its
    group by then is killed. Raises OSError when it cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdout_limit_bytes: int,
        stderr_limit_bytes: int,
        on_overflow: Callable[[], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        with contextlib.ExitStack() as undo:
            self._stdout = _Pipe(self._loop, stdout_limit_bytes)
            undo.callback(self._stdout.drain)
            with contextlib.ExitStack() as ours:
                ours.callback(self._stdout.close_write_end)
                self._stderr = _Pipe(self._loop, stderr_limit_bytes)
                undo.callback(self._stderr.drain)
                ours.callback(self._stderr.close_write_end)
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=self._stdout.write_end,
                    stderr=self._stderr.write_end,
                    close_fds=True,
                    start_new_session=True,
                )
            undo.pop_all()
        self._stdout.watch(on_overflow)
        self._stderr.watch()
        self._watch_end()

    @property
    def stdout_line(self) -> asyncio.Future[None]:
        """Done once stdout had the end of a line; never done when it has none."""
        return self._stdout.line

    @property
    def said_so_far(self) -> tuple[bytes, bytes]:
        """What stdout and stderr had until now, up to their limits."""
        return self._stdout.so_far, self._stderr.so_far

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group."""
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Signal the whole group; nothing happens once the process is reaped."""
        if not self.ended.done() and self._process.returncode is None:
            # Not reaped, so the group id cannot have gone to anybody else.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def abandon(self) -> None:
        """Stop watching a process that cannot be ended (stuck in the kernel); init reaps it once the agent is gone."""
        if not self.ended.done():
            self._stop_watching()
            self._stdout.drain()
            self._stderr.drain()
            self.ended.cancel()
            # Popen would warn about a child that is still there; that it is there is known and logged.
            self._process.returncode = -signal.SIGKILL

    def _watch_end(self) -> None:
        self._poll: asyncio.TimerHandle | None = None
        self._pidfd: int | None = None
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            self._poll_end()
        else:
            self._loop.add_reader(self._pidfd, self._on_end)

    def _poll_end(self) -> None:
        try:
            # WNOWAIT leaves the zombie, so that its group can still be killed by number.
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            # The agent was started with SIGCHLD ignored, so the kernel reaped it already.
            ended = True
        if ended:
            self._on_end()
        else:
            self._poll = self._loop.call_later(POLL_SECONDS, self._poll_end)

    def _on_end(self) -> None:
        self._stop_watching()
        self.send(signal.SIGKILL)
        status = self._process.poll()
        if status is None:
            # A debugger holds the zombie: it is ours once that one lets go.
            self._poll = self._loop.call_later(POLL_SECONDS, self._on_end)
            return
        stdout, stderr = self._stdout.drain(), self._stderr.drain()
        if not self.ended.done():
            self.ended.set_result(Ended(status, stdout, self._stdout.overflowed, stderr))

    def _stop_watching(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from guest_transport.process.clock import boottime

# One read takes at most what a pipe holds by default (pipe(7)).
PIPE_BYTES = 64 * 1024

# Between two looks at a result that comes in many small parts: each look wakes the loop, and nobody waits for a single part. A pipe that
# was found half full is looked at again at once.
PAUSE_SECONDS = 0.05
HALF_FULL_BYTES = PIPE_BYTES // 2

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
    """Collects what comes out of a pipe, up to a limit, and drops the rest so that the writer never blocks.

    `marks` are done once their text came; `came_at` is when something came last, by the clock of ages.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_bytes: int, marks: Iterable[bytes] = ()) -> None:
        self._loop = loop
        self._limit = limit_bytes
        self._kept = bytearray()
        self.overflowed = False
        self.marks: dict[bytes, asyncio.Future[None]] = {mark: loop.create_future() for mark in marks}
        self.came_at = boottime()
        self._open = True
        self._pause: asyncio.TimerHandle | None = None
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)

    def watch(self, on_overflow: Callable[[], None] | None = None) -> None:
        """Read whenever something comes, until the writers are gone."""
        self._pause = None
        self._loop.add_reader(self._read_end, self._on_readable, on_overflow)

    def _on_readable(self, on_overflow: Callable[[], None] | None) -> None:
        before = len(self._kept)
        if not self._read_once():
            self._loop.remove_reader(self._read_end)
        elif self.overflowed and on_overflow is not None:
            on_overflow()
        elif self.marks and len(self._kept) - before < HALF_FULL_BYTES:
            self._loop.remove_reader(self._read_end)
            self._pause = self._loop.call_later(PAUSE_SECONDS, self.watch, on_overflow)

    def _read_once(self) -> bool:
        """Whether more may come."""
        try:
            chunk = os.read(self._read_end, PIPE_BYTES)
        except BlockingIOError:
            return True
        room = self._limit - len(self._kept)
        self._kept += chunk[:room]
        self.overflowed = self.overflowed or len(chunk) > room
        if chunk:
            self.came_at = boottime()
        for mark, came in self.marks.items():
            if not came.done() and mark in self._kept:
                came.set_result(None)
        return bool(chunk)

    @property
    def so_far(self) -> bytes:
        """What was kept until now."""
        return bytes(self._kept)

    def catch_up(self) -> None:
        """Read what lies in the pipe now."""
        # As much as a pipe can hold and the limit allows: a grandchild that goes on writing is not followed.
        for _ in range(self._limit // PIPE_BYTES + 2 if self._open else 0):
            before = len(self._kept)
            if not self._read_once() or len(self._kept) == before:
                break

    def drain(self) -> bytes:
        """All that was kept, what still lies in the pipe included; closes it."""
        self.catch_up()
        if self._open:
            self._open = False
            if self._pause is not None:
                self._pause.cancel()
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

    With `marks`, what counts as its stdout is a pipe on a descriptor of its own, whose number is added to the arguments: a library that
    prints as it is loaded (LD_PRELOAD) does not get between. Its real stdout then goes where its stderr goes.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdout_limit_bytes: int,
        stderr_limit_bytes: int,
        on_overflow: Callable[[], None] | None = None,
        marks: Sequence[bytes] = (),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        with contextlib.ExitStack() as undo:
            self._stdout = _Pipe(self._loop, stdout_limit_bytes, marks)
            undo.callback(self._stdout.drain)
            with contextlib.ExitStack() as ours:
                ours.callback(self._stdout.close_write_end)
                self._stderr = _Pipe(self._loop, stderr_limit_bytes)
                undo.callback(self._stderr.drain)
                ours.callback(self._stderr.close_write_end)
                own = (self._stdout.write_end,) if marks else ()
                self._process = subprocess.Popen(
                    [*argv, *map(str, own)],
                    stdin=subprocess.DEVNULL,
                    stdout=self._stderr.write_end if own else self._stdout.write_end,
                    stderr=self._stderr.write_end,
                    close_fds=True,
                    pass_fds=own,
                    start_new_session=True,
                )
            undo.pop_all()
        self._stdout.watch(on_overflow)
        self._stderr.watch()
        self._watch_end()

    def came(self, mark: bytes) -> asyncio.Future[None]:
        """Done once stdout had `mark`, one of those given; never done when it does not come."""
        return self._stdout.marks[mark]

    @property
    def silent_seconds(self) -> float:
        """How long ago something came on stdout."""
        return boottime() - self._stdout.came_at

    def said_so_far(self) -> tuple[bytes, bytes]:
        """What stdout and stderr had until now, up to their limits."""
        return self._stdout.so_far, self._stderr.so_far

    def catch_up(self) -> None:
        """Notice what came, and whether the process ended, while this process was stopped or busy: a timer may be due before that."""
        if not self.ended.done():
            self._stdout.catch_up()
            self._stderr.catch_up()
            if self._has_ended():
                self._on_end()

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

    def _has_ended(self) -> bool:
        try:
            # WNOWAIT leaves the zombie, so that its group can still be killed by number.
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            # The agent was started with SIGCHLD ignored, so the kernel reaped it already.
            return True

    def _poll_end(self) -> None:
        if self._has_ended():
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

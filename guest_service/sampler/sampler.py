"""Runs one collector at a time, within a bound, and knows the one that would not go away.

It refuses to start a second process while any earlier one is still there: a wedged driver must not be met with more and more processes
stuck in it. Rejected: waiting for a killed process before answering; a process stuck in the kernel may stay for hours, and callers are
owed an outcome when the time is up.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
from collections.abc import Sequence
from typing import Any

from guest_service.sampler.child import Child, Ended
from guest_service.sampler.collector_line import CollectorLineError, parse_line
from guest_service.sampler.outcome import Outcome, OutcomeKind, failure
from guest_transport.process.clock import Clock, boottime
from guest_transport.process.logs import escape
from guest_transport.process.repeated_lines import about, without_numbers
from guest_transport.process.start_errors import why_not_started

log = logging.getLogger(__name__)

# One H200 takes 0.1 s; two orders of headroom for many cards without persistence mode (8 s were reported).
TIMEOUT_SECONDS = 10.0
# From the collector's line to its end: nvmlShutdown takes milliseconds. A driver that hangs in it has said all that it had to say.
ENDING_SECONDS = 1.0
# From SIGTERM to SIGKILL. NVML needs well under a second to close a device; a minute would only keep a hung process.
GRACE_SECONDS = 2.0
# A killed process is gone in milliseconds; after this long it counts as stuck and is worth a log line.
KILL_PATIENCE_SECONDS = 1.0
# When the agent stops, the collector gets this long for SIGTERM: both waits together stay far below the 5 s of a stop.
CLOSE_GRACE_SECONDS = 0.5
# The proxy refuses replies over 1 MiB, so more JSON than that could not be delivered. 8 cards take 4 KiB.
STDOUT_LIMIT_BYTES = 1024 * 1024
# A driver library in debug mode prints thousands of lines; the first ones say what is wrong.
STDERR_LIMIT_BYTES = 16 * 1024
STDERR_LOGGED_LINES = 20
# How the collector says on stderr that a question about confidential computing failed (collector/sample.py); counted as a line's begin.
CC_COMPLAINT = re.compile(rb"^guest-service gpu-info: cc_(?:enabled|devtools|ready): ", re.MULTILINE)
# Of a reason that the collector gives on stderr as it dies.
LAST_WORDS_CHARACTERS = 200


class Sampler:
    """Takes samples by running `argv`, which prints one line of JSON and exits with 0.

    sample() returns at the latest `timeout_seconds` after it was called. A process that does not end by itself, in time or within
    `ending_seconds` after its line, gets SIGTERM, after `grace_seconds` SIGKILL, and is reaped whenever it goes.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        ending_seconds: float = ENDING_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
        kill_patience_seconds: float = KILL_PATIENCE_SECONDS,
        clock: Clock = boottime,
    ) -> None:
        self._argv = tuple(argv)
        self.timeout_seconds = timeout_seconds
        self._ending_seconds = ending_seconds
        self._grace_seconds = grace_seconds
        self._kill_patience_seconds = kill_patience_seconds
        self._clock = clock
        self._child: Child | None = None
        self._killed_at: float | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._closed = False
        self._last_stderr = b""

    async def sample(self) -> Outcome:
        """Take one sample; whatever goes wrong is the outcome. Cancelling it ends the process."""
        if self._closed:
            return failure(OutcomeKind.NOT_STARTED, "the agent is stopping; no GPU sample is taken")
        if self._child is not None:
            return failure(OutcomeKind.BLOCKED, self._why_blocked(self._child))
        started = self._clock()
        try:
            child = Child(
                self._argv,
                stdout_limit_bytes=STDOUT_LIMIT_BYTES,
                stderr_limit_bytes=STDERR_LIMIT_BYTES,
                on_overflow=self._kill,
            )
        except OSError as error:
            return failure(OutcomeKind.NOT_STARTED, f"the GPU collector cannot be started: {why_not_started(error)}")
        self._child = child
        child.ended.add_done_callback(self._on_gone)
        try:
            await self._wait(child)
        except asyncio.CancelledError:
            self._terminate(child)
            raise
        took = self._clock() - started
        if child.ended.done() and not child.ended.cancelled():
            return self._judge(child.ended.result(), took)
        self._terminate(child)
        if child.stdout_line.done():
            log.warning("collector process %d gave its sample and does not end; ending it", child.pid)
            return self._judge_line(*child.said_so_far, took)
        log.warning("collector process %d did not answer within %g s; ending it", child.pid, self.timeout_seconds)
        reason = f"the GPU driver did not answer within {self.timeout_seconds:g} s; the collector was told to end"
        return failure(OutcomeKind.TIMEOUT, reason, took)

    async def _wait(self, child: Child) -> None:
        """Until the process ends, its time is over, or it has said its line and had a moment to end."""
        deadline = asyncio.get_running_loop().time() + self.timeout_seconds
        either: set[asyncio.Future[Any]] = {child.ended, child.stdout_line}  # Any: which of them it was is asked below
        await asyncio.wait(either, timeout=self.timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if not child.ended.done() and child.stdout_line.done():
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait({child.ended}, timeout=min(self._ending_seconds, max(0.0, left)))

    async def close(self) -> None:
        """End the process that may run, within CLOSE_GRACE_SECONDS plus KILL_PATIENCE_SECONDS; no other is started."""
        self._closed = True
        child = self._child
        if child is None:
            return
        self._cancel_timers()
        child.send(signal.SIGTERM)
        child.send(signal.SIGCONT)
        await asyncio.wait({child.ended}, timeout=CLOSE_GRACE_SECONDS)
        self._kill()
        await asyncio.wait({child.ended}, timeout=self._kill_patience_seconds)
        if not child.ended.done():
            log.error("collector process %d is stuck in the kernel; leaving it behind", child.pid)
            child.abandon()

    def _terminate(self, child: Child) -> None:
        """SIGTERM now, SIGKILL after the grace, a log line if that does not help; each only while it is needed."""
        if child.ended.done():
            return
        child.send(signal.SIGTERM)
        # A stopped process acts on SIGTERM only once it goes on.
        child.send(signal.SIGCONT)
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(self._grace_seconds, self._kill),
            loop.call_later(self._grace_seconds + self._kill_patience_seconds, self._say_stuck),
        ]

    def _kill(self) -> None:
        if self._child is not None and not self._child.ended.done():
            if self._killed_at is None:
                self._killed_at = self._clock()
            self._child.send(signal.SIGKILL)

    def _say_stuck(self) -> None:
        if self._child is not None:
            log.error("collector process %d is still there after SIGKILL; no sample is taken until it is gone", self._child.pid)

    def _why_blocked(self, child: Child) -> str:
        if self._killed_at is None:
            return f"collector process {child.pid} is being ended; no new GPU sample until it is gone"
        ago = self._clock() - self._killed_at
        return f"collector process {child.pid} is still there {ago:.0f} s after SIGKILL; no new GPU sample until it is gone"

    def _on_gone(self, ended: asyncio.Future[Ended]) -> None:
        if self._child is not None and self._timers and not ended.cancelled():
            log.info("collector process %d is gone", self._child.pid)
            self._log_stderr(ended.result().stderr)
        self._cancel_timers()
        self._child = None
        self._killed_at = None

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    def _judge(self, ended: Ended, took: float) -> Outcome:
        self._log_stderr(ended.stderr)
        if ended.stdout_overflowed:
            reason = f"the GPU collector printed more than {STDOUT_LIMIT_BYTES} bytes"
            return failure(OutcomeKind.UNREADABLE, reason, took)
        sample = self._judge_line(ended.stdout, ended.stderr, took)
        if ended.status == 0:
            return sample
        reason = f"the GPU collector {say_status(ended.status)}{last_words(ended.stderr)}"
        # By a signal the driver's end can take the process after its line; a status of its own says that the line is none.
        if ended.status > 0 or sample.kind is OutcomeKind.UNREADABLE:
            return failure(OutcomeKind.CRASH, reason, took)
        log.warning("%s, after it had given its sample", reason)
        return sample

    def _judge_line(self, stdout: bytes, stderr: bytes, took: float) -> Outcome:
        try:
            reply = parse_line(stdout)
        except CollectorLineError as error:
            return failure(OutcomeKind.UNREADABLE, f"the GPU collector's output is not a sample: {error}", took)
        kind = OutcomeKind.DRIVER_ERROR if reply.error else OutcomeKind.SAMPLE
        return Outcome(kind, reply, took, failed_cc_queries=len(CC_COMPLAINT.findall(stderr)))

    def _log_stderr(self, stderr: bytes) -> None:
        """Once per change: a driver that complains on every sample would fill the log with one sentence."""
        if stderr and stderr != self._last_stderr:
            lines = stderr.decode("utf-8", "replace").splitlines()
            for line in lines[:STDERR_LOGGED_LINES]:
                log.warning("collector: %s", line, extra=about(without_numbers(line)))
            if len(lines) > STDERR_LOGGED_LINES:
                log.warning("collector: %d more lines", len(lines) - STDERR_LOGGED_LINES)
        self._last_stderr = stderr


def say_status(status: int) -> str:
    """`exited with status 3` or `was ended by SIGSEGV`."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}"


def last_words(stderr: bytes) -> str:
    """`: ` and the last line of `stderr` on one printable line, or nothing."""
    lines = stderr.decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    shown = escape(last[:LAST_WORDS_CHARACTERS])
    return f": {shown}" if shown else ""

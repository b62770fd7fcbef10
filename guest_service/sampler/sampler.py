"""Runs one collector at a time, within a bound, and knows the one that would not go away.

It refuses to start a second process while any earlier one is still there: a wedged driver must not be met with more and more processes
stuck in it. Rejected: waiting for a killed process before answering; a process stuck in the kernel may stay for hours, and callers are
owed an outcome when the time is up.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from typing import Any

from guest_service.sampler.child import Child, Ended
from guest_service.sampler.judge import PARTS_LIMIT_BYTES, Attempt, Judgement, judge_ended, judge_late
from guest_service.sampler.outcome import Outcome, OutcomeKind, failure
from guest_service.sampler.parts import END, OPENED
from guest_transport.process.clock import Clock, boottime
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
# A driver library in debug mode prints thousands of lines; the first ones say what is wrong.
STDERR_LIMIT_BYTES = 16 * 1024
STDERR_LOGGED_LINES = 20
# Kinds of an attempt in which the driver was given its time to start.
STARTED = (OutcomeKind.SAMPLE, OutcomeKind.PARTIAL, OutcomeKind.TIMEOUT)


class Sampler:
    """Takes samples by running `argv`, which tells its parts on the descriptor that is its last argument, and exits with 0.

    sample() returns at the latest `timeout_seconds` after it was called; the first one, in which a driver may have to start, has
    `first_timeout_seconds`, if that is longer, until every card is open. A process that does not end by itself, in time or within
    `ending_seconds` after its end mark, gets SIGTERM, after `grace_seconds` SIGKILL, and is reaped whenever it goes.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        first_timeout_seconds: float = 0.0,
        ending_seconds: float = ENDING_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
        kill_patience_seconds: float = KILL_PATIENCE_SECONDS,
        clock: Clock = boottime,
    ) -> None:
        self._argv = tuple(argv)
        self.timeout_seconds = timeout_seconds
        self.first_timeout_seconds = max(first_timeout_seconds, timeout_seconds)
        self._ending_seconds = ending_seconds
        self._grace_seconds = grace_seconds
        self._kill_patience_seconds = kill_patience_seconds
        self._clock = clock
        self._child: Child | None = None
        self._killed_at: float | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._closed = False
        self._last_stderr = b""
        # Cards (or the machine) that did not answer, the latest last; forgotten when all answer.
        self._unanswered: list[str] = []
        self._starting = True

    def expect_start(self) -> None:
        """The driver is gone: when it is there again, it has to start, and the next sample counts as the first."""
        self._starting = True
        self._unanswered.clear()

    async def sample(self) -> Outcome:
        """Take one sample; whatever goes wrong is the outcome. Cancelling it ends the process."""
        if self._closed:
            return failure(OutcomeKind.NOT_STARTED, "the agent is stopping; no GPU sample is taken")
        if self._child is not None:
            return failure(OutcomeKind.BLOCKED, self._why_blocked(self._child))
        started = self._clock()
        last = ["--ask-last", ",".join(self._unanswered)] if self._unanswered else []
        try:
            child = Child(
                [*self._argv, *last, "--parts-to"],
                stdout_limit_bytes=PARTS_LIMIT_BYTES,
                stderr_limit_bytes=STDERR_LIMIT_BYTES,
                on_overflow=self._kill,
                marks=(OPENED, END),
            )
        except OSError as error:
            return failure(OutcomeKind.NOT_STARTED, f"the GPU collector cannot be started: {why_not_started(error)}")
        self._child = child
        child.ended.add_done_callback(self._on_gone)
        try:
            within = await self._wait(child)
        except asyncio.CancelledError:
            self._terminate(child)
            raise
        child.catch_up()
        attempt = Attempt(self._clock() - started, within, child.silent_seconds)
        if child.ended.done() and not child.ended.cancelled():
            # An end that was noticed just now is told to _on_gone in the loop's next turn; only then may another sample start.
            await asyncio.sleep(0)
            ended = child.ended.result()
            self._log_stderr(ended.stderr)
            judged = judge_ended(ended, attempt)
        else:
            self._terminate(child)
            judged = judge_late(*child.said_so_far(), attempt)
        return self._keep(judged, child.pid)

    def _keep(self, judged: Judgement, pid: int) -> Outcome:
        """Remember what did not answer, for the next attempt, and say it."""
        if judged.remark:
            log.warning("collector process %d: %s", pid, judged.remark, extra=about(judged.remark))
        if judged.outcome.kind is OutcomeKind.SAMPLE:
            self._unanswered.clear()
        elif judged.unanswered is not None and (place := judged.unanswered.place):
            self._unanswered = [*(other for other in self._unanswered if other != place), place]
        if judged.outcome.kind in STARTED:
            self._starting = False
        return judged.outcome

    async def _wait(self, child: Child) -> float:
        """Until the process ends, its time is over, or it has told all and had a moment to end; the bound that held."""
        loop = asyncio.get_running_loop()
        within, left = self.timeout_seconds, self.timeout_seconds
        if self._starting:
            deadline = loop.time() + self.first_timeout_seconds
            await _first_of(child.ended, child.came(OPENED), child.came(END), seconds=self.first_timeout_seconds)
            child.catch_up()
            if child.came(OPENED).done():
                left = min(left, deadline - loop.time())
            else:
                within, left = self.first_timeout_seconds, 0.0
        deadline = loop.time() + left
        await _first_of(child.ended, child.came(END), seconds=left)
        child.catch_up()
        if not child.ended.done() and child.came(END).done():
            await _first_of(child.ended, seconds=min(self._ending_seconds, deadline - loop.time()))
        return within

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

    def _log_stderr(self, stderr: bytes) -> None:
        """Once per change: a driver that complains on every sample would fill the log with one sentence."""
        if stderr and stderr != self._last_stderr:
            lines = stderr.decode("utf-8", "replace").splitlines()
            for line in lines[:STDERR_LOGGED_LINES]:
                log.warning("collector: %s", line, extra=about(without_numbers(line)))
            if len(lines) > STDERR_LOGGED_LINES:
                log.warning("collector: %d more lines", len(lines) - STDERR_LOGGED_LINES)
        self._last_stderr = stderr


async def _first_of(*futures: asyncio.Future[Any], seconds: float) -> None:  # Any: which of them it was is asked later
    """Until one of them is done, at most so long."""
    await asyncio.wait(set(futures), timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)

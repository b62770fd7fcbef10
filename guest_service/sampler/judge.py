"""What an attempt came to: from what the collector told, how it ended, and whether its time was over.

What was told before a call hung or ended the process is kept, and the card and the call are named. It refuses a sample of which a card's
handle is all that is known: that is a failure, with the call that it was waiting for. Nothing here waits or touches a process.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from guest_service.sampler.child import Ended
from guest_service.sampler.outcome import Outcome, OutcomeKind, failure
from guest_service.sampler.parts import Asking, PartsError, Told, read_parts
from guest_transport.process.logs import escape

# The proxy refuses replies over 1 MiB, so much more than that could not be delivered. 8 cards take 8 KiB.
PARTS_LIMIT_BYTES = 1024 * 1024
# How the collector says on stderr that a question about confidential computing failed (collector/sample.py); counted as a line's begin.
CC_COMPLAINT = re.compile(rb"^guest-service gpu-info: cc_(?:enabled|devtools|ready): ", re.MULTILINE)
# Of a reason that the collector gives on stderr as it dies.
LAST_WORDS_CHARACTERS = 200
# Questions in which a driver starts: without persistence mode it opens each card anew for each sample.
START_QUESTIONS = ("library", "start", "count", "device")
START_ADVICE = (
    "if the driver needs that long to start, turn on persistence mode (nvidia-persistenced) or raise gpu.sample_timeout_seconds; "
    "the first sample has gpu.first_sample_timeout_seconds"
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """How long an attempt took, which bound it had, and how long before its end something was told."""

    took_seconds: float
    within_seconds: float
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome; the call that had no answer; a line for the log, empty when all went as it should."""

    outcome: Outcome
    unanswered: Asking | None = None
    remark: str = ""


def judge_ended(ended: Ended, attempt: Attempt) -> Judgement:
    """Of a process that ended by itself."""
    took = attempt.took_seconds
    if ended.stdout_overflowed:
        return Judgement(failure(OutcomeKind.UNREADABLE, f"the GPU collector told more than {PARTS_LIMIT_BYTES} bytes", took))
    how = f"the GPU collector {say_status(ended.status)}"
    try:
        told = read_parts(ended.stdout, cut_short=ended.status != 0)
        if ended.status == 0:
            return Judgement(_whole(told, ended.stderr, took))
        if ended.status < 0 and told.ended:
            # The driver's end took the process after it had told all; a status of its own says that this was not all.
            return Judgement(_whole(told, ended.stderr, took), remark=f"{how}, after it had given its sample")
        if ended.status < 0 and told.anything:
            why, remark = (how, how) if told.asking is None else (f"{how} in {told.asking.function}", f"{how} in {told.asking}")
            return _partial(told, why, remark, ended.stderr, attempt)
    except PartsError as error:
        if ended.status == 0:
            return Judgement(_unreadable(error, took))
        told = Told()
    at = f" in {told.asking}" if told.asking is not None else ""
    return Judgement(failure(OutcomeKind.CRASH, f"{how}{at}{last_words(ended.stderr)}", took), told.asking)


def judge_late(stdout: bytes, stderr: bytes, attempt: Attempt) -> Judgement:
    """Of a process whose time is over, by what it said until now."""
    late = f"did not answer within {attempt.within_seconds:g} s"
    try:
        told = read_parts(stdout, cut_short=True)
        if told.ended:
            whole = _whole(told, stderr, attempt.took_seconds)
            return Judgement(whole, remark="the collector gave its sample and does not end; ending it")
        asking = told.asking
        if told.anything:
            why = "" if asking is None else f"{asking.function} {late}"
            if asking is not None and asking.question in START_QUESTIONS:
                why = f"{why}; {START_ADVICE}"
            return _partial(told, why, f"{asking or 'the collector'} {late}; ending the collector", stderr, attempt)
    except PartsError as error:
        return Judgement(_unreadable(error, attempt.took_seconds))
    at = "" if asking is None else f" ({asking})"
    reason = f"the GPU driver {late}{at}; the collector was told to end"
    if asking is None:
        reason = f"{reason}; it had asked nothing yet: this machine is very slow, or the process is stopped"
    else:
        reason = f"{reason}; {START_ADVICE}"
    return Judgement(failure(OutcomeKind.TIMEOUT, reason, attempt.took_seconds), asking, f"{asking or 'the collector'} {late}")


def _whole(told: Told, stderr: bytes, took: float) -> Outcome:
    kind = OutcomeKind.DRIVER_ERROR if told.error else OutcomeKind.SAMPLE
    return Outcome(kind, told.reply(), took, failed_cc_queries=len(CC_COMPLAINT.findall(stderr)))


def _partial(told: Told, why: str, remark: str, stderr: bytes, attempt: Attempt) -> Judgement:
    told.explain(why)
    outcome = Outcome(
        OutcomeKind.PARTIAL,
        told.reply(),
        attempt.took_seconds,
        failed_cc_queries=len(CC_COMPLAINT.findall(stderr)),
        read_seconds_ago=attempt.silent_seconds,
    )
    return Judgement(outcome, told.asking, f"{remark}; the others have their values, and it is asked last from now on")


def _unreadable(error: PartsError, took: float) -> Outcome:
    return failure(OutcomeKind.UNREADABLE, f"the GPU collector's output is not a sample: {error}", took)


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

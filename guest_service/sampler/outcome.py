"""What an attempt to take a sample came to: a sample, or the reason why there is none. An attempt always has an outcome.

Failures are data here, not exceptions, because each of them is served to callers, counted and backed off from just like a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from guest_api import guest_api_pb2


class OutcomeKind(StrEnum):
    """How an attempt ended; the values are label values of a metric, so they may be added to but not renamed."""

    SAMPLE = "sample"
    """Devices, some of them perhaps with errors of their own."""
    PARTIAL = "partial"
    """Devices, and a call that did not answer in time or ended the collector: what was not reached is unset and has an entry."""
    DRIVER_ERROR = "driver_error"
    """The collector ran well and says why nothing is known: no library, version mismatch, no permission."""
    TIMEOUT = "timeout"
    """No line in time; the collector was told to end."""
    CRASH = "crash"
    """The collector ended with a status other than 0, or by a signal."""
    UNREADABLE = "unreadable"
    """The collector ended well but did not print exactly one line of the right shape."""
    NOT_STARTED = "not_started"
    """No process could be started."""
    BLOCKED = "blocked"
    """No process was started, because an earlier one is still there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt. `reply` is never changed after this; sample_age_ms is unset in it.

    With any kind but SAMPLE and PARTIAL, reply.error is set and everything else in it is unset. `failed_cc_queries` counts the questions
    about confidential computing that failed in another way than "not supported": they have no place in the contract's message.
    `read_seconds_ago` is how long before the end of the attempt the last value was read.
    """

    kind: OutcomeKind
    reply: guest_api_pb2.GpuInfoResponse
    took_seconds: float
    failed_cc_queries: int = 0
    read_seconds_ago: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether nothing is known of the GPUs."""
        return self.kind not in (OutcomeKind.SAMPLE, OutcomeKind.PARTIAL)

    @property
    def backs_off(self) -> bool:
        """Whether the driver is to be left alone for a while: a process had to be ended, or nothing is known."""
        return self.kind is not OutcomeKind.SAMPLE


def failure(kind: OutcomeKind, reason: str, took_seconds: float = 0.0) -> Outcome:
    """The outcome that says `reason`."""
    return Outcome(kind, guest_api_pb2.GpuInfoResponse(error=reason), took_seconds)

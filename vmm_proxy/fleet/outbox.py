"""What waits to be sent to one reader of a fleet stream: the newest outcome of each guest, in the order in which guests came,
bounded in bytes.

A slow reader thus loses what was overtaken, never the newest, and holds no memory for it. Rejected: a queue of a fixed length
(it drops the newest when full, or blocks the guests' answers).
"""

from __future__ import annotations

import asyncio

import grpc

from guest_transport.options import REPLY_LIMIT_BYTES
from vmm_proxy.errors import CallError
from vmm_proxy.fleet.outcome import GuestOutcome

# A thousand guests with 8 cards take 2 MB. Hostile ones could send a gigabyte, and a reader that stopped reading would make the
# proxy keep it.
OUTBOX_LIMIT_BYTES = 32 * 1024 * 1024
# No message of a stream is larger: a guest whose answer alone would be fails alone. Clients take more (guest_transport.options: 4 MiB, as
# gRPC's own), and those that still take 1 MiB are served too.
MESSAGE_BYTES = REPLY_LIMIT_BYTES
# Writing a guest of 8 cards into a message takes some 15 us, so the loop is held a millisecond.
MESSAGE_GUESTS = 64


class OutboxClosedError(Exception):
    """Nothing more will come."""


class Outbox:
    """Outcomes on their way to one reader."""

    def __init__(self, limit_bytes: int = OUTBOX_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: dict[str, GuestOutcome] = {}
        self._bytes = 0
        self._changed = asyncio.Event()
        self._closed = False

    def offer(self, outcome: GuestOutcome) -> None:
        """Put `outcome` in, in place of an older one of the same guest. Over the limit only its failure is kept."""
        older = self._waiting.get(outcome.guest_id)
        held = self._bytes - (older.wire_bytes if older else 0)
        if held + outcome.wire_bytes > self._limit_bytes:
            text = f"guest {outcome.guest_id}: its answer was dropped, the reader is too slow"
            outcome = outcome.failed_instead(CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
        self._waiting[outcome.guest_id] = outcome
        self._bytes = held + outcome.wire_bytes
        self._changed.set()

    async def take(self) -> list[GuestOutcome]:
        """What waits, as much as one message holds, the oldest first; raises OutboxClosedError when the stream is to end."""
        while not self._waiting:
            if self._closed:
                raise OutboxClosedError
            self._changed.clear()
            await self._changed.wait()
        taken: list[GuestOutcome] = []
        held = 0
        while self._waiting and len(taken) < MESSAGE_GUESTS:
            outcome = next(iter(self._waiting.values()))
            fitting = _fitting(outcome)
            held += fitting.message_bytes
            if taken and held > MESSAGE_BYTES:
                break
            del self._waiting[outcome.guest_id]
            self._bytes -= outcome.wire_bytes
            taken.append(fitting)
        return taken

    def close(self) -> None:
        """End the stream once what waits has been taken."""
        self._closed = True
        self._changed.set()


def _fitting(outcome: GuestOutcome) -> GuestOutcome:
    """`outcome`, or the guest's failure in place of an answer that no message holds."""
    if outcome.message_bytes <= MESSAGE_BYTES:
        return outcome
    text = f"guest {outcome.guest_id}: its answer of {outcome.wire_bytes} bytes is too large for a stream of many guests; ask it alone"
    return outcome.failed_instead(CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, text))

"""What GpuInfo, /metrics and the dashboard read: gate, cell and refresh ahead behind three questions.

It refuses to let any reader wait for the GPU, except one that asks for it (a cold cell, or max-age), and that one only within its bound.
Every question has an answer with a meaning of its own: no GPU, unknown and why, or values with their age; nothing is raised. Rejected:
TimeoutError to the caller (the proxy would have to invent the words that are known here).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Protocol

from guest_api import guest_api_pb2
from guest_service.inventory import Inventory
from guest_service.kernel_log.reader import KernelLog
from guest_service.sampler import Outcome, OutcomeKind
from guest_service.sampler.outcome import failure
from guest_service.telemetry.ahead import Ahead
from guest_service.telemetry.card_log import CardLog
from guest_service.telemetry.cell import Cell
from guest_service.telemetry.gate import Gate
from guest_service.telemetry.lost_cards import KnownCards
from guest_transport.process.clock import Clock
from guest_transport.process.repeated_lines import about

log = logging.getLogger(__name__)

# The sampler's own words at its timeout are better than "not in time": a waiting caller gives it this much longer.
WAIT_SLACK_SECONDS = 0.2
# An answer must leave before the caller's deadline: a tenth of it, at most this.
ANSWER_MARGIN_SECONDS = 0.1

NO_SAMPLE_YET = "the first GPU sample is still being taken"
# Said to a caller that waited for it.
STILL_NO_SAMPLE = (
    NO_SAMPLE_YET + ": a driver that starts without persistence mode can take minutes for many cards. The first sample may take "
    "gpu.first_sample_timeout_seconds ({first:g} s), each later one gpu.sample_timeout_seconds ({later:g} s)"
)


class TakesSamples(Protocol):
    """The sampler, as far as telemetry needs it."""

    timeout_seconds: float
    first_timeout_seconds: float

    def expect_start(self) -> None:
        """The next sample may find a driver that has to start."""
        ...

    async def sample(self) -> Outcome:
        """One attempt; never raises."""
        ...

    async def close(self) -> None:
        """End what runs, in bounded time."""
        ...


@dataclass(slots=True)
class Stats:
    """Since start: attempts by outcome (every kind is there from the beginning), how long the last one took, failed CC queries."""

    samples: dict[str, int] = field(default_factory=lambda: {kind.value: 0 for kind in OutcomeKind})
    last_duration_seconds: float | None = None
    failed_cc_queries: int = 0


class GpuTelemetry:
    """GPU facts of this guest, as replies of the contract. Each reply is the caller's own; changing it changes nothing here."""

    def __init__(
        self,
        gate: Gate,
        sampler: TakesSamples,
        *,
        ttl_seconds: float,
        backoff_seconds: float,
        ahead: bool,
        clock: Clock,
        kernel_log: KernelLog | None = None,
    ) -> None:
        self._gate = gate
        self._sampler = sampler
        self._clock = clock
        self._cell = Cell(
            self._take, ttl_seconds=ttl_seconds, backoff_seconds=backoff_seconds, clock=clock, on_outcome=self._record
        )
        self._ahead = Ahead(self._cell, clock) if ahead else None
        self._known_cards = KnownCards()
        self._card_log = CardLog()
        self._kernel_log = kernel_log
        self._log_start: asyncio.Task[None] | None = None
        self._said = ""
        self.stats = Stats()

    @property
    def inventory(self) -> Inventory | None:
        """The last inventory of the bus; None when there is none, or when it hides a possible card, so that their number is unknown."""
        inventory = self._gate.inventory
        return None if inventory is None or inventory.hidden else inventory

    @property
    def ready(self) -> bool:
        """Whether the first outcome is known, or none is needed."""
        return self._cell.outcome is not None or (self._gate.looked and self._gate.peek() is not None)

    async def start(self) -> None:
        """Look at the bus and begin the first sample; does not wait for it."""
        await self._gate.start()
        if self._kernel_log is not None:
            # After the start: a file that cannot be opened must not delay it.
            self._log_start = asyncio.create_task(self._read_log_of_a_card(self._kernel_log), name="kernel log")
        if self.answer_without_sample() is None:
            self._cell.refresh()

    async def close(self) -> None:
        """End the collector, answer those who wait, and take no more samples; bounded by the sampler's close."""
        if self._ahead is not None:
            self._ahead.close()
        await self._cell.close()
        await self._sampler.close()
        await self._gate.close()
        if self._log_start is not None and self._kernel_log is not None:
            self._log_start.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._log_start
            await self._kernel_log.close()

    def answer_without_sample(self) -> guest_api_pb2.GpuInfoResponse | None:
        """The reply when there is no NVIDIA card or no driver, else None; a servicer may ask this before it looks at the call.

        After the first good look, a guest without a card gets here and back without a system call.
        """
        reply = self._gate.answer()
        if reply is not None and (reply.error or self._cell.outcome is not None):
            self._cell.forget()
            self._sampler.expect_start()
        return reply if reply is None else self._with_xids(reply)

    def last(self, caller: str) -> guest_api_pb2.GpuInfoResponse:
        """The last outcome, whatever its age; never waits, begins a refresh behind the answer when one is due."""
        reply = self.answer_without_sample()
        if reply is not None:
            return reply
        reply = self._reply()
        self._note(caller)
        return reply

    def peek(self) -> guest_api_pb2.GpuInfoResponse:
        """The last outcome; begins nothing and counts as no request."""
        reply = self._gate.peek()
        return self._reply() if reply is None else self._with_xids(reply)

    async def gpu_info(
        self, caller: str, *, max_age_seconds: float | None = None, timeout_seconds: float | None = None
    ) -> guest_api_pb2.GpuInfoResponse:
        """The last outcome; waits for a new one when there is none yet, or it is older than `max_age_seconds`.

        The wait ends with the sampler's timeout, and before `timeout_seconds` (what is left of the caller's deadline) is over. A caller
        cannot make samples come closer than the TTL, or a driver that failed be tried before its back-off is over: it waits for
        that moment, and when that is later than its bound it gets an error at once (after a failure: that failure, with its age).
        """
        reply = self.answer_without_sample()
        if reply is not None:
            return reply
        if self._cell.outcome is None or (max_age_seconds is not None and self._cell.age_seconds > max_age_seconds):
            if self._ahead is not None:
                self._ahead.note(caller, may_plan=False)
            return await self._renewed(max_age_seconds, timeout_seconds)
        reply = self._reply()
        self._note(caller)
        return reply

    async def _renewed(self, max_age_seconds: float | None, timeout_seconds: float | None) -> guest_api_pb2.GpuInfoResponse:
        within = self._sampler.timeout_seconds + WAIT_SLACK_SECONDS
        if timeout_seconds is not None:
            within = min(within, timeout_seconds - min(ANSWER_MARGIN_SECONDS, timeout_seconds / 10))
        until = self._clock() + within
        if self._cell.renewable_before(until) and await self._cell.renewed(until):
            return self._reply()
        outcome = self._cell.outcome
        if outcome is None and within > 0 and self._clock() >= until:
            words = STILL_NO_SAMPLE.format(first=self._sampler.first_timeout_seconds, later=self._sampler.timeout_seconds)
            return self._with_xids(guest_api_pb2.GpuInfoResponse(error=words, first_sample_pending=True))
        if outcome is None or outcome.failed:
            return self._reply()
        wanted = "" if max_age_seconds is None else f" that is at most {max_age_seconds:g} s old"
        reason = f"no GPU sample{wanted} within {max(within, 0.0):.1f} s; the last one is {self._cell.age_seconds:.1f} s old"
        return self._with_xids(guest_api_pb2.GpuInfoResponse(error=reason))

    def _note(self, caller: str) -> None:
        """Let a request lead to one sample at most: shortly before the caller's next request, or now if one is due."""
        if self._ahead is None or not self._ahead.note(caller, may_plan=self._cell.outcome is not None):
            self._cell.refresh()

    def _reply(self) -> guest_api_pb2.GpuInfoResponse:
        outcome = self._cell.outcome
        if outcome is None:
            return self._with_xids(guest_api_pb2.GpuInfoResponse(error=NO_SAMPLE_YET, first_sample_pending=True))
        reply = guest_api_pb2.GpuInfoResponse()
        reply.CopyFrom(outcome.reply)
        reply.sample_age_ms = int(self._cell.age_seconds * 1000)
        if reply.gpus and self.inventory is not None:
            reply.pci_devices = self.inventory.nvidia
        return self._with_xids(reply)

    def _with_xids(self, reply: guest_api_pb2.GpuInfoResponse) -> guest_api_pb2.GpuInfoResponse:
        """`reply` with the XIDs as old as they are now; "no card" stays empty."""
        if self._kernel_log is not None and self._kernel_log.xids is not None and (reply.gpus or reply.error):
            self._kernel_log.xids.write_to(reply, self._clock())
        return reply

    async def _read_log_of_a_card(self, kernel_log: KernelLog) -> None:
        """A guest that never has a card never opens the log."""
        await self._gate.card_seen.wait()
        await kernel_log.start()

    async def _take(self) -> Outcome:
        outcome = await self._sampler.sample()
        inventory = self._gate.inventory
        if not outcome.failed and not outcome.reply.gpus and inventory is not None:
            # "No GPU" would be wrong, the bus has one: this is unknown.
            reason = f"the NVIDIA driver lists no GPU; the PCI bus has {inventory.nvidia}"
            return failure(OutcomeKind.DRIVER_ERROR, reason, outcome.took_seconds)
        if not outcome.failed:
            self._known_cards.name(outcome.reply, self.inventory)
            self._card_log.look(outcome.reply)
        return outcome

    def _record(self, outcome: Outcome) -> None:
        self.stats.samples[outcome.kind.value] += 1
        self.stats.last_duration_seconds = outcome.took_seconds
        self.stats.failed_cc_queries += outcome.failed_cc_queries
        if outcome.reply.error != self._said:
            self._said = outcome.reply.error
            if outcome.failed:
                log.warning("no GPU sample: %s", self._said, extra=about("sample"))
            else:
                log.info("GPU samples are there again: %d devices", len(outcome.reply.gpus))

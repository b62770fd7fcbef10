"""Fakes that behave: a sampler that takes its time and fails when told to, and a machine with cards and a driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from guest_api import guest_api_pb2
from guest_service.inventory import Inventory, simulated_inventory
from guest_service.sampler import Outcome, OutcomeKind
from guest_service.sampler.outcome import failure
from guest_service.telemetry.gate import CardFacts, Gate
from guest_service.telemetry.gpu_telemetry import GpuTelemetry
from guest_transport.process.clock import Clock
from tests.telemetry.virtual_time import passes, virtual_loop

TTL = 5.0
BACKOFF = 30.0
TIMEOUT = 10.0


class PacedSampler:
    """Takes `duration` seconds per sample, gives up after its timeout, fails while `reason` is set; counts and remembers when.

    One that `hangs` has read its values half a second after it began, and then waits until its timeout.

    Each sample's temperature is its number, so that replies can be told apart.
    """

    def __init__(
        self,
        clock: Clock,
        duration: float = 0.1,
        timeout_seconds: float = TIMEOUT,
        first_timeout_seconds: float = TIMEOUT,
        *,
        hangs: bool = False,
    ) -> None:
        self._clock = clock
        self.timeout_seconds = timeout_seconds
        self.first_timeout_seconds = first_timeout_seconds
        self.hangs = hangs
        self.starting = True
        self.duration = duration
        self.reason = ""
        self.cards = 1
        self.running = False
        self.closed = False
        self.started: list[float] = []
        self.ended: list[tuple[float, bool]] = []

    def expect_start(self) -> None:
        self.starting = True

    async def sample(self) -> Outcome:
        assert not self.running, "two samples at once"
        assert not self.closed, "a sample after close"
        self.running = True
        self.started.append(self._clock())
        number, reason = len(self.started), self.reason
        try:
            bound = self.first_timeout_seconds if self.starting else self.timeout_seconds
            late = self.duration >= bound
            await passes(min(self.duration, bound))
            self.starting = False
            took = self._clock() - self.started[-1]
            cards = [guest_api_pb2.GpuDevice(index=index, temperature_c=number) for index in range(self.cards)]
            if self.hangs:
                cards[-1].errors.append("memory: did not answer")
                return Outcome(OutcomeKind.PARTIAL, guest_api_pb2.GpuInfoResponse(gpus=cards), took, read_seconds_ago=took - 0.5)
            if late:
                return failure(OutcomeKind.TIMEOUT, "did not answer", took)
            if reason:
                return failure(OutcomeKind.DRIVER_ERROR, reason, took)
            return Outcome(OutcomeKind.SAMPLE, guest_api_pb2.GpuInfoResponse(gpus=cards, cc_enabled=True), took)
        finally:
            self.running = False
            self.ended.append((self._clock(), bool(reason) or late))

    async def close(self) -> None:
        self.closed = True


class Machine:
    """The bus and the driver, as the gate asks for them."""

    def __init__(self, cards: int = 1) -> None:
        self.bus = simulated_inventory(f"0000:{number + 1:02x}:00.0" for number in range(cards))
        self.driver_loaded = True
        self.holder: str | None = "nvidia"
        self.stats = 0

    def facts(self) -> CardFacts:
        return CardFacts(inventory=self._inventory, driver_loaded=self._loaded, bound_driver=lambda _: self.holder, changes=False)

    def _inventory(self) -> Inventory:
        return self.bus

    def _loaded(self) -> bool:
        self.stats += 1
        return self.driver_loaded


class Rig:
    """Telemetry on a fake machine, in the virtual time of the running loop (or by the clock given)."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        machine: Machine | None = None,
        duration: float = 0.1,
        ahead: bool = True,
        ttl: float = TTL,
        backoff: float = BACKOFF,
        sampler: Callable[[Clock], PacedSampler] | None = None,
    ) -> None:
        self.clock = clock or virtual_loop().boottime
        self.machine = machine or Machine()
        self.sampler = PacedSampler(self.clock, duration) if sampler is None else sampler(self.clock)
        self._gate = Gate(self.machine.facts(), self.clock)
        self.telemetry = GpuTelemetry(
            self._gate,
            self.sampler,
            ttl_seconds=ttl,
            backoff_seconds=backoff,
            ahead=ahead,
            clock=self.clock,
        )

    async def __aenter__(self) -> Self:
        await self.telemetry.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.telemetry.close()

    async def look(self) -> None:
        """The machine's bus has changed, and the agent knows."""
        await self._gate.look()

    @property
    def samples(self) -> int:
        """How many were started."""
        return len(self.sampler.started)


def temperature(reply: guest_api_pb2.GpuInfoResponse) -> int:
    """Which sample a reply comes from."""
    return reply.gpus[0].temperature_c

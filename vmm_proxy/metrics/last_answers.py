"""What one guest last answered, and when: the part of the fleet's knowledge that pages are made from.

An answer outlives the failures after it, with its true age, so that a lost packet is no gap in a graph; what is older than KEEP_SECONDS is
not shown any more, because a dead guest's last figures are no figures. Ages are counted by a clock that neither stops while the host
sleeps nor jumps with the time of day.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from google.protobuf.message import Message

from guest_api.guest_api_pb2 import GpuInfoResponse, ListContainersResponse, NetworkInformation, SystemInfo
from guest_contract import card_sums
from guest_contract.card_sums import NO_CARDS, CardSums
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.errors import CallError
from vmm_proxy.upstream.reachability import Reachability, ReachabilityState

# Prometheus itself looks back five minutes for a sample before it takes a series for gone.
KEEP_SECONDS = 300.0

_UP = {ReachabilityState.SERVING: True, ReachabilityState.UNREACHABLE: False, ReachabilityState.UNKNOWN: None}

M = TypeVar("M", bound=Message)


@dataclass(slots=True)
class Part(Generic[M]):
    """One method's last answer, and its last outcome."""

    answer: M | None = None
    # On the clock of GuestAnswers; meaningful with an answer only.
    received_at: float = 0.0
    # How the last call failed; None after an answer, and before the first outcome.
    failure: CallError | None = None

    @property
    def tried(self) -> bool:
        """Whether an outcome is known."""
        return self.answer is not None or self.failure is not None

    @property
    def answers(self) -> bool:
        """Whether the last call was answered."""
        return self.answer is not None and self.failure is None

    def shown(self, now: float) -> M | None:
        """The answer, if it is young enough to be shown."""
        return self.answer if self.answer is not None and now - self.received_at <= KEEP_SECONDS else None


@dataclass(slots=True, eq=False)
class LastKnown:
    """One running guest at one address; a guest that moved gets a new one."""

    entry: GuestEntry
    # What all calls to it say of its reachability, whoever made them.
    reachability: Reachability
    gpus: Part[GpuInfoResponse] = field(default_factory=Part)
    system: Part[SystemInfo] = field(default_factory=Part)
    containers: Part[ListContainersResponse] = field(default_factory=Part)
    # For the guest's own page alone.
    network: Part[NetworkInformation] = field(default_factory=Part)
    # On the clock of GuestAnswers.
    asked_at: float = float("-inf")
    containers_asked_at: float = float("-inf")
    network_asked_at: float = float("-inf")
    # How long the last refresh took; None before the first one ended.
    look_seconds: float | None = None
    # Counts refreshes that ended, and changes of the entry: whoever shows a guest sees from it that there is something new.
    version: int = 0
    # What the page makes of all this (guest_lines).
    lines: object = None
    # The sums of the answer that they were made from.
    _sums: tuple[GpuInfoResponse | None, CardSums] = (None, NO_CARDS)

    def card_sums(self, now: float) -> CardSums:
        """The sums of its cards, if they are young enough to be shown; added up once for each answer."""
        gpus = self.gpus.shown(now)
        if gpus is not self._sums[0]:
            self._sums = (gpus, card_sums.of_cards(gpus.gpus) if gpus else NO_CARDS)
        return self._sums[1]

    @property
    def id(self) -> str:
        """The guest's id."""
        return self.entry.id

    @property
    def up(self) -> bool | None:
        """Whether the guest is reachable (vmm_proxy.upstream.reachability); None while nothing is known."""
        return _UP[self.reachability.state]

    @property
    def answered_at(self) -> float | None:
        """When the last answer came, on the clock of GuestAnswers."""
        gpus, system = self.gpus, self.system
        if gpus.answer is None:
            return None if system.answer is None else system.received_at
        return gpus.received_at if system.answer is None else max(gpus.received_at, system.received_at)

"""What is known of every guest of a fleet, and how old it is; what `top` shows.

A guest that fails keeps its entry, with the reason and the age of its last answer. A proxy does not say that a guest left its directory:
it only falls silent about it, so a guest of which nothing was heard for longer than a question can take is forgotten. Ages are counted
on a clock that nobody sets; only the moment before a stream's first outcome of a guest, which the proxy may have kept for an interval, is
taken from the proxy's own time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from google.rpc import code_pb2

from guest_api import guest_api_pb2
from guest_client.guestctl.cards import Card
from guest_client.guestctl.question import SortKey
from guest_fleet.v1 import fleet_pb2

# The proxy's bound of a GpuInfo is 15 s; a guest that is still in its directory is told of at the latest then, success or not.
SILENCE_SECONDS = 20.0


@dataclass(slots=True)
class Entry:
    """One guest. `heard_at` is when its last outcome came, `sampled_at` when the sample was taken that it answered with; both monotonic."""

    guest_id: str
    heard_at: float
    outcome: fleet_pb2.GuestGpuInfo | None = None
    listed_state: int = fleet_pb2.GUEST_STATE_UNSPECIFIED
    sampled_at: float | None = None

    @property
    def answer(self) -> guest_api_pb2.GpuInfoResponse | None:
        """Its GPUs, if it answered last time."""
        if self.outcome is None or self.outcome.WhichOneof("outcome") != "gpu_info":
            return None
        return self.outcome.gpu_info

    @property
    def stopped(self) -> bool:
        """Whether it gives no answer because its directory says that it is stopped; another VM in its place is no such case."""
        refused = self.outcome is None or self.outcome.status.code == code_pb2.FAILED_PRECONDITION
        return refused and self.listed_state == fleet_pb2.GUEST_STATE_STOPPED

    @property
    def failed(self) -> bool:
        """Whether it gave no answer though it runs, or one that says nothing is known."""
        return self.outcome is not None and not self.stopped and (self.answer is None or bool(self.answer.error))

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to show and nothing wrong: no card, no answer yet, stopped."""
        return not self.failed and not (self.answer is not None and self.answer.gpus)


class Board:
    """The entries by id. `clock` is monotonic seconds, `wall_clock` seconds since 1970."""

    def __init__(self, interval_seconds: float, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._entries: dict[str, Entry] = {}
        self._told: set[str] = set()

    def expect(self, guest: fleet_pb2.Guest) -> None:
        """Show `guest` also before its first outcome comes; its state is what the list of guests says."""
        entry = self._entries.setdefault(guest.id, Entry(guest.id, self._clock()))
        entry.listed_state = guest.state

    def new_stream(self) -> None:
        """A stream begins; its first outcome of each guest may be an interval old, and silence counts from now."""
        self._told.clear()
        for entry in self._entries.values():
            entry.heard_at = self._clock()

    def tell(self, outcome: fleet_pb2.GuestGpuInfo) -> None:
        """Put `outcome` in place of the guest's last one."""
        now = self._clock()
        entry = self._entries.setdefault(outcome.guest_id, Entry(outcome.guest_id, now))
        entry.heard_at, entry.outcome = now, outcome
        if outcome.WhichOneof("outcome") == "gpu_info":
            answer = outcome.gpu_info
            age = answer.sample_age_ms / 1000 if answer.HasField("sample_age_ms") else None
            entry.sampled_at = None if age is None else now - age - self._kept_seconds(outcome)
        self._told.add(outcome.guest_id)

    def _kept_seconds(self, outcome: fleet_pb2.GuestGpuInfo) -> float:
        """How long the proxy had kept the first outcome of a guest; later ones come at once."""
        if outcome.guest_id in self._told or not outcome.HasField("received_at"):
            return 0.0
        received_at = outcome.received_at.seconds + outcome.received_at.nanos / 1e9
        return min(max(self._wall_clock() - received_at, 0.0), self._interval_seconds)

    def forget_silent(self) -> None:
        """Forget guests that the proxy told nothing of for longer than it can take."""
        earliest = self._clock() - self._interval_seconds - SILENCE_SECONDS
        self._entries = {guest_id: entry for guest_id, entry in self._entries.items() if entry.heard_at >= earliest}

    def all_heard(self, guest_ids: Iterable[str] = ()) -> bool:
        """Whether every guest that is expected, and each of `guest_ids`, has had an outcome."""
        asked = (self._entries.get(guest_id) for guest_id in guest_ids)
        return all(entry is not None and entry.outcome is not None for entry in (*self._entries.values(), *asked))

    def entries(self) -> list[Entry]:
        """All guests in id order."""
        return [self._entries[guest_id] for guest_id in sorted(self._entries)]

    def age_seconds(self, entry: Entry) -> float | None:
        """Age of the guest's last sample; None when it never had one."""
        return None if entry.sampled_at is None else max(self._clock() - entry.sampled_at, 0.0)

    def cards(self, key: SortKey) -> list[tuple[Entry, Card]]:
        """The cards of all guests that answer, the highest reading first, unknown ones last; equal ones in the order of the guests."""
        found = list(self._cards())
        if key is not SortKey.GUEST:
            found.sort(key=lambda each: _rank(each[1], key), reverse=True)
        return found

    def _cards(self) -> Iterator[tuple[Entry, Card]]:
        for entry in self.entries():
            if entry.answer is not None:
                yield from ((entry, card) for card in sorted(entry.answer.gpus, key=lambda card: card.index))


def _rank(card: Card, key: SortKey) -> tuple[float, float]:
    load = card.utilization_gpu if card.HasField("utilization_gpu") else -math.inf
    used = card.memory_used_bytes if card.HasField("memory_used_bytes") else -math.inf
    match key:
        case SortKey.MEMORY:
            return used, load
        case SortKey.POWER:
            return (card.power_usage_mw if card.HasField("power_usage_mw") else -math.inf), load
        case SortKey.TEMPERATURE:
            return (card.temperature_c if card.HasField("temperature_c") else -math.inf), load
    return load, used

"""What is known of every guest of a fleet, and how old it is; what `top` shows.

A guest that fails keeps its entry, with the reason and the age of its last answer. Ages are counted on a clock that nobody sets; only the
moment before a stream's first outcome of a guest, which the proxy may have kept for an interval, is taken from the proxy's own time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from google.rpc import code_pb2

from guest_api import guest_api_pb2
from guest_client.errors import ClientError
from guest_client.guestctl.fleet.several import called
from guest_client.guestctl.output import card_cells
from guest_client.guestctl.output.card_cells import Card
from guest_client.guestctl.request import BY_GUEST, SORTABLE
from guest_contract import card_sums, card_values
from guest_contract.card_row import Field
from guest_contract.card_sums import NO_CARDS, CardSums
from guest_fleet.v1 import fleet_pb2


@dataclass(slots=True)
class Entry:
    """One guest; `guest_id` is HOST/ID where there are several hosts. `sampled_at` is when its last sample was taken, monotonic."""

    guest_id: str
    host: str = ""
    outcome: fleet_pb2.GuestGpuInfo | None = None
    listed_state: int = fleet_pb2.GUEST_STATE_UNSPECIFIED
    sampled_at: float | None = None
    cards: tuple[Card, ...] = ()
    sums: CardSums = NO_CARDS

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
    def unknown(self) -> bool:
        """Whether the proxy knows no such guest."""
        return self.outcome is not None and self.outcome.status.code == code_pb2.NOT_FOUND

    @property
    def failed(self) -> bool:
        """Whether it gave no answer though it runs, or one that says nothing is known."""
        return self.outcome is not None and not self.stopped and (self.answer is None or bool(self.answer.error))

    @property
    def missing(self) -> str:
        """What is said where its driver shows fewer cards than its bus has, or than the host gave to it; else empty."""
        if self.outcome is None or self.answer is None:
            return ""
        return card_values.missing(self.answer, self.outcome.gpus_given if self.outcome.HasField("gpus_given") else None)

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to show and nothing wrong: no card, no answer yet, stopped."""
        return not self.failed and not self.cards and not self.missing


class Board:
    """The entries by id. `clock` is seconds that nobody sets and that count while the machine sleeps, `wall_clock` seconds since 1970."""

    def __init__(self, interval_seconds: float, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._entries: dict[str, Entry] = {}
        self._told: set[str] = set()
        # Of several hosts those that give no answer now, with the reason.
        self.away: dict[str, ClientError] = {}

    def expect(self, guests: Iterable[fleet_pb2.Guest], host: str = "") -> None:
        """Show these guests of `host` also before their first outcome comes, and forget those that are not among them.

        An id that was asked for and is unknown to the proxy stays, as such.
        """
        found = {entry.guest_id: entry for entry in self._entries.values() if entry.unknown or entry.host != host}
        for guest in guests:
            name = called(host, guest.id)
            entry = found[name] = self._entries.get(name) or Entry(name, host)
            entry.listed_state = guest.state
        self._entries = found

    def new_stream(self, host: str = "") -> None:
        """A stream begins: its first outcome of each guest may be an interval old."""
        self._told = {name for name in self._told if name in self._entries and self._entries[name].host != host}

    def tell(self, outcome: fleet_pb2.GuestGpuInfo, host: str = "") -> None:
        """Put `outcome` in place of the guest's last one."""
        now = self._clock()
        name = called(host, outcome.guest_id)
        entry = self._entries.setdefault(name, Entry(name, host))
        entry.outcome, entry.cards, entry.sums = outcome, (), NO_CARDS
        if outcome.WhichOneof("outcome") == "gpu_info":
            answer = outcome.gpu_info
            entry.cards = tuple(sorted(card_cells.read(answer), key=lambda card: card.index))
            entry.sums = card_sums.of_values([card.judged for card in entry.cards])
            age = answer.sample_age_ms / 1000 if answer.HasField("sample_age_ms") else None
            entry.sampled_at = None if age is None else now - age - self._kept_seconds(name, outcome)
        self._told.add(name)

    def _kept_seconds(self, name: str, outcome: fleet_pb2.GuestGpuInfo) -> float:
        """How long the proxy had kept the first outcome of a guest; later ones come at once."""
        if name in self._told or not outcome.HasField("received_at"):
            return 0.0
        received_at = outcome.received_at.seconds + outcome.received_at.nanos / 1e9
        return min(max(self._wall_clock() - received_at, 0.0), self._interval_seconds)

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

    def cards(self, sort: str) -> list[tuple[Entry, Card]]:
        """The cards of all guests that answer, the highest value first, unknown ones last; equal ones in the order of the guests."""
        found = [(entry, card) for entry in self.entries() for card in entry.cards]
        if sort != BY_GUEST:
            first = next(row for row in SORTABLE if row.sort == sort)
            second = next(row for row in SORTABLE if row is not first)
            found.sort(key=lambda each: (_rank(each[1], first), _rank(each[1], second)), reverse=True)
        return found


def _rank(card: Card, row: Field) -> float:
    value = card.number(row)
    return -math.inf if value is None else value

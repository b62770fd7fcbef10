"""How often each XID was reported, by the PCI address of the card: counts since boot, with the age of the last report.

The address is what survives a card that gets another index, or is lost. It refuses to grow with the log: numbers and addresses are
bounded, and what is over the bound is counted, not kept. Rejected: a list of reports (a flood writes 100,000 lines in a minute).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from guest_api import guest_api_pb2
from guest_contract.pci_address import PciAddress
from guest_service.kernel_log.records import Xid

# Some 100 numbers exist and a guest has up to 16 cards and 6 switches; a card that reports 64 different ones is as sick as it can be.
NUMBERS_PER_ADDRESS = 64
ADDRESSES = 64


@dataclass(slots=True)
class _Count:
    count: int = 0
    # By the clock that counts suspend; None where it is not known how long the machine slept after the report.
    last: float | None = None


class Xids:
    """The counts. Times are seconds of CLOCK_BOOTTIME."""

    def __init__(self) -> None:
        self._counts: dict[tuple[PciAddress, bool], dict[int, _Count]] = {}
        # Reports of numbers or addresses over the bounds.
        self.over_bounds = 0

    def add(self, report: Xid, at: float | None) -> None:
        """Count a report that was made at `at`."""
        place = report.address, report.nvswitch
        if place not in self._counts and len(self._counts) >= ADDRESSES:
            self.over_bounds += 1
            return
        numbers = self._counts.setdefault(place, {})
        if report.number not in numbers and len(numbers) >= NUMBERS_PER_ADDRESS:
            self.over_bounds += 1
            return
        count = numbers.setdefault(report.number, _Count())
        count.count += 1
        count.last = at

    def forget(self, address: PciAddress) -> None:
        """The card or switch at `address` was reset: what it reported before is history."""
        for nvswitch in (False, True):
            self._counts.pop((address, nvswitch), None)

    def write_to(self, reply: guest_api_pb2.GpuInfoResponse, now: float) -> None:
        """Give each card of `reply` its counts, and the reply itself the rest: all, where it is an error and has no cards."""
        cards = {address.slot: card for card in reply.gpus if (address := PciAddress.parse(card.pci_bus_id))}
        for (address, nvswitch), numbers in sorted(self._counts.items()):
            card = None if nvswitch else cards.get(address)
            target = reply.unplaced_xids if card is None else card.xids
            written = "" if card is not None else address.as_nvml
            target.extend(_messages(numbers, written, nvswitch, now))


def _messages(numbers: dict[int, _Count], address: str, nvswitch: bool, now: float) -> Iterable[guest_api_pb2.XidCount]:
    for number, count in sorted(numbers.items()):
        age_ms = None if count.last is None else max(0, round((now - count.last) * 1000))
        yield guest_api_pb2.XidCount(xid=number, count=count.count, last_age_ms=age_ms, pci_bus_id=address, nvswitch=nvswitch)

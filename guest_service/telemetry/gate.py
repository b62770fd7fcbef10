"""Tells the answers that need no sample: no NVIDIA card on the bus, no driver that could be asked, or a bus that hides what is on it.

A guest without a card must not pay for GPU telemetry: once the bus was looked at, its answer costs no system call, and the kernel tells
when the bus changes (bus_events.py). A bus that cannot be read, or that has an unreadable entry and no card, is unknown with its reason:
"none" would make a healthy card invisible. One unreadable entry beside cards that can be read is a warning, nothing more. The boot gate
judges the inventory itself. Rejected: asking NVML whether there is a card (a process per question, on every CPU-only guest).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from guest_api import guest_api_pb2
from guest_service.inventory import Inventory, InventoryError, bound_driver, holds_for_others, survey_bus
from guest_service.telemetry.bus_events import BusEvents
from guest_transport.process.clock import Clock

log = logging.getLogger(__name__)

DRIVER_NOT_LOADED = "NVIDIA driver is not loaded"
HELD_FOR_OTHERS = "all NVIDIA GPUs are bound to a pass-through driver such as vfio-pci; none is sampled here"
NOT_LOOKED_YET = "the PCI bus has not been looked at yet"

# A failed look at the bus is repeated at most this often: it will not heal by the second, and each try reads a few hundred files.
LOOK_AGAIN_SECONDS = 30.0
# Without events from the kernel the bus is read again this often, while there are callers: a card is not plugged in every second.
LOOK_UNTOLD_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What the gate asks of the machine: the bus, and on each call the two others. A simulated guest answers from its rack.

    `changes`: whether the bus can change.
    """

    inventory: Callable[[], Inventory]
    driver_loaded: Callable[[], bool]
    bound_driver: Callable[[str], str | None]
    changes: bool = True


def facts_of(sysfs: Path) -> CardFacts:
    """The facts under `sysfs`, the root of a /sys tree."""
    module = sysfs / "module/nvidia"
    return CardFacts(
        inventory=lambda: survey_bus(sysfs),
        driver_loaded=lambda: _is_there(module),
        bound_driver=lambda pci_bus_id: bound_driver(sysfs, pci_bus_id),
    )


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # Not to be looked at is not absent: then the collector finds out.
        return True
    return True


class Gate:
    """What can be said of the GPUs without a sample.

    `inventory` is the last good look, None while there is none; `looked` says whether a look was finished, good or not.
    """

    def __init__(self, facts: CardFacts, clock: Clock) -> None:
        self._facts = facts
        self._clock = clock
        self._events = BusEvents(self.look_soon)
        # Whether the kernel sends an event when the bus changes.
        self._told = not facts.changes
        self._look_after_seconds: float | None = LOOK_AGAIN_SECONDS
        self._no_card = False
        self._unknown = NOT_LOOKED_YET
        self._given_away: tuple[str, ...] = ()
        self._looked_at: float | None = None
        self._warned: tuple[str, ...] = ()
        self._looking: asyncio.Task[None] | None = None
        self._look_behind = False
        self.looked = False
        # Set from the first time on that the bus had an NVIDIA card, or an entry that may be one.
        self.card_seen = asyncio.Event()
        self.inventory: Inventory | None = None

    async def start(self) -> None:
        """Look at the bus, and from now on whenever it changes."""
        # First, so that no change is lost between the two.
        self._told = not self._facts.changes or self._events.start()
        await self.look()

    async def look(self) -> None:
        """Look at the bus, off the loop. A look that fails leaves what the last good one saw."""
        self._looked_at = self._clock()
        try:
            inventory = await asyncio.to_thread(self._facts.inventory)
        except (InventoryError, RuntimeError) as error:
            # RuntimeError: no thread is to be had.
            self._warn((str(error),))
            self._look_after_seconds = LOOK_AGAIN_SECONDS
            if self.inventory is None:
                self._unknown = f"whether there is an NVIDIA GPU is unknown: {error}"
            return
        finally:
            self.looked = True
        self._take(inventory)

    def look_soon(self) -> None:
        """Look at the bus behind the caller's back; once more when a look is under way, which may have missed what is new."""
        if self._looking is not None and not self._looking.done():
            self._look_behind = True
            return
        self._looking = asyncio.get_running_loop().create_task(self._look_until_settled(), name="PCI bus")

    def answer(self) -> guest_api_pb2.GpuInfoResponse | None:
        """The reply that needs no sample, None when one is needed. After a good look: no card, no system call; else one stat."""
        if self._look_after_seconds is not None:
            self._look_again_after(self._look_after_seconds)
        return self.peek()

    def peek(self) -> guest_api_pb2.GpuInfoResponse | None:
        """answer(), without ever looking at the bus again."""
        if self._no_card:
            return guest_api_pb2.GpuInfoResponse()
        if self._unknown:
            return guest_api_pb2.GpuInfoResponse(error=self._unknown)
        return self._without_driver()

    async def close(self) -> None:
        """Look no more, and wait for a look that may be under way; it only reads sysfs."""
        self._events.close()
        self._look_behind = False
        if self._looking is not None:
            await self._looking

    async def _look_until_settled(self) -> None:
        await self.look()
        while self._look_behind:
            self._look_behind = False
            await self.look()

    def _take(self, inventory: Inventory) -> None:
        cards, hidden = inventory.nvidia_cards, inventory.hidden
        self._warn(tuple(entry.reason for entry in inventory.unreadable))
        self._unknown = ""
        if hidden and not cards:
            more = f" and {len(hidden) - 1} more" if len(hidden) > 1 else ""
            self._unknown = f"whether there is an NVIDIA GPU is unknown: {hidden[0].reason}{more}"
        self._no_card = not cards and not hidden
        if not self._no_card:
            self.card_seen.set()
        # The kernel sends no event when an entry becomes readable again.
        self._look_after_seconds = LOOK_AGAIN_SECONDS if hidden else None if self._told else LOOK_UNTOLD_SECONDS
        # One card that was not given away is enough: NVML skips the others by itself.
        given_away = all(card.held_for_others for card in cards)
        self._given_away = tuple(card.pci_bus_id for card in cards) if given_away else ()
        if self.inventory != inventory:
            log.info("PCI bus: %s", inventory.counts)
        self.inventory = inventory

    def _warn(self, reasons: tuple[str, ...]) -> None:
        """Once per change: a bus that stays sick is looked at twice a minute."""
        if reasons and reasons != self._warned:
            more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            log.warning("PCI bus: %s%s", reasons[0], more)
        self._warned = reasons

    def _without_driver(self) -> guest_api_pb2.GpuInfoResponse | None:
        loaded = self._facts.driver_loaded()
        if self._given_away and self._still_given_away():
            return guest_api_pb2.GpuInfoResponse(error=HELD_FOR_OTHERS)
        return None if loaded else guest_api_pb2.GpuInfoResponse(error=DRIVER_NOT_LOADED)

    def _still_given_away(self) -> bool:
        return all(holds_for_others(self._facts.bound_driver(address)) for address in self._given_away)

    def _look_again_after(self, seconds: float) -> None:
        if self._looked_at is not None and self._clock() - self._looked_at >= seconds:
            self._looked_at = self._clock()
            self.look_soon()

"""Tells the answers that need no sample: no NVIDIA card on the bus, or no driver that could be asked.

A guest without a card must not pay for GPU telemetry: once the bus was looked at, its answer costs no system call. Fails open: a bus that
cannot be read counts as a bus without cards (with one warning), since telemetry that is silent harms nobody; the boot gate, which must
fail closed, judges the inventory itself. Rejected: asking NVML whether there is a card (a process per question, on every CPU-only guest).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from guest_api import guest_api_pb2
from guest_service.inventory import Inventory, InventoryError, bound_driver, holds_for_others, read_inventory
from guest_transport.clock import Clock

log = logging.getLogger(__name__)

DRIVER_NOT_LOADED = "NVIDIA driver is not loaded"
HELD_FOR_OTHERS = "all NVIDIA GPUs are bound to a pass-through driver such as vfio-pci; none is sampled here"

# A failed look at the bus is repeated at most this often: it will not heal by the second, and each try reads a few hundred files.
LOOK_AGAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What the gate asks of the machine: the bus once, the two others on each call. A simulated guest answers from its rack."""

    inventory: Callable[[], Inventory]
    driver_loaded: Callable[[], bool]
    bound_driver: Callable[[str], str | None]


def facts_of(sysfs: Path) -> CardFacts:
    """The facts under `sysfs`, the root of a /sys tree."""
    module = sysfs / "module/nvidia"
    return CardFacts(
        inventory=lambda: read_inventory(sysfs),
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
        self._no_card = False
        self._given_away: tuple[str, ...] = ()
        self._looked_at: float | None = None
        self.looked = False
        self._warned = False
        self._looking: asyncio.Task[None] | None = None
        self.inventory: Inventory | None = None

    async def look(self) -> None:
        """Look at the bus, off the loop. A good look is kept for the life of the process: a VM's cards do not change."""
        self._looked_at = self._clock()
        try:
            inventory = await asyncio.to_thread(self._facts.inventory)
        except InventoryError as error:
            log.log(
                logging.DEBUG if self._warned else logging.WARNING,
                "no GPU telemetry: %s; trying again in %g s",
                error,
                LOOK_AGAIN_SECONDS,
            )
            self._warned = True
            return
        finally:
            self.looked = True
        self._no_card = inventory.nvidia == 0
        cards = inventory.nvidia_cards
        # One card that was not given away is enough: NVML skips the others by itself.
        if all(card.held_for_others for card in cards):
            self._given_away = tuple(card.pci_bus_id for card in cards)
        self.inventory = inventory
        log.info("PCI bus: %s", inventory.counts)

    def answer(self) -> guest_api_pb2.GpuInfoResponse | None:
        """The reply that needs no sample, None when one is needed. After a good look: no card, no system call; else one stat."""
        if self._no_card:
            return guest_api_pb2.GpuInfoResponse()
        if self.inventory is None:
            self._look_again()
            return guest_api_pb2.GpuInfoResponse()
        return self._without_driver()

    def peek(self) -> guest_api_pb2.GpuInfoResponse | None:
        """answer(), without ever looking at the bus again."""
        return guest_api_pb2.GpuInfoResponse() if self.inventory is None or self._no_card else self._without_driver()

    async def close(self) -> None:
        """Wait for a look that may be under way; it only reads sysfs."""
        if self._looking is not None:
            await self._looking

    def _without_driver(self) -> guest_api_pb2.GpuInfoResponse | None:
        if not self._facts.driver_loaded():
            return guest_api_pb2.GpuInfoResponse(error=DRIVER_NOT_LOADED)
        if self._given_away and self._still_given_away():
            return guest_api_pb2.GpuInfoResponse(error=HELD_FOR_OTHERS)
        return None

    def _still_given_away(self) -> bool:
        return all(holds_for_others(self._facts.bound_driver(address)) for address in self._given_away)

    def _look_again(self) -> None:
        looking = self._looking is not None and not self._looking.done()
        if looking or (self._looked_at is not None and self._clock() - self._looked_at < LOOK_AGAIN_SECONDS):
            return
        self._looking = asyncio.get_running_loop().create_task(self.look())

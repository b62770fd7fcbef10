"""Names the cards that a sample could not even open, so that a card that fell off the bus stays the card that it was.

The collector is new for each sample and remembers nothing; a lost card reaches it as an index with an error. This remembers, for the life
of the agent, which card was at which index. It fails towards "unknown": where cards have changed places since, or where two cards could
be meant, a name stays empty. Rejected: naming several lost cards in the order of the bus, since NVML promises no order.
"""

from __future__ import annotations

from collections.abc import Iterable

from guest_api import guest_api_pb2
from guest_contract.pci_address import PciAddress
from guest_service.inventory import Inventory

# A guest has at most a few dozen addresses in its life; a driver that invents new ones all the time must not fill the memory.
NAMES_LIMIT = 1024


class KnownCards:
    """Cards that samples have shown: where each was last, and the UUID of each address."""

    def __init__(self) -> None:
        self._places: dict[int, PciAddress] = {}
        self._names: dict[PciAddress, tuple[str, str]] = {}

    def name(self, reply: guest_api_pb2.GpuInfoResponse, inventory: Inventory | None) -> None:
        """Give the lost cards in `reply` their PCI address and, if it was ever seen, their UUID; and learn from the others."""
        shown = {device.index: address for device in reply.gpus if (address := PciAddress.parse(device.pci_bus_id))}
        lost = [device for device in reply.gpus if _is_lost(device)]
        if lost:
            found = self._by_place(lost, shown) or _by_elimination(lost, shown, len(reply.gpus), inventory)
            for device in lost:
                self._give(device, found.get(device.index))
            shown |= found
        self._learn(reply.gpus, shown)

    def _by_place(self, lost: list[guest_api_pb2.GpuDevice], shown: dict[int, PciAddress]) -> dict[int, PciAddress]:
        """The lost cards by their index, provided that no other card has moved since."""
        if any(self._places.get(index, address) != address for index, address in shown.items()):
            return {}
        remembered = {device.index: self._places[device.index] for device in lost if device.index in self._places}
        return {} if set(remembered.values()) & set(shown.values()) else remembered

    def _give(self, device: guest_api_pb2.GpuDevice, address: PciAddress | None) -> None:
        if address is not None:
            device.uuid, device.pci_bus_id = self._names.get(address, ("", address.as_nvml))

    def _learn(self, devices: Iterable[guest_api_pb2.GpuDevice], places: dict[int, PciAddress]) -> None:
        self._places = places
        for device in devices:
            if device.uuid and device.index in places:
                self._names[places[device.index]] = device.uuid, device.pci_bus_id
        if len(self._names) > NAMES_LIMIT:
            self._names = {address: self._names[address] for address in places.values() if address in self._names}


def _is_lost(device: guest_api_pb2.GpuDevice) -> bool:
    return bool(device.errors) and not device.uuid and not device.pci_bus_id


def _by_elimination(
    lost: list[guest_api_pb2.GpuDevice], shown: dict[int, PciAddress], count: int, inventory: Inventory | None
) -> dict[int, PciAddress]:
    """One lost card must be the one card on the bus that is not shown, when NVML counts as many as the bus has."""
    if len(lost) != 1 or inventory is None or inventory.nvidia != count:
        return {}
    bus = {address for card in inventory.nvidia_cards if (address := PciAddress.parse(card.pci_bus_id))}
    left = bus - set(shown.values())
    return {lost[0].index: left.pop()} if len(left) == 1 else {}

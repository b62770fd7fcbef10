"""Which display cards are on the PCI bus, from sysfs alone: the bus knows a card that no driver has claimed yet.

It holds no policy, but two ways to read: read_inventory() raises InventoryError for anything that it cannot read (for the boot gate, which
fails closed), survey_bus() returns what can be read and names the rest (for telemetry: one sick entry must not hide a healthy card).
It never reads config space or a resource file, which wakes a sleeping device and needs privilege; `class`, `vendor`, `device` and two
links are plain kernel memory. Rejected: lspci (a process and a database of names), NVML (sees only what its driver has claimed).

Source: the kernel's Documentation/PCI/sysfs-pci.rst and Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from guest_contract.pci_address import PciAddress

NVIDIA = 0x10DE

# Base class and subclass of cards that compute or draw: VGA, 3D controller, other display. PCI Code and ID Assignment, class 03h.
# NVSwitch (0x0680), bridges, audio and USB functions of a card are not among them.
DISPLAY_CLASSES = frozenset({0x0300, 0x0302, 0x0380})

# How an unknown shows in a table, everywhere in the product.
UNKNOWN = "–"  # noqa: RUF001 - the dash that the dashboard and guestctl show, not a hyphen

# An attribute is a number and a newline; more is not a sysfs attribute.
ATTRIBUTE_LIMIT_BYTES = 64

# vfio-pci, its variants for one vendor (nvgrace-gpu-vfio-pci), and what Xen and QEMU used before it.
_HOLDS_FOR_OTHERS = re.compile(r"(^|[-_])vfio([-_]|$)|^pci-stub$|^(xen-)?pciback$")


class InventoryError(Exception):
    """The bus, or a device on it, cannot be read; the message is one line that names the file."""


@dataclass(frozen=True, slots=True)
class Card:
    """One display function on the bus; `driver` is None while none is bound, `device` None when sysfs does not tell it."""

    pci_bus_id: str
    vendor: int
    device: int | None
    class_code: int
    driver: str | None
    virtual_function: bool

    @property
    def held_for_others(self) -> bool:
        """Bound to a driver that gives the card away (vfio-pci and its like)."""
        return holds_for_others(self.driver)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry of the bus that cannot be read: why, in one line that names the file, and whether it may be an NVIDIA card."""

    reason: str
    may_be_nvidia: bool


@dataclass(frozen=True, slots=True)
class Inventory:
    """All display functions in order of their addresses, virtual functions among them; and the entries that could not be read."""

    cards: tuple[Card, ...]
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def hidden(self) -> tuple[Unreadable, ...]:
        """The unreadable entries that may be NVIDIA cards: while there is one, the count of cards is not known."""
        return tuple(entry for entry in self.unreadable if entry.may_be_nvidia)

    @property
    def total(self) -> int:
        """Physical display devices; a virtual function is a slice of one, not another one."""
        return sum(not card.virtual_function for card in self.cards)

    @property
    def nvidia(self) -> int:
        """Physical display devices made by NVIDIA."""
        return len(self.nvidia_cards)

    @property
    def nvidia_cards(self) -> tuple[Card, ...]:
        """The physical ones made by NVIDIA."""
        return tuple(card for card in self.cards if card.vendor == NVIDIA and not card.virtual_function)

    @property
    def counts(self) -> str:
        """Total and NVIDIA's own, in words."""
        known = f"{self.total} display device{'' if self.total == 1 else 's'}, {self.nvidia} of NVIDIA"
        return f"{known}, and {len(self.unreadable)} that cannot be read" if self.unreadable else known

    def find(self, bus_id: str) -> Card | None:
        """The card at `bus_id`, written in any way that PciAddress.parse knows."""
        wanted = PciAddress.parse(bus_id)
        if wanted is None:
            return None
        return next((card for card in self.cards if PciAddress.parse(card.pci_bus_id) == wanted), None)

    def to_json(self) -> str:
        """The one JSON object that `guest-service inventory -o json` prints, without a newline."""
        cards = [
            {
                "pci_bus_id": card.pci_bus_id,
                "vendor": card.vendor,
                "device": card.device,
                "class": card.class_code,
                "driver": card.driver,
                "virtual_function": card.virtual_function,
            }
            for card in self.cards
        ]
        return json.dumps({"total": self.total, "nvidia": self.nvidia, "cards": cards})

    def to_rows(self) -> list[tuple[str, ...]]:
        """Rows for a table, headings first: address, vendor, device and class in hex as lspci writes them, driver, kind."""
        rows: list[tuple[str, ...]] = [("PCI ADDRESS", "VENDOR", "DEVICE", "CLASS", "DRIVER", "KIND")]
        for card in self.cards:
            device = UNKNOWN if card.device is None else f"{card.device:04x}"
            kind = "virtual function" if card.virtual_function else "card"
            rows.append((card.pci_bus_id, f"{card.vendor:04x}", device, f"{card.class_code:06x}", card.driver or UNKNOWN, kind))
        return rows


def read_inventory(sysfs: Path) -> Inventory:
    """The display cards under `sysfs`, the root of a /sys tree; raises InventoryError when any of it cannot be read.

    A device that is unplugged while being read is left out.
    """
    found = _read_bus(sysfs / "bus/pci/devices")
    if found.unreadable:
        raise InventoryError(found.unreadable[0].reason)
    return found


def survey_bus(sysfs: Path) -> Inventory:
    """What can be read of the display cards, and what cannot; raises InventoryError when the bus as a whole cannot be read.

    A kernel without PCI (a microVM's) has no such bus, and so no card.
    """
    bus = sysfs / "bus/pci/devices"
    try:
        return _read_bus(bus)
    except InventoryError:
        if _is_folder(sysfs / "bus") and not os.path.lexists(sysfs / "bus/pci"):
            return Inventory(())
        raise


def _read_bus(bus: Path) -> Inventory:
    try:
        names = sorted(entry.name for entry in bus.iterdir())
    except OSError as error:
        raise InventoryError(f"{bus}: PCI bus cannot be read: {error.strerror or error}") from error
    cards: list[tuple[PciAddress, Card]] = []
    unreadable: list[Unreadable] = []
    for name in names:
        folder = bus / name
        try:
            found = _read_card(folder)
        except InventoryError as error:
            unreadable.append(Unreadable(str(error), _may_be_nvidia(folder)))
        except OSError as error:
            if not _was_unplugged(folder):
                reason = f"{error.filename or folder}: cannot be read: {error.strerror or error}"
                unreadable.append(Unreadable(reason, _may_be_nvidia(folder)))
        else:
            cards += [] if found is None else [found]
    return Inventory(tuple(card for _, card in sorted(cards, key=itemgetter(0))), tuple(unreadable))


def _was_unplugged(folder: Path) -> bool:
    try:
        folder.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _may_be_nvidia(folder: Path) -> bool:
    """Whether the vendor of an entry that cannot be read is NVIDIA, or is what cannot be read."""
    try:
        return _number(folder / "vendor") == NVIDIA
    except (OSError, InventoryError):
        return True


def simulated_inventory(bus_ids: Iterable[str]) -> Inventory:
    """What the bus would show for NVIDIA 3D controllers at `bus_ids`, for a simulated guest; raises InventoryError on a bad address."""
    cards = []
    for text in bus_ids:
        address = PciAddress.parse(text)
        if address is None:
            raise InventoryError(f"{text!r} is not a PCI address such as 0000:3b:00.0")
        cards.append((address, Card(str(address), NVIDIA, None, 0x030200, "nvidia", virtual_function=False)))
    return Inventory(tuple(card for _, card in sorted(cards, key=itemgetter(0))))


def holds_for_others(driver: str | None) -> bool:
    """Whether `driver` keeps its card for another user of it, such as a VM of this host, so that NVML must leave the card alone."""
    return driver is not None and _HOLDS_FOR_OTHERS.search(driver) is not None


def bound_driver(sysfs: Path, pci_bus_id: str) -> str | None:
    """The driver that holds the device now, None when there is none: one readlink."""
    return _linked_name(sysfs / "bus/pci/devices" / pci_bus_id / "driver")


def _read_card(folder: Path) -> tuple[PciAddress, Card] | None:
    class_code = _number(folder / "class")
    if class_code >> 8 not in DISPLAY_CLASSES:
        return None
    address = PciAddress.parse(folder.name)
    if address is None:
        raise InventoryError(f"{folder}: a display device whose name is not a PCI address")
    try:
        device = _number(folder / "device")
    except FileNotFoundError:
        device = None
    return address, Card(
        pci_bus_id=folder.name,
        vendor=_number(folder / "vendor"),
        device=device,
        class_code=class_code,
        driver=_linked_name(folder / "driver"),
        virtual_function=_is_there(folder / "physfn"),
    )


def _number(path: Path) -> int:
    with path.open("rb") as file:
        data = file.read(ATTRIBUTE_LIMIT_BYTES)
    try:
        return parse_number(data)
    except ValueError as error:
        raise InventoryError(f"{path}: not a hexadecimal number: {data!r}") from error


def parse_number(data: bytes) -> int:
    """The number in a sysfs attribute such as b"0x10de\\n"; raises ValueError for anything else."""
    text = data.decode("ascii").removesuffix("\n")
    if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text) is None:
        raise ValueError(text)
    return int(text, 16)


def _linked_name(link: Path) -> str | None:
    try:
        return link.readlink().name
    except FileNotFoundError:
        return None


def _is_there(link: Path) -> bool:
    """Whether the link itself exists; where it points is of no interest."""
    try:
        link.lstat()
    except FileNotFoundError:
        return False
    return True


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False

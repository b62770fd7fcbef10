"""Which of the host's PCI devices are NVIDIA's display devices, from sysfs: a guest is given network cards and other makers' cards as well.

What is counted here is what the guest's NVIDIA driver should see; another maker's card among them would be missed in the guest for ever.
Apart from the reporter, which imports libvirt: this is tested where libvirt is not installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# The first byte of a PCI class code: display controller (PCI Code and ID Assignment, base class 03h).
_DISPLAY_CLASS = 0x03
_NVIDIA = 0x10DE


def cards_among(addresses: Iterable[str], sysfs: Path) -> tuple[str, ...]:
    """`addresses` without those that are known to be no card of NVIDIA's; one that sysfs does not know stays."""
    return tuple(address for address in addresses if _may_be_card(sysfs / "bus/pci/devices" / address))


def _may_be_card(device: Path) -> bool:
    code, vendor = _number(device / "class"), _number(device / "vendor")
    return (code is None or code >> 16 == _DISPLAY_CLASS) and vendor in {None, _NVIDIA}


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"), 16)
    except (OSError, ValueError):
        return None

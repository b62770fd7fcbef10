"""Which of the host's PCI devices are display devices, from sysfs: a guest is given network cards and NVSwitches as well.

Apart from the reporter, which imports libvirt: this is tested where libvirt is not installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# The first byte of a PCI class code: display controller (PCI Code and ID Assignment, base class 03h).
_DISPLAY_CLASS = 0x03


def cards_among(addresses: Iterable[str], sysfs: Path) -> tuple[str, ...]:
    """`addresses` without those that are known to be no display device; one that sysfs does not know stays."""
    return tuple(address for address in addresses if is_display_device(address, sysfs) is not False)


def is_display_device(address: str, sysfs: Path) -> bool | None:
    """Whether the device at `address` is a display device; None when sysfs does not say."""
    try:
        text = (sysfs / "bus/pci/devices" / address / "class").read_text(encoding="ascii")
        return int(text, 16) >> 16 == _DISPLAY_CLASS
    except (OSError, ValueError):
        return None

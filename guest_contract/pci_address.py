"""The PCI address of a function, equal for all ways to write it.

sysfs, NVML, libvirt, the kernel log and people each write it their own way; a card that is compared as text is two cards. Rejected: text
made to one form, which sorts domains of more than 16 bits wrongly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# The domain has four digits or more: VMD and some hypervisors count past 16 bits. NVML writes eight digits, people often leave it out.
_WRITTEN = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)
# PCI Local Bus Specification: five bits of device number.
_DEVICES = 32


@dataclass(frozen=True, slots=True, order=True)
class PciAddress:
    """Domain, bus, device and function; sorted by them. The domain is kept whole."""

    domain: int
    bus: int
    device: int
    function: int

    @staticmethod
    def parse(text: str) -> PciAddress | None:
        """The address in `text` as sysfs, NVML or a person writes it (domain 0 when left out); None when it is none."""
        found = _WRITTEN.fullmatch(text.strip())
        if found is None:
            return None
        domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
        return PciAddress(domain, bus, device, function) if device < _DEVICES else None

    @property
    def slot(self) -> PciAddress:
        """Function 0 of the same device."""
        return PciAddress(self.domain, self.bus, self.device, 0)

    @property
    def as_nvml(self) -> str:
        """As NVML writes it: "00000000:3B:00.0"."""
        return f"{self.domain:08X}:{self.bus:02X}:{self.device:02X}.{self.function:X}"

    def __str__(self) -> str:
        """As sysfs writes it: "0000:3b:00.0"."""
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function}"

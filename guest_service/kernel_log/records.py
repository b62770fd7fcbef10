"""What one record of the kernel log says about a card: an XID, a switch's SXid, a card that appears on the bus, or nothing.

A record is "priority,sequence,microseconds,flags;text" (Linux, Documentation/ABI/testing/dev-kmsg); lines after the first belong to its
dictionary and are skipped. Only the kernel's own records count: whoever may write to /dev/kmsg in the guest gets another facility, and
cannot make a card look sick. The driver's text after the number is not kept, because it holds names of processes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from guest_contract.pci_address import PciAddress

# A line of the driver is under 1 KB (the kernel's own limit of a record's text); more is no record of ours.
RECORD_LIMIT_BYTES = 8192
# The lower three bits of the priority are the level; the rest is the facility, 0 for the kernel (syslog(3)).
_LEVEL_BITS = 3

_ADDRESS = r"(?P<address>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
# Drivers before about 418 write the address without "PCI:".
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_ADDRESS}\): (?P<number>\d{{1,9}})\b")
_SXID = re.compile(rf"nvidia-nvswitch\d+: SXid \((?:PCI:)?{_ADDRESS}\): (?P<number>\d{{1,9}})\b")
# The PCI core, when it meets a device: at boot, and again after a reset that took it off the bus (drivers/pci/probe.c, pci_setup_device).
_APPEARS = re.compile(rf"pci {_ADDRESS}: \[10de:[0-9a-f]{{4}}\] ")


@dataclass(frozen=True, slots=True)
class Xid:
    """One report. `seconds` is the kernel's stamp: since boot, without the time that the machine slept."""

    number: int
    address: PciAddress
    nvswitch: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Appeared:
    """A device of NVIDIA was found on the bus: what was reported of it before is history."""

    address: PciAddress


def parse(record: bytes) -> Xid | Appeared | None:
    """What `record` says; None for everything that is not about a card, and for what is no record."""
    head, found, rest = record[:RECORD_LIMIT_BYTES].partition(b";")
    if not found:
        return None
    fields = head.split(b",")
    try:
        priority, microseconds = int(fields[0]), int(fields[2])
    except (ValueError, IndexError):
        return None
    if priority >> _LEVEL_BITS:
        return None
    text = rest.partition(b"\n")[0].decode("utf-8", "replace")
    for pattern, nvswitch in ((_XID, False), (_SXID, True)):
        if (match := pattern.match(text)) and (address := _address(match)):
            return Xid(int(match["number"]), address, nvswitch, microseconds / 1e6)
    if (match := _APPEARS.match(text)) and (address := _address(match)):
        return Appeared(address)
    return None


def _address(match: re.Match[str]) -> PciAddress | None:
    # The driver leaves the function out: a card is function 0.
    return PciAddress.parse(f"{match['address']}.0")

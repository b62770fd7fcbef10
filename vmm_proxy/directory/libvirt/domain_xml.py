"""The two facts that the proxy needs from a domain's XML: its CID and which of the host's PCI devices it was given.

libvirt writes this text, but tenants choose parts of it (name, description, metadata), so it is read as hostile: bounded in size and depth,
no DOCTYPE and so no entity, and an element counts only at its exact path (metadata may hold a `<devices>` of its own). Rejected:
xml.etree.ElementTree (builds a tree of whatever comes, and expands entities), defusedxml (one more dependency for one handler).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.parsers import expat

from guest_contract.pci_address import PciAddress

# A domain with hundreds of devices takes 200 kB; libvirt itself sends at most 4 MiB of text.
XML_LIMIT_CHARACTERS = 1024 * 1024
# domain/devices/hostdev/source/address is 5 deep, and libvirt's own elements end at about 10.
DEPTH_LIMIT = 64

_VSOCK_CID = ("domain", "devices", "vsock", "cid")
_HOSTDEV = ("domain", "devices", "hostdev")
_HOST_ADDRESS = (*_HOSTDEV, "source", "address")
_GUEST_ADDRESS = (*_HOSTDEV, "address")
# What libvirt writes (docs/formatdomain, "Address"): each part in hexadecimal with 0x, and each may be left out when it is zero.
_NUMBER = re.compile(r"0x[0-9A-Fa-f]{1,8}|[0-9]{1,10}")
# The highest CID that is one machine's (vsock(7): all ones mean any).
CID_LIMIT = 0xFFFFFFFE
# Widths of the parts of a PCI address; Linux writes domains of VMD and Hyper-V with more than 16 bits.
_PCI_LIMITS = {"domain": 0xFFFFFFFF, "bus": 0xFF, "slot": 0x1F, "function": 0x7}


class DomainXmlError(ValueError):
    """A text that is no domain XML, or none that is read here; the message says why and quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class DomainFacts:
    """What one domain has."""

    # None: no vsock device, or one whose CID libvirt chooses when the domain starts.
    cid: int | None
    # The host's PCI addresses (0000:3b:00.0) of the devices passed through, in the order of their addresses in the guest.
    host_pci: tuple[str, ...]


@dataclass(slots=True)
class _Hostdev:
    """A `<hostdev>` that is being read."""

    host: PciAddress | None = None
    guest: PciAddress | None = None


@dataclass(slots=True)
class _Reading:
    """Where the parser is and what it has found."""

    path: list[str] = field(default_factory=list)
    cid: int | None = None
    hostdev: _Hostdev | None = None
    hostdevs: list[_Hostdev] = field(default_factory=list)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.path.append(name)
        if len(self.path) > DEPTH_LIMIT:
            raise DomainXmlError(f"nested deeper than {DEPTH_LIMIT}")
        path = tuple(self.path)
        if len(path) == 1 and name != "domain":
            raise DomainXmlError("no <domain>")
        if path == _VSOCK_CID:
            self.cid = _number(attributes, "address", CID_LIMIT) if "address" in attributes else None
        elif path == _HOSTDEV:
            passed_through = attributes.get("mode", "subsystem") == "subsystem" and attributes.get("type") == "pci"
            self.hostdev = _Hostdev() if passed_through else None
        elif path == _HOST_ADDRESS and self.hostdev:
            self.hostdev.host = _pci(attributes)
        elif path == _GUEST_ADDRESS and self.hostdev and attributes.get("type", "pci") == "pci":
            self.hostdev.guest = _pci(attributes)

    def end(self, _name: str) -> None:
        if tuple(self.path) == _HOSTDEV and self.hostdev:
            self.hostdevs.append(self.hostdev)
            self.hostdev = None
        self.path.pop()

    def facts(self) -> DomainFacts:
        # A device without an address in the guest keeps its place behind those that have one.
        behind = PciAddress(1 << 33, 0, 0, 0)
        in_guest_order = sorted(self.hostdevs, key=lambda hostdev: hostdev.guest or behind)
        return DomainFacts(self.cid, tuple(str(hostdev.host) for hostdev in in_guest_order if hostdev.host))


def read_domain(xml: str) -> DomainFacts:
    """The facts of the domain that `xml` describes; raises DomainXmlError."""
    if len(xml) > XML_LIMIT_CHARACTERS:
        raise DomainXmlError(f"longer than {XML_LIMIT_CHARACTERS} characters")
    reading = _Reading()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartElementHandler = reading.start
    parser.EndElementHandler = reading.end
    try:
        parser.Parse(xml.encode("utf-8", "surrogatepass"), True)
    except expat.ExpatError as error:
        raise DomainXmlError(f"not XML: line {error.lineno}, column {error.offset}") from error
    return reading.facts()


def _refuse_doctype(*_declaration: object) -> None:
    raise DomainXmlError("has a DOCTYPE")


def _pci(attributes: dict[str, str]) -> PciAddress:
    return PciAddress(*(_number(attributes, part, limit) for part, limit in _PCI_LIMITS.items()))


def _number(attributes: dict[str, str], name: str, limit: int) -> int:
    text = attributes.get(name, "0")
    if not _NUMBER.fullmatch(text):
        raise DomainXmlError(f"{name} is no number")
    number = int(text, 16 if text.startswith("0x") else 10)
    if number > limit:
        raise DomainXmlError(f"{name} is more than {limit:#x}")
    return number

"""What a person or a VMM writes of one guest, and the directory's entry that is made of it.

The configuration's `[[guest]]`, a file of `directory.dir`, the registered file and RegisterGuest say the same in the same words, and are
judged here alike. It refuses an address at which no guest can be, and plain TCP beyond this host unless that was asked for. The comment
above a key is what docs/configuration.md says of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from guest_contract.identifiers import GUEST_ID_RULE, valid_guest_id
from guest_contract.pci_address import PciAddress
from guest_transport.addresses import (
    VSOCK_CID_HOST,
    Address,
    AddressError,
    TcpAddress,
    VsockAddress,
    parse_address,
    require_dialable,
)
from guest_transport.errors import SettingsError
from vmm_proxy.directory.directory import DSTACK_PREFIX, GuestEntry
from vmm_proxy.directory.guest_tls_settings import GuestTlsSettings, guest_tls
from vmm_proxy.directory.labels import check_guest_labels

# vsock(7): 0 to 2 are the hypervisor, this machine itself, and the host.
LEAST_GUEST_CID = 3
# More cards than a machine holds, fewer than would bloat a page.
GPUS_LIMIT = 64
# An instance_id is a hash of 20 or 32 bytes; 64 leaves room for a longer one.
INSTANCE_ID_LIMIT_BYTES = 64


class GuestSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[guest]]`, and a file of `directory.dir`: one guest."""

    # The VM's id, by which callers name it: 1 to 128 characters of `[A-Za-z0-9._:-]`, and neither `.` nor `..`.
    id: str
    # Where its agent listens: vsock:CID:PORT, hvsock:/path/to/socket:PORT, unix:/path or HOST:PORT; with dstack+ in front where that is
    # dstack's own agent. No two running guests may share one.
    address: str
    # For people, selectors and scopes of callers; a guest cannot set them.
    labels: dict[str, str] = {}
    # Calls to a stopped guest fail at once.
    state: Literal["running", "stopped"] = "running"
    # Pin, in hex as the guest's Info shows it: who answers must show this on every new connection. Empty: not pinned.
    instance_id: str = ""
    # Host PCI addresses of the cards given to the VM, in the guest's order.
    gpus: tuple[str, ...] = ()
    # TLS of a guest at HOST:PORT, in place of [guest_tls].
    tls: GuestTlsSettings | None = None


def guest_entry(guest: GuestSettings, where: str, *, source: str, allow_plaintext: bool) -> GuestEntry:
    """The directory's entry for `guest`; raises SettingsError with `where` and the key, joined as they are, in front."""
    if not valid_guest_id(guest.id):
        raise SettingsError(f"{where}id: must be {GUEST_ID_RULE}")
    tls = guest_tls(guest.tls, f"{where}tls")
    address, dstack = guest_address(guest.address, f"{where}address", allow_plaintext=allow_plaintext or tls is not None)
    if tls is not None and not isinstance(address, TcpAddress):
        raise SettingsError(f"{where}tls: only a guest at HOST:PORT speaks TLS, not one at {address}")
    if tls is not None and dstack:
        raise SettingsError(f"{where}tls: dstack's agent speaks no TLS; leave tls out")
    return GuestEntry(
        id=guest.id,
        address=address,
        dstack=dstack,
        labels=check_guest_labels(guest.labels, f"{where}labels"),
        running=guest.state == "running",
        instance_id=_instance_id(guest.instance_id, f"{where}instance_id"),
        gpus=check_gpus(guest.gpus, f"{where}gpus"),
        source=source,
        tls=tls,
    )


def check_gpus(gpus: Iterable[str], where: str) -> tuple[str, ...]:
    """Host PCI addresses in the order of the guest's cards; raises SettingsError."""
    addresses = tuple(gpus)
    if len(addresses) > GPUS_LIMIT:
        raise SettingsError(f"{where}: at most {GPUS_LIMIT} PCI addresses are allowed")
    for address in addresses:
        if PciAddress.parse(address) is None:
            raise SettingsError(f"{where}: {address[:80]!a} is no PCI address such as 0000:3b:00.0")
    return addresses


def guest_address(text: str, where: str, *, allow_plaintext: bool) -> tuple[Address, bool]:
    """The address in `text` if a guest can be dialled there, and whether dstack's own agent is there; raises SettingsError."""
    dstack = text.startswith(DSTACK_PREFIX)
    address = any_address(text.removeprefix(DSTACK_PREFIX), where)
    try:
        require_dialable(address)
    except AddressError as error:
        raise SettingsError(f"{where}: {error}") from error
    match address:
        case VsockAddress(cid=cid) if cid == VSOCK_CID_HOST:
            raise SettingsError(f"{where}: {address} is this host; a guest has a CID of its own, from 3, or local")
        case TcpAddress(loopback=False) if not allow_plaintext:
            raise SettingsError(
                f"{where}: plain TCP beyond loopback needs grpc.allow_plaintext = true; or use tls, vsock:, hvsock: or unix:"
            )
    return address, dstack


def any_address(text: str, where: str) -> Address:
    """The address in `text`; raises SettingsError."""
    try:
        return parse_address(text)
    except AddressError as error:
        raise SettingsError(f"{where}: {error}") from error


def _instance_id(text: str, where: str) -> bytes:
    if not re.fullmatch(r"([0-9A-Fa-f]{2})*", text) or len(text) > 2 * INSTANCE_ID_LIMIT_BYTES:
        raise SettingsError(f"{where}: must be hex, at most {INSTANCE_ID_LIMIT_BYTES} bytes")
    return bytes.fromhex(text)

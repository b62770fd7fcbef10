"""The proxy's configuration: one TOML file and the flags that win over it, checked once, then frozen.

It refuses what would make the proxy answer for the wrong VM (a duplicate id, an address that two running guests share) or to
the wrong caller (plain TCP beyond loopback). Unknown keys are errors, so that a misspelt key is never a silent default.
Rejected: letting `--guest` replace an entry of the file, because the entry's pinned identity would vanish with it. The
comment above a key is what docs/configuration.md says of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
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
from guest_transport.settings.read import read_settings
from guest_transport.tls import ServerTls
from guest_transport.tls_settings import TlsSettings, server_tls
from vmm_proxy.directory.directory import (
    Directory,
    DirectoryError,
    GuestEntry,
)
from vmm_proxy.directory.guest_tls import GuestTls
from vmm_proxy.directory.guest_tls_settings import GuestTlsSettings, guest_tls
from vmm_proxy.directory.labels import check_guest_labels
from vmm_proxy.directory.libvirt.settings import LibvirtSettings, check_libvirt
from vmm_proxy.pages.settings import Http, Metrics, PageSetup, page_setup
from vmm_proxy.policy.access import AccessRules
from vmm_proxy.policy.settings import AccessSettings, access_rules

# Only local users whom the socket's group lets in reach this one.
DEFAULT_LISTEN = "unix:/run/vmm-proxy/vmm-proxy.sock"
# More cards than a machine holds, fewer than would bloat a page.
GPUS_LIMIT = 64
# An instance_id is a hash of 20 or 32 bytes; 64 leaves room for a longer one.
INSTANCE_ID_LIMIT_BYTES = 64


class Grpc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[grpc]`: where the proxy's own services listen."""

    # Where ProxiedGuestApi and guest_fleet.v1 are served: unix:/path (mode 0660), HOST:PORT, [v6]:PORT.
    listen: tuple[str, ...] = (DEFAULT_LISTEN,)
    # Allows gRPC over plain TCP beyond loopback, to callers and to guests. Anybody on the network path reads and forges it, so it is
    # asked for by name.
    allow_plaintext: bool = False


class DirectorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[directory]`: where guests come from beside `[[guest]]` and `--guest`."""

    # A folder with one TOML file per guest, watched; a bad file is refused alone. None by default.
    dir: str | None = None
    # Where guests are kept that a VMM registers through DirectoryService; without it none can be, for they would be gone after
    # a restart.
    registered_file: str | None = None


class GuestSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[guest]]`, and a file of `directory.dir`: one guest."""

    # The VM's id, by which callers name it: 1 to 128 characters of `[A-Za-z0-9._:-]`, and neither `.` nor `..`.
    id: str
    # Where its agent listens: vsock:CID:PORT, hvsock:/path/to/socket:PORT, unix:/path or HOST:PORT. No two running guests may share one.
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


class AuditSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[audit]`: where it is kept who shut down and who changed what."""

    # JSON lines about each Shutdown and each change of the directory, which are refused while it cannot be written. Without a file the
    # lines go to the proxy's log, and nothing is refused because they are lost.
    file: str | None = None


class ProxyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    grpc: Grpc = Grpc()
    http: Http = Http()
    metrics: Metrics = Metrics()
    directory: DirectorySettings = DirectorySettings()
    libvirt: LibvirtSettings = LibvirtSettings()
    guest: tuple[GuestSettings, ...] = ()
    access: AccessSettings = AccessSettings()
    tls: TlsSettings | None = None
    guest_tls: GuestTlsSettings | None = None
    audit: AuditSettings = AuditSettings()


class Setup(msgspec.Struct, frozen=True):
    """What app.py builds from: every text of the configuration parsed and judged."""

    listen: tuple[Address, ...]
    guests: tuple[GuestEntry, ...]
    allow_plaintext: bool
    directory_dir: Path | None
    registered_file: Path | None
    # None: no libvirt is followed.
    libvirt: LibvirtSettings | None
    access: AccessRules
    tls: ServerTls | None
    guest_tls: GuestTls | None
    audit_file: Path | None
    pages: PageSetup


def read_setup(
    file: Path | None, *, grpc_flags: Sequence[str] = (), http_flag: str | None = None, guest_flags: Sequence[str] = ()
) -> Setup:
    """The setup of `file`, if any, and the flags; raises SettingsError with one line."""
    where = str(file) if file else "defaults"
    config = read_settings(file, ProxyConfig) if file else ProxyConfig()
    listen = _listen(grpc_flags or config.grpc.listen, "--grpc" if grpc_flags else f"{where}: grpc.listen", config)
    usual_tls = guest_tls(config.guest_tls, f"{where}: guest_tls")
    # With TLS for all of them no guest is reached in the clear.
    plain = config.grpc.allow_plaintext or usual_tls is not None
    guests = [
        guest_entry(guest, f"{where}: guest[{number}].", source=where, allow_plaintext=plain)
        for number, guest in enumerate(config.guest)
    ]
    guests += [_flag_guest(flag, allow_plaintext=plain) for flag in guest_flags]
    _check_together(guests)
    return Setup(
        listen=listen,
        guests=tuple(guests),
        allow_plaintext=plain,
        directory_dir=_directory_dir(config.directory, where),
        registered_file=_registered_file(config.directory, where),
        libvirt=check_libvirt(config.libvirt, where),
        access=access_rules(config.access, where, loopback_only=config.tls is None and _loopback_only(listen)),
        tls=server_tls(config.tls, f"{where}: "),
        guest_tls=usual_tls,
        audit_file=_audit_file(config.audit, where),
        pages=page_setup(
            config.http, config.metrics, flag=http_flag, has_tokens=config.access.token_file is not None, where=where
        ),
    )


def guest_entry(guest: GuestSettings, where: str, *, source: str, allow_plaintext: bool) -> GuestEntry:
    """The directory's entry for `guest`; raises SettingsError with `where` and the key, joined as they are, in front."""
    if not valid_guest_id(guest.id):
        raise SettingsError(f"{where}id: must be {GUEST_ID_RULE}")
    tls = guest_tls(guest.tls, f"{where}tls")
    address = guest_address(guest.address, f"{where}address", allow_plaintext=allow_plaintext or tls is not None)
    if tls is not None and not isinstance(address, TcpAddress):
        raise SettingsError(f"{where}tls: only a guest at HOST:PORT speaks TLS, not one at {address}")
    return GuestEntry(
        id=guest.id,
        address=address,
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


def guest_address(text: str, where: str, *, allow_plaintext: bool) -> Address:
    """The address in `text` if a guest can be dialled there; raises SettingsError."""
    address = _address(text, where)
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
    return address


def _listen(texts: Sequence[str], where: str, config: ProxyConfig) -> tuple[Address, ...]:
    if not texts:
        raise SettingsError(f"{where}: at least one address is needed")
    addresses = tuple(_address(text, where) for text in texts)
    for address in addresses:
        if not isinstance(address, TcpAddress) or address.loopback:
            continue
        if config.tls is None and not config.grpc.allow_plaintext:
            raise SettingsError(
                f"{where}: {address}: plain TCP beyond loopback needs grpc.allow_plaintext = true; or set [tls], or use unix:/path"
            )
        if config.access.token_file is None and (config.tls is None or config.tls.client_authorities is None):
            raise SettingsError(
                f"{where}: {address}: nobody could be let in; set tls.client_authorities or access.token_file, or use unix:/path"
            )
    return addresses


def _loopback_only(listen: Iterable[Address]) -> bool:
    return all(address.loopback for address in listen if isinstance(address, TcpAddress))


def _address(text: str, where: str) -> Address:
    try:
        return parse_address(text)
    except AddressError as error:
        raise SettingsError(f"{where}: {error}") from error


def _flag_guest(flag: str, *, allow_plaintext: bool) -> GuestEntry:
    guest_id, equals, address = flag.partition("=")
    if not equals:
        raise SettingsError(f"--guest: {flag[:120]!a} is not ID=ADDR")
    if not valid_guest_id(guest_id):
        raise SettingsError(f"--guest: the id must be {GUEST_ID_RULE}")
    where = f"--guest {guest_id}"
    return GuestEntry(guest_id, guest_address(address, where, allow_plaintext=allow_plaintext), source="--guest")


def _instance_id(text: str, where: str) -> bytes:
    if not re.fullmatch(r"([0-9A-Fa-f]{2})*", text) or len(text) > 2 * INSTANCE_ID_LIMIT_BYTES:
        raise SettingsError(f"{where}: must be hex, at most {INSTANCE_ID_LIMIT_BYTES} bytes")
    return bytes.fromhex(text)


def _check_together(guests: Iterable[GuestEntry]) -> None:
    directory = Directory()
    for guest in guests:
        try:
            directory.add(guest)
        except DirectoryError as error:
            raise SettingsError(f"{guest.source}: {error}") from error


def _directory_dir(settings: DirectorySettings, where: str) -> Path | None:
    if settings.dir is None:
        return None
    folder = Path(settings.dir)
    if not folder.is_absolute() or not folder.is_dir():
        raise SettingsError(f"{where}: directory.dir: {settings.dir[:120]!a} must be the absolute path of a folder that exists")
    return folder


def _audit_file(settings: AuditSettings, where: str) -> Path | None:
    if settings.file is None:
        return None
    file = Path(settings.file)
    if not file.is_absolute():
        raise SettingsError(f"{where}: audit.file: must be an absolute path, not {settings.file[:120]!a}")
    return file


def _registered_file(settings: DirectorySettings, where: str) -> Path | None:
    if settings.registered_file is None:
        return None
    file = Path(settings.registered_file)
    if not file.is_absolute() or not file.parent.is_dir():
        shown = settings.registered_file[:120]
        raise SettingsError(f"{where}: directory.registered_file: {shown!a} must be an absolute path in a folder that exists")
    return file

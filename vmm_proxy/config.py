"""The proxy's configuration: one TOML file and the flags that win over it, checked once, then frozen.

It refuses what would make the proxy answer for the wrong VM (a duplicate id, an address that two running guests share) or to
the wrong caller (plain TCP beyond loopback). Unknown keys are errors, so that a misspelt key is never a silent default.
Rejected: letting `--guest` replace an entry of the file, because the entry's pinned identity would vanish with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

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
from guest_transport.settings import read_settings
from vmm_proxy.directory import (
    GUEST_ID_RULE,
    Directory,
    DirectoryError,
    GuestEntry,
    valid_guest_id,
)
from vmm_proxy.http.settings import Http, Metrics, PageSetup, page_setup

# Only local users whom the socket's group lets in reach this one.
DEFAULT_LISTEN = "unix:/run/vmm-proxy/vmm-proxy.sock"
LABELS_LIMIT = 32
LABEL_VALUE_LIMIT_BYTES = 256
LABEL_KEY_RULE = "1 to 63 characters of [A-Za-z0-9._/-]"
_LABEL_KEY = re.compile(r"[A-Za-z0-9._/-]{1,63}")
# More cards than a machine holds, fewer than would bloat a page.
GPUS_LIMIT = 64
_PCI_ADDRESS = re.compile(r"([0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
# An instance_id is a hash of 20 or 32 bytes; 64 leaves room for a longer one.
INSTANCE_ID_LIMIT_BYTES = 64


class Grpc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[grpc]`: where the proxy's own services listen."""

    listen: tuple[str, ...] = (DEFAULT_LISTEN,)
    # gRPC over plain TCP beyond loopback, to callers and to guests: anybody on the network path reads and forges it, so it is
    # asked for by name.
    allow_plaintext: bool = False


class DirectorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[directory]`: where guests come from beside `[[guest]]` and `--guest`."""

    # A folder with one TOML file per guest; none by default.
    dir: str | None = None


class GuestSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[guest]]`, and a file of `directory.dir`: one guest."""

    id: str
    address: str
    labels: dict[str, str] = {}
    state: Literal["running", "stopped"] = "running"
    # Hex, as the guest's Info shows it.
    instance_id: str = ""
    gpus: tuple[str, ...] = ()


class ProxyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    grpc: Grpc = Grpc()
    http: Http = Http()
    metrics: Metrics = Metrics()
    directory: DirectorySettings = DirectorySettings()
    guest: tuple[GuestSettings, ...] = ()


class Setup(msgspec.Struct, frozen=True):
    """What app.py builds from: every text of the configuration parsed and judged."""

    listen: tuple[Address, ...]
    guests: tuple[GuestEntry, ...]
    allow_plaintext: bool
    directory_dir: Path | None
    pages: PageSetup


def read_setup(
    file: Path | None, *, grpc_flags: Sequence[str] = (), http_flag: str | None = None, guest_flags: Sequence[str] = ()
) -> Setup:
    """The setup of `file`, if any, and the flags; raises SettingsError with one line."""
    where = str(file) if file else "defaults"
    config = read_settings(file, ProxyConfig) if file else ProxyConfig()
    plain = config.grpc.allow_plaintext
    if grpc_flags:
        listen = _listen(grpc_flags, "--grpc", allow_plaintext=plain)
    else:
        listen = _listen(config.grpc.listen, f"{where}: grpc.listen", allow_plaintext=plain)
    pages = page_setup(config.http, config.metrics, flag=http_flag, where=where)
    guests = [
        guest_entry(guest, f"{where}: guest[{number}]", source=where, allow_plaintext=plain)
        for number, guest in enumerate(config.guest)
    ]
    guests += [_flag_guest(flag, allow_plaintext=plain) for flag in guest_flags]
    _check_together(guests)
    return Setup(listen, tuple(guests), plain, _directory_dir(config.directory, where), pages)


def guest_entry(guest: GuestSettings, where: str, *, source: str, allow_plaintext: bool) -> GuestEntry:
    """The directory's entry for `guest`; raises SettingsError with `where` and the key in front."""
    if not valid_guest_id(guest.id):
        raise SettingsError(f"{where}.id: must be {GUEST_ID_RULE}")
    return GuestEntry(
        id=guest.id,
        address=guest_address(guest.address, f"{where}.address", allow_plaintext=allow_plaintext),
        labels=check_labels(guest.labels, f"{where}.labels"),
        running=guest.state == "running",
        instance_id=_instance_id(guest.instance_id, f"{where}.instance_id"),
        gpus=check_gpus(guest.gpus, f"{where}.gpus"),
        source=source,
    )


def check_labels(labels: dict[str, str], where: str) -> dict[str, str]:
    """`labels` if each is fit for a selector, a table and a metric label; raises SettingsError."""
    if len(labels) > LABELS_LIMIT:
        raise SettingsError(f"{where}: at most {LABELS_LIMIT} labels are allowed")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            raise SettingsError(f"{where}: a key must be {LABEL_KEY_RULE}, not {key[:80]!a}")
        if not value.isprintable() or len(value.encode()) > LABEL_VALUE_LIMIT_BYTES:
            raise SettingsError(f"{where}.{key}: must be printable and at most {LABEL_VALUE_LIMIT_BYTES} bytes")
    return labels


def check_gpus(gpus: Iterable[str], where: str) -> tuple[str, ...]:
    """Host PCI addresses in the order of the guest's cards; raises SettingsError."""
    addresses = tuple(gpus)
    if len(addresses) > GPUS_LIMIT:
        raise SettingsError(f"{where}: at most {GPUS_LIMIT} PCI addresses are allowed")
    for address in addresses:
        if not _PCI_ADDRESS.fullmatch(address):
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
                f"{where}: plain TCP beyond loopback needs grpc.allow_plaintext = true; or use vsock:, hvsock: or unix:"
            )
    return address


def _listen(texts: Sequence[str], where: str, *, allow_plaintext: bool) -> tuple[Address, ...]:
    if not texts:
        raise SettingsError(f"{where}: at least one address is needed")
    addresses = tuple(_address(text, where) for text in texts)
    for address in addresses:
        if isinstance(address, TcpAddress) and not address.loopback and not allow_plaintext:
            raise SettingsError(
                f"{where}: {address}: plain TCP beyond loopback needs grpc.allow_plaintext = true; or use unix:/path"
            )
    return addresses


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

"""The proxy's configuration: one TOML file and the flags that win over it, checked once, then frozen.

It refuses what would make the proxy answer for the wrong VM (a duplicate id, an address that two running guests share) or to
the wrong caller (plain TCP beyond loopback). Unknown keys are errors, so that a misspelt key is never a silent default.
Rejected: letting `--guest` replace an entry of the file, because the entry's pinned identity would vanish with it. The
comment above a key is what docs/configuration.md says of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from guest_contract.identifiers import GUEST_ID_RULE, valid_guest_id
from guest_transport.addresses import Address, TcpAddress, UnixAddress
from guest_transport.errors import SettingsError
from guest_transport.settings.read import read_settings
from guest_transport.tls import ServerTls
from guest_transport.tls_settings import TlsSettings, server_tls
from vmm_proxy.directory.directory import Directory, DirectoryError, GuestEntry
from vmm_proxy.directory.entry import GuestSettings, any_address, guest_address, guest_entry
from vmm_proxy.directory.guest_tls import GuestTls
from vmm_proxy.directory.guest_tls_settings import GuestTlsSettings, guest_tls
from vmm_proxy.directory.kubevirt.settings import KubevirtSettings, KubevirtSetup, check_kubevirt
from vmm_proxy.directory.libvirt.settings import LibvirtSettings, check_libvirt
from vmm_proxy.pages.settings import Http, Metrics, PageSetup, page_setup
from vmm_proxy.policy.access import AccessRules
from vmm_proxy.policy.settings import AccessSettings, access_rules, group_id

# Only local users whom the socket's group lets in reach this one.
DEFAULT_LISTEN = "unix:/run/vmm-proxy/vmm-proxy.sock"


class Grpc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[grpc]`: where the proxy's own services listen."""

    # Where ProxiedGuestApi and guest_fleet.v1 are served: unix:/path (mode 0660), HOST:PORT, [v6]:PORT.
    listen: tuple[str, ...] = (DEFAULT_LISTEN,)
    # Unix sockets (unix:/path, mode 0660) on which whoever may open them is a viewer of all guests: nobody looks at who calls, tokens are
    # not read, and calls are faster for it. All their callers together are one caller to the proxy's limits.
    read_only_listen: tuple[str, ...] = ()
    # The group that these sockets belong to, by name or number; by default the proxy's own. The proxy's user must be a member of it.
    read_only_group: str | int | None = None
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
    kubevirt: KubevirtSettings = KubevirtSettings()
    guest: tuple[GuestSettings, ...] = ()
    access: AccessSettings = AccessSettings()
    tls: TlsSettings | None = None
    guest_tls: GuestTlsSettings | None = None
    audit: AuditSettings = AuditSettings()


class Setup(msgspec.Struct, frozen=True):
    """What app.py builds from: every text of the configuration parsed and judged."""

    listen: tuple[Address, ...]
    read_only_listen: tuple[UnixAddress, ...]
    # None: the proxy's own.
    read_only_group: int | None
    guests: tuple[GuestEntry, ...]
    allow_plaintext: bool
    directory_dir: Path | None
    registered_file: Path | None
    # None: no libvirt is followed.
    libvirt: LibvirtSettings | None
    # None: no cluster is followed.
    kubevirt: KubevirtSetup | None
    access: AccessRules
    tls: ServerTls | None
    guest_tls: GuestTls | None
    audit_file: Path | None
    pages: PageSetup


def read_setup(
    file: Path | None,
    *,
    grpc_flags: Sequence[str] = (),
    http_flag: str | None = None,
    guest_flags: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
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
        read_only_listen=_read_only_listen(config.grpc.read_only_listen, f"{where}: grpc.read_only_listen", listen),
        read_only_group=_read_only_group(config.grpc, where),
        guests=tuple(guests),
        allow_plaintext=plain,
        directory_dir=_directory_dir(config.directory, where),
        registered_file=_registered_file(config.directory, where),
        libvirt=check_libvirt(config.libvirt, where),
        kubevirt=check_kubevirt(config.kubevirt, where, environment),
        access=access_rules(config.access, where, loopback_only=config.tls is None and _loopback_only(listen)),
        tls=server_tls(config.tls, f"{where}: "),
        guest_tls=usual_tls,
        audit_file=_audit_file(config.audit, where),
        pages=page_setup(
            config.http, config.metrics, flag=http_flag, has_tokens=config.access.token_file is not None, where=where
        ),
    )


def _listen(texts: Sequence[str], where: str, config: ProxyConfig) -> tuple[Address, ...]:
    if not texts:
        raise SettingsError(f"{where}: at least one address is needed")
    addresses = tuple(any_address(text, where) for text in texts)
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


def _read_only_listen(texts: Iterable[str], where: str, listen: Sequence[Address]) -> tuple[UnixAddress, ...]:
    addresses = []
    for text in texts:
        address = any_address(text, where)
        if not isinstance(address, UnixAddress):
            raise SettingsError(
                f"{where}: {address}: must be unix:/path, because whoever opens it may read; others go to grpc.listen"
            )
        if address in listen or address in addresses:
            raise SettingsError(f"{where}: {address}: stands twice; a read-only socket needs a path of its own")
        addresses.append(address)
    return tuple(addresses)


def _read_only_group(settings: Grpc, where: str) -> int | None:
    group = settings.read_only_group
    if group is None:
        return None
    if not settings.read_only_listen:
        raise SettingsError(f"{where}: grpc.read_only_group: is without effect; set grpc.read_only_listen too")
    return group_id(group, f"{where}: grpc.read_only_group")


def _loopback_only(listen: Iterable[Address]) -> bool:
    return all(address.loopback for address in listen if isinstance(address, TcpAddress))


def _flag_guest(flag: str, *, allow_plaintext: bool) -> GuestEntry:
    guest_id, equals, address = flag.partition("=")
    if not equals:
        raise SettingsError(f"--guest: {flag[:120]!a} is not ID=ADDR")
    if not valid_guest_id(guest_id):
        raise SettingsError(f"--guest: the id must be {GUEST_ID_RULE}")
    place, dstack = guest_address(address, f"--guest {guest_id}", allow_plaintext=allow_plaintext)
    return GuestEntry(guest_id, place, dstack=dstack, source="--guest")


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

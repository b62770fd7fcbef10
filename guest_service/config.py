"""The configuration of `guest-service serve`: the keys of its TOML file, each default with its reason, and the flags that win over them.

Frozen and checked once, before anything starts: an unknown key, a wrong type, an impossible number or an address that does not parse is
refused with file, key and what is allowed. Nothing here opens a device, a socket or another file than the configuration. Rejected:
environment variables as a third place to look. The comment above a key is what docs/configuration.md says of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from guest_contract.card_fields import DEFAULT_GROUPS, GROUPS, PROCESSES
from guest_transport.addresses import Address, AddressError, TcpAddress, UnixAddress, parse_address
from guest_transport.errors import SettingsError
from guest_transport.settings.read import HostName, read_settings
from guest_transport.tls_settings import TlsSettings

# Longer than an hour is no sampling any more; it is also what keeps `inf` out.
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
AbsolutePath = Annotated[str, msgspec.Meta(pattern="^/", max_length=4096)]
# What `gpu.simulate` leaves unread: the machine's log says nothing about a rack.
KERNEL_LOG = "/dev/kmsg"
# One of the groups of the table.
if TYPE_CHECKING:
    Group = str
else:
    Group = Literal[GROUPS]
# IFNAMSIZ less its terminating zero (linux/if.h).
InterfacePrefix = Annotated[str, msgspec.Meta(min_length=1, max_length=15)]


class Grpc(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[grpc]`."""

    # Where GuestApi is served: vsock:CID:PORT, unix:/path, HOST:PORT, [v6]:PORT. In a VM vsock:any:8000 is what its host's proxy dials. By
    # default nothing outside the guest reaches the agent before its operator names an address.
    listen: tuple[str, ...] = ("unix:/run/guest-service/guest.sock",)
    # Which machines a vsock listener lets in, by CID. 2 is the host; 1 is this machine itself (vsock(7)).
    vsock_cids: tuple[Annotated[int, msgspec.Meta(ge=0, lt=0xFFFFFFFF)], ...] = (2,)


class Http(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[http]`; docs/security.md says what each switch shows, and to whom."""

    # Where the pages and /metrics are served: HOST:PORT, [v6]:PORT, unix:/path, or "off". Loopback, because they tell about the tenant's
    # machine.
    listen: str = "127.0.0.1:8090"
    # Shows system and GPU facts, on /metrics and the dashboard. Off, as all four are: what the guest shows in public is chosen, never a
    # default.
    public_sysinfo: bool = False
    # Shows what containers wrote, on /logs/{container}.
    public_logs: bool = False
    # Shows the measured boot (tcb_info), in the answer to Info as well.
    public_tcbinfo: bool = False
    # Shows the list of containers on the dashboard, and on /metrics together with public_sysinfo.
    public_containers: bool = False
    # Names besides this machine's own under which the pages are asked for; a request for another name is 421, so that a page of somebody
    # else's, whose name was made to resolve to this port, reads nothing. Addresses and localhost need not be named.
    host_names: tuple[HostName, ...] = ()


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[gpu]`."""

    # How long a sample is served without a new one being taken; samples never come closer together. One takes some 0.1 s: every 5 s at
    # most keeps it at 2 % of a core.
    sample_ttl_seconds: Seconds = 5.0
    # How long the driver is left alone after a sample that failed. A wedged driver must not be met with a loop of starts and kills.
    failure_backoff_seconds: Seconds = 30.0
    # A sample that takes longer is killed; what was read until then is served. 100 times one measured sample of one card: enumeration grows
    # with the number of cards. Without persistence mode the driver starts anew for each sample, and with many cards needs more than this.
    sample_timeout_seconds: Seconds = 10.0
    # The first sample after the start of the agent or of the driver may take this long until every card is open; all else is served
    # meanwhile. Eight cards in protected PCIe were reported to need over 120 s.
    first_sample_timeout_seconds: Seconds = 180.0
    # "ahead" serves a steady scraper fresh samples at no more cost; "lazy" samples only when asked.
    refresh: Literal["ahead", "lazy"] = "ahead"
    # Which groups of values are asked of each card beside the base values; [] asks for none. In a confidential VM each of them leaves the
    # protected domain.
    groups: tuple[Group, ...] = DEFAULT_GROUPS
    # Tell the names of the processes in the group "processes", as the kernel has them (15 bytes, chosen by the process). Off, because names
    # say what a tenant runs. The unit must then see other users' processes: ProtectProc=default.
    process_names: bool = False
    # Load NVML from exactly this file. Unset: the loader finds libnvidia-ml.so.1.
    nvml_library: AbsolutePath | None = None
    # Show the cards of a rack (docs/simulator.md) in place of the machine's: its name, h200, h200x8, none, no-driver or
    # sick-h200x8, or its file.
    simulate: Annotated[str, msgspec.Meta(min_length=1)] | None = None


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[host]`."""

    # Where sysfs is mounted; another place is for tests and containers.
    sysfs_root: AbsolutePath = "/sys"
    # Where procfs is mounted.
    procfs_root: AbsolutePath = "/proc"
    # Mount points whose sizes are shown. The root always exists; other mounts may be the tenant's own affair.
    data_disks: tuple[AbsolutePath, ...] = ("/",)
    # Where XIDs are read, the driver's own reports about its cards: the kernel's log, a FIFO with the same records, or "off". Read only
    # where there is an NVIDIA card, and not in place of a rack's own (gpu.simulate) unless another path than this is named.
    kernel_log: Annotated[str, msgspec.Meta(pattern="^(off|/.*)$", max_length=4096)] = KERNEL_LOG
    # First letters of interfaces that are shown beside eth*, en* and wg*; bridges and veths of containers stay private.
    extra_interface_prefixes: tuple[InterfacePrefix, ...] = ()


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[identity]`."""

    # Who the guest is, in TOML, or in JSON when the file is named *.json. Unset: a name derived from the machine id.
    file: AbsolutePath | None = None


class Power(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[power]`."""

    # Whether Shutdown is allowed. Unset: yes on Unix sockets and vsock, which only this machine and its host reach; no on TCP.
    allow_shutdown: bool | None = None
    # What Shutdown runs after its answer: program and arguments.
    shutdown_command: Annotated[tuple[Annotated[str, msgspec.Meta(min_length=1)], ...], msgspec.Meta(min_length=1)] = (
        "systemctl",
        "poweroff",
    )


class Containers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[containers]`."""

    # Where the container engine is asked. "auto": Docker's or Podman's usual socket, whichever exists; "off": none is asked; or a path,
    # which must be there: while it is not, containers are unknown.
    socket: Annotated[str, msgspec.Meta(pattern="^(auto|off|/.*)$")] = "auto"


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[log]`."""

    # Form of the lines on stderr.
    format: Literal["text", "json"] = "text"
    # The least serious lines that are written.
    level: Literal["debug", "info", "warning", "error"] = "info"


class Dstack(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[dstack]`; docs/dstack.md says what it is for."""

    # Answers HTTP/1.1 as dstack's own agent does (pRPC, /api/METHOD), on every address of grpc.listen beside gRPC, so that an unchanged
    # dstack VMM gets its answers from this agent. Off: a second protocol is a second surface. Not together with [tls].
    enabled: bool = False


class GuestConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file; every table and key may be left out."""

    grpc: Grpc = Grpc()
    http: Http = Http()
    gpu: Gpu = Gpu()
    host: Host = Host()
    identity: Identity = Identity()
    power: Power = Power()
    containers: Containers = Containers()
    dstack: Dstack = Dstack()
    log: Log = Log()
    # Without it TCP listeners are plain.
    tls: TlsSettings | None = None


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; None or empty where it says nothing."""

    grpc: tuple[str, ...] = ()
    http: str | None = None
    simulate: str | None = None
    sysfs: Path | None = None
    procfs: Path | None = None
    nvml_library: Path | None = None
    log_format: Literal["text", "json"] | None = None


def load_config(file: Path | None, flags: Flags) -> GuestConfig:
    """The configuration of `file` with `flags` over it; raises SettingsError in one line naming file or flag, key, and what is allowed."""
    config = read_settings(file, GuestConfig) if file is not None else GuestConfig()
    where = str(file)
    if not config.grpc.listen:
        raise SettingsError(f"{where}: grpc.listen: empty; name at least one address")
    _addresses(f"{where}: grpc.listen", config.grpc.listen)
    http_address(config.http.listen, f"{where}: http.listen")
    if config.dstack.enabled and config.tls is not None:
        raise SettingsError(
            f"{where}: dstack.enabled: not together with [tls]: dstack's callers speak HTTP in the clear; leave one out"
        )
    if config.gpu.process_names and PROCESSES not in config.gpu.groups:
        raise SettingsError(f"{where}: gpu.process_names: names nothing without the group {PROCESSES!r} in gpu.groups")
    _addresses("--grpc", flags.grpc)
    if flags.http is not None:
        http_address(flags.http, "--http")
    return _with_flags(config, flags)


def _with_flags(config: GuestConfig, flags: Flags) -> GuestConfig:
    replace = msgspec.structs.replace
    if flags.grpc:
        config = replace(config, grpc=replace(config.grpc, listen=flags.grpc))
    if flags.http is not None:
        config = replace(config, http=replace(config.http, listen=flags.http))
    if flags.log_format is not None:
        config = replace(config, log=replace(config.log, format=flags.log_format))
    gpu = {"simulate": flags.simulate, "nvml_library": flags.nvml_library and str(flags.nvml_library.absolute())}
    host = {"sysfs_root": flags.sysfs, "procfs_root": flags.procfs}
    return replace(
        config,
        gpu=replace(config.gpu, **{key: value for key, value in gpu.items() if value is not None}),
        host=replace(config.host, **{key: str(value.absolute()) for key, value in host.items() if value is not None}),
    )


def needs_restart(before: GuestConfig, after: GuestConfig) -> bool:
    """Whether something differs that a reload does not take: all but the switches of the pages and the log level."""
    replace = msgspec.structs.replace
    pages = replace(after.http, listen=before.http.listen, host_names=before.http.host_names)
    taken = replace(before, http=pages, log=replace(before.log, level=after.log.level))
    return taken != after


def kernel_log_path(config: GuestConfig) -> Path | None:
    """The log to read XIDs from; None where none is read."""
    named = config.host.kernel_log
    return None if named == "off" or (config.gpu.simulate is not None and named == KERNEL_LOG) else Path(named)


def process_names_root(config: GuestConfig) -> Path | None:
    """The procfs where names of processes are read; None where they are not told."""
    return Path(config.host.procfs_root) if config.gpu.process_names else None


def grpc_addresses(config: GuestConfig) -> list[Address]:
    """Where the gRPC server listens; load_config has checked that they parse."""
    return _addresses("grpc.listen", config.grpc.listen)


def http_address(text: str, where: str = "http.listen") -> TcpAddress | UnixAddress | None:
    """Where the pages are served; None for "off"."""
    if text == "off":
        return None
    address = _addresses(where, [text])[0]
    if not isinstance(address, TcpAddress | UnixAddress):
        raise SettingsError(f"{where}: {address} is no address for pages; use HOST:PORT, [v6]:PORT, unix:/path or off")
    return address


def _addresses(where: str, texts: Sequence[str]) -> list[Address]:
    addresses: list[Address] = []
    for text in texts:
        try:
            address = parse_address(text)
        except AddressError as error:
            raise SettingsError(f"{where}: {error}") from error
        if address in addresses and not (isinstance(address, TcpAddress) and address.port == 0):
            raise SettingsError(f"{where}: {address} stands there twice")
        addresses.append(address)
    return addresses

"""The guest's network as NetworkInfo shows it: interfaces, gateways, name servers, WireGuard.

Each part is read apart and fails alone: it is then empty and logged, the others are whole. Only interfaces with a public kind of name are
shown, because the bridges and veths of containers tell a host what the tenant runs. Addresses come from getifaddrs(3) through psutil,
counters from /proc/net/dev (64 bits exact), gateways from rtnetlink through pyroute2. Rejected: /proc/net/route (no IPv6, no multipath).
"""

from __future__ import annotations

import asyncio
import ipaddress
import shutil
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from guest_api import guest_api_pb2
from guest_service.host_facts.command import CommandError, run_command
from guest_service.host_facts.errors import FactError, PartLog
from guest_service.host_facts.off_loop import OffLoop
from guest_service.host_facts.procfs import SHOWN_PREFIXES, parse_net_dev
from guest_service.host_facts.shared_read import SharedRead

T = TypeVar("T")

# The bound for `wg show`; the others are system calls that take milliseconds.
WG_BOUND_SECONDS = 5.0
READ_BOUND_SECONDS = 5.0
# linux/rtnetlink.h: the table that ordinary routes are in, and the type of a route that has a gateway.
_RT_TABLE_MAIN = 254
_RTN_UNICAST = 1


class NetworkFacts:
    """Reads NetworkInformation afresh with each call."""

    def __init__(
        self,
        *,
        procfs: Path = Path("/proc"),
        resolv_conf: Path = Path("/etc/resolv.conf"),
        extra_prefixes: Iterable[str] = (),
        wg_command: Sequence[str] = ("wg", "show"),
        wg_bound_seconds: float = WG_BOUND_SECONDS,
        gateways: Callable[[], list[str]] | None = None,
        part_log: PartLog | None = None,
    ) -> None:
        self._prefixes = (*SHOWN_PREFIXES, *extra_prefixes)
        self._wg_command = tuple(wg_command)
        self._wg_bound_seconds = wg_bound_seconds
        self._wg_there = OffLoop("wireguard", lambda: shutil.which(self._wg_command[0]) is not None, READ_BOUND_SECONDS)
        self._log = part_log or PartLog()
        self._interfaces = OffLoop("interfaces", lambda: read_interfaces(procfs, self._prefixes), READ_BOUND_SECONDS)
        self._gateways = OffLoop("gateways", gateways or read_gateways, READ_BOUND_SECONDS)
        self._shared = SharedRead("read network", self._read)
        self._dns = OffLoop("dns", lambda: read_name_servers(resolv_conf), READ_BOUND_SECONDS)

    async def read(self) -> guest_api_pb2.NetworkInformation:
        """The network now; FactError only when no part at all can be read. Callers at one time share one reading."""
        info = guest_api_pb2.NetworkInformation()
        info.CopyFrom(await self._shared.get())
        return info

    async def _read(self) -> guest_api_pb2.NetworkInformation:
        interfaces, gateways, servers, wg_info = await asyncio.gather(
            self._part("interfaces", self._interfaces.get),
            self._part("gateways", self._gateways.get),
            self._part("dns", self._dns.get),
            self._part("wireguard", self._read_wg),
        )
        if interfaces is gateways is servers is None:
            raise FactError("network", "neither interfaces nor gateways nor name servers can be read; the agent's log says why")
        return guest_api_pb2.NetworkInformation(
            dns_servers=servers or [],
            gateways=[guest_api_pb2.Gateway(address=address) for address in gateways or []],
            interfaces=interfaces or [],
            wg_info=wg_info or "",
        )

    async def _part(self, part: str, read: Callable[[], Awaitable[T]]) -> T | None:
        try:
            value = await read()
        except FactError as error:
            self._log.failed(part, error)
            return None
        except Exception as error:  # noqa: BLE001 -- the part's top: pyroute2 and psutil raise what they like, the rest must go on
            self._log.failed(part, FactError(part, f"{type(error).__name__}: {error}"))
            return None
        self._log.works(part)
        return value

    async def _read_wg(self) -> str:
        if not await self._wg_there.get():
            return ""
        try:
            done = await run_command(self._wg_command, bound_seconds=self._wg_bound_seconds)
        except CommandError as error:
            raise FactError("wireguard", str(error)) from error
        if done.status != 0:
            raise FactError("wireguard", f"wg show ended with {done.status}: {done.error}")
        return done.output.decode("utf-8", "replace")


def read_interfaces(procfs: Path, prefixes: tuple[str, ...]) -> list[guest_api_pb2.Interface]:
    """The interfaces whose names start with one of `prefixes`, by name."""
    try:
        counters = parse_net_dev((procfs / "net" / "dev").read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise FactError("interfaces", f"net/dev: {error.strerror or error}") from error
    except ValueError as error:
        raise FactError("interfaces", str(error)) from error
    import psutil  # noqa: PLC0415 -- 50 ms of the agent's start, for a question that few ask

    addresses = psutil.net_if_addrs()
    shown = []
    for name in sorted(counters):
        if name.startswith(prefixes):
            rx_bytes, tx_bytes, rx_errors, tx_errors = counters[name]
            shown.append(
                guest_api_pb2.Interface(
                    name=name,
                    addresses=ip_addresses((entry.family, entry.address, entry.netmask) for entry in addresses.get(name, ())),
                    rx_bytes=rx_bytes,
                    tx_bytes=tx_bytes,
                    rx_errors=rx_errors,
                    tx_errors=tx_errors,
                )
            )
    return shown


def ip_addresses(entries: Iterable[tuple[int, str, str | None]]) -> list[guest_api_pb2.IpAddress]:
    """IPv4 and IPv6 addresses of (family, address, netmask) as getifaddrs gives them, the mask as a prefix length."""
    found = []
    for family, address, netmask in entries:
        plain = address.partition("%")[0]
        if family == socket.AF_INET:
            # Point-to-point links have no mask: they reach one address.
            prefix = ipaddress.IPv4Network((0, netmask or "255.255.255.255")).prefixlen
        elif family == socket.AF_INET6:
            # Python's IPv6Network takes no mask in address form.
            prefix = int(ipaddress.IPv6Address(netmask)).bit_count() if netmask else 128
        else:
            continue
        found.append(guest_api_pb2.IpAddress(address=plain, prefix=prefix))
    return found


def read_gateways() -> list[str]:
    """Addresses of the default gateways, IPv4 before IPv6, best metric first."""
    from pyroute2 import IPRoute  # noqa: PLC0415 -- takes 0.2 s and 10 MB; most agents are never asked for their network

    found: list[str] = []
    with IPRoute() as netlink:
        for family in (socket.AF_INET, socket.AF_INET6):
            found += gateways_of([(route, dict(route["attrs"])) for route in netlink.get_routes(family=family)])
    return list(dict.fromkeys(found))


def gateways_of(routes: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:  # Any: rtnetlink's own types
    """Gateways of the default routes among (route, attributes); linux/rtnetlink.h names the attributes."""
    ranked: list[tuple[int, str]] = []
    for route, attributes in routes:
        table = attributes.get("RTA_TABLE", route["table"])
        if route["dst_len"] != 0 or route["type"] != _RTN_UNICAST or table != _RT_TABLE_MAIN:
            continue
        hops = [attributes, *(dict(hop["attrs"]) for hop in attributes.get("RTA_MULTIPATH") or ())]
        for hop in hops:
            address = hop.get("RTA_GATEWAY") or (hop.get("RTA_VIA") or {}).get("addr")
            if address:
                ranked.append((attributes.get("RTA_PRIORITY") or 0, str(address)))
    return [address for _, address in sorted(ranked, key=lambda entry: entry[0])]


def read_name_servers(resolv_conf: Path) -> list[str]:
    """Name servers in resolver order; none when the file does not exist, as resolv.conf(5) has it."""
    try:
        return parse_resolv_conf(resolv_conf.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FactError("dns", f"resolv.conf: {error.strerror or error}") from error


def parse_resolv_conf(text: str) -> list[str]:
    """Addresses of the nameserver lines; resolv.conf(5): keyword first, comments start with # or ;."""
    servers = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                ipaddress.ip_address(words[1])
            except ValueError:
                continue  # The resolver skips what is no address, too.
            servers.append(words[1])
    return servers

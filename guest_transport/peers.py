"""Who is at the other end of a call: read from the kernel at accept, for callers that gRPC itself does not know.

gRPC tells a servicer nothing about a Unix client, and cannot speak vsock. A relayed connection therefore reaches gRPC's private socket from
a socket with a name of its own, made up for this one connection; gRPC reports that name as the peer, and Peers knows who it stands for.
Anybody can give a socket such a name, so it means something only where nobody but the relay can connect: a server that has one relayed
listener relays all its Unix listeners (docs/decisions/peer-identity.md).

Rejected: metadata (the relay would have to speak HTTP/2); looking at gRPC's sockets in /proc/self/fd (tells who is connected, not who
makes which call).
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import secrets
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias
from urllib.parse import unquote

# asm-generic/socket.h: the supplementary groups of the peer, as of its connect(2); not in Python's socket module.
_SO_PEERGROUPS = 59
# Python takes at most 1 KiB from getsockopt. A process with more groups (NGROUPS_MAX is 65,536) counts as having none beyond its gid:
# whoever decides by group then gives it less, never more.
_GROUPS_LIMIT = 256
_CREDENTIALS = struct.Struct("=iII")


@dataclass(frozen=True, slots=True)
class UnixPeer:
    """A process that connected through a Unix socket, as of its connect(2). All None: connected to gRPC directly, and not known."""

    pid: int | None = None
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "unix" if self.uid is None else f"unix uid {self.uid} gid {self.gid} pid {self.pid}"


@dataclass(frozen=True, slots=True)
class VsockPeer:
    """The machine at the other end of a vsock, and the port it connected from."""

    cid: int
    port: int

    def __str__(self) -> str:
        return f"vsock CID {self.cid}"


@dataclass(frozen=True, slots=True)
class TcpPeer:
    """An IP address and the port it connected from; whoever is behind it is for TLS to say."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether it is a process of this machine."""
        return self._address.is_loopback

    @property
    def network(self) -> str:
        """What is counted as one peer: its address, of IPv6 the /64 that a host has for itself."""
        address = self._address
        return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))

    @property
    def _address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        return ipaddress.ip_address(self.host.partition("%")[0])


@dataclass(frozen=True, slots=True)
class ListenerPeer:
    """Whoever may open one listener: nobody looks at who it is, and all of them are one. `name`: what they are called."""

    name: str

    def __str__(self) -> str:
        return self.name


Peer: TypeAlias = UnixPeer | VsockPeer | TcpPeer | ListenerPeer


# A process and a port end with the connection.
_ONE_CONNECTION = re.compile(r" pid \d+\b|(?<=[\d\]]):\d+$")


def lasting_name(caller: str) -> str:
    """A peer's words without what each connection has anew: the same for a caller that comes again and again."""
    return _ONE_CONNECTION.sub("", caller)


def told_apart(peer: Peer) -> str | None:
    """What `peer` is called on each of its connections; None where it cannot be told from others."""
    if isinstance(peer, TcpPeer):
        return peer.network
    return None if peer == UnixPeer() else lasting_name(str(peer))


class _Context(Protocol):
    def peer(self) -> str: ...


class Peers:
    """The peers of one server; app.py makes it, the server fills it, servicers ask it. `others`: who connects to gRPC itself."""

    def __init__(self, others: UnixPeer | ListenerPeer = UnixPeer()) -> None:
        self._named: dict[str, Peer] = {}
        self._others = others

    def of(self, context: _Context) -> Peer:
        """Who makes the call of `context`. Ask at the begin of the call: a peer is forgotten when its connection ends."""
        text = context.peer()
        kind, _, rest = text.partition(":")
        if kind in {"ipv4", "ipv6"}:
            host, _, port = unquote(rest).rpartition(":")
            return TcpPeer(host.strip("[]"), int(port))
        return self._named.get(text, self._others)

    @contextlib.contextmanager
    def naming(self, peer: Peer) -> Iterator[str]:
        """A socket name that stands for `peer` while the context lasts: an abstract one, so that no file is left behind."""
        name = f"guestscope-peer-{secrets.token_hex(16)}"
        self._named[f"unix-abstract:{name}"] = peer
        try:
            yield f"\0{name}"
        finally:
            del self._named[f"unix-abstract:{name}"]


def tcp_peer(address: object) -> TcpPeer:
    """Who connected from `address`, as accept(2) and the kernel give it; an IPv4 address that IPv6 wraps is itself."""
    match address:
        case (str(host), int(port), *_):
            wrapped = ipaddress.ip_address(host.partition("%")[0])
            return TcpPeer(str(getattr(wrapped, "ipv4_mapped", None) or host), port)
    raise ValueError(f"no TCP address: {address!r}")


def unix_peer(accepted: socket.socket) -> UnixPeer:
    """The process at the other end of an accepted Unix socket (unix(7), SO_PEERCRED)."""
    pid, uid, gid = _CREDENTIALS.unpack(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        groups = accepted.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _GROUPS_LIMIT)
    except OSError:
        groups = b""
    return UnixPeer(pid, uid, gid, struct.unpack(f"={len(groups) // 4}I", groups))

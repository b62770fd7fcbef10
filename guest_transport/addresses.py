"""One syntax for addresses, parsed before gRPC sees them.

gRPC's own parsing is no check: a missing port means 443, port 99999 wraps around, and an unknown scheme becomes a DNS name. So every
address of a flag or a file is parsed here first, and only a parsed address is ever turned into a gRPC target. Two texts for one address
parse to equal values, so that "registered twice" is a comparison; it refuses what would need the network to decide (no name is resolved).

    vsock:CID:PORT          AF_VSOCK; CID a number, `any`, `host` or `local`
    hvsock:/path:PORT       hybrid vsock of Firecracker and Cloud Hypervisor: a Unix socket that speaks CONNECT
    unix:/path              Unix socket
    HOST:PORT, [v6]:PORT    TCP
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote

# Special CIDs of vsock(7).
VSOCK_CIDS = {"any": 0xFFFFFFFF, "local": 1, "host": 2}
VSOCK_CID_ANY = VSOCK_CIDS["any"]
# Lets the kernel choose when listening (vsock(7)); no text parses to it.
VSOCK_PORT_ANY = 0xFFFFFFFF
VSOCK_CID_HOST = VSOCK_CIDS["host"]
# sun_path is 108 bytes with its terminating zero (unix(7)).
UNIX_PATH_BYTES = 107
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
# Interface names have at most 15 bytes (IFNAMSIZ); an index is digits.
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,15}")
_SCHEMES = ("unix", "vsock", "hvsock")
_SYNTAX = "use unix:/path, HOST:PORT, [v6]:PORT, vsock:CID:PORT or hvsock:/path:PORT"


class AddressError(ValueError):
    """A text that is no address; its message names the text and what is allowed."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket at an absolute path."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"

    @property
    def grpc_target(self) -> str:
        """The address as gRPC takes it, to dial and to listen: a URI, so `%`, `?` and `#` of the path are escaped."""
        return f"unix:{quote(self.path)}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP port of a host name or IP address. Port 0 lets the kernel choose when listening."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def grpc_target(self) -> str:
        """The address as gRPC dials it, with the scheme spelt out so that no host name is taken for a scheme."""
        try:
            version = ipaddress.ip_address(self.host).version
        except ValueError:
            return f"dns:{self}"
        return f"ipv{version}:{str(self).replace('%', '%25')}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.rstrip(".").lower() == "localhost"


@dataclass(frozen=True, slots=True)
class VsockAddress:
    """A port of an AF_VSOCK context id."""

    cid: int
    port: int

    def __str__(self) -> str:
        names = {number: name for name, number in VSOCK_CIDS.items()}
        return f"vsock:{names.get(self.cid, self.cid)}:{self.port}"


@dataclass(frozen=True, slots=True)
class HvsockAddress:
    """A vsock port behind the Unix socket of a VMM with hybrid vsock."""

    path: str
    port: int

    def __str__(self) -> str:
        return f"hvsock:{self.path}:{self.port}"


Address: TypeAlias = UnixAddress | TcpAddress | VsockAddress | HvsockAddress


def require_dialable(address: Address) -> Address:
    """`address` itself; raises AddressError when one can listen there but not dial it."""
    match address:
        case TcpAddress(port=0):
            raise AddressError(f"{address} cannot be dialled: port 0 only lets a listener choose")
        case VsockAddress(cid=0 | 0xFFFFFFFF):
            raise AddressError(f"{address} cannot be dialled: name the guest's own CID, `host` or `local`")
    return address


def parse_address(text: str) -> Address:
    """The address that `text` names; raises AddressError with the text, shortened, and what is allowed."""
    scheme, colon, rest = text.partition(":")
    if not colon:
        raise _refusal(text, f"it has no port; {_SYNTAX}")
    match scheme:
        case "unix":
            return UnixAddress(_path(text, rest))
        case "vsock":
            cid, _, port = rest.partition(":")
            return VsockAddress(_cid(text, cid), _number(text, port, "port", 1, 0xFFFFFFFE))
        case "hvsock":
            path, _, port = rest.rpartition(":")
            return HvsockAddress(_path(text, path), _number(text, port, "port", 1, 0xFFFFFFFE))
    return _tcp(text)


def _tcp(text: str) -> TcpAddress:
    host, _, port = text.rpartition(":")
    number = _number(text, port, "port", 0, 65535)
    if host.startswith("[") and host.endswith("]"):
        return TcpAddress(_ipv6(text, host[1:-1]), number)
    if ":" in host:
        raise _refusal(text, f"an IPv6 address needs brackets, and no other scheme is known; {_SYNTAX}")
    if host.lower() in _SCHEMES:
        # As a host it would be another address in its own text, which is in lower case.
        raise _refusal(text, f"a scheme is written in lower case; {_SYNTAX}")
    if not _HOST.fullmatch(host):
        raise _refusal(text, f"{'it has no host' if not host else 'its host is no host name'}; {_SYNTAX}")
    if re.fullmatch(r"[0-9.]+", host):
        try:
            return TcpAddress(str(ipaddress.IPv4Address(host)), number)
        except ValueError:
            raise _refusal(text, "its host is no IPv4 address") from None
    return TcpAddress(host.lower(), number)


def _ipv6(text: str, host: str) -> str:
    try:
        parsed = ipaddress.IPv6Address(host)
    except ValueError:
        raise _refusal(text, "what stands in brackets is no IPv6 address") from None
    if parsed.scope_id is not None and not _SCOPE.fullmatch(parsed.scope_id):
        raise _refusal(text, "the scope after % is no interface")
    return str(parsed)


def _path(text: str, path: str) -> str:
    if not path.startswith("/"):
        raise _refusal(text, "the path must be absolute")
    if not path.isprintable():
        raise _refusal(text, "the path must be printable UTF-8")
    # `//` and `/./` name the same file; `..` stays, because it may follow a symbolic link.
    path = "/" + "/".join(part for part in path.split("/") if part not in {"", "."})
    if len(path.encode()) > UNIX_PATH_BYTES:
        raise _refusal(text, f"the path must have at most {UNIX_PATH_BYTES} bytes")
    if path == "/":
        raise _refusal(text, "the path names no file")
    return path


def _cid(text: str, cid: str) -> int:
    return VSOCK_CIDS[cid] if cid in VSOCK_CIDS else _number(text, cid, "CID (a number, any, host or local)", 0, 0xFFFFFFFF)


def _number(text: str, digits: str, what: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", digits) or not low <= int(digits) <= high:
        raise _refusal(text, f"the {what} must be from {low} to {high}; {_SYNTAX}")
    return int(digits)


def _refusal(text: str, reason: str) -> AddressError:
    shown = ascii(text if len(text) <= 120 else text[:120] + "…")
    return AddressError(f"{shown} is no address: {reason}")

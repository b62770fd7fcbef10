"""TCP beside gRPC: the addresses of this host that a listener binds, tried before gRPC sees them; and connections of our own.

gRPC binds some of a name's addresses and is content, says neither which port was taken nor why, and writes lines of its own to stderr.
Trying first gives the operator one line. Between the try and gRPC's own bind another program may take the port; gRPC then fails as
well, only with fewer words.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket

from guest_transport.addresses import TcpAddress
from guest_transport.errors import ListenError

# Resolving the name of an own address is a look into /etc/hosts; more than this is a name server that does not answer.
RESOLVE_SECONDS = 5.0
# What a host without IPv6 says about `::1`, which its /etc/hosts may name all the same.
_NOT_OF_THIS_HOST = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


async def own_hosts(address: TcpAddress) -> list[str]:
    """The IP addresses to bind for `address`; raises ListenError when there is none or one of them is taken."""
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
    except TimeoutError as error:
        raise ListenError(f"{address}: cannot listen: the host name did not resolve within {RESOLVE_SECONDS} s") from error
    except OSError as error:
        raise ListenError(f"{address}: cannot listen: the host name does not resolve: {error.strerror}") from error
    hosts, refusal = [], "no address"
    for family, _, _, _, where in found:
        try:
            _try_bind(family, where)
        except OSError as error:
            if error.errno not in _NOT_OF_THIS_HOST:
                raise ListenError(f"{address}: cannot listen: port {address.port}: {error.strerror}") from error
            refusal = f"{error.strerror}: no address of this host"
        else:
            # A scope is part of the address; getaddrinfo gives it as a number of its own.
            scope = f"%{where[3]}" if len(where) == 4 and where[3] and "%" not in str(where[0]) else ""
            hosts.append(f"{where[0]}{scope}")
    if not hosts:
        raise ListenError(f"{address}: cannot listen: {refusal}")
    return list(dict.fromkeys(hosts))


async def connect(address: TcpAddress) -> socket.socket:
    """A non-blocking socket connected to the first address of the host that takes it; raises OSError. The caller bounds the wait."""
    loop = asyncio.get_running_loop()
    refusal = OSError(errno.EADDRNOTAVAIL, "the host name has no address")
    for family, _, _, _, where in await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            await loop.sock_connect(connection, where)
        except OSError as error:
            connection.close()
            # asyncio puts words of its own before the system's.
            refusal = OSError(error.errno, os.strerror(error.errno)) if error.errno else error
        except BaseException:
            connection.close()
            raise
        else:
            # HTTP/2 frames are small and answered at once; gRPC sets this on its own sockets as well.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
    raise refusal


def _try_bind(family: int, where: tuple[object, ...]) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As gRPC binds: connections of the last process in TIME_WAIT do not count, a listening socket does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)

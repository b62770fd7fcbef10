"""TCP sockets for the relay: a listener on each address of a host name, and connections.

All addresses of a name are bound, or none, and the error names the port and the reason. Rejected: gRPC's own listeners. They bind some of a
name's addresses and are content, say neither which port was taken nor why, and know no bound for one peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket

from guest_transport.addresses import TcpAddress
from guest_transport.errors import ListenError
from guest_transport.sockets.unix import LISTEN_BACKLOG

# Resolving the name of an own address is a look into /etc/hosts; more than this is a name server that does not answer.
RESOLVE_SECONDS = 5.0
# What a host without IPv6 says about `::1`, which its /etc/hosts may name all the same.
_NOT_OF_THIS_HOST = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


async def listen(address: TcpAddress) -> list[socket.socket]:
    """A listening, non-blocking socket for each IP address of `address`, all on one port; raises ListenError."""
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
    except TimeoutError as error:
        raise ListenError(f"{address}: cannot listen: the host name did not resolve within {RESOLVE_SECONDS} s") from error
    except OSError as error:
        raise ListenError(f"{address}: cannot listen: the host name does not resolve: {error.strerror}") from error
    port, refusal = address.port, "no address"
    with contextlib.ExitStack() as unwanted:
        bound: list[socket.socket] = []
        for family, where in dict.fromkeys((family, where) for family, _, _, _, where in found):
            try:
                bound.append(unwanted.enter_context(_bind(family, (where[0], port, *where[2:]))))
            except OSError as error:
                if error.errno not in _NOT_OF_THIS_HOST:
                    raise ListenError(f"{address}: cannot listen: port {port}: {error.strerror}") from error
                refusal = f"{error.strerror}: no address of this host"
            else:
                # Port 0 is chosen for the first address of a name; the others get the same.
                port = bound[0].getsockname()[1]
        if not bound:
            raise ListenError(f"{address}: cannot listen: {refusal}")
        unwanted.pop_all()
    return bound


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
            send_at_once(connection)
            return connection
    raise refusal


def send_at_once(connection: socket.socket) -> None:
    """HTTP/2 frames are small and answered at once; gRPC sets this on its own sockets as well."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _bind(family: int, where: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # Connections of the last process in TIME_WAIT do not count, a listening socket does.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `[::]` takes IPv4 as well.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(where)
        listener.listen(LISTEN_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener

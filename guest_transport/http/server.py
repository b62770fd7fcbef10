"""Listens for HTTP in the server's event loop, or takes connections that another part accepted, and stops with requests in progress
answered.

uvicorn's protocol does the HTTP. Rejected: uvicorn's own Server, which takes the process's signals for itself, exits the process when a
port is taken, and wakes ten times a second on a machine where nobody asks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection
from functools import partial

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from guest_transport.accept_queue import ACCEPTS_PER_ROUND, lengthen_queues
from guest_transport.addresses import Address, TcpAddress, UnixAddress
from guest_transport.errors import ListenError
from guest_transport.http.concurrency import REQUESTS_AT_ONCE, RequestLimit
from guest_transport.http.connections import CONNECTION, BoundedConnection, ClientBook, ClientLimits, Sender
from guest_transport.http.host_names import HostNames
from guest_transport.peers import TcpPeer
from guest_transport.sockets import unix
from guest_transport.sockets.socket_files import SocketFile

log = logging.getLogger(__name__)

# Requests in progress get this long after stop(); a server must be gone within 5 s of a signal.
STOP_GRACE_SECONDS = 3.0
# The scraper's user reads the socket through its group; nobody else.
SOCKET_MODE = 0o660
# As many connections wait to be accepted as may be open.
BACKLOG = 512


class PageServer:
    """An app on one address, on a socket that systemd already opened, or on connections that are handed to take(); on TCP for requests that
    name an address, this machine or one of `host_names` only. `stopping` is set at the begin of stop(), for answers that would never end by
    themselves."""

    def __init__(
        self,
        *,
        limits: ClientLimits | None = None,
        requests_at_once: int = REQUESTS_AT_ONCE,
        host_names: Collection[str] = (),
    ) -> None:
        self._host_names = host_names
        self._requests_at_once = requests_at_once
        self._book = ClientBook(limits or ClientLimits())
        self._state = ServerState()
        self._listener: asyncio.Server | None = None
        self._claim: SocketFile | None = None
        self._handed: Callable[[Sender], BoundedConnection] | None = None
        self.stopping = asyncio.Event()
        self.addresses: list[Address] = []

    async def start(self, app: ASGIApp, listen: Address | socket.socket | None) -> None:
        """Serve `app`, at None to what take() gets; raises ListenError with one line that names the address and why not."""
        config = _protocol_config(RequestLimit(self._checked(app, listen), self._requests_at_once), self._book.limits)
        loop = asyncio.get_running_loop()

        def connection(sender: Sender | None = None) -> BoundedConnection:
            return BoundedConnection(config, self._state, self._book, loop, sender)

        if listen is None:
            self._handed = connection
            return
        if isinstance(listen, socket.socket):
            self._listener = await loop.create_server(connection, sock=listen, backlog=ACCEPTS_PER_ROUND)
        elif isinstance(listen, TcpAddress):
            self._listener = await _listen_tcp(listen, connection)
        elif isinstance(listen, UnixAddress):
            self._listener = await self._listen_unix(listen, connection)
        else:
            raise ListenError(f"{listen}: HTTP listens on HOST:PORT or unix:/path only")
        lengthen_queues(self._listener, BACKLOG)
        # A Unix socket's own name is where it was bound, and it has moved since.
        self.addresses = [listen if isinstance(listen, UnixAddress) else _address_of(held) for held in self._listener.sockets]
        for address in self.addresses:
            log.info("listening for HTTP on %s", address)

    async def take(self, connection: socket.socket, sender: Sender) -> None:
        """Serve `connection`, which `sender` made; it is owned from here on."""
        if self._handed is None or self.stopping.is_set():
            connection.close()
            return
        await asyncio.get_running_loop().connect_accepted_socket(partial(self._handed, sender), connection)

    def _checked(self, app: ASGIApp, listen: Address | socket.socket | None) -> ASGIApp:
        if isinstance(listen, UnixAddress) or (isinstance(listen, socket.socket) and listen.family == socket.AF_UNIX):
            return app
        own = [listen.host] if isinstance(listen, TcpAddress) else []
        checked = HostNames(app, [*self._host_names, *own])
        if listen is not None:
            return checked

        async def by_sender(scope: Scope, receive: Receive, send: Send) -> None:
            over_tcp = isinstance(scope["state"][CONNECTION].sender.peer, TcpPeer)
            await (checked if over_tcp else app)(scope, receive, send)

        return by_sender

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Accept nobody any more, end streams, answer what is in progress within `grace_seconds`, end the rest."""
        self.stopping.set()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=grace_seconds)
        for task in list(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=1.0)
        for connection in list(self._state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        # Aborted transports tell their protocols in the loop's next turn.
        await asyncio.sleep(0)
        if self._claim is not None:
            await asyncio.to_thread(self._claim.release)

    async def _listen_unix(self, address: UnixAddress, connection: Callable[[], BoundedConnection]) -> asyncio.Server:
        self._claim = await asyncio.to_thread(SocketFile.claim, address.path)
        try:
            async with self._claim.binding(SOCKET_MODE) as place:
                listener = unix.listen(place)
            return await asyncio.get_running_loop().create_server(connection, sock=listener, backlog=ACCEPTS_PER_ROUND)
        except ListenError:
            await asyncio.to_thread(self._claim.release)
            self._claim = None
            raise


async def _listen_tcp(address: TcpAddress, connection: Callable[[], BoundedConnection]) -> asyncio.Server:
    try:
        return await asyncio.get_running_loop().create_server(connection, address.host, address.port, backlog=ACCEPTS_PER_ROUND)
    except OSError as error:
        raise ListenError(
            f"{address}: cannot listen for HTTP: {_reason(error)}; choose another address with --http, or --http off"
        ) from error


def _protocol_config(app: RequestLimit, limits: ClientLimits) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.idle_seconds,
    )
    config.load()
    # Each line there is a client's mistake ("Invalid HTTP request received"): a flood of them must not fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return config


def _reason(error: OSError) -> str:
    """The system's reason alone: asyncio's text repeats the address, and a resolver's number is no errno."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return str(error.strerror or error)
    return os.strerror(error.errno).lower()


def _address_of(held: socket.socket) -> Address:
    if held.family == socket.AF_UNIX:
        return UnixAddress(held.getsockname())
    host, port = held.getsockname()[:2]
    return TcpAddress(host, port)

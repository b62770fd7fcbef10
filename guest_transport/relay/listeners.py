"""The listeners of a server whose connections reach gRPC through the relay: vsock, TCP, and Unix sockets whose callers must be known.

All of them end at a private Unix socket of gRPC in a folder of mode 0700, those with TLS at a second one. Who may connect is decided here,
from what the kernel says about the peer, before a byte reaches gRPC. It fails closed: a peer that the kernel does not describe is refused.

Where HTTP/1.1 is spoken as well, the first bytes of a connection say which of the two it is, and one port needs one rule.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator

from guest_transport import options
from guest_transport.addresses import TcpAddress, UnixAddress, VsockAddress
from guest_transport.peers import Peer, Peers, TcpPeer, VsockPeer, tcp_peer, told_apart, unix_peer
from guest_transport.relay.relay import Relay, RelayRefusedError
from guest_transport.sockets import tcp, unix
from guest_transport.sockets.private_folder import PrivateFolder

# A connection takes two descriptors and a few hundred KiB at worst; a host has one or two to a guest, a proxy's clients come in dozens.
CONNECTIONS_LIMIT = 512
# Of those, what one user, one CID or one IP address may hold: with all its calls (100 each) it stays under what the server takes from
# everybody. On loopback all users look alike, and share what there is.
CONNECTIONS_OF_ONE = 64
# gRPC accepts at once unless this process is stuck, and then waiting longer helps nobody.
_HANDOVER_SECONDS = 2.0

# What a connection begins with that speaks HTTP/2 (RFC 9113, 3.4); no method of HTTP/1.1 begins so.
_HTTP2 = b"PRI"
# Takes a connection that speaks HTTP/1.1: the socket, who made it, and what gRPC would call that peer.
TakeHttp = Callable[[socket.socket, Peer, str], Awaitable[None]]

# Says who is at the other end of an accepted socket, or refuses; gets the socket and its address.
Identify = Callable[[socket.socket, object], Peer]


class RelayedListeners:
    """Any number of listening sockets in front of the private sockets that gRPC listens on: `grpc_target` and, with TLS, `tls_target`."""

    def __init__(
        self,
        peers: Peers,
        vsock_cids: Collection[int],
        on_refused: Callable[[], None] = lambda: None,
        take_http: TakeHttp | None = None,
    ) -> None:
        self._peers = peers
        self._take_http = take_http
        self._on_refused = on_refused
        self._vsock_cids = vsock_cids
        self._relays: list[Relay] = []
        # By what a peer is called on each of its connections.
        self._held: Counter[str] = Counter()
        self._folder = PrivateFolder()
        self._path = self._folder.file("grpc")
        self._tls_path = self._folder.file("tls")

    @property
    def grpc_target(self) -> str:
        """Where gRPC must listen for them."""
        return UnixAddress(self._path).grpc_target

    @property
    def tls_target(self) -> str:
        """Where gRPC must listen with TLS, for what was added so."""
        return UnixAddress(self._tls_path).grpc_target

    def add_unix(self, address: UnixAddress, listener: socket.socket) -> None:
        """Relay what `listener`, a Unix socket, accepts; the peer's uid, gid and pid become known."""
        self._add(str(address), listener, lambda accepted, _address: unix_peer(accepted))

    def add_vsock(self, address: VsockAddress, listener: socket.socket) -> None:
        """Relay what `listener`, a vsock socket, accepts from a CID that is allowed."""
        self._add(str(address), listener, self._allowed_vsock_peer)

    def add_tcp(self, address: TcpAddress, listener: socket.socket, *, tls: bool) -> None:
        """Relay what `listener`, a TCP socket, accepts, to gRPC's socket with TLS if `tls`."""

        def identify(accepted: socket.socket, peer: object) -> TcpPeer:
            tcp.send_at_once(accepted)
            return tcp_peer(peer)

        self._add(str(address), listener, identify, self._tls_path if tls else self._path)

    def start(self) -> None:
        """Begin to accept; gRPC must be listening."""
        for relay in self._relays:
            relay.start()

    def stop_accepting(self) -> None:
        """Accept no more; calls in flight go on."""
        for relay in self._relays:
            relay.stop_accepting()

    async def close(self) -> None:
        """End what is left."""
        for relay in self._relays:
            await relay.close()
        await asyncio.to_thread(self._folder.close)

    def _allowed_vsock_peer(self, _accepted: socket.socket, address: object) -> VsockPeer:
        match address:
            case (int(cid), int(port)) if cid in self._vsock_cids:
                return VsockPeer(cid, port)
            case (int(cid), int(_)):
                allowed = ", ".join(str(cid) for cid in sorted(self._vsock_cids)) or "none"
                raise RelayRefusedError(f"refused a connection from CID {cid} (allowed: {allowed})")
        raise RelayRefusedError("refused a connection from a peer without a CID")

    @contextlib.contextmanager
    def _place_of(self, peer: Peer) -> Iterator[None]:
        """A place among the connections of `peer` while the context lasts; raises RelayRefusedError when it has all it may."""
        who = None if isinstance(peer, TcpPeer) and peer.loopback else told_apart(peer)
        if who is None:
            yield
            return
        if self._held[who] >= CONNECTIONS_OF_ONE:
            self._on_refused()
            raise RelayRefusedError(f"refused a connection from {who}: it has {CONNECTIONS_OF_ONE} already")
        self._held[who] += 1
        try:
            yield
        finally:
            self._held[who] -= 1
            if not self._held[who]:
                del self._held[who]

    def _add(self, name: str, listener: socket.socket, identify: Identify, path: str | None = None) -> None:
        path = path or self._path

        @contextlib.asynccontextmanager
        async def open_far(near: socket.socket, address: object) -> AsyncIterator[socket.socket]:
            peer = identify(near, address)
            with self._place_of(peer), self._peers.naming(peer) as own_name:
                first = await _first_bytes(near) if self._take_http else b""
                if self._take_http and first and not _HTTP2.startswith(first):
                    far, end = socket.socketpair()
                    far.setblocking(False)
                    with far:
                        await self._take_http(end, peer, f"unix-abstract:{own_name[1:]}")
                        # A new socket has room for them.
                        far.send(first)
                        yield far
                    return
                try:
                    async with asyncio.timeout(_HANDOVER_SECONDS):
                        far = await unix.connect(path, own_name)
                except OSError as error:
                    raise RelayRefusedError(f"the server does not take connections: {error.strerror or 'it is stuck'}") from error
                with far:
                    if first:
                        far.send(first)
                    yield far

        self._relays.append(Relay(listener, open_far, name=name, connections_limit=CONNECTIONS_LIMIT))


async def _first_bytes(near: socket.socket) -> bytes:
    """As many as tell HTTP/2 from HTTP/1.1; none where the peer ends first. Raises RelayRefusedError where it says nothing for too long."""
    loop = asyncio.get_running_loop()
    first = b""
    try:
        async with asyncio.timeout(options.HANDSHAKE_SECONDS):
            while _HTTP2.startswith(first) and first != _HTTP2:
                more = await loop.sock_recv(near, len(_HTTP2) - len(first))
                if not more:
                    return first
                first += more
    except TimeoutError:
        raise RelayRefusedError(f"ended a connection that said nothing for {options.HANDSHAKE_SECONDS} s") from None
    except OSError:
        return b""
    return first

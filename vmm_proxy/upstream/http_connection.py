"""One HTTP/1.1 connection to a guest that runs dstack's own agent: one request at a time, and its whole reply.

h11 frames the bytes and keeps to RFC 9112; everything that it leaves open is bounded here, because the guest is hostile: heads, bodies, and
pieces so small that framing them would cost more than they carry. A reply whose end is marked by the end of the connection alone is
refused: one that was cut would look whole, and would say that cards are gone. Bytes that nobody asked for end the connection. Rejected:
httpx and aiohttp (a pool, redirects, cookies and decompression, all to be switched off, and no socket that was connected by us).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

import h11

from guest_transport.options import REPLY_LIMIT_BYTES
from guest_transport.relay.relay import CHUNK_BYTES, MayReceive
from vmm_proxy.upstream.passed_metadata import Metadata

# As gRPC allows of headers and trailers.
HEAD_LIMIT_BYTES = 16 * 1024
# A guest's own text is 2 KiB at the most; the rest of a page that some other server sends is not read.
ERROR_LIMIT_BYTES = 8 * 1024
# Pieces of a reply that are smaller than a network packet, and interim heads. So many take 8 and 15 ms of the loop (h11 0.16, Python 3.11,
# EPYC, 2026-12; a head of 16 KiB takes 6 ms, a usual reply 0.06 ms); an honest reply of 1 MiB comes in some 700 packets.
SMALL_PIECE_BYTES = 512
SMALL_PIECES_LIMIT = 1024
PROTOBUF = "application/octet-stream"
OK = 200
# What h11 names where a head, of a reply or a chunk, does not end within HEAD_LIMIT_BYTES.
_HEAD_TOO_LARGE = 431


class ReplyError(Exception):
    """The reply cannot be used; the message says why."""


class NotHttpError(ReplyError):
    """What answers does not speak HTTP/1.1."""


class EndedError(ReplyError):
    """The connection ended before the reply was whole."""


class TooLargeError(ReplyError):
    """The reply, or its head, is over the limit; `wire_bytes` of it came."""

    def __init__(self, text: str, wire_bytes: int = 0) -> None:
        super().__init__(text)
        self.wire_bytes = wire_bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply; of a body that tells an error at most ERROR_LIMIT_BYTES. Names of headers are in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        """The first value of `name`; empty without one."""
        return next((value for key, value in self.headers if key == name), "")


class HttpConnection:
    """Owns `connected`, a non-blocking socket. With a `pin` it is `proven` once the guest at its other end has shown it."""

    def __init__(self, connected: socket.socket, may_receive: MayReceive, pin: bytes = b"") -> None:
        self._socket = connected
        self._may_receive = may_receive
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_LIMIT_BYTES)
        self._loop = asyncio.get_running_loop()
        self._small_pieces = 0
        self._watched = False
        self.pin = pin
        self.proven = not pin
        self.proving = asyncio.Lock()
        # Whether a request was answered on it before, and whether a byte came for the present one.
        self.used = False
        self.heard = False

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent: the last reply is whole, and nothing came behind it."""
        states = {self._protocol.our_state, self._protocol.their_state}
        return states <= {h11.IDLE, h11.DONE} and self._protocol.trailing_data == (b"", False)

    async def post(self, path: str, metadata: Metadata) -> Reply:
        """The reply to a request without a body; raises OSError, ReplyError, and h11.LocalProtocolError for metadata that is no header."""
        if self.used:
            self._protocol.start_next_cycle()
        self.heard, self._small_pieces = False, 0
        fields = [("host", "localhost"), ("content-type", PROTOBUF), ("accept", PROTOBUF), ("content-length", "0"), *metadata]
        request = h11.Request(method="POST", target=path, headers=[(name, value.strip(" ")) for name, value in fields])
        protocol = self._protocol
        await self._loop.sock_sendall(self._socket, (protocol.send(request) or b"") + (protocol.send(h11.EndOfMessage()) or b""))
        head = await self._head()
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
        reply = Reply(head.status_code, headers, await self._body(head))
        self.used = True
        return reply

    async def _head(self) -> h11.Response:
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise EndedError("the connection was lost during the call")
            self._count_small_piece()

    async def _body(self, head: h11.Response) -> bytes:
        names = {name: value for name, value in head.headers if name in {b"content-length", b"transfer-encoding"}}
        limit = REPLY_LIMIT_BYTES if head.status_code == OK else ERROR_LIMIT_BYTES
        if head.status_code == OK:
            if not names:
                raise ReplyError("its reply does not say where it ends")
            if b"transfer-encoding" not in names and int(names[b"content-length"]) > limit:
                raise TooLargeError("its reply is over the size limit")
        body = bytearray()
        while not isinstance(event := await self._event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise EndedError("the connection was lost during the call")
            body += event.data
            if len(event.data) < SMALL_PIECE_BYTES:
                self._count_small_piece()
            if len(body) > limit:
                if head.status_code == OK:
                    raise TooLargeError("its reply is over the size limit", len(body))
                return bytes(body[:limit])
        if self._protocol.trailing_data[0]:
            raise ReplyError("it sent more than its one reply")
        return bytes(body)

    async def _event(self) -> object:
        ended = False
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                chunk = await self._loop.sock_recv(self._socket, CHUNK_BYTES)
                ended = not chunk
                if not ended and not self._may_receive(len(chunk)):
                    raise EndedError("it sent more than it was asked for")
                if not ended and not self.heard and not _begins_as_http(chunk):
                    raise NotHttpError("its reply is no HTTP/1.1: does dstack's own agent answer there?")
                self.heard = self.heard or not ended
                self._protocol.receive_data(chunk)
        except h11.RemoteProtocolError as error:
            # h11 raises it from a frame that knows it: with its traceback it would keep this connection until the garbage is collected.
            error.__traceback__ = None
            if ended:
                raise EndedError("the connection was lost during the call") from error
            if error.error_status_hint == _HEAD_TOO_LARGE:
                raise TooLargeError("the head of its reply is over the size limit") from error
            raise NotHttpError("its reply is not valid HTTP/1.1") from error
        return event

    def _count_small_piece(self) -> None:
        self._small_pieces += 1
        if self._small_pieces > SMALL_PIECES_LIMIT:
            raise ReplyError("its reply comes in too many pieces")

    def watch(self, over: Callable[[], None]) -> None:
        """While nothing is asked: call `over` as soon as the guest ends the connection, or says anything."""

        def readable() -> None:
            try:
                # Counted like all that was not asked for.
                self._may_receive(len(self._socket.recv(CHUNK_BYTES)))
            except BlockingIOError:
                return
            except OSError:
                pass
            over()

        self._watched = True
        self._loop.add_reader(self._socket.fileno(), readable)

    def unwatch(self) -> None:
        """Something will be asked."""
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self._socket.fileno())

    def cut(self) -> None:
        """End it under whoever uses it: the present request fails."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The guest was faster.
            return

    def close(self) -> None:
        """Let go of the socket; nobody uses the connection any more."""
        self.unwatch()
        self._socket.close()


def _begins_as_http(chunk: bytes) -> bool:
    return chunk[:5] == b"HTTP/"[: len(chunk)]

"""A guest that speaks HTTP/2 by hand, so that it can answer what no gRPC server would.

It behaves: real sockets, real frames through the `h2` package, flow control obeyed, streams answered at the same time. Only the answers are
chosen by the test: a coroutine gets the Stream of each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes
from h2.settings import Settings as H2Settings

from tests.eventually import eventually

Headers = list[tuple[str, str]]
Settings = dict[SettingCodes, int]


def frame(message: bytes, flag: int = 0, length: int | None = None) -> bytes:
    """A gRPC message frame; flag and length can lie."""
    return struct.pack(">BI", flag, len(message) if length is None else length) + message


@dataclass
class Stream:
    """One request of the peer, and the means to answer it."""

    connection: Connection
    number: int
    headers: dict[str, str]
    reset: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def path(self) -> str:
        return self.headers[":path"]

    async def head(self, headers: Headers | None = None) -> None:
        fields = [(":status", "200"), ("content-type", "application/grpc"), *(headers or [])]
        await self.send_headers(fields)

    async def send_headers(self, headers: Headers, *, end: bool = False) -> None:
        self.connection.h2.send_headers(self.number, headers, end_stream=end)
        await self.connection.flush()

    async def data(self, data: bytes, *, end: bool = False) -> None:
        view = memoryview(data)
        h2 = self.connection.h2
        while view or end:
            window = min(h2.local_flow_control_window(self.number), h2.max_outbound_frame_size, len(view))
            if view and window <= 0:
                await self.connection.window_opened()
                continue
            last = end and window == len(view)
            h2.send_data(self.number, view[:window].tobytes(), end_stream=last)
            await self.connection.flush()
            view = view[window:]
            if last:
                return

    async def trailers(self, status: str = "0", message: str | None = None, extra: Headers | None = None) -> None:
        fields = [("grpc-status", status)]
        if message is not None:
            fields.append(("grpc-message", message))
        await self.send_headers([*fields, *(extra or [])], end=True)

    async def answer(self, message: bytes, extra: Headers | None = None) -> None:
        await self.head()
        await self.data(frame(message))
        await self.trailers(extra=extra)

    async def fail(self, status: str, message: str | None = None, extra: Headers | None = None) -> None:
        await self.head()
        await self.trailers(status, message, extra)

    async def break_off(self, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        self.connection.h2.reset_stream(self.number, code)
        await self.connection.flush()


Behaviour = Callable[[Stream], Awaitable[None]]


class Connection:
    """One accepted connection; runs until either side closes it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, behaviour: Behaviour, settings: Settings | None = None
    ) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8", validate_outbound_headers=False))
        if settings:
            self.h2.local_settings = H2Settings(client=False, initial_values=settings)
        self._reader = reader
        self.writer = writer
        self._behaviour = behaviour
        self._streams: dict[int, Stream] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._window = asyncio.Event()

    async def serve(self) -> None:
        self.h2.initiate_connection()
        try:
            await self.flush()
            while data := await self._reader.read(65536):
                for event in self.h2.receive_data(data):
                    self._take(event)
                await self.flush()
        except (ConnectionError, ProtocolError):
            pass
        finally:
            for task in self._answers:
                task.cancel()
            await asyncio.gather(*self._answers, return_exceptions=True)
            self.writer.close()
            with contextlib.suppress(ConnectionError):
                await self.writer.wait_closed()

    async def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def window_opened(self) -> None:
        self._window.clear()
        await self._window.wait()

    def _take(self, event: Event) -> None:
        match event:
            case RequestReceived():
                headers = {str(name): str(value) for name, value in event.headers}
                self._streams[event.stream_id] = Stream(self, event.stream_id, headers)
            case StreamEnded():
                task = asyncio.create_task(self._answer(self._streams[event.stream_id]))
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)
            case StreamReset():
                self._streams[event.stream_id].reset.set()
                self._window.set()
            case WindowUpdated():
                self._window.set()

    async def _answer(self, stream: Stream) -> None:
        with contextlib.suppress(StreamClosedError, ProtocolError, ConnectionError):
            await self._behaviour(stream)


class RawGuest:
    """Listens on a Unix socket; counts connections and keeps the requests it saw."""

    def __init__(self, path: str, behaviour: Behaviour) -> None:
        self.path = path
        self.behaviour = behaviour
        self.connections = 0
        self.requests: list[Stream] = []
        self.called = asyncio.Event()
        self.asked_ports: list[bytes] = []
        self.still_open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        # Connections up to this one are accepted and never answered with a byte.
        self.ignored_connections = 0
        # What a VMM with hybrid vsock says to CONNECT before the guest's bytes; None for a guest on a plain socket.
        self.vmm_answer: bytes | None = None
        # HTTP/2 settings of further connections, beside those of the h2 package.
        self.settings: Settings = {}

    @property
    def address(self) -> str:
        return f"unix:{self.path}" if self.vmm_answer is None else f"hvsock:{self.path}:8000"

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self.still_open):
            writer.close()
        # Not wait_closed(): before Python 3.12.1 it does not wait, after it waits for handlers, which end with their connections.
        await eventually(lambda: not self.still_open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.still_open.add(writer)
        try:
            if self.connections <= self.ignored_connections:
                with contextlib.suppress(ConnectionError):
                    await reader.read(-1)
                writer.close()
                return
            if self.vmm_answer is not None:
                self.asked_ports.append(await reader.readline())
                writer.write(self.vmm_answer)
                if not self.vmm_answer.startswith(b"OK"):
                    writer.close()
                    return
            await Connection(reader, writer, self._remember, self.settings).serve()
        finally:
            self.still_open.discard(writer)

    async def _remember(self, stream: Stream) -> None:
        self.requests.append(stream)
        self.called.set()
        await self.behaviour(stream)


@contextlib.asynccontextmanager
async def raw_guest(
    path: str,
    behaviour: Behaviour,
    *,
    ignored_connections: int = 0,
    vmm_answer: bytes | None = None,
    settings: Settings | None = None,
) -> AsyncIterator[RawGuest]:
    """A RawGuest that is listening; with `vmm_answer` behind the socket of a VMM with hybrid vsock."""
    guest = RawGuest(path, behaviour)
    guest.vmm_answer = vmm_answer
    guest.ignored_connections = ignored_connections
    guest.settings = settings or {}
    await guest.start()
    try:
        yield guest
    finally:
        await guest.stop()

"""A caller without manners: HTTP/2 frames by hand, as gRPC's own client would not send them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable

import h2.config
import h2.connection
import h2.events
from h2.settings import SettingCodes

from guest_transport.addresses import TcpAddress, UnixAddress, parse_address


class RawCaller:
    """One HTTP/2 connection to a server; `events` are all that came on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The server's limit of streams is for others to keep.
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self._reader = reader
        self._writer = writer
        self.events: list[h2.events.Event] = []
        self.closed = False

    async def begin(self) -> None:
        """Exchange settings."""
        self.h2.initiate_connection()
        await self.flush()
        await self.until(lambda event: isinstance(event, h2.events.RemoteSettingsChanged))

    @property
    def streams_limit(self) -> int:
        """How many calls the server takes at a time on this connection."""
        return self.h2.remote_settings.get(SettingCodes.MAX_CONCURRENT_STREAMS, 2**32 - 1)

    def head(self, path: str, *more: tuple[str, str]) -> int:
        """The headers of a call, and nothing else of it; its stream."""
        number = self.h2.get_next_available_stream_id()
        fields = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "localhost"), ("te", "trailers")]
        self.h2.send_headers(number, [*fields, ("content-type", "application/grpc"), *more])
        return number

    async def flush(self) -> None:
        """Send what is to be sent."""
        self._writer.write(self.h2.data_to_send())
        await self._writer.drain()

    async def until(self, wanted: Callable[[h2.events.Event], bool]) -> None:
        """Read, and answer pings, until an event is wanted or the server closes the connection."""
        async with asyncio.timeout(60):
            while data := await self._reader.read(65536):
                came = self.h2.receive_data(data)
                self.events += came
                await self.flush()
                if any(map(wanted, came)):
                    return
            self.closed = True


@contextlib.asynccontextmanager
async def raw_caller(target: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawCaller]:
    """Connected to the address `target`, settings exchanged."""
    match parse_address(target):
        case UnixAddress(path):
            reader, writer = await asyncio.open_unix_connection(path)
        case TcpAddress(host, port):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        case address:
            raise ValueError(f"{address}: not an address of a raw caller")
    try:
        caller = RawCaller(reader, writer)
        await caller.begin()
        yield caller
    finally:
        writer.close()

"""A guest that runs an agent like dstack's: HTTP/1.1 written by hand, so that it can answer what no HTTP server would.

It shares no code with the product and uses no HTTP library: requests are read strictly by the rules of RFC 9112 that matter here, so that a
request which another server would refuse fails the test. A test chooses the bytes of each answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from tests.eventually import eventually


@dataclass
class Request:
    """One request of the peer, and the means to answer it."""

    connection: int
    line: str
    headers: list[tuple[str, str]]
    body: bytes
    writer: asyncio.StreamWriter

    @property
    def method(self) -> str:
        return self.line.split(" ")[1].removeprefix("/api/")

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    async def send(self, *pieces: bytes) -> None:
        """Each piece by itself, as far as the kernel keeps them apart."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def answer(self, body: bytes, status: str = "200 OK", form: str = "application/octet-stream", extra: str = "") -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: {form}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
        await self.send(head.encode() + body)

    async def hang_up(self) -> None:
        self.writer.close()


Behaviour = Callable[[Request], Awaitable[None]]


class RawHttpGuest:
    """Listens on a Unix socket; counts connections and keeps the requests it saw."""

    def __init__(self, path: str, behaviour: Behaviour, vmm_answer: bytes | None = None) -> None:
        self.path = path
        self.behaviour = behaviour
        self.vmm_answer = vmm_answer
        self.connections = 0
        self.requests: list[Request] = []
        self.called = asyncio.Event()
        # What was no request.
        self.faults: list[str] = []
        self.still_open: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []

    async def also_on_tcp(self) -> str:
        """Listen on a port of loopback too; its address."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._servers.append(server)
        return f"dstack+127.0.0.1:{server.sockets[0].getsockname()[1]}"

    @property
    def address(self) -> str:
        return f"dstack+unix:{self.path}" if self.vmm_answer is None else f"dstack+hvsock:{self.path}:8000"

    @property
    def asked(self) -> list[str]:
        return [request.method for request in self.requests]

    async def start(self) -> None:
        self._servers.append(await asyncio.start_unix_server(self._serve, self.path))

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for writer in list(self.still_open):
            writer.close()
        await eventually(lambda: not self.still_open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self.still_open.add(writer)
        try:
            if self.vmm_answer is not None:
                await reader.readline()
                writer.write(self.vmm_answer)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while not writer.is_closing():
                    request = await self._request(number, reader, writer)
                    if request is None:
                        break
                    self.requests.append(request)
                    self.called.set()
                    await self.behaviour(request)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        finally:
            self.still_open.discard(writer)

    async def _request(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *lines = head[:-4].split("\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (each.partition(":") for each in lines)]
        lengths = [value for name, value in headers if name == "content-length"]
        hosts = [value for name, value in headers if name == "host"]
        if line.split(" ")[2:] != ["HTTP/1.1"] or hosts != ["localhost"] or len(lengths) != 1 or "\n" in head.replace("\r\n", ""):
            self.faults.append(head)
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return None
        return Request(number, line, headers, await reader.readexactly(int(lengths[0])), writer)


@contextlib.asynccontextmanager
async def raw_http_guest(path: str, behaviour: Behaviour, vmm_answer: bytes | None = None) -> AsyncIterator[RawHttpGuest]:
    """A RawHttpGuest that is listening; with `vmm_answer` behind the socket of a VMM with hybrid vsock."""
    guest = RawHttpGuest(path, behaviour, vmm_answer)
    await guest.start()
    try:
        yield guest
    finally:
        await guest.stop()
        assert not guest.faults


def always(replies: Mapping[str, bytes]) -> Behaviour:
    """Answers each method with its bytes, and one that is not there with 404 as dstack's agent does."""

    async def answer(request: Request) -> None:
        body = replies.get(request.method)
        if body is None:
            await request.answer(b"\n\x0fService missing", "404 Not Found")
        else:
            await request.answer(body)

    return answer

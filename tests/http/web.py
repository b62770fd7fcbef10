"""A plain HTTP/1.1 client over asyncio streams: what goes over the wire is what a test wrote, and nothing is retried or followed."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Mapping
from dataclasses import dataclass

from guest_transport.addresses import TcpAddress

# On two busy cores everything here answers in milliseconds; a test that waits this long has hung.
BOUND_SECONDS = 20


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return (gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body).decode()


async def connect(address: TcpAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(address.host, address.port)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def request(path: str, *, method: str = "GET", host: str = "localhost", headers: Mapping[str, str] | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    return "\r\n".join([*lines, "", ""]).encode()


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), {name.lower(): value for name, value in headers.items()}


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    """The next chunk of a chunked body; empty at its end."""
    size = int((await reader.readuntil(b"\r\n")).strip(), 16)
    return (await reader.readexactly(size + 2))[:-2]


async def read_answer(reader: asyncio.StreamReader, *, head_only: bool = False) -> Answer:
    status, headers = await read_head(reader)
    body = b""
    if head_only:
        pass
    elif headers.get("transfer-encoding") == "chunked":
        while chunk := await read_chunk(reader):
            body += chunk
    else:
        body = await reader.readexactly(int(headers["content-length"]))
    return Answer(status, headers, body)


async def get(
    address: TcpAddress, path: str, *, method: str = "GET", host: str = "localhost", headers: Mapping[str, str] | None = None
) -> Answer:
    async with asyncio.timeout(BOUND_SECONDS):
        reader, writer = await connect(address)
        try:
            writer.write(request(path, method=method, host=host, headers={"Connection": "close", **(headers or {})}))
            return await read_answer(reader, head_only=method == "HEAD")
        finally:
            await close(writer)

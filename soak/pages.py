"""Reads pages of the services over their Unix sockets or TCP, as a scraper and a browser do.

HTTP/1.0, so that an answer ends with its connection and comes in one piece. Rejected: an HTTP client library (none of the product's
dependencies is one that knows Unix sockets and streams).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path


class PageError(Exception):
    """A page was not answered with 200, or not whole; the message says how."""


async def get(socket: Path | tuple[str, int], target: str, timeout_seconds: float) -> str:
    """The body at `target` of a Unix socket or a host and port; raises PageError, also when nobody is there or too slow."""
    try:
        async with asyncio.timeout(timeout_seconds):
            if isinstance(socket, Path):
                reader, writer = await asyncio.open_unix_connection(str(socket))
            else:
                reader, writer = await asyncio.open_connection(*socket)
            try:
                writer.write(_request(target))
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.read()
            finally:
                writer.close()
    except TimeoutError as error:
        raise PageError(f"no answer within {timeout_seconds:g} s") from error
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise PageError(f"no answer: {error}") from error
    _check(head, body)
    return body.decode("utf-8", "replace")


async def events(socket: Path, target: str, silence_seconds: float) -> AsyncGenerator[str, None]:
    """The names of the events of a stream as they come; raises PageError when it ends, or is silent for too long."""
    try:
        async with asyncio.timeout(silence_seconds):
            # An event of the fleet's page holds the rows of 16 guests.
            reader, writer = await asyncio.open_unix_connection(str(socket), limit=4 * 1024 * 1024)
        try:
            writer.write(_request(target))
            async with asyncio.timeout(silence_seconds):
                _check(await reader.readuntil(b"\r\n\r\n"), None)
            while True:
                async with asyncio.timeout(silence_seconds):
                    line = await reader.readline()
                if not line:
                    raise PageError("the stream ended")
                if line.startswith(b"event: "):
                    yield line[7:].strip().decode("ascii", "replace")
        finally:
            writer.close()
    except TimeoutError as error:
        raise PageError(f"silent for {silence_seconds:g} s") from error
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        raise PageError(f"broken off: {error}") from error


def values(page: str, name: str) -> dict[str, float]:
    """The samples of metric `name` on a fleet page, by vm_id."""
    pattern = rf'^{re.escape(name)}\{{vm_id="([^"]*)"[^}}]*\}} (\S+)'
    return {found[1]: float(found[2]) for found in re.finditer(pattern, page, re.MULTILINE)}


def _request(target: str) -> bytes:
    return f"GET {target} HTTP/1.0\r\nhost: localhost\r\n\r\n".encode("ascii")


def _check(head: bytes, body: bytes | None) -> None:
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        raise PageError(f"answered {head.splitlines()[0].decode('latin-1')}")
    length = re.search(rb"(?im)^content-length: *(\d+)", head)
    if body is not None and length is not None and int(length[1]) != len(body):
        raise PageError(f"{len(body)} of {int(length[1])} bytes came")

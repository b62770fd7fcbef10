"""A Unix socket on which QEMU connects to a test, and over which both say JSON, a line each: the monitor, and the hand in the machine.

The test listens before QEMU starts, so that nothing that is said early is lost. Rejected: QEMU listening, because what a serial line says
while nobody is connected is dropped.
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

# A machine's whole journal is less.
LINE_LIMIT_BYTES = 16 * 1024 * 1024


class JsonLines:
    """One connection; Any: JSON objects, whatever the other side says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, words: dict[str, Any] | list[str]) -> None:
        self._writer.write(json.dumps(words).encode() + b"\n")
        await self._writer.drain()

    async def hear(self) -> dict[str, Any]:
        """The next line; raises EOFError when the other side has gone."""
        line = await self._reader.readline()
        if not line:
            raise EOFError("QEMU has hung up")
        heard = json.loads(line)
        assert isinstance(heard, dict)
        return heard

    def close(self) -> None:
        self._writer.close()


class Door:
    """Listens at `path` for the one connection of QEMU."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(str(path))
        self._listener.listen(1)

    async def opened(self) -> JsonLines:
        """QEMU's connection; nobody else gets in."""
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        self._listener.close()
        return JsonLines(*await asyncio.open_unix_connection(sock=connection, limit=LINE_LIMIT_BYTES))

    def close(self) -> None:
        self._listener.close()

"""Both servers as processes whose logs are read while they run, and faults that callers and guests bring about again and again."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import grpc

# A start on a busy machine.
PATIENCE_SECONDS = 40


class Server:
    """A running server and its stderr, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._came = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode().rstrip("\n"))
            self._came.set()

    async def line_with(self, words: str) -> str:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (found := [line for line in self.lines if words in line]):
                assert self.process.returncode is None, self.lines
                self._came.clear()
                await self._came.wait()
        return found[0]

    async def stop(self) -> None:
        """End it; then all its lines are there."""
        if self.process.returncode is None:
            self.process.terminate()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.process.wait()
            await self._reader


@contextlib.asynccontextmanager
async def serving(module: str, *arguments: str, ready: str) -> AsyncIterator[Server]:
    """`python -m module serve`, once its log has `ready`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, "serve", *arguments), stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    server = Server(process)
    try:
        await server.line_with(ready)
        yield server
    finally:
        if process.returncode is None:
            process.kill()
        await server.stop()


async def ask_http(socket: Path, request: bytes) -> bytes:
    """What the pages at a Unix socket say to `request`."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()


def page(path: str, *headers: str) -> bytes:
    lines = (f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers)
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


async def again(times: int, *acts: Callable[[], Awaitable[object]]) -> None:
    """Do each of `acts` so many times, all of them beside each other; how they fail is the servers' business."""

    async def repeat(act: Callable[[], Awaitable[object]]) -> None:
        for _ in range(times):
            with contextlib.suppress(grpc.aio.AioRpcError, OSError):
                await act()

    await asyncio.gather(*(repeat(act) for act in acts))


def counted(lines: Iterable[str], words: str) -> int:
    """How many occurrences the lines with `words` stand for."""
    return sum(int(line.rpartition("(")[2].split()[0]) if " like it in " in line else 1 for line in lines if words in line)

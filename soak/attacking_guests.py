"""A tenant that attacks with guests of its own: they listen where its entries in the proxy's directory say, and it calls them there.

    python -m soak.attacking_guests ATTACK SECONDS FOLDER HOST:PORT TOKEN

FOLDER/red0.sock and so on are the guests'. Ends by itself, and its sockets with it. Attackers without guests are in soak.attackers.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from soak import frames
from soak.attackers import BATCH
from soak.frames import ACK, END_HEADERS, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE

GUESTS = 64
METHODS = ("Info", "SysInfo", "GpuInfo", "NetworkInfo")
TEN_HANGING, ALL_HANGING, CALLS_OF_TEN = "ten hanging guests", "64 hanging guests", 110
# What a guest floods with, once it was called; then one row of six guests.
FLOODS = ("window updates", "resets", "early hints")
SIX_FLOODING = "six guests' window updates"
CALL_SECONDS = 20.0
# Between two calls of one kind; a refusal comes at once, and a loop of them is not what is attacked with.
AGAIN_SECONDS = 0.05


def socket_name(number: int) -> str:
    """The file of a guest's socket."""
    return f"red{number}.sock"


async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _answer_pings(reader, writer, asyncio.Event())


def _flood(kind: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called = asyncio.Event()
        answering = asyncio.create_task(_answer_pings(reader, writer, called))
        try:
            with contextlib.suppress(OSError):
                await _flood_when(called, kind, writer, answering)
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            writer.transport.abort()

    return flood


async def _flood_when(called: asyncio.Event, kind: str, writer: asyncio.StreamWriter, answering: asyncio.Task[None]) -> None:
    await called.wait()
    # 103, Early Hints: any number of them may come before an answer (RFC 8297).
    hints = b"\x08\x03103"
    one = {
        "window updates": frames.frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big")),
        "resets": frames.frame(RST_STREAM, 0, 1, (8).to_bytes(4, "big")),
        "early hints": frames.frame(HEADERS, END_HEADERS, 1, hints),
    }[kind]
    while not answering.done():
        writer.write(one * BATCH * 20)
        await writer.drain()
        await asyncio.sleep(0)


async def _answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, called: asyncio.Event) -> None:
    try:
        writer.write(frames.frame(SETTINGS, 0, 0))
        await reader.readexactly(len(PREFACE))
        taken = frames.Frames()
        while data := await reader.read(65536):
            for kind, flags, _stream, payload in taken.take(data):
                if kind in (PING, SETTINGS) and not flags & ACK:
                    writer.write(frames.frame(kind, ACK, 0, payload if kind == PING else b""))
                elif kind == HEADERS:
                    called.set()
    except (OSError, asyncio.IncompleteReadError):
        return


async def _call(
    stub: guest_api_pb2_grpc.ProxiedGuestApiStub, method: str, guest: str, metadata: tuple[tuple[str, str], ...]
) -> None:
    while True:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await getattr(stub, method)(guest_api_pb2.Id(id=guest), timeout=CALL_SECONDS, metadata=metadata)
        await asyncio.sleep(AGAIN_SECONDS)


async def attack(name: str, seconds: float, folder: Path, address: str, token: str) -> None:
    """Serve the guests and call them for so many seconds."""
    guests = {TEN_HANGING: 10, ALL_HANGING: GUESTS, SIX_FLOODING: 6}.get(name, 1)
    flood = FLOODS[0] if name == SIX_FLOODING else name
    serve = _flood(flood) if flood in FLOODS else _hang
    paths = [folder / socket_name(number) for number in range(guests)]
    servers = [await asyncio.start_unix_server(serve, path) for path in paths]
    calls = [(method, number) for method in METHODS for number in range(guests)]
    if name == TEN_HANGING:
        calls = [(METHODS[turn % len(METHODS)], turn % guests) for turn in range(guests * CALLS_OF_TEN)]
    elif flood in FLOODS:
        calls = [("GpuInfo", number) for number in range(guests)]
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = guest_api_pb2_grpc.ProxiedGuestApiStub(channel)
            shown = (("authorization", f"Bearer {token}"),)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.gather(*(_call(stub, method, f"red{number}", shown) for method, number in calls))
    finally:
        for server, path in zip(servers, paths, strict=True):
            server.close()
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    asyncio.run(attack(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5]))

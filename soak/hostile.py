"""Guests that are none: one process that is black-holed, silent, broken, oversized and rude guests, each at a socket of its own.

    python -m soak.hostile FOLDER

Plain grpc.aio without anything of the product. The full matrix of hostile replies is the tests' (tests/proxy); here are those kinds that
hold on to something of the proxy (a slot, a connection, memory) and would show as growth.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc

METHODS = ("Info", "SysInfo", "GpuInfo", "NetworkInfo", "ListContainers")
# Twice what the proxy takes.
OVERSIZED_BYTES = 2 * 1024 * 1024

Answer = Callable[[bytes, grpc.aio.ServicerContext[bytes, bytes]], Awaitable[bytes]]


async def _silent(_request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    await asyncio.Event().wait()
    return b""


async def _broken(_request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return b"\x0a\x02\xff\xfe"


async def _oversized(_request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return b"\xfa\x3f" + bytes(OVERSIZED_BYTES)


async def _rude(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    await context.abort(grpc.StatusCode.ABORTED, "\x1b[2J" + "x" * 4000)


# By the guest's name; what a caller is told stands in soak.judging.
ANSWERS: dict[str, Answer] = {"silent": _silent, "broken": _broken, "oversized": _oversized, "rude": _rude}
# Takes connections and every byte, and says nothing.
BLACK_HOLE = "hole"


async def serve(folder: Path) -> None:
    """Serve them all in `folder` until SIGTERM."""
    servers = [await start_guest(folder / f"{name}.sock", answer) for name, answer in ANSWERS.items()]
    hole = await asyncio.start_unix_server(_swallow, folder / f"{BLACK_HOLE}.sock")
    await ready_until_stopped()
    hole.close()
    await asyncio.gather(*(server.stop(None) for server in servers))


async def ready_until_stopped() -> None:
    """Say READY, and wait for SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
    await stop.wait()


async def start_guest(path: Path, answer: Answer) -> grpc.aio.Server:
    """A guest at `path` that answers every method so."""
    server = grpc.aio.server()
    # The stubs know blocking handlers only.
    handler = grpc.unary_unary_rpc_method_handler(answer, None, None)  # type: ignore[var-annotated]
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("guest_api.GuestApi", dict.fromkeys(METHODS, handler)),)
    )
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


async def _swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass
    writer.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))

"""Stands in for the VMM of guests behind hybrid vsock: one process with a socket for each, as Firecracker and Cloud Hypervisor have.

    python -m soak.vmm FOLDER NAME…

A connection to FOLDER/NAME.vmm that says `CONNECT <port>` is told `OK <n>` and joined to the guest's own socket, FOLDER/NAME.sock; where no
guest listens it is closed without a word, as those do. It checks nothing: whether the proxy copes with a VMM that misbehaves is for tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from pathlib import Path

CHUNK_BYTES = 64 * 1024
_numbers = itertools.count(1024)


async def serve(folder: Path, names: list[str]) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with contextlib.AsyncExitStack() as servers:
        for name in names:
            await servers.enter_async_context(await _listening(folder, name))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
        await stop.wait()


async def _listening(folder: Path, name: str) -> asyncio.Server:
    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            if not (await reader.readline()).startswith(b"CONNECT "):
                return
            from_guest, to_guest = await asyncio.open_unix_connection(str(folder / f"{name}.sock"))
            with contextlib.closing(to_guest):
                writer.write(b"OK %d\n" % next(_numbers))
                await asyncio.gather(_pass_on(reader, to_guest), _pass_on(from_guest, writer))

    return await asyncio.start_unix_server(join, folder / f"{name}.vmm")


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2:]))

"""A guest that was down is served within two seconds of its return, whether it was away for a moment or for long."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc

from tests.eventually import eventually
from tests.proxy.raw_guest import Stream, raw_guest
from tests.proxy.running import Proxy

# The promise is two; a busy machine needs some of its own.
SECONDS = 3
# With pauses that grow without a bound of ours, the one after so many failed tries is longer than SECONDS.
TRIES = 9


async def no_gpu(stream: Stream) -> None:
    await stream.answer(b"")


async def served_in_time(proxy: Proxy, guest_id: str) -> None:
    async def is_served() -> bool:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await proxy.gpu_info(guest_id)
            return True
        return False

    await eventually(is_served, SECONDS)


async def test_a_guest_that_comes_back_is_served_within_two_seconds(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu) as guest:
        proxy.add("vm1", guest.address)
        await proxy.gpu_info("vm1")
    (sockets / "g").unlink(missing_ok=True)
    for _ in range(5):
        assert (await proxy.failure("vm1")).code() is grpc.StatusCode.UNAVAILABLE
    async with raw_guest(str(sockets / "g"), no_gpu):
        await served_in_time(proxy, "vm1")


async def test_a_guest_that_was_dialled_in_vain_for_long_is_served_within_two_seconds_too(proxy: Proxy, sockets: Path) -> None:
    tries = 0

    def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        writer.close()

    down = await asyncio.start_unix_server(close, sockets / "g")
    proxy.add("vm1", f"unix:{sockets}/g")

    async def tried_for_long() -> bool:
        assert (await proxy.failure("vm1")).code() is grpc.StatusCode.UNAVAILABLE
        return tries >= TRIES

    await eventually(tried_for_long, 50)
    down.close()
    (sockets / "g").unlink(missing_ok=True)
    async with raw_guest(str(sockets / "g"), no_gpu):
        await served_in_time(proxy, "vm1")

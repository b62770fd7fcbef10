"""One relayed connection: bytes, half-close, back-pressure, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import socket
from collections.abc import AsyncIterator

import pytest

from guest_transport.relay import relay
from guest_transport.relay.relay import CHUNK_BYTES, pump
from tests.eventually import turns
from tests.transport.socket_pairs import PATIENCE_SECONDS, pair, read_all


@contextlib.asynccontextmanager
async def _pumped() -> AsyncIterator[tuple[socket.socket, socket.socket, asyncio.Task[None]]]:
    """The two outer ends of a pumped connection, and the pump."""
    (near, near_inside), (far, far_inside) = pair(), pair()
    moving = asyncio.create_task(pump(near_inside, far_inside))
    with near, near_inside, far, far_inside:
        try:
            yield near, far, moving
        finally:
            moving.cancel()
            await asyncio.wait([moving])


async def test_each_direction_keeps_every_byte_in_order_while_both_are_busy() -> None:
    there, back = random.Random(1).randbytes(3_000_000), random.Random(2).randbytes(3_000_000)
    async with _pumped() as (near, far, moving):
        loop = asyncio.get_running_loop()

        async def send(connection: socket.socket, data: bytes) -> None:
            await loop.sock_sendall(connection, data)
            connection.shutdown(socket.SHUT_WR)

        _, _, got_back, got_there = await asyncio.gather(send(near, there), send(far, back), read_all(near), read_all(far))
        assert hashlib.sha256(got_there).digest() == hashlib.sha256(there).digest()
        assert hashlib.sha256(got_back).digest() == hashlib.sha256(back).digest()
        await asyncio.wait_for(moving, PATIENCE_SECONDS)


async def test_an_end_that_has_said_all_still_hears_the_answer() -> None:
    async with _pumped() as (near, far, moving):
        near.send(b"question")
        near.shutdown(socket.SHUT_WR)
        assert await read_all(far) == b"question"
        assert not moving.done()
        far.send(b"answer")
        far.close()
        assert await read_all(near) == b"answer"
        await asyncio.wait_for(moving, PATIENCE_SECONDS)


async def test_what_was_sent_before_an_end_broke_off_still_arrives() -> None:
    async with _pumped() as (near, far, moving):
        far.send(b"last words")
        far.close()
        assert await read_all(near) == b"last words"
        near.close()
        await asyncio.wait_for(moving, PATIENCE_SECONDS)


async def test_what_both_ends_said_before_they_were_joined_arrives() -> None:
    (near, near_inside), (far, far_inside) = pair(), pair()
    with near, near_inside, far, far_inside:
        for end, text in ((near, b"question"), (far, b"answer")):
            end.send(text)
            end.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(pump(near_inside, far_inside), PATIENCE_SECONDS)
        assert await read_all(far) == b"question"
        assert await read_all(near) == b"answer"


async def test_connections_that_begin_at_the_same_time_never_mix_their_bytes() -> None:
    async with contextlib.AsyncExitStack() as stack:
        pairs = [(pair(), pair()) for _ in range(20)]
        for near_pair, far_pair in pairs:
            for end in (*near_pair, *far_pair):
                stack.enter_context(end)
        for number, ((near, _), (far, _)) in enumerate(pairs):
            near.send(b"q%02d" % number * 1000)
            far.send(b"a%02d" % number * 1000)
            near.shutdown(socket.SHUT_WR)
            far.shutdown(socket.SHUT_WR)
        pumps = [pump(near_inside, far_inside) for (_, near_inside), (_, far_inside) in pairs]
        await asyncio.wait_for(asyncio.gather(*pumps), PATIENCE_SECONDS)
        for number, ((near, _), (far, _)) in enumerate(pairs):
            assert await read_all(far) == b"q%02d" % number * 1000
            assert await read_all(near) == b"a%02d" % number * 1000


async def test_an_end_that_does_not_read_stops_the_sender_within_the_bound() -> None:
    async with _pumped() as (near, far, _moving):
        sent, data = 0, b"x" * 65536
        idle = 0
        # Full is when nothing has fitted for a good while; every round lets the pump move what it will.
        while idle < 200:
            try:
                sent += near.send(data)
                idle = 0
            except BlockingIOError:
                idle += 1
                # "Idle" is a span of real time here: the relay has nothing more to take when it took nothing for so long.
                await asyncio.sleep(0.001)
        kernel = sum(end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for end in (near, far))
        assert sent <= kernel + 2 * CHUNK_BYTES + 64 * 1024
        near.shutdown(socket.SHUT_WR)
        assert len(await read_all(far)) == sent


def _fill(connection: socket.socket) -> int:
    """Send what the kernel takes at once; how much that was."""
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += connection.send(b"x" * 65536)
    return sent


async def test_what_waits_for_a_slow_reader_outlives_both_ends_goodbye() -> None:
    spare, unread = pair()
    with spare, unread:
        kernel = _fill(spare)
    async with _pumped() as (near, far, moving):
        near.shutdown(socket.SHUT_WR)
        sent = kernel + CHUNK_BYTES // 2
        await asyncio.get_running_loop().sock_sendall(far, bytes(sent))
        far.close()
        # So that the relay has heard both goodbyes before anything is taken.
        await turns(100)
        assert len(await read_all(near)) == sent
        near.close()
        await asyncio.wait_for(moving, PATIENCE_SECONDS)


async def test_an_end_that_never_reads_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "LINGER_SECONDS", 0.1)
    spare, unread = pair()
    with spare, unread:
        kernel = _fill(spare)
    async with _pumped() as (near, far, moving):
        # Both have said all. Half of what the relay buffers is still to be taken, so the sender was read to its end.
        near.shutdown(socket.SHUT_WR)
        await asyncio.get_running_loop().sock_sendall(far, bytes(kernel + CHUNK_BYTES // 2))
        far.close()
        await asyncio.wait_for(moving, PATIENCE_SECONDS)
        assert len(await read_all(near)) < kernel + CHUNK_BYTES // 2


async def test_a_cancelled_pump_cuts_both_ends_off() -> None:
    async with _pumped() as (near, far, moving):
        near.send(b"x")
        await asyncio.get_running_loop().sock_recv(far, 1)
        moving.cancel()
        await asyncio.wait([moving])
        assert await read_all(near) == b""
        assert await read_all(far) == b""


@pytest.mark.parametrize("allowed", [True, False], ids=["cut off from here", "more than it may"])
async def test_a_pump_that_ends_with_bytes_to_send_leaves_no_socket_watched(allowed: bool) -> None:
    loop = asyncio.get_running_loop()
    (near, near_inside), (far, far_inside) = pair(), pair()
    numbers = {near_inside.fileno(), far_inside.fileno()}
    let_through = True
    moving = asyncio.create_task(pump(near_inside, far_inside, lambda _count: let_through))
    with near, far:
        # Nobody reads `near`: the pump has to keep what it cannot pass on.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await loop.sock_sendall(far, bytes(16 * 2**20))
        if allowed:
            moving.cancel()
        else:
            let_through = False
            while await loop.sock_recv(near, CHUNK_BYTES):
                pass
        await asyncio.wait([moving], timeout=PATIENCE_SECONDS)
        assert moving.done()
        # The system gives the lowest free number: these sockets get those of the two that were closed.
        again = [socket.socket() for _ in range(8)]
        for connection in again:
            connection.setblocking(False)
            loop.add_reader(connection.fileno(), lambda: None)
            loop.remove_reader(connection.fileno())
        reused = {connection.fileno() for connection in again}
        for connection in again:
            connection.close()
        assert numbers <= reused

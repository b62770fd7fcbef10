"""The relay over Unix sockets: bytes, half-close, back-pressure, limits, and what is left at the end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from guest_transport import unix_sockets
from guest_transport.relay import BUFFER_BYTES, OpenFar, Relay, RelayRefusedError, pump

PATIENCE_SECONDS = 20


def _pair() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    return one, other


@contextlib.asynccontextmanager
async def _pumped() -> AsyncIterator[tuple[socket.socket, socket.socket, asyncio.Task[None]]]:
    """The two outer ends of a pumped connection, and the pump."""
    (near, near_inside), (far, far_inside) = _pair(), _pair()
    moving = asyncio.create_task(pump(near_inside, far_inside))
    with near, near_inside, far, far_inside:
        try:
            yield near, far, moving
        finally:
            moving.cancel()
            await asyncio.wait([moving])


async def _read_all(connection: socket.socket) -> bytes:
    data = bytearray()
    while piece := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, 65536), PATIENCE_SECONDS):
        data += piece
    return bytes(data)


async def test_each_direction_keeps_every_byte_in_order_while_both_are_busy() -> None:
    there, back = random.Random(1).randbytes(3_000_000), random.Random(2).randbytes(3_000_000)
    async with _pumped() as (near, far, moving):
        loop = asyncio.get_running_loop()

        async def send(connection: socket.socket, data: bytes) -> None:
            await loop.sock_sendall(connection, data)
            connection.shutdown(socket.SHUT_WR)

        _, _, got_back, got_there = await asyncio.gather(send(near, there), send(far, back), _read_all(near), _read_all(far))
        assert hashlib.sha256(got_there).digest() == hashlib.sha256(there).digest()
        assert hashlib.sha256(got_back).digest() == hashlib.sha256(back).digest()
        await asyncio.wait_for(moving, PATIENCE_SECONDS)


async def test_an_end_that_has_said_all_still_hears_the_answer() -> None:
    async with _pumped() as (near, far, moving):
        near.send(b"question")
        near.shutdown(socket.SHUT_WR)
        assert await _read_all(far) == b"question"
        assert not moving.done()
        far.send(b"answer")
        far.close()
        assert await _read_all(near) == b"answer"
        await asyncio.wait_for(moving, PATIENCE_SECONDS)


async def test_what_was_sent_before_an_end_broke_off_still_arrives() -> None:
    async with _pumped() as (near, far, moving):
        far.send(b"last words")
        far.close()
        assert await _read_all(near) == b"last words"
        near.close()
        await asyncio.wait_for(moving, PATIENCE_SECONDS)


async def test_what_both_ends_said_before_they_were_joined_arrives() -> None:
    (near, near_inside), (far, far_inside) = _pair(), _pair()
    with near, near_inside, far, far_inside:
        for end, text in ((near, b"question"), (far, b"answer")):
            end.send(text)
            end.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(pump(near_inside, far_inside), PATIENCE_SECONDS)
        assert await _read_all(far) == b"question"
        assert await _read_all(near) == b"answer"


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
                await asyncio.sleep(0.001)
        kernel = sum(end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for end in (near, far))
        assert sent <= kernel + BUFFER_BYTES + 256 * 1024
        near.shutdown(socket.SHUT_WR)
        assert len(await _read_all(far)) == sent


async def test_a_cancelled_pump_cuts_both_ends_off() -> None:
    async with _pumped() as (near, far, moving):
        near.send(b"x")
        await asyncio.get_running_loop().sock_recv(far, 1)
        moving.cancel()
        await asyncio.wait([moving])
        assert await _read_all(near) == b""
        assert await _read_all(far) == b""


@contextlib.asynccontextmanager
async def _relay(folder: Path, open_far: OpenFar, limit: int = 8) -> AsyncIterator[Relay]:
    relay = Relay(unix_sockets.listen(str(folder / "r")), open_far, name="test", connections_limit=limit)
    relay.start()
    try:
        yield relay
    finally:
        await relay.close()


def _echo() -> OpenFar:
    """A far side that says back what it hears."""

    @contextlib.asynccontextmanager
    async def open_far(_near: socket.socket, _address: object) -> AsyncIterator[socket.socket]:
        far, inside = _pair()

        async def echo() -> None:
            with inside:
                while data := await asyncio.get_running_loop().sock_recv(inside, 65536):
                    await asyncio.get_running_loop().sock_sendall(inside, data)

        task = asyncio.create_task(echo())
        try:
            with far:
                yield far
        finally:
            task.cancel()
            await asyncio.wait([task])

    return open_far


async def test_one_connection_more_than_the_limit_is_closed_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with _relay(tmp_path, _echo(), limit=2) as relay:
        loop = asyncio.get_running_loop()
        first, second = [await unix_sockets.connect(f"{tmp_path}/r") for _ in range(2)]
        with first, second:
            for connection in (first, second):
                connection.send(b"hello")
                assert await asyncio.wait_for(loop.sock_recv(connection, 5), PATIENCE_SECONDS) == b"hello"
            for _ in range(3):
                with await unix_sockets.connect(f"{tmp_path}/r") as third:
                    assert await _read_all(third) == b""
            assert relay.connections == 2
            first.send(b"still")
            assert await asyncio.wait_for(loop.sock_recv(first, 5), PATIENCE_SECONDS) == b"still"
    assert {record.getMessage() for record in caplog.records} == {"test: refused a connection: there are 2 already"}


async def test_a_far_side_that_refuses_ends_the_connection_and_is_remembered(tmp_path: Path) -> None:
    @contextlib.asynccontextmanager
    async def refuse(_near: socket.socket, _address: object) -> AsyncIterator[socket.socket]:
        if relay.connections:
            raise RelayRefusedError("nobody there")
        yield _near

    async with _relay(tmp_path, refuse) as relay:
        with await unix_sockets.connect(f"{tmp_path}/r") as client:
            assert await _read_all(client) == b""
        assert relay.last_refusal == "nobody there"


async def test_a_bug_in_the_far_side_is_logged_and_ends_one_connection_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    echo, calls = _echo(), []

    @contextlib.asynccontextmanager
    async def fail_once(near: socket.socket, address: object) -> AsyncIterator[socket.socket]:
        calls.append(address)
        if len(calls) == 1:
            raise LookupError("a bug")
        async with echo(near, address) as far:
            yield far

    async with _relay(tmp_path, fail_once):
        with await unix_sockets.connect(f"{tmp_path}/r") as client:
            assert await _read_all(client) == b""
        with await unix_sockets.connect(f"{tmp_path}/r") as client:
            client.send(b"hello")
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 5), PATIENCE_SECONDS) == b"hello"
    assert "LookupError: a bug" in caplog.text


async def test_after_stop_accepting_the_connected_go_on_and_nobody_else_comes_in(tmp_path: Path) -> None:
    async with _relay(tmp_path, _echo()) as relay:
        with await unix_sockets.connect(f"{tmp_path}/r") as client:
            client.send(b"a")
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b"a"
            relay.stop_accepting()
            with pytest.raises(ConnectionRefusedError):
                await unix_sockets.connect(f"{tmp_path}/r")
            client.send(b"b")
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b"b"


async def test_a_thousand_connections_leave_no_descriptor_and_no_task(tmp_path: Path) -> None:
    tasks, descriptors = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
    async with _relay(tmp_path, _echo()) as relay:
        for number in range(1000):
            with await unix_sockets.connect(f"{tmp_path}/r") as client:
                if number % 3:
                    client.send(b"hello")
                if number % 3 == 2:
                    assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 5), PATIENCE_SECONDS) == b"hello"
            while relay.connections > 4:
                await asyncio.sleep(0)
    # An echo whose connection ended in the moment of closing takes a few more rounds of the loop.
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(asyncio.all_tasks()) > tasks:
            await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= descriptors

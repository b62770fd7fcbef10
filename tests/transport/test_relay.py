"""The relay over Unix sockets: who is let in, what is logged, and what is left at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from guest_transport.relay.relay import OpenFar, Relay, RelayRefusedError
from guest_transport.sockets import unix
from tests.eventually import eventually, turns
from tests.transport.socket_pairs import PATIENCE_SECONDS, pair, read_all


@contextlib.asynccontextmanager
async def _relay(folder: Path, open_far: OpenFar, limit: int = 8) -> AsyncIterator[Relay]:
    relay = Relay(unix.listen(str(folder / "r")), open_far, name="test", connections_limit=limit)
    relay.start()
    try:
        yield relay
    finally:
        await relay.close()


def _echo() -> OpenFar:
    """A far side that says back what it hears."""

    @contextlib.asynccontextmanager
    async def open_far(_near: socket.socket, _address: object) -> AsyncIterator[socket.socket]:
        far, inside = pair()

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
        first, second = [await unix.connect(f"{tmp_path}/r") for _ in range(2)]
        with first, second:
            for connection in (first, second):
                connection.send(b"hello")
                assert await asyncio.wait_for(loop.sock_recv(connection, 5), PATIENCE_SECONDS) == b"hello"
            for _ in range(3):
                with await unix.connect(f"{tmp_path}/r") as third:
                    assert await read_all(third) == b""
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
        with await unix.connect(f"{tmp_path}/r") as client:
            assert await read_all(client) == b""
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
        with await unix.connect(f"{tmp_path}/r") as client:
            assert await read_all(client) == b""
        with await unix.connect(f"{tmp_path}/r") as client:
            client.send(b"hello")
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 5), PATIENCE_SECONDS) == b"hello"
    assert "LookupError: a bug" in caplog.text


async def test_without_descriptors_it_tries_again_in_a_while_and_the_loop_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with _relay(tmp_path, _echo()):
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            highest = max(map(int, os.listdir("/proc/self/fd")))
            taken: list[int] = []
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
            try:
                with contextlib.suppress(OSError):
                    while True:
                        taken.append(os.dup(client.fileno()))
                client.connect(f"{tmp_path}/r")
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await eventually(lambda: caplog.records)
                    waited = 0
                    while len(caplog.records) == 1:
                        await turns()
                        waited += 1
            finally:
                for descriptor in taken:
                    os.close(descriptor)
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert waited > 3
            client.send(b"hello")
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 5), PATIENCE_SECONDS) == b"hello"
    assert {record.getMessage() for record in caplog.records} == {"test: cannot accept: Too many open files"}


async def test_after_stop_accepting_the_connected_go_on_and_nobody_else_comes_in(tmp_path: Path) -> None:
    async with _relay(tmp_path, _echo()) as relay:
        with await unix.connect(f"{tmp_path}/r") as client:
            client.send(b"a")
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b"a"
            relay.stop_accepting()
            with pytest.raises(ConnectionRefusedError):
                await unix.connect(f"{tmp_path}/r")
            client.send(b"b")
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b"b"


async def test_a_thousand_connections_leave_no_descriptor_and_no_task(tmp_path: Path) -> None:
    tasks, descriptors = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
    async with _relay(tmp_path, _echo()) as relay:
        for number in range(1000):
            with await unix.connect(f"{tmp_path}/r") as client:
                if number % 3:
                    client.send(b"hello")
                if number % 3 == 2:
                    assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 5), PATIENCE_SECONDS) == b"hello"
            await eventually(lambda: relay.connections <= 4)
    # An echo whose connection ended in the moment of closing takes a few more rounds of the loop.
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
    assert len(os.listdir("/proc/self/fd")) <= descriptors

"""Sockets of this process alone: where there is no place for them, and a target that is opened once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from guest_transport.addresses import UnixAddress
from guest_transport.errors import ListenError
from guest_transport.relay.single_connection import OneConnection
from guest_transport.sockets import unix
from guest_transport.sockets.private_folder import PrivateFolder
from tests.descriptors import descriptors


def test_a_place_that_is_too_deep_for_a_socket_is_named_with_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = PrivateFolder()
    try:
        with pytest.raises(ListenError, match="too long for a socket; set TMPDIR to a shorter path"):
            folder.file("s")
    finally:
        folder.close()
    assert list(deep.iterdir()) == []


def test_a_listener_that_cannot_be_bound_leaves_no_descriptor(tmp_path: Path) -> None:
    before = descriptors()
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            unix.listen(str(tmp_path / "nowhere" / "s"))
    assert descriptors() <= before


async def test_of_two_that_open_one_connection_at_once_one_gets_it(sockets: Path) -> None:
    both = asyncio.Barrier(2)

    async def connect() -> socket.socket:
        await both.wait()
        return await unix.connect(str(sockets / "s"))

    with unix.listen(str(sockets / "s")) as listener:
        once = OneConnection(UnixAddress(str(sockets / "s")), connect)
        async with contextlib.AsyncExitStack() as closing:
            closing.push_async_callback(once.target.close)
            assert not once.spent
            path = once.target.grpc_target.removeprefix("unix:")
            ends = [closing.enter_context(await unix.connect(path)) for _ in range(2)]
            reads = [asyncio.create_task(asyncio.get_running_loop().sock_recv(end, 1)) for end in ends]
            refused, served = await asyncio.wait(reads, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            assert [read.result() for read in refused] == [b""]
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            with accepted:
                await asyncio.get_running_loop().sock_sendall(accepted, b"x")
                assert [await asyncio.wait_for(read, 20) for read in served] == [b"x"]
            assert once.spent, "a target whose one connection was asked for twice is over"


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        yield Path(folder)

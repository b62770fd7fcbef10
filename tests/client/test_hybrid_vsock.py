"""Clients of a guest behind hybrid vsock: a VMM's Unix socket that speaks CONNECT, and the guest's server behind it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from guest_client import errors
from tests.client.conftest import Ask


class Vmm:
    """The VMM's socket: each connection asks for a port, and is joined to the guest's server if it is 8000."""

    def __init__(self, path: Path, guest: str) -> None:
        self._guest = guest
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._open.append(near)
                self._start(self._answer, near)

    def _start(self, target: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments)  # type: ignore[arg-type]  # one of the two methods below
        self._threads.append(thread)
        thread.start()

    def _answer(self, near: socket.socket) -> None:
        line = b""
        while not line.endswith(b"\n"):
            line += near.recv(1)
        if line != b"CONNECT 8000\n":
            near.close()
            return
        far = socket.socket(socket.AF_UNIX)
        far.connect(self._guest)
        self._open.append(far)
        near.sendall(b"OK 1073741824\n")
        self._start(self._copy, near, far)
        self._start(self._copy, far, near)

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def vmm(socket_folder: Path, address: str) -> Iterator[Path]:
    path = socket_folder / "vmm"
    server = Vmm(path, address.removeprefix("unix:"))
    yield path
    server.close()


async def test_a_guest_behind_hybrid_vsock_answers_both_kinds_of_client(ask: Ask, vmm: Path) -> None:
    assert (await ask(f"hvsock:{vmm}:8000", lambda client: client.info(), guest=True)).version == "agent of vm1"


async def test_a_port_that_the_vmm_refuses_is_unavailable_with_the_reason(ask: Ask, vmm: Path) -> None:
    with pytest.raises(errors.UnavailableError, match="cannot connect: the VMM closed the connection"):
        await ask(f"hvsock:{vmm}:8001", lambda client: client.info(), guest=True)


async def test_a_vmm_that_is_not_there_is_unavailable_with_the_reason(ask: Ask, socket_folder: Path) -> None:
    with pytest.raises(errors.UnavailableError, match="cannot connect: No such file or directory"):
        await ask(f"hvsock:{socket_folder}/nobody:8000", lambda client: client.info(), guest=True)


async def test_no_thread_is_left_behind(ask: Ask, vmm: Path) -> None:
    await ask(f"hvsock:{vmm}:8000", lambda client: client.info(), guest=True)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("relay to")] == []

"""A guest whose connection ends under a call, once or always: who is asked a second time, and who is not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2
from tests.proxy.raw_guest import Connection, RawGuest, Stream, frame
from tests.proxy.running import Proxy

AGE = 77
READS = ["Info", "SysInfo", "GpuInfo", "NetworkInfo", "ListContainers"]
ON_ACCEPT, ON_CALL, IN_A_REPLY = "when it is accepted", "when it is called", "in a reply"


class LosingGuest(RawGuest):
    """Resets its first `losses` connections: where it says, and on TCP by RST."""

    def __init__(self, path: str, kind: str, losses: int, where: str) -> None:
        super().__init__(path, self._answer)
        self._kind = kind
        self._losses = losses
        self._where = where
        self._tcp_address = ""
        self.vmm_answer = b"OK 1073741824\n" if kind == "hvsock" else None

    @property
    def address(self) -> str:
        return self._tcp_address or super().address

    async def start(self) -> None:
        if self._kind != "tcp":
            await super().start()
            return
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._tcp_address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._where is not ON_ACCEPT or self.connections >= self._losses:
            await super()._serve(reader, writer)
            return
        self.connections += 1
        if self.vmm_answer:
            await reader.readline()
            writer.write(self.vmm_answer)
            await writer.drain()
        reset(writer)

    async def _answer(self, stream: Stream) -> None:
        if self.connections > self._losses:
            await stream.answer(
                guest_api_pb2.GpuInfoResponse(sample_age_ms=AGE).SerializeToString() if "Gpu" in stream.path else b""
            )
            return
        if self._where is IN_A_REPLY:
            await stream.head()
            await stream.data(frame(bytes(9), length=99))
        reset(stream.connection.writer)


def reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.asynccontextmanager
async def losing_guest(sockets: Path, kind: str, losses: int, where: str) -> AsyncIterator[LosingGuest]:
    guest = LosingGuest(str(sockets / "g"), kind, losses, where)
    await guest.start()
    try:
        yield guest
    finally:
        await guest.stop()


@pytest.mark.parametrize("kind", ["unix", "tcp", "hvsock"])
@pytest.mark.parametrize("where", [ON_ACCEPT, ON_CALL, IN_A_REPLY])
async def test_a_connection_that_is_lost_once_costs_no_caller_its_answer(
    proxy: Proxy, sockets: Path, kind: str, where: str
) -> None:
    async with losing_guest(sockets, kind, 1, where) as guest:
        proxy.add("vm1", guest.address)
        assert (await proxy.gpu_info("vm1")).sample_age_ms == AGE
        assert guest.connections == 2


@pytest.mark.parametrize("method", READS)
async def test_every_method_that_only_reads_is_asked_twice_and_no_more(proxy: Proxy, sockets: Path, method: str) -> None:
    async with losing_guest(sockets, "unix", 1000, ON_CALL) as guest:
        proxy.add("vm1", guest.address)
        error = await proxy.failure("vm1", method)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details() == "guest vm1: the connection was lost during the call"
        assert len(guest.requests) == 2


@pytest.mark.parametrize("where", [ON_ACCEPT, ON_CALL, IN_A_REPLY])
async def test_shutdown_is_never_asked_twice(proxy: Proxy, sockets: Path, where: str) -> None:
    async with losing_guest(sockets, "hvsock", 1, where) as guest:
        proxy.add("vm1", guest.address)
        assert (await proxy.failure("vm1", "Shutdown")).code() is grpc.StatusCode.UNAVAILABLE
        assert [stream.path for stream in guest.requests] == ([] if where is ON_ACCEPT else ["/guest_api.GuestApi/Shutdown"])


@pytest.mark.parametrize("status", ["14", "1", "4", "8"])
async def test_a_guest_that_answered_is_not_asked_twice_even_if_it_hangs_up_behind_its_answer(
    proxy: Proxy, sockets: Path, status: str
) -> None:
    async with losing_guest(sockets, "unix", 0, ON_CALL) as guest:

        async def fail(stream: Stream) -> None:
            await stream.fail(status, "Socket closed")
            hang_up(stream.connection)

        guest.behaviour = fail
        proxy.add("vm1", guest.address)
        assert (await proxy.failure("vm1")).details() == "guest vm1: Socket closed"
        assert len(guest.requests) == 1


def hang_up(connection: Connection) -> None:
    connection.writer.close()


async def test_a_guest_that_drops_every_connection_is_dialled_twice_for_one_call_in_a_burst_only(
    proxy: Proxy, sockets: Path
) -> None:
    async with losing_guest(sockets, "unix", 1000, ON_CALL) as guest:
        proxy.add("vm1", guest.address)
        loop = asyncio.get_running_loop()
        began, calls = loop.time(), 5
        for _ in range(calls):
            await proxy.failure("vm1")
        assert len(guest.requests) <= calls + 1 + int(loop.time() - began), "one more a second"

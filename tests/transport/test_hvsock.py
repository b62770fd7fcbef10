"""Hybrid vsock against a VMM's socket, friendly and hostile (cases D3 to D6)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from guest_transport.addresses import HvsockAddress, UnixAddress
from guest_transport.options import channel_options
from guest_transport.relay.dial import DialTarget, dial_target
from guest_transport.server.grpc_server import GrpcServer
from guest_transport.sockets import hvsock
from tests.eventually import eventually, turns
from tests.transport.vmm import Behaviour, Vmm, guest_at, in_turn, says, trickles, vmm


@contextlib.asynccontextmanager
async def _guest(folder: Path) -> AsyncIterator[Path]:
    server = GrpcServer([])
    await server.start([UnixAddress(f"{folder}/guest")])
    try:
        yield folder / "guest"
    finally:
        await server.stop()


async def _check(target: DialTarget, *, timeout: float = 10, wait: bool = True) -> int:
    async with grpc.aio.insecure_channel(target.grpc_target, options=channel_options(target.address)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout, wait_for_ready=wait)
    return int(answer.status)


async def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := await asyncio.get_running_loop().sock_recv(connection, count - len(data))):
        data += piece
    return data


async def test_a_call_reaches_the_guest_through_one_connection_with_one_whole_line(tmp_path: Path) -> None:
    async with (
        _guest(tmp_path) as guest,
        vmm(tmp_path / "v", guest_at(guest)) as host,
        dial_target(HvsockAddress(f"{tmp_path}/v", 8000)) as target,
    ):
        assert host.lines == []
        assert await _check(target) == health_pb2.HealthCheckResponse.SERVING
        assert host.lines == [b"CONNECT 8000\n"]
        assert target.last_refusal is None


@pytest.mark.parametrize(
    "pieces",
    [(b"OK 5\nhello",), (b"OK 5\n", b"hello"), tuple(bytes([c]) for c in b"OK 5\nhello"), (b"O", b"K 4294967295\nhe", b"llo")],
)
async def test_no_byte_after_ok_is_lost_however_the_answer_is_cut(tmp_path: Path, pieces: tuple[bytes, ...]) -> None:
    async with vmm(tmp_path / "v", says(*pieces)):
        with await asyncio.wait_for(hvsock.connect(HvsockAddress(f"{tmp_path}/v", 1)), 10) as connection:
            assert await asyncio.wait_for(_receive(connection, 5), 10) == b"hello"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (says(b"ERR no such port\n"), r"the VMM refused after 'ERR no such port\\n'"),
        (says(b"OK\n"), "the VMM refused"),
        (says(b"ok 5\n"), "the VMM refused"),
        (says(b"OK 5\r\n"), "the VMM refused"),
        (says(b"OK 12345678901\n"), "the VMM refused"),
        (says(b"\n"), "the VMM refused"),
        (says(b"\x1b[2J\xff\n"), "the VMM refused"),
        (says(b"OK " + b"5" * 500), "the VMM refused"),
        (trickles, "the VMM refused"),
        (says(then_close=True), "the VMM closed the connection"),
        (says(b"OK", then_close=True), "the VMM closed the connection after 'OK'"),
        (says(), "no answer within 0.5 s"),
        (says(b"OK 5"), "no answer within 0.5 s"),
    ],
)
async def test_a_bad_answer_is_refused_within_the_bound_with_the_reason(
    tmp_path: Path, behaviour: Behaviour, reason: str
) -> None:
    bound = 0.5 if reason.startswith("no answer") else 10
    async with (
        vmm(tmp_path / "v", behaviour) as host,
        dial_target(HvsockAddress(f"{tmp_path}/v", 1), handshake_seconds=bound) as target,
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
            client.connect(target.grpc_target.removeprefix("unix:"))
            # Not one byte is passed on; the connection just ends.
            assert await asyncio.wait_for(_receive(client, 1), 10) == b""
        assert host.lines == [b"CONNECT 1\n"]
        assert target.last_refusal is not None
        assert target.last_refusal.startswith(reason)
        assert target.last_refusal.isprintable()
        assert len(target.last_refusal) < 300


async def test_no_vmm_is_unavailable_at_once_with_the_reason(tmp_path: Path) -> None:
    async with dial_target(HvsockAddress(f"{tmp_path}/v", 1)) as target:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await _check(target, wait=False)
        assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
        assert target.last_refusal == "No such file or directory"


async def test_a_guest_that_ignores_its_first_connection_is_dialled_anew(tmp_path: Path) -> None:
    async with (
        _guest(tmp_path) as guest,
        vmm(tmp_path / "v", in_turn(says(), guest_at(guest))) as host,
        dial_target(HvsockAddress(f"{tmp_path}/v", 1), handshake_seconds=0.2) as target,
    ):
        assert await _check(target) == health_pb2.HealthCheckResponse.SERVING
        assert len(host.lines) == 2


@pytest.mark.parametrize("rounds", range(6))
async def test_a_dial_that_is_cancelled_has_sent_a_whole_line_or_never_connected(tmp_path: Path, rounds: int) -> None:
    async with vmm(tmp_path / "v", says()) as host:
        dial = asyncio.create_task(hvsock.connect(HvsockAddress(f"{tmp_path}/v", 8000)))
        await turns(rounds)
        dial.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dial
        # A connection after it shows that the VMM has seen all that came before.
        last = asyncio.create_task(hvsock.connect(HvsockAddress(f"{tmp_path}/v", 1)))
        await asyncio.wait_for(host.seen(1), 10)
        await eventually(lambda: host.lines[-1] == b"CONNECT 1\n")
        last.cancel()
        assert host.lines in ([b"CONNECT 8000\n", b"CONNECT 1\n"], [b"CONNECT 1\n"])


async def test_a_dial_that_waits_in_a_full_queue_is_not_taken_for_connected(tmp_path: Path) -> None:
    host = Vmm(tmp_path / "v", says(b"OK 1\n"), backlog=0)
    with socket.socket(socket.AF_UNIX) as filler:
        filler.connect(str(tmp_path / "v"))
        cancelled = asyncio.create_task(hvsock.connect(HvsockAddress(f"{tmp_path}/v", 8000)))
        waiting = asyncio.create_task(hvsock.connect(HvsockAddress(f"{tmp_path}/v", 1)))
        await turns()
        cancelled.cancel()
        await asyncio.wait([cancelled])
    host.start()
    (await asyncio.wait_for(waiting, 10)).close()
    assert host.lines == [b"", b"CONNECT 1\n"]
    await host.close()


async def test_closing_a_target_ends_its_connections_and_leaves_nothing(tmp_path: Path) -> None:
    async with vmm(tmp_path / "v", says(b"OK 5\n")) as host:
        before = len(os.listdir("/proc/self/fd"))
        target = dial_target(HvsockAddress(f"{tmp_path}/v", 1))
        path = Path(target.grpc_target.removeprefix("unix:"))
        assert path.parent.stat().st_mode & 0o777 == 0o700
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
            client.connect(str(path))
            await asyncio.wait_for(host.seen(1), 10)
            await target.close()
            assert await asyncio.wait_for(_receive(client, 1), 10) == b""
        assert not path.parent.exists()
        # The fake VMM's own end of the connection is the one descriptor that is left.
        assert len(os.listdir("/proc/self/fd")) <= before + 1

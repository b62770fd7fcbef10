"""GuestApi on a real server: values, statuses, and what its parts are asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Generic, TypeVar

import grpc
import pytest
from google.protobuf import empty_pb2

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_service.api import GuestApi
from guest_service.host_facts.errors import FactError, PartLog
from guest_service.host_facts.power import Power
from guest_transport.addresses import Address, TcpAddress, UnixAddress
from guest_transport.peers import Peers
from guest_transport.server.grpc_server import GrpcServer
from tests.eventually import eventually

EMPTY = empty_pb2.Empty()
T = TypeVar("T")


class FakeTelemetry:
    """Telemetry of a guest whose one card was sampled; remembers how it was asked, because that is what api.py decides."""

    def __init__(self) -> None:
        self.without_sample: guest_api_pb2.GpuInfoResponse | None = None
        self.asked: list[tuple[str, float | None, float | None]] = []

    def answer_without_sample(self) -> guest_api_pb2.GpuInfoResponse | None:
        return self.without_sample

    async def gpu_info(
        self, caller: str, *, max_age_seconds: float | None = None, timeout_seconds: float | None = None
    ) -> guest_api_pb2.GpuInfoResponse:
        self.asked.append((caller, max_age_seconds, timeout_seconds))
        return guest_api_pb2.GpuInfoResponse(gpus=[guest_api_pb2.GpuDevice(index=0, utilization_gpu=0)], sample_age_ms=0)


class Part(Generic[T]):
    """A part that answers or fails as it is told."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.error: Exception | None = None

    async def read(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value

    async def list(self) -> T:
        return await self.read()


class Guest:
    """A served GuestApi and the parts behind it."""

    def __init__(self, tmp_path: Path, *, allow_shutdown: bool | None = None) -> None:
        self.telemetry = FakeTelemetry()
        self.system = Part(guest_api_pb2.SystemInfo(os_name="Test OS", total_memory=2**64 - 1))
        self.network = Part(guest_api_pb2.NetworkInformation(dns_servers=["192.0.2.53"]))
        self.containers = Part(guest_api_pb2.ListContainersResponse(containers=[guest_api_pb2.Container(id="c")]))
        self.poweroff = tmp_path / "poweroff"
        self.power = Power(["sh", "-c", f"echo off >> {self.poweroff}"], allow_shutdown=allow_shutdown)
        self.peers = Peers()
        self.api = GuestApi(
            telemetry=self.telemetry,
            system=self.system,
            network=self.network,
            containers=self.containers,
            info=lambda: guest_api_pb2.GuestInfo(version="1.2.3"),
            power=self.power,
            peers=self.peers,
            part_log=PartLog(),
        )

    async def powered_off(self) -> None:
        """Wait for the command, which is started behind the answer, and for its end."""
        await eventually(lambda: self.power.command is not None)
        assert self.power.command is not None
        await self.power.command

    @asynccontextmanager
    async def served(self, address: Address) -> AsyncIterator[guest_api_pb2_grpc.GuestApiAsyncStub]:
        server = GrpcServer([self.api.service()], peers=self.peers)
        await server.start([address])
        (bound,) = server.addresses
        assert isinstance(bound, UnixAddress | TcpAddress)
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        try:
            async with grpc.aio.insecure_channel(bound.grpc_target, options) as channel:
                yield guest_api_pb2_grpc.GuestApiStub(channel)
        finally:
            await server.stop()


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


TCP = TcpAddress("127.0.0.1", 0)


async def test_every_method_answers_what_its_part_knows(guest: Guest) -> None:
    async with guest.served(TCP) as stub:
        assert (await stub.Info(EMPTY)).version == "1.2.3"
        assert (await stub.SysInfo(EMPTY)).total_memory == 2**64 - 1
        assert list((await stub.NetworkInfo(EMPTY)).dns_servers) == ["192.0.2.53"]
        assert [c.id for c in (await stub.ListContainers(EMPTY)).containers] == ["c"]
        (gpu,) = (await stub.GpuInfo(EMPTY)).gpus
        assert gpu.HasField("utilization_gpu")


async def test_a_part_that_fails_is_unavailable_with_its_reason_and_logged_once(
    guest: Guest, caplog: pytest.LogCaptureFixture
) -> None:
    guest.containers.error = FactError("containers", "the engine answers badly: 500")
    async with guest.served(TCP) as stub:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.ListContainers(EMPTY)
            assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
            assert failed.value.details() == "containers: the engine answers badly: 500"
        assert (await stub.SysInfo(EMPTY)).os_name == "Test OS"
    assert len([r for r in caplog.records if "answers badly" in r.message]) == 1


async def test_a_bug_is_internal_and_tells_the_caller_nothing_of_it(guest: Guest, caplog: pytest.LogCaptureFixture) -> None:
    guest.system.error = RuntimeError("/etc/secret")
    async with guest.served(TCP) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.SysInfo(EMPTY)
    assert failed.value.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in str(failed.value.details())
    assert "secret" in caplog.text


async def test_a_guest_without_a_card_answers_zero_bytes_before_it_looks_at_the_call(guest: Guest) -> None:
    guest.telemetry.without_sample = guest_api_pb2.GpuInfoResponse()
    async with guest.served(TCP) as stub:
        reply = await stub.GpuInfo(EMPTY, metadata=[("cache-control", "max-age=nonsense")])
    assert reply.ByteSize() == 0
    assert guest.telemetry.asked == []


@pytest.mark.parametrize(
    ("headers", "max_age"),
    [
        ([], None),
        ([("cache-control", "max-age=3")], 3.0),
        ([("cache-control", "no-transform"), ("cache-control", "max-age=0")], 0.0),
        ([("x-cache-control", "max-age=3")], None),
    ],
)
async def test_the_age_that_a_caller_accepts_and_its_deadline_reach_the_telemetry(
    guest: Guest, headers: list[tuple[str, str]], max_age: float | None
) -> None:
    async with guest.served(TCP) as stub:
        await stub.GpuInfo(EMPTY, metadata=headers, timeout=7)
        await stub.GpuInfo(EMPTY, metadata=headers)
    (_, with_deadline, left), (_, without, unbounded) = guest.telemetry.asked
    assert with_deadline == without == max_age
    assert left is not None
    assert 5 < left < 7.5  # gRPC rounds it
    assert unbounded is None


async def test_an_age_that_is_no_number_is_refused(guest: Guest) -> None:
    async with guest.served(TCP) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GpuInfo(EMPTY, metadata=[("cache-control", "max-age=soon")])
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "max-age" in str(refused.value.details())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_caller_on_a_new_connection_is_the_same_caller(guest: Guest, host: str) -> None:
    server = GrpcServer([guest.api.service()], peers=guest.peers)
    await server.start([TcpAddress(host, 0)])
    (bound,) = server.addresses
    assert isinstance(bound, TcpAddress)
    try:
        for _ in range(2):
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(bound.grpc_target, options) as channel:
                await guest_api_pb2_grpc.GuestApiStub(channel).GpuInfo(EMPTY)
    finally:
        await server.stop()
    assert [caller for caller, _, _ in guest.telemetry.asked] == [host, host]


async def test_shutdown_is_answered_and_then_done_once_however_often_it_is_called(
    guest: Guest, short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guest.served(UnixAddress(str(short_path / "s"))) as stub:
        await asyncio.gather(*(stub.Shutdown(EMPTY) for _ in range(10)))
        await stub.Shutdown(EMPTY)
        await guest.powered_off()
    assert guest.poweroff.read_text() == "off\n"
    assert caplog.text.count("Shutdown by unix") == 11


async def test_shutdown_over_tcp_is_refused_by_default_and_nothing_runs(guest: Guest, caplog: pytest.LogCaptureFixture) -> None:
    async with guest.served(TCP) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Shutdown(EMPTY)
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert "power.allow_shutdown" in str(refused.value.details())
    assert guest.power.command is None
    assert "Shutdown by 127.0.0.1:" in caplog.text


@pytest.mark.parametrize(("allowed", "make"), [(True, lambda _: TCP), (False, lambda path: UnixAddress(str(path / "s")))])
async def test_what_configuration_says_of_shutdown_holds_for_every_listener(
    tmp_path: Path, short_path: Path, allowed: bool, make: Callable[[Path], Address]
) -> None:
    guest = Guest(tmp_path, allow_shutdown=allowed)
    async with guest.served(make(short_path)) as stub:
        if allowed:
            await stub.Shutdown(EMPTY)
            await guest.powered_off()
        else:
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Shutdown(EMPTY)
    assert guest.poweroff.exists() is allowed

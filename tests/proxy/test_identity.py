"""A pinned guest: another VM behind its address never answers for it, and never gets what was meant for it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_fleet.v1 import fleet_pb2
from tests.eventually import eventually, turns
from tests.proxy.fleet_entries import Entries
from tests.proxy.raw_guest import Behaviour, Connection, Stream, raw_guest
from tests.proxy.running import METHODS, Proxy
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.errors import CallError
from vmm_proxy.fleet.outcome import GPU_INFO

OURS, OTHER = bytes(range(32)), b"0123456789"


def vm(instance_id: bytes, age: int = 0) -> Behaviour:
    async def answer(stream: Stream) -> None:
        if stream.path.endswith("/Info"):
            await stream.answer(guest_api_pb2.GuestInfo(instance_id=instance_id, version="1").SerializeToString())
        elif stream.path.endswith("/GpuInfo"):
            await stream.answer(guest_api_pb2.GpuInfoResponse(sample_age_ms=age).SerializeToString())
        else:
            await stream.answer(b"")

    return answer


def asked(streams: list[Stream]) -> list[str]:
    return [stream.path.rpartition("/")[2] for stream in streams]


@pytest.mark.parametrize("vmm_answer", [None, b"OK 5\n"], ids=["unix", "hvsock"])
async def test_the_pinned_guest_is_asked_who_it_is_once_per_connection(
    proxy: Proxy, sockets: Path, vmm_answer: bytes | None
) -> None:
    async with raw_guest(str(sockets / "g"), vm(OURS, 7), vmm_answer=vmm_answer) as guest:
        proxy.add("vm1", guest.address, instance_id=OURS)
        answers = await asyncio.gather(*(proxy.gpu_info("vm1") for _ in range(8)))
        assert {answer.sample_age_ms for answer in answers} == {7}
        await proxy.gpu_info("vm1")
        assert asked(guest.requests).count("Info") == 1
        assert asked(guest.requests)[0] == "Info"
        assert guest.connections == 1
        assert guest.requests[0].headers[":authority"] == "localhost"


@pytest.mark.parametrize("method", METHODS)
async def test_another_vm_at_the_address_gets_no_call_and_gives_no_answer(proxy: Proxy, sockets: Path, method: str) -> None:
    async with raw_guest(str(sockets / "g"), vm(OTHER)) as guest:
        proxy.add("vm1", guest.address, instance_id=OURS)
        for _ in range(2):
            error = await proxy.failure("vm1", method)
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert OTHER.decode() not in (error.details() or "")
        assert set(asked(guest.requests)) == {"Info"}
        assert proxy.pool.upstream("vm1").channels.wrong_guests == 2
        assert guest.connections == 2, "what answered wrongly is not asked again: the guest may be back by then"


@pytest.mark.parametrize("shown", [b"", OURS[:-1], OURS + b"\0"])
async def test_a_part_of_the_pin_is_not_the_pin(proxy: Proxy, sockets: Path, shown: bytes) -> None:
    async with raw_guest(str(sockets / "g"), vm(shown)) as guest:
        proxy.add("vm1", guest.address, instance_id=OURS)
        assert (await proxy.failure("vm1")).code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_vm_that_took_over_the_address_between_two_calls_never_answers(proxy: Proxy, sockets: Path) -> None:
    path = str(sockets / "g")
    async with raw_guest(path, vm(OURS, 1)) as guest:
        proxy.add("vm1", guest.address, instance_id=OURS)
        assert (await proxy.gpu_info("vm1")).sample_age_ms == 1
    for _ in range(3):
        async with raw_guest(path, vm(OTHER, 2)) as other:
            error = await until_known(proxy)
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert set(asked(other.requests)) == {"Info"}
    async with raw_guest(path, vm(OURS, 3)):

        async def is_back() -> bool:
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert (await proxy.gpu_info("vm1")).sample_age_ms == 3
                return True
            return False

        await eventually(is_back)


async def until_known(proxy: Proxy) -> grpc.aio.AioRpcError:

    async def known() -> grpc.aio.AioRpcError | None:
        error = await proxy.failure("vm1")
        return None if error.code() is grpc.StatusCode.UNAVAILABLE else error

    return await eventually(known)


async def test_a_pinned_guest_that_does_not_say_who_it_is_ends_at_the_deadline_and_the_others_do_not(
    proxy: Proxy, sockets: Path
) -> None:
    async def silent_about_itself(stream: Stream) -> None:
        await (stream.reset.wait() if stream.path.endswith("/Info") else stream.answer(b""))

    async with raw_guest(str(sockets / "g"), silent_about_itself) as guest:
        proxy.add("vm1", guest.address, instance_id=OURS)
        slow = asyncio.create_task(proxy.failure("vm1", timeout=20))
        await asyncio.wait_for(guest.called.wait(), 5)
        error = await proxy.failure("vm1", "SysInfo", timeout=0.5)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        proxy.directory.remove("vm1")
        assert (await asyncio.wait_for(slow, 5)).code() is grpc.StatusCode.UNAVAILABLE
        assert set(asked(guest.requests)) == {"Info"}


async def test_a_new_pin_ends_what_the_old_one_proved(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), vm(OURS)) as guest:
        proxy.add("vm1", guest.address, instance_id=OURS)
        await proxy.gpu_info("vm1")
        entry = proxy.directory.get("vm1")
        assert entry is not None
        proxy.directory.replace(GuestEntry("vm1", entry.address, instance_id=OTHER))
        assert (await proxy.failure("vm1")).code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_collection_shows_the_wrong_vm_as_a_failure_of_that_guest(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), vm(OTHER)) as guest:
        proxy.add("vm1", guest.address, instance_id=OURS)
        (entry,) = await Entries(proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=10)).all()
        assert entry.status.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]


async def test_a_pinned_guest_on_tcp_is_called_over_one_connection(proxy: Proxy) -> None:
    class Guest(guest_api_pb2_grpc.GuestApiServicer):
        async def Info(self, request: object, context: object) -> guest_api_pb2.GuestInfo:
            return guest_api_pb2.GuestInfo(instance_id=OURS)

        async def GpuInfo(self, request: object, context: object) -> guest_api_pb2.GpuInfoResponse:
            return guest_api_pb2.GpuInfoResponse(error="here")

    Guest.__abstractmethods__ = frozenset()
    server = grpc.aio.server()
    guest_api_pb2_grpc.add_GuestApiServicer_to_server(Guest(), server)  # type: ignore[abstract] # the other methods answer UNIMPLEMENTED
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    proxy.add("vm1", f"localhost:{port}", instance_id=OURS)
    assert (await proxy.gpu_info("vm1")).error == "here"
    await server.stop(None)
    error = await proxy.failure("vm1")
    assert error.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("count", range(0, 40, 4))
async def test_a_guest_may_go_while_its_replaced_connection_is_being_closed(proxy: Proxy, sockets: Path, count: int) -> None:
    async with raw_guest(str(sockets / "g"), vm(OTHER)) as guest:
        proxy.add("vm1", guest.address, instance_id=OURS)
        with pytest.raises(CallError) as refused:
            await proxy.pool.upstream("vm1").call(GPU_INFO, (), asyncio.get_running_loop().time() + 10)
        assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
        await turns(count)
        proxy.directory.remove("vm1")
        # Raises what went wrong while the guest's connections were closed.
        await proxy.pool.close()


async def test_a_pinned_guest_on_tcp_hears_of_no_path_of_the_host(proxy: Proxy) -> None:
    authorities: list[str] = []

    async def answer(stream: Stream) -> None:
        authorities.append(stream.headers[":authority"])
        await vm(OURS)(stream)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(reader, writer, answer).serve()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        proxy.add("vm1", f"127.0.0.1:{server.sockets[0].getsockname()[1]}", instance_id=OURS)
        await proxy.gpu_info("vm1")
        proxy.directory.remove("vm1")
        await proxy.pool.close()
    assert authorities == ["localhost"] * 2

"""A guest that runs dstack's own agent is a guest like every other: answers, statuses, limits, deadlines, pins and reachability."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2
from guest_fleet.v1 import fleet_pb2
from tests.eventually import eventually
from tests.pins.test_guest_tls import Authorities
from tests.proxy.dstack_replies import CARDS, OTHER, OURS, REPLIES, body_of, sends
from tests.proxy.raw_guest import Stream, raw_guest
from tests.proxy.raw_http_guest import Behaviour, Request, always, raw_http_guest
from tests.proxy.running import METHODS, Proxy, running_proxy
from vmm_proxy.upstream.limits import GUEST_CALLS
from vmm_proxy.upstream.reachability import ReachabilityState

# Field 5000 is nobody's yet: 8 bytes that the proxy cannot know.
UNKNOWN_FIELD = b"\xc1\xb8\x02hidden!!"


@pytest.mark.parametrize("vmm_answer", [None, b"OK 5\n"], ids=["unix", "hvsock"])
async def test_every_method_is_posted_once_with_the_path_of_dstack_and_answered(
    proxy: Proxy, sockets: Path, vmm_answer: bytes | None
) -> None:
    async with raw_http_guest(str(sockets / "g"), always(REPLIES), vmm_answer) as guest:
        proxy.add("vm1", guest.address)
        for method in METHODS:
            reply = await getattr(proxy.api, method)(guest_api_pb2.Id(id="vm1"), timeout=10)
            assert reply.SerializeToString() == REPLIES[method]
        assert [request.line for request in guest.requests] == [f"POST /api/{method} HTTP/1.1" for method in METHODS]
        assert {tuple(request.values("content-type")) for request in guest.requests} == {("application/octet-stream",)}
        assert {request.body for request in guest.requests} == {b""}


async def test_a_guest_on_a_tcp_port_of_this_machine_is_asked_in_the_same_way(proxy: Proxy, sockets: Path) -> None:
    async with raw_http_guest(str(sockets / "g"), always(REPLIES)) as guest:
        proxy.add("vm1", await guest.also_on_tcp())
        assert (await proxy.gpu_info("vm1")).sample_age_ms == 7


async def test_a_guest_that_should_be_reached_with_tls_is_not_reached_in_the_clear(sockets: Path, tmp_path: Path) -> None:
    async with running_proxy(sockets / "proxy", guest_tls=Authorities(tmp_path).proxy("guest.example")) as proxy:
        proxy.add("vm1", "dstack+192.0.2.1:8000")
        error = await proxy.failure("vm1")
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "dstack's agent speaks no TLS" in (error.details() or "")


async def test_fields_that_this_proxy_does_not_know_reach_the_caller(proxy: Proxy, sockets: Path) -> None:
    async with raw_http_guest(str(sockets / "g"), always({"GpuInfo": REPLIES["GpuInfo"] + UNKNOWN_FIELD})) as guest:
        proxy.add("vm1", guest.address)
        assert UNKNOWN_FIELD in (await proxy.gpu_info("vm1")).SerializeToString()


async def test_a_guest_without_nvidia_cards_has_none_and_no_age(proxy: Proxy, sockets: Path) -> None:
    async with raw_http_guest(str(sockets / "g"), always({"GpuInfo": b""})) as guest:
        proxy.add("vm1", guest.address)
        cards = await proxy.gpu_info("vm1")
        assert (list(cards.gpus), cards.error, cards.HasField("sample_age_ms")) == ([], "", False)


async def test_a_kept_connection_is_used_again_and_one_that_the_guest_ended_is_not(proxy: Proxy, sockets: Path) -> None:
    async with raw_http_guest(str(sockets / "g"), always(REPLIES)) as guest:
        proxy.add("vm1", guest.address)
        for _ in range(3):
            await proxy.gpu_info("vm1")
        assert guest.connections == 1
        (kept,) = guest.still_open
        kept.close()
        channel = proxy.pool.upstream("vm1").channels.current
        assert channel is not None
        await eventually(lambda: not channel.connected)
        await proxy.gpu_info("vm1")
        assert guest.connections == 2


async def test_a_reading_call_on_a_connection_that_ends_under_it_is_made_on_a_new_one(proxy: Proxy, sockets: Path) -> None:
    async def one_each(request: Request) -> None:
        if [each.connection for each in guest.requests].count(request.connection) > 1:
            await request.hang_up()
        else:
            await request.answer(REPLIES[request.method])

    async with raw_http_guest(str(sockets / "g"), one_each) as guest:
        proxy.add("vm1", guest.address)
        for _ in range(4):
            assert (await proxy.gpu_info("vm1")).sample_age_ms == 7


async def test_shutdown_is_sent_once_and_never_on_a_kept_connection(proxy: Proxy, sockets: Path) -> None:
    async def dies(request: Request) -> None:
        if request.method == "Shutdown":
            await request.hang_up()
        else:
            await request.answer(REPLIES[request.method])

    async with raw_http_guest(str(sockets / "g"), dies) as guest:
        proxy.add("vm1", guest.address)
        await proxy.gpu_info("vm1")
        assert (await proxy.failure("vm1", "Shutdown")).code() is grpc.StatusCode.UNAVAILABLE
        assert guest.asked.count("Shutdown") == 1
        assert guest.requests[-1].connection == 2


async def test_what_a_guest_says_unasked_ends_its_connection_and_is_nobodys_answer(proxy: Proxy, sockets: Path) -> None:
    async with raw_http_guest(str(sockets / "g"), always(REPLIES)) as guest:
        proxy.add("vm1", guest.address)
        await proxy.gpu_info("vm1")
        (kept,) = guest.still_open
        lie = guest_api_pb2.GpuInfoResponse(sample_age_ms=999).SerializeToString()
        kept.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(lie), lie))
        await eventually(lambda: not guest.still_open)
        assert (await proxy.gpu_info("vm1")).sample_age_ms == 7
        assert guest.connections == 2


def hangs_on(method: str, release: asyncio.Event) -> Behaviour:
    async def answer(request: Request) -> None:
        if request.method == method:
            await release.wait()
        await request.answer(REPLIES[request.method])

    return answer


async def test_a_method_that_hangs_misses_its_deadline_and_holds_up_no_other(proxy: Proxy, sockets: Path) -> None:
    release = asyncio.Event()
    async with raw_http_guest(str(sockets / "g"), hangs_on("SysInfo", release)) as guest:
        proxy.add("vm1", guest.address)
        slow = asyncio.create_task(proxy.failure("vm1", "SysInfo", timeout=0.5))
        await guest.called.wait()
        assert (await proxy.gpu_info("vm1")).sample_age_ms == 7
        assert (await slow).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        # The connection of the call that was given up is gone: what comes late on it is nobody's.
        await eventually(lambda: len(guest.still_open) <= 2)
        release.set()
        assert (await proxy.gpu_info("vm1")).sample_age_ms == 7


@pytest.mark.parametrize(
    "begun", [b"", b"HTTP/1.1 200 OK\r\n", body_of(9) + b"\x28"], ids=["silent", "in the head", "in the body"]
)
async def test_a_guest_that_stops_in_the_middle_misses_the_deadline_and_is_asked_anew(
    proxy: Proxy, sockets: Path, begun: bytes
) -> None:
    async with raw_http_guest(str(sockets / "g"), sends(begun)) as guest:
        proxy.add("vm1", guest.address)
        error = await proxy.failure("vm1", timeout=0.5)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: proxy.pool.reachability("vm1").state is ReachabilityState.UNREACHABLE)
        guest.behaviour = always(REPLIES)
        assert (await proxy.gpu_info("vm1")).sample_age_ms == 7
        assert guest.connections == 2


async def test_a_hundred_callers_of_one_method_are_one_request(proxy: Proxy, sockets: Path) -> None:
    release = asyncio.Event()
    async with raw_http_guest(str(sockets / "g"), hangs_on("GpuInfo", release)) as guest:
        proxy.add("vm1", guest.address)
        calls = [asyncio.create_task(proxy.gpu_info("vm1")) for _ in range(100)]
        await guest.called.wait()
        await eventually(lambda: proxy.pool.upstream("vm1").callers == 100)
        release.set()
        assert {answer.sample_age_ms for answer in await asyncio.gather(*calls)} == {7}
        assert guest.asked == ["GpuInfo"]


async def test_a_guest_that_is_stopped_answers_its_callers_at_once_and_loses_its_connections(proxy: Proxy, sockets: Path) -> None:
    release = asyncio.Event()
    async with raw_http_guest(str(sockets / "g"), hangs_on("GpuInfo", release)) as guest:
        proxy.add("vm1", guest.address)
        call = asyncio.create_task(proxy.failure("vm1", timeout=30))
        await guest.called.wait()
        proxy.directory.remove("vm1")
        error = await call
        assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "guest vm1: it was removed from the directory")
        release.set()
        await eventually(lambda: not guest.still_open)


async def test_metadata_that_travels_is_headers_and_nothing_else_is(proxy: Proxy, sockets: Path) -> None:
    sent = [("cache-control", "max-age=0"), ("x-request-id", "7"), ("x-other", "1")]

    async def answer(request: Request) -> None:
        await request.answer(REPLIES["GpuInfo"], extra="x-request-id: 7\r\nset-cookie: a=b\r\n")

    async with raw_http_guest(str(sockets / "g"), answer) as guest:
        proxy.add("vm1", guest.address)
        call = proxy.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=10, metadata=sent)
        await call
        assert list(await call.trailing_metadata()) == [("x-request-id", "7")]
        names = {name for name, _ in guest.requests[0].headers}
        assert names == {"host", "content-type", "accept", "content-length", "cache-control", "x-request-id"}


def vm(instance_id: bytes) -> Behaviour:
    return always(REPLIES | {"Info": guest_api_pb2.GuestInfo(instance_id=instance_id).SerializeToString()})


@pytest.mark.parametrize("method", METHODS)
async def test_another_vm_at_the_address_of_a_pinned_guest_gets_no_call_but_info(
    proxy: Proxy, sockets: Path, method: str
) -> None:
    async with raw_http_guest(str(sockets / "g"), vm(OTHER)) as guest:
        proxy.add("vm1", guest.address, instance_id=OURS)
        for _ in range(2):
            error = await proxy.failure("vm1", method)
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert OTHER.decode() not in (error.details() or "")
        assert set(guest.asked) == {"Info"}
        assert proxy.pool.upstream("vm1").channels.wrong_guests == 2


async def test_each_connection_of_a_pinned_guest_is_asked_who_it_is_before_anything_else(proxy: Proxy, sockets: Path) -> None:
    async with raw_http_guest(str(sockets / "g"), vm(OURS)) as guest:
        proxy.add("vm1", guest.address, instance_id=OURS)
        # As many at once as one guest may be asked.
        for methods in (METHODS[:GUEST_CALLS], METHODS[GUEST_CALLS:]):
            await asyncio.gather(*(getattr(proxy.api, method)(guest_api_pb2.Id(id="vm1"), timeout=10) for method in methods))
        first = {request.connection: request.method for request in reversed(guest.requests)}
        assert set(first.values()) == {"Info"}
        guest.behaviour = vm(OTHER)
        for connection in list(guest.still_open):
            connection.close()
        await eventually(lambda: not guest.still_open)
        seen = len(guest.requests)
        assert (await proxy.failure("vm1", "Shutdown")).code() is grpc.StatusCode.FAILED_PRECONDITION
        assert guest.asked[seen:] == ["Info"]


@pytest.mark.parametrize(
    ("place", "reason"),
    [("gone", "its socket does not exist"), ("file", "connection refused")],
)
async def test_a_guest_that_is_not_there_is_unreachable_in_the_words_of_every_guest(
    proxy: Proxy, sockets: Path, place: str, reason: str
) -> None:
    (sockets / "file").touch()
    proxy.add("vm1", f"dstack+unix:{sockets}/{place}")
    error = await proxy.failure("vm1")
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, f"guest vm1: unreachable: {reason}")


async def test_a_fleet_of_both_kinds_is_collected_and_listed_in_one_reply(proxy: Proxy, sockets: Path) -> None:
    async def grpc_guest(stream: Stream) -> None:
        await stream.answer(CARDS.SerializeToString() if stream.path.endswith("/GpuInfo") else b"")

    async with (
        raw_http_guest(str(sockets / "d"), always(REPLIES)) as dstack,
        raw_guest(str(sockets / "g"), grpc_guest) as ours,
    ):
        proxy.add("vm-dstack", dstack.address)
        proxy.add("vm-grpc", ours.address)
        proxy.add("vm-off", f"dstack+unix:{sockets}/off", running=False)
        collected = {
            guest.guest_id: guest
            async for message in proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=10)
            for guest in message.guests
        }
        assert collected["vm-dstack"].gpu_info == collected["vm-grpc"].gpu_info == CARDS
        listed = await proxy.fleet.ListGuests(fleet_pb2.ListGuestsRequest(), timeout=10)
        assert {guest.id: guest.address for guest in listed.guests} == {
            "vm-dstack": dstack.address,
            "vm-grpc": ours.address,
            "vm-off": f"dstack+unix:{sockets}/off",
        }

"""Every hostile kind of guest against every method of the contract, and against a collection of all of them at once."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from guest_api import guest_api_pb2
from guest_contract import card_sums, card_values
from guest_contract.health import Level, judge_guest
from guest_contract.methods import Method, proxied_methods
from guest_fleet.v1 import fleet_pb2
from tests.eventually import eventually
from tests.proxy.fleet_entries import Entries
from tests.proxy.hostile_guests import HOSTILE, OK, Kind
from tests.proxy.raw_guest import Stream, raw_guest
from tests.proxy.running import Proxy

METHODS = proxied_methods()
# For what is answered, also on a busy machine; and for what never is.
TIMEOUT_SECONDS = 10.0
SILENT_SECONDS = 1.0
# A status is there this long after the deadline at the latest, also on a busy machine.
LATE_SECONDS = 3.0
AGE = 77


async def healthy(stream: Stream) -> None:
    """The method's reply, with a value that no hostile guest sends."""
    replies: dict[str, Message] = {
        "Info": guest_api_pb2.GuestInfo(version="healthy"),
        "SysInfo": guest_api_pb2.SystemInfo(os_name="healthy"),
        "GpuInfo": guest_api_pb2.GpuInfoResponse(sample_age_ms=AGE),
        "NetworkInfo": guest_api_pb2.NetworkInformation(dns_servers=["healthy"]),
        "ListContainers": guest_api_pb2.ListContainersResponse(containers=[guest_api_pb2.Container(id="healthy")]),
    }
    reply = replies.get(stream.path.rpartition("/")[2])
    await stream.answer(reply.SerializeToString() if reply else b"")


async def outcome(
    proxy: Proxy, guest_id: str, method: Method, seconds: float = TIMEOUT_SECONDS
) -> tuple[grpc.StatusCode, bytes, grpc.aio.Call]:
    """Code, reply and call; a proxy that sends no status in time fails here."""
    rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = proxy.channel.unary_unary(f"/guest_api.ProxiedGuestApi/{method.name}")
    call = rpc(guest_api_pb2.Id(id=guest_id).SerializeToString(), timeout=seconds)
    async with asyncio.timeout(seconds + LATE_SECONDS):
        try:
            wire = await call
        except grpc.aio.AioRpcError as error:
            return error.code(), b"", call
    return OK, wire, call


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_guest_fails_alone_and_by_name_whatever_is_asked(proxy: Proxy, sockets: Path, kind: str) -> None:
    hostile = HOSTILE[kind]
    seconds = SILENT_SECONDS if grpc.StatusCode.DEADLINE_EXCEEDED in hostile.codes else TIMEOUT_SECONDS
    async with (
        raw_guest(str(sockets / "bad"), hostile.answer, settings=hostile.settings) as guest,
        raw_guest(str(sockets / "good"), healthy) as good,
    ):
        proxy.add("bad", guest.address)
        proxy.add("good", good.address)
        # Four at a time is what one guest may have; the rest waits its turn here and not in the proxy.
        for methods in (METHODS[:3], METHODS[3:]):
            outcomes = await asyncio.gather(*(outcome(proxy, "bad", method, seconds) for method in methods))
            for method, (code, wire, call) in zip(methods, outcomes, strict=True):
                assert code in hostile.codes, f"{method.name}: {code.name} {await call.details()}"
                await check_said(call, code, wire, method, sockets)
        for method in METHODS:
            code, wire, _ = await outcome(proxy, "good", method)
            assert code is OK
            assert (
                not wire
                or b"healthy" in wire
                or method.reply.FromString(wire) == guest_api_pb2.GpuInfoResponse(sample_age_ms=AGE)
            )
        guest.behaviour = healthy
        guest.settings = {}
        await until_served(proxy, "bad")


async def check_said(call: grpc.aio.Call, code: grpc.StatusCode, wire: bytes, method: Method, sockets: Path) -> None:
    """What the caller is told holds nothing but what it should."""
    initial, trailing = await call.initial_metadata(), await call.trailing_metadata()
    assert list(initial) == []
    assert {key for key, _ in trailing} <= {"x-request-id", "grpc-status-details-bin"}
    assert all(str(value).isprintable() for key, value in trailing if key == "x-request-id")
    if code is OK:
        assert method.reply.FromString(wire) is not None
        return
    details = await call.details() or ""
    # The client's own clock may be faster than the proxy's answer; its words are gRPC's.
    assert details.startswith("guest bad: ") or (code is grpc.StatusCode.DEADLINE_EXCEEDED and "bad" not in details)
    assert details.isprintable()
    assert str(sockets) not in details
    assert len(details.encode()) <= 1024 + len("guest bad: ")


async def until_served(proxy: Proxy, guest_id: str) -> None:
    """A guest that behaves again is served again."""

    async def is_served() -> bool:
        with contextlib.suppress(grpc.aio.AioRpcError):
            assert (await proxy.gpu_info(guest_id, timeout=SILENT_SECONDS)).sample_age_ms == AGE
            return True
        return False

    await eventually(is_served)


async def test_a_collection_over_all_hostile_kinds_has_each_once_and_the_healthy_ones_whole(proxy: Proxy, sockets: Path) -> None:
    kinds = dict(enumerate(HOSTILE.values()))
    async with contextlib.AsyncExitStack() as stack:
        for number, kind in kinds.items():
            guest = await stack.enter_async_context(raw_guest(str(sockets / f"b{number}"), kind.answer, settings=kind.settings))
            proxy.add(f"bad{number:02}", guest.address)
        for number in range(3):
            good = await stack.enter_async_context(raw_guest(str(sockets / f"g{number}"), healthy))
            proxy.add(f"good{number}", good.address)
        entries = await Entries(proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=3)).all()
    assert sorted(entry.guest_id for entry in entries) == [f"bad{number:02}" for number in kinds] + ["good0", "good1", "good2"]
    for entry in entries:
        code = next(code for code in grpc.StatusCode if code.value[0] == entry.status.code)
        if entry.guest_id.startswith("good"):
            assert entry.gpu_info == guest_api_pb2.GpuInfoResponse(sample_age_ms=AGE)
        else:
            assert code in allowed(kinds[int(entry.guest_id[3:])]), f"{entry.guest_id}: {entry.status.message}"
            assert entry.gpu_info.sample_age_ms != AGE
            assert entry.status.message.isprintable()


async def test_a_card_that_is_told_twice_is_one_card_of_the_list_and_a_line_of_the_log(
    proxy: Proxy, sockets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reply = guest_api_pb2.GpuInfoResponse()
    for index in range(3):
        reply.gpus.add(index=index, uuid=f"GPU-{index // 2}", pci_bus_id=f"00000000:0{index}:00.0", memory_used_bytes=2**30)
    async with raw_guest(str(sockets / "g"), lambda stream: stream.answer(reply.SerializeToString())) as guest:
        proxy.add("vm1", guest.address)
        assert await proxy.gpu_info("vm1", TIMEOUT_SECONDS) == reply, "what a guest said is passed on as it said it"
        listed = await proxy.fleet.ListGuests(fleet_pb2.ListGuestsRequest(), timeout=TIMEOUT_SECONDS)
    assert [one.gpus for one in listed.guests] == [2]
    assert [record.getMessage() for record in caplog.records if "UUID" in record.msg] == [
        "guest vm1: 1 of its cards have the UUID or PCI address of another; they are not counted"
    ]
    assert card_values.missing(reply, given=3)
    assert judge_guest(reply, 3).level is Level.FAILED
    assert card_sums.of_cards(reply.gpus).cards == 2


def allowed(kind: Kind) -> frozenset[grpc.StatusCode]:
    return kind.codes


def test_no_kind_may_end_as_unknown_and_every_method_of_the_contract_is_asked() -> None:
    assert all(grpc.StatusCode.UNKNOWN not in kind.codes for kind in HOSTILE.values())
    assert {method.name for method in METHODS} == set(guest_api_pb2.DESCRIPTOR.services_by_name["GuestApi"].methods_by_name)

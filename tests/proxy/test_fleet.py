"""Lists and collections over many guests, some of them dead or hostile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2
from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.addresses import TcpAddress, parse_address
from guest_transport.options import channel_options
from tests.eventually import eventually
from tests.proxy.fleet_entries import Entries
from tests.proxy.raw_guest import Stream, raw_guest
from tests.proxy.running import Proxy, running_proxy
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.fleet.info_refresh import REFRESHES_AT_ONCE
from vmm_proxy.upstream.limits import FLEET_STREAMS_OF_ONE

State = fleet_pb2


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def healthy(stream: Stream) -> None:
    if stream.path.endswith("/Info"):
        await stream.answer(guest_api_pb2.GuestInfo(version="1.2.3").SerializeToString())
    else:
        await stream.answer(guest_api_pb2.GpuInfoResponse(sample_age_ms=5).SerializeToString())


async def listed(proxy: Proxy, **request: object) -> Sequence[fleet_pb2.Guest]:
    answer = await proxy.fleet.ListGuests(fleet_pb2.ListGuestsRequest(**request), timeout=5)  # type: ignore[arg-type] # shorthand
    return answer.guests


async def collected(proxy: Proxy, timeout: float | None = 10, **selector: object) -> dict[str, fleet_pb2.GuestGpuInfo]:
    request = fleet_pb2.CollectGpuInfoRequest(selector=fleet_pb2.GuestSelector(**selector))  # type: ignore[arg-type] # shorthand
    outcomes = await Entries(proxy.fleet.CollectGpuInfo(request, timeout=timeout)).all()
    assert len({outcome.guest_id for outcome in outcomes}) == len(outcomes), "each guest comes once"
    return {outcome.guest_id: outcome for outcome in outcomes}


async def test_a_list_shows_who_serves_who_does_not_and_who_is_stopped(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), healthy) as guest:
        proxy.add("b-up", guest.address, labels={"rack": "7"})
        proxy.add("a-down", f"unix:{sockets}/nobody")
        proxy.add("c-stopped", "vsock:9:8000", running=False)
        down, up, stopped = await listed(proxy)
        assert [down.id, up.id, stopped.id] == ["a-down", "b-up", "c-stopped"]
        assert [down.state, up.state, stopped.state] == [
            fleet_pb2.GUEST_STATE_UNREACHABLE,
            fleet_pb2.GUEST_STATE_SERVING,
            fleet_pb2.GUEST_STATE_STOPPED,
        ]
        assert up.agent_version == "1.2.3"
        assert abs(up.last_contact.ToMilliseconds() / 1000 - time.time()) < 10
        assert up.labels == {"rack": "7"}
        assert not down.HasField("last_contact")
        assert up.address == guest.address, "over a Unix socket the caller is an administrator"


async def test_a_list_says_how_many_cards_a_guest_last_told_of_and_how_many_are_on_its_bus(proxy: Proxy, sockets: Path) -> None:
    answer = guest_api_pb2.GpuInfoResponse(sample_age_ms=5, pci_devices=8)
    answer.gpus.extend(guest_api_pb2.GpuDevice(index=index) for index in range(7))

    async def told(stream: Stream) -> None:
        info = stream.path.endswith("/Info")
        await stream.answer((guest_api_pb2.GuestInfo() if info else answer).SerializeToString())

    async with raw_guest(str(sockets / "g"), told) as guest:
        proxy.add("vm1", guest.address)
        (before,) = await listed(proxy)
        assert not before.HasField("gpus")
        assert not before.HasField("pci_devices")
        await collected(proxy)
        (after,) = await listed(proxy)
        assert (after.gpus, after.pci_devices) == (7, 8)
        answer.ClearField("gpus")
        answer.error = "NVIDIA driver is not loaded"
        await collected(proxy)
        (unknown,) = await listed(proxy)
        assert not unknown.HasField("gpus")


async def test_a_black_holed_guest_does_not_hold_a_list_up(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        started = time.monotonic()
        (entry,) = await listed(proxy)
        assert time.monotonic() - started < 2
        assert entry.state == fleet_pb2.GUEST_STATE_UNKNOWN


async def test_a_list_of_many_silent_guests_asks_a_bounded_number_of_them_at_a_time(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "vmm"), silence, vmm_answer=b"OK 5\n") as guest:
        for number in range(REFRESHES_AT_ONCE + 6):
            proxy.add(f"vm{number}", f"hvsock:{sockets}/vmm:{number + 1}")
        await listed(proxy)
        await eventually(lambda: len(guest.requests) >= REFRESHES_AT_ONCE)
        for _ in range(20):
            # A call too many would come in this time; nothing tells that none comes.
            await asyncio.sleep(0.01)
            assert sum(not stream.reset.is_set() for stream in guest.requests) <= REFRESHES_AT_ONCE


async def test_a_list_asks_a_guest_once_and_not_again_at_every_list(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), healthy) as guest:
        proxy.add("vm1", guest.address)
        for _ in range(5):
            await listed(proxy)
        assert [stream.path for stream in guest.requests] == ["/guest_api.GuestApi/Info"]


async def test_lists_collections_and_watches_say_how_many_cards_the_host_gave(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), healthy) as guest:
        proxy.add("vm1", guest.address, gpus=("0000:3b:00.0", "0000:3c:00.0"))
        proxy.add("vm2", f"unix:{sockets}/nobody", gpus=("0000:3d:00.0",))
        assert [(entry.id, entry.gpus_given) for entry in await listed(proxy)] == [("vm1", 2), ("vm2", 1)]
        outcomes = await collected(proxy)
        watch = proxy.fleet.WatchGpuInfo(fleet_pb2.WatchGpuInfoRequest(), timeout=10)
        async for update in watch:
            outcomes |= {f"{outcome.guest_id} watched": outcome for outcome in update.guests}
            if len(outcomes) == 4:
                break
        watch.cancel()
        assert {guest_id: outcome.gpus_given for guest_id, outcome in outcomes.items() if outcome.HasField("gpus_given")} == {
            "vm1": 2, "vm1 watched": 2,
        }, "beside a status nothing is told of a guest"  # fmt: skip


async def test_a_guest_that_failed_after_answering_is_unreachable_with_its_last_contact(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), healthy) as guest:
        proxy.add("vm1", guest.address)
        await listed(proxy)
    await proxy.failure("vm1")
    (entry,) = await listed(proxy)
    assert entry.state == fleet_pb2.GUEST_STATE_UNREACHABLE
    assert entry.HasField("last_contact")
    assert entry.agent_version == "1.2.3"


async def test_a_guest_that_moved_is_not_said_to_serve_until_it_has_answered_there(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), healthy) as guest, raw_guest(str(sockets / "s"), silence) as silent:
        proxy.add("vm1", guest.address)
        await proxy.gpu_info("vm1")
        assert [each.state for each in await listed(proxy)] == [State.GUEST_STATE_SERVING]
        proxy.directory.replace(GuestEntry("vm1", parse_address(silent.address)))
        assert [each.state for each in await listed(proxy)] == [State.GUEST_STATE_UNKNOWN]


async def test_addresses_are_hidden_from_callers_over_tcp(sockets: Path) -> None:
    async with running_proxy(sockets / "proxy", also=TcpAddress("127.0.0.1", 0)) as proxy:
        proxy.add("vm1", f"unix:{sockets}/nobody")
        address = proxy.parts.server.addresses[1]
        assert isinstance(address, TcpAddress)
        async with grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel:
            answer = await fleet_pb2_grpc.FleetServiceStub(channel).ListGuests(fleet_pb2.ListGuestsRequest(), timeout=5)
        assert [(guest.id, guest.address) for guest in answer.guests] == [("vm1", "")]


async def test_pages_hold_though_guests_come_and_go_between_them(proxy: Proxy) -> None:
    for number in range(25):
        proxy.add(f"vm{number:02}", f"vsock:{number + 3}:8000", running=False)
    first = await proxy.fleet.ListGuests(fleet_pb2.ListGuestsRequest(page_size=10), timeout=5)
    assert [guest.id for guest in first.guests] == [f"vm{number:02}" for number in range(10)]
    proxy.directory.remove("vm03")
    proxy.directory.remove("vm09")
    proxy.add("vm005", "vsock:99:1", running=False)
    second = await proxy.fleet.ListGuests(fleet_pb2.ListGuestsRequest(page_size=100, page_token=first.next_page_token), timeout=5)
    assert [guest.id for guest in second.guests] == [f"vm{number:02}" for number in range(10, 25)]
    assert second.next_page_token == ""


async def test_the_last_page_that_is_exactly_full_has_no_successor(proxy: Proxy) -> None:
    for number in range(4):
        proxy.add(f"vm{number}", f"vsock:{number + 3}:8000", running=False)
    answer = await proxy.fleet.ListGuests(fleet_pb2.ListGuestsRequest(page_size=4), timeout=5)
    assert (len(answer.guests), answer.next_page_token) == (4, "")


@pytest.mark.parametrize(
    "request_",
    [
        fleet_pb2.ListGuestsRequest(page_size=-1),
        fleet_pb2.ListGuestsRequest(page_token="vm1"),
        fleet_pb2.ListGuestsRequest(page_token="YWZ0ZXI6YS9i"),
        fleet_pb2.ListGuestsRequest(page_token="ä"),
        fleet_pb2.ListGuestsRequest(selector=fleet_pb2.GuestSelector(ids=["vm1,vm2"])),
        fleet_pb2.ListGuestsRequest(selector=fleet_pb2.GuestSelector(ids=["vm1", ""])),
    ],
)
async def test_a_list_that_cannot_be_meant_is_an_invalid_argument_and_no_empty_success(
    proxy: Proxy, request_: fleet_pb2.ListGuestsRequest
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await proxy.fleet.ListGuests(request_, timeout=5)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_labels_and_ids_both_narrow_a_list(proxy: Proxy) -> None:
    for number, rack in enumerate(["a", "b", "a", "a"]):
        proxy.add(f"vm{number}", f"vsock:{number + 3}:8000", running=False, labels={"rack": rack, "n": str(number)})
    assert [guest.id for guest in await listed(proxy, selector=fleet_pb2.GuestSelector(labels={"rack": "a"}))] == [
        "vm0",
        "vm2",
        "vm3",
    ]
    both = fleet_pb2.GuestSelector(ids=["vm1", "vm2"], labels={"rack": "a"})
    assert [guest.id for guest in await listed(proxy, selector=both)] == ["vm2"]


async def test_a_collection_has_every_guest_once_and_failures_are_entries(proxy: Proxy, sockets: Path) -> None:
    async def refuse(stream: Stream) -> None:
        await stream.fail("7", "not%1b for you")

    async with (
        raw_guest(str(sockets / "g"), healthy) as good,
        raw_guest(str(sockets / "n"), lambda stream: stream.answer(b"")) as none,
        raw_guest(str(sockets / "r"), refuse) as refusing,
        raw_guest(str(sockets / "s"), silence) as silent,
        raw_guest(str(sockets / "x"), lambda stream: stream.answer(b"\x0a\x02\xff\xfe")) as hostile,
    ):
        proxy.add("good", good.address)
        proxy.add("none", none.address)
        proxy.add("refusing", refusing.address)
        proxy.add("silent", silent.address)
        proxy.add("hostile", hostile.address)
        proxy.add("dead", f"unix:{sockets}/nobody")
        proxy.add("stopped", "vsock:9:8000", running=False)
        outcomes = await collected(proxy, timeout=1)
        codes = {name: outcome.status.code for name, outcome in outcomes.items() if outcome.WhichOneof("outcome") == "status"}
        assert codes == {
            "refusing": grpc.StatusCode.PERMISSION_DENIED.value[0],
            "silent": grpc.StatusCode.DEADLINE_EXCEEDED.value[0],
            "hostile": grpc.StatusCode.INTERNAL.value[0],
            "dead": grpc.StatusCode.UNAVAILABLE.value[0],
            "stopped": grpc.StatusCode.FAILED_PRECONDITION.value[0],
        }
        assert outcomes["good"].gpu_info.sample_age_ms == 5
        assert outcomes["none"].WhichOneof("outcome") == "gpu_info"
        assert outcomes["refusing"].status.message.isprintable()
        assert outcomes["silent"].took.ToMilliseconds() > 500
        assert abs(outcomes["good"].received_at.ToMilliseconds() / 1000 - time.time()) < 10


async def test_healthy_guests_come_while_a_silent_one_is_still_waited_for(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), healthy) as good, raw_guest(str(sockets / "s"), silence) as silent:
        proxy.add("a-silent", silent.address)
        proxy.add("b-good", good.address)
        stream = Entries(proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=30))
        assert (await stream.read()).guest_id == "b-good"
        stream.cancel()
        await asyncio.wait_for(silent.requests[0].reset.wait(), 2)


async def test_an_unknown_id_that_is_asked_for_gets_its_entry(proxy: Proxy) -> None:
    outcomes = await collected(proxy, ids=["nobody", "nobody"])
    assert outcomes["nobody"].status.code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_a_collection_of_no_guest_is_empty(proxy: Proxy) -> None:
    assert await collected(proxy) == {}


async def test_collections_at_the_same_time_share_the_calls_to_the_guests(proxy: Proxy, sockets: Path) -> None:
    hold = asyncio.Event()

    async def when_told(stream: Stream) -> None:
        await hold.wait()
        await healthy(stream)

    async with raw_guest(str(sockets / "g"), when_told) as guest:
        proxy.add("vm1", guest.address)
        collections = [asyncio.create_task(collected(proxy)) for _ in range(5)]
        await eventually(lambda: guest.requests and proxy.pool.upstream("vm1").callers >= 5)
        hold.set()
        assert all("vm1" in outcomes for outcomes in await asyncio.gather(*collections))
        assert len(guest.requests) == 1


async def test_streams_beyond_the_limit_are_refused_and_places_come_back(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        streams = [proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=30) for _ in range(FLEET_STREAMS_OF_ONE)]
        await eventually(lambda: guest.requests and proxy.pool.upstream("vm1").callers >= FLEET_STREAMS_OF_ONE)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collected(proxy)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for stream in streams:
            stream.cancel()
        await eventually(lambda: not proxy.pool.upstream("vm1").callers)
        await asyncio.wait_for(guest.requests[0].reset.wait(), 2)
        proxy.directory.remove("vm1")
        assert await collected(proxy) == {}


def test_a_directory_tells_its_listeners_what_changed_and_refuses_what_cannot_be() -> None:
    directory = Directory()
    told: list[tuple[GuestEntry | None, GuestEntry | None]] = []
    directory.subscribe(lambda before, after: told.append((before, after)))
    first = GuestEntry("vm1", TcpAddress("127.0.0.1", 1))
    directory.add(first)
    directory.replace(first)
    assert told == [(None, first)], "nothing changed, nobody is told"
    directory.remove("vm1")
    assert told[-1] == (first, None)
    directory.add(GuestEntry("vm2", first.address))
    assert [entry.id for entry in directory.after()] == ["vm2"]

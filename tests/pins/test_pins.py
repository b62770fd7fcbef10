"""What a pin must hold against: VMs that take turns at one address, words of the wrong VM, connections that are being replaced."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2
from tests.eventually import eventually
from tests.proxy.raw_guest import Connection, RawGuest, Stream, raw_guest
from tests.proxy.running import METHODS, Proxy, running_proxy
from vmm_proxy.policy.audit_log import Audit

OURS, OTHER = b"\x11" * 20, b"\x22" * 20
OURS_AGE, OTHER_AGE = 1, 2


async def answer_as(stream: Stream, instance_id: bytes) -> None:
    if stream.path.endswith("/Info"):
        await stream.answer(guest_api_pb2.GuestInfo(instance_id=instance_id, version="secret").SerializeToString())
    elif stream.path.endswith("/GpuInfo"):
        age = OURS_AGE if instance_id == OURS else OTHER_AGE
        await stream.answer(guest_api_pb2.GpuInfoResponse(sample_age_ms=age).SerializeToString())
    else:
        await stream.answer(b"")


class TakingTurns(RawGuest):
    """One address behind which another VM may answer each new connection, as behind a reused CID."""

    def __init__(self, path: str) -> None:
        super().__init__(path, self.behave)
        self.now = OURS
        self._who: dict[Connection, bytes] = {}
        # What each VM was asked.
        self.heard: dict[bytes, list[str]] = {OURS: [], OTHER: []}

    async def behave(self, stream: Stream) -> None:
        # A connection stays with the VM that took it.
        who = self._who.setdefault(stream.connection, self.now)
        self.heard[who].append(stream.path.rpartition("/")[2])
        await answer_as(stream, who)

    def take_over(self, by: bytes) -> None:
        self.now = by
        for writer in list(self.still_open):
            writer.transport.abort()


@pytest.mark.parametrize("seed", range(3))
async def test_no_answer_of_another_vm_gets_out_however_often_the_vms_change_places(sockets: Path, seed: int) -> None:
    luck = random.Random(seed)
    guest = TakingTurns(str(sockets / "g"))
    await guest.start()
    codes: list[grpc.StatusCode] = []
    async with running_proxy(sockets / "proxy") as proxy:
        proxy.add("vm1", guest.address, instance_id=OURS)
        stop = asyncio.Event()

        async def call_again_and_again(number: int) -> None:
            while not stop.is_set():
                try:
                    # A header of its own each time, so that callers share no call; and no age, so that the guest is asked.
                    metadata = (("cache-control", f"max-age=0, caller={number}{len(codes)}"),)
                    answer = await proxy.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=5, metadata=metadata)
                    assert answer.sample_age_ms == OURS_AGE
                    codes.append(grpc.StatusCode.OK)
                    await proxy.api.Shutdown(guest_api_pb2.Id(id="vm1"), timeout=5)
                except grpc.aio.AioRpcError as error:
                    codes.append(error.code())

        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(call_again_and_again(number))
            for _ in range(40):
                before = len(codes)
                guest.take_over(luck.choice([OURS, OTHER]))
                await eventually(lambda: len(codes) >= before + 4)  # noqa: B023 -- called at once
            stop.set()
        wrong = proxy.pool.upstream("vm1").channels.wrong_guests
    await guest.stop()
    assert set(guest.heard[OTHER]) <= {"Info"}, "the other VM is asked who it is, and nothing more"
    assert {grpc.StatusCode.OK, grpc.StatusCode.FAILED_PRECONDITION} <= set(codes)
    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE}
    assert wrong > 0


async def failed(proxy: Proxy, method: str = "GpuInfo") -> tuple[grpc.StatusCode, str]:
    error = await proxy.failure("vm1", method)
    assert [key for key, _ in error.trailing_metadata() or () if key != "content-length"] == []
    return error.code(), error.details() or ""


@pytest.mark.parametrize("method", METHODS)
async def test_what_the_wrong_vm_says_instead_of_its_identity_is_not_passed_on(sockets: Path, method: str) -> None:
    async def complain(stream: Stream) -> None:
        await stream.fail("7", "tenant red's secret", [("x-request-id", "red")])

    async with raw_guest(str(sockets / "g"), complain) as guest, running_proxy(sockets / "proxy") as proxy:
        proxy.add("vm1", guest.address, instance_id=OURS)
        code, text = await failed(proxy, method)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert text == "guest vm1: its pinned identity cannot be checked, Info ended with PERMISSION_DENIED"


@pytest.mark.parametrize("reply", [b"\x0a\x02\xff\xfe", b"", b"\x1a\x14" + OTHER], ids=["no message", "no identity", "another"])
async def test_an_identity_that_is_nonsense_or_missing_is_not_the_pinned_one(sockets: Path, reply: bytes) -> None:
    async def answer(stream: Stream) -> None:
        await stream.answer(reply)

    async with raw_guest(str(sockets / "g"), answer) as guest, running_proxy(sockets / "proxy") as proxy:
        proxy.add("vm1", guest.address, instance_id=OURS)
        assert (await failed(proxy))[0] is grpc.StatusCode.FAILED_PRECONDITION
        assert {stream.path.rpartition("/")[2] for stream in guest.requests} == {"Info"}


async def test_the_audit_log_tells_once_who_answered_in_whose_place(sockets: Path) -> None:
    audit = Audit(sockets / "audit", lambda: 0.0)
    await asyncio.to_thread(audit.open)
    guest = TakingTurns(str(sockets / "g"))
    await guest.start()
    async with running_proxy(sockets / "proxy", audit=audit) as proxy:
        proxy.add("vm1", guest.address, instance_id=OURS)
        guest.now = OTHER
        for _ in range(5):
            assert (await failed(proxy))[0] is grpc.StatusCode.FAILED_PRECONDITION
    await guest.stop()
    (line,) = [json.loads(line) for line in (sockets / "audit").read_text().splitlines()]
    assert line == {
        "time": "1970-01-01T00:00:00.000Z",
        "event": "wrong guest",
        "guest": "vm1",
        "pinned": OURS.hex(),
        "shown": OTHER.hex(),
    }


async def test_a_vm_that_shows_another_identity_each_time_fills_no_disk(sockets: Path) -> None:
    audit = Audit(sockets / "audit", lambda: 0.0)
    await asyncio.to_thread(audit.open)

    async def new_each_time(stream: Stream) -> None:
        await answer_as(stream, str(len(guest.requests)).encode() * 30_000)

    async with (
        raw_guest(str(sockets / "g"), new_each_time) as guest,
        running_proxy(sockets / "proxy", audit=audit) as proxy,
    ):
        proxy.add("vm1", guest.address, instance_id=OURS)
        for _ in range(80):
            assert (await failed(proxy))[0] is not grpc.StatusCode.OK
        assert proxy.pool.upstream("vm1").channels.wrong_guests > 60
    assert 0 < len((sockets / "audit").read_text().splitlines()) <= 60
    assert (sockets / "audit").stat().st_size < 60 * 400


async def test_a_guest_that_sends_its_callers_to_a_new_connection_is_checked_on_it_and_drops_no_call(sockets: Path) -> None:
    held, let_go = asyncio.Event(), asyncio.Event()

    async def behave(stream: Stream) -> None:
        if stream.path.endswith("/SysInfo"):
            held.set()
            await let_go.wait()
        await answer_as(stream, OURS)

    async with raw_guest(str(sockets / "g"), behave) as guest, running_proxy(sockets / "proxy") as proxy:
        proxy.add("vm1", guest.address, instance_id=OURS)
        long_one = asyncio.ensure_future(proxy.api.SysInfo(guest_api_pb2.Id(id="vm1"), timeout=20))
        await asyncio.wait_for(held.wait(), 10)
        # GOAWAY: calls that run may end here, new ones go to another connection.
        connection = guest.requests[0].connection
        connection.h2.close_connection(last_stream_id=2**31 - 1)
        connection.writer.write(connection.h2.data_to_send())
        for _ in range(3):
            assert (await proxy.gpu_info("vm1")).sample_age_ms == OURS_AGE
        assert guest.connections == 2
        let_go.set()
        long_one.cancel()
        paths = [stream.path.rpartition("/")[2] for stream in guest.requests if stream.connection is not connection]
        assert paths[0] == "Info"
        assert paths.count("Info") == 1


async def test_a_connection_that_is_accepted_and_ignored_costs_a_redial_and_not_the_call(sockets: Path) -> None:
    async def behave(stream: Stream) -> None:
        await answer_as(stream, OURS)

    async with (
        raw_guest(str(sockets / "g"), behave, ignored_connections=1) as guest,
        running_proxy(sockets / "proxy") as proxy,
    ):
        proxy.add("vm1", guest.address, instance_id=OURS)
        assert (await proxy.gpu_info("vm1", timeout=12)).sample_age_ms == OURS_AGE
        assert guest.connections == 2

"""Who may call what, asked of a running proxy over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from tests.policy.callers import bearer, rules, secret, token
from tests.policy.two_tenants import BLUE, DENIED, NO_CREDENTIALS, RULES, UNKNOWN, Metadata, asked, code_of, fleet_of_two, no_gpu
from tests.proxy.fleet_entries import Entries
from tests.proxy.raw_guest import raw_guest
from tests.proxy.running import METHODS, Proxy, running_proxy
from vmm_proxy.policy.roles import Role


@pytest.mark.parametrize("role", list(Role))
async def test_each_role_may_what_its_own_and_the_lower_ones_may(sockets: Path, role: Role) -> None:
    name = role.name.lower()
    async with fleet_of_two(sockets) as (proxy, *_):
        directory = fleet_pb2_grpc.DirectoryServiceStub(proxy.channel)
        entry = fleet_pb2.GuestEntry(id="vm9", address="vsock:9:1")
        expected: dict[Role, list[grpc.StatusCode]] = {needed: [] for needed in Role}
        for method in METHODS:
            expected[Role.OPERATOR if method == "Shutdown" else Role.VIEWER].append(
                await code_of(asked(proxy, method, "red1", bearer(name)))
            )
        options: dict[str, Any] = {"timeout": 10, "metadata": bearer(name)}
        expected[Role.VIEWER].append(await code_of(proxy.fleet.ListGuests(fleet_pb2.ListGuestsRequest(), **options)))
        # One after the other: a call starts where it is written.
        registered = directory.RegisterGuest(fleet_pb2.RegisterGuestRequest(guest=entry), **options)
        expected[Role.ADMIN].append(await code_of(registered))
        updated = directory.UpdateGuest(fleet_pb2.UpdateGuestRequest(guest=entry), **options)
        expected[Role.ADMIN].append(await code_of(updated))
        removed = directory.DeregisterGuest(fleet_pb2.DeregisterGuestRequest(id="vm9"), **options)
        expected[Role.ADMIN].append(await code_of(removed))
        for needed, codes in expected.items():
            assert set(codes) == {grpc.StatusCode.OK if role >= needed else DENIED}, needed


@pytest.mark.parametrize(
    "metadata",
    [
        (("authorization", f"Bearer {secret('nobody')}"),),
        (("authorization", "Bearer "),),
        (("authorization", ""),),
        (("authorization", f"Basic {secret('admin')}"),),
        (("authorization", secret("admin")),),
        (("authorization", f"Bearer  {secret('admin')}"),),
        (("authorization", f"Bearer {secret('admin')} "),),
        (("authorization", f"Bearer {secret('admin')[:-1]}"),),
        (("authorization", f"Bearer {secret('admin').upper()}"),),
        bearer("admin") * 2,
        (*bearer("admin"), *bearer("viewer")),
    ],
)
async def test_bad_credentials_are_refused_though_the_socket_alone_would_do(sockets: Path, metadata: Metadata) -> None:
    async with fleet_of_two(sockets) as (proxy, blue, red):
        for method in METHODS:
            assert await code_of(asked(proxy, method, "blue1", metadata)) is NO_CREDENTIALS
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await proxy.fleet.WatchGpuInfo(fleet_pb2.WatchGpuInfoRequest(), timeout=10, metadata=metadata).read()
        assert refused.value.code() is NO_CREDENTIALS
        assert secret("admin") not in (refused.value.details() or "")
        assert blue.requests == red.requests == []


async def test_the_schemes_name_is_read_as_http_says_in_any_case(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, *_):
        metadata = (("authorization", f"bEARER {secret('viewer')}"),)
        assert await code_of(asked(proxy, "Info", "blue1", metadata)) is grpc.StatusCode.OK


async def test_a_guest_out_of_scope_cannot_be_told_from_one_that_is_not_there(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, _, red):
        proxy.add("red2", "unix:/nowhere", labels={"tenant": "red"}, running=False)
        for name in ("blue-viewer", "blue-operator"):
            for method in METHODS:
                texts = set()
                for guest_id in ("red1", "red2", "none"):
                    with pytest.raises(grpc.aio.AioRpcError) as failed:
                        await asked(proxy, method, guest_id, bearer(name))
                    error = failed.value
                    if method == "Shutdown" and name == "blue-viewer":
                        assert error.code() is DENIED
                    else:
                        assert error.code() is UNKNOWN
                    texts.add((error.details() or "").replace(guest_id, "ID"))
                    assert not [key for key, _ in error.trailing_metadata() or () if key != "content-length"]
                assert len(texts) == 1
        assert red.requests == []


async def listed(proxy: Proxy, name: str, **request: object) -> dict[str, str]:
    answer = await proxy.fleet.ListGuests(
        fleet_pb2.ListGuestsRequest(**request),  # type: ignore[arg-type] # a test's shorthand
        timeout=10,
        metadata=bearer(name),
    )
    assert not answer.next_page_token
    return {guest.id: guest.address for guest in answer.guests}


async def test_a_list_holds_the_guests_in_scope_and_addresses_for_admins_only(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, blue, red):
        assert await listed(proxy, "admin") == {"blue1": blue.address, "red1": red.address}
        assert await listed(proxy, "operator") == {"blue1": "", "red1": ""}
        assert await listed(proxy, "blue-operator") == {"blue1": ""}
        assert await listed(proxy, "green-operator") == {}
        assert await listed(proxy, "blue-viewer", selector=fleet_pb2.GuestSelector(labels={"tenant": "red"})) == {}
        assert await listed(proxy, "blue-viewer", selector=fleet_pb2.GuestSelector(ids=["red1"])) == {}
        assert await listed(proxy, "blue-viewer", page_size=1) == {"blue1": ""}


def outcome(entry: fleet_pb2.GuestGpuInfo) -> tuple[str, int]:
    """Which guest an entry of a fleet stream is about, and its status."""
    return entry.guest_id, entry.status.code


async def test_a_collection_asks_no_guest_out_of_scope_also_when_it_is_named(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, _, red):

        async def collected(*ids: str) -> set[tuple[str, int]]:
            request = fleet_pb2.CollectGpuInfoRequest(selector=fleet_pb2.GuestSelector(ids=ids))
            call = proxy.fleet.CollectGpuInfo(request, timeout=10, metadata=bearer("blue-viewer"))
            return {outcome(entry) for entry in await Entries(call).all()}

        assert await collected() == {("blue1", 0)}
        not_found = UNKNOWN.value[0]
        assert await collected("blue1", "red1", "none") == {("blue1", 0), ("red1", not_found), ("none", not_found)}
        assert red.requests == []


async def test_watchers_of_one_interval_see_each_their_own_guests(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, *_):
        request = fleet_pb2.WatchGpuInfoRequest(selector=fleet_pb2.GuestSelector(ids=["blue1", "red1"]))

        async def first_two(name: str) -> set[tuple[str, int]]:
            call = Entries(proxy.fleet.WatchGpuInfo(request, timeout=10, metadata=bearer(name)))
            seen = {outcome(await call.read()) for _ in range(2)}
            call.cancel()
            return seen

        everything, own = await asyncio.gather(first_two("viewer"), first_two("blue-viewer"))
        assert everything == {("blue1", 0), ("red1", 0)}
        assert own == {("blue1", 0), ("red1", UNKNOWN.value[0])}


async def test_a_label_that_moves_a_guest_out_of_scope_ends_what_a_watcher_sees_of_it(sockets: Path) -> None:
    beats = asyncio.Semaphore(0)

    async def beat(_: float) -> None:
        await beats.acquire()

    async with (
        raw_guest(str(sockets / "b"), no_gpu) as guest,
        running_proxy(sockets / "proxy", access=RULES, sleep=beat) as proxy,
    ):
        proxy.add("vm1", guest.address, labels=BLUE)
        request = fleet_pb2.WatchGpuInfoRequest(selector=fleet_pb2.GuestSelector(ids=["vm1"]))
        call = Entries(proxy.fleet.WatchGpuInfo(request, timeout=20, metadata=bearer("blue-viewer")))
        assert outcome(await call.read()) == ("vm1", 0)
        entry = proxy.directory.get("vm1")
        assert entry is not None
        proxy.directory.remove("vm1")
        proxy.add("vm1", guest.address, labels={"tenant": "red"})
        beats.release()
        assert outcome(await call.read()) == ("vm1", UNKNOWN.value[0])
        call.cancel()


async def test_when_the_rules_change_a_running_stream_is_judged_by_the_new_ones(sockets: Path) -> None:
    beats = asyncio.Semaphore(0)

    async def beat(_: float) -> None:
        await beats.acquire()

    async with (
        raw_guest(str(sockets / "b"), no_gpu) as guest,
        running_proxy(sockets / "proxy", access=RULES, sleep=beat) as proxy,
    ):
        proxy.add("vm1", guest.address, labels=BLUE)
        request = fleet_pb2.WatchGpuInfoRequest(selector=fleet_pb2.GuestSelector(ids=["vm1"]))
        revoked = Entries(proxy.fleet.WatchGpuInfo(request, timeout=20, metadata=bearer("blue-viewer")))
        kept = Entries(proxy.fleet.WatchGpuInfo(request, timeout=20, metadata=bearer("viewer")))
        for call in (revoked, kept):
            assert outcome(await call.read()) == ("vm1", 0)
        proxy.parts.access.replace(rules(tokens=(token("viewer", Role.VIEWER),)))
        beats.release()
        assert outcome(await kept.read()) == ("vm1", 0)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await revoked.read()
        assert ended.value.code() is NO_CREDENTIALS
        kept.cancel()


async def test_a_method_without_a_role_is_nobodys_and_one_that_nobody_serves_is_unimplemented(
    sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vmm_proxy.policy import method_roles

    monkeypatch.setattr(method_roles, "WRITES", {})
    monkeypatch.setattr("vmm_proxy.app.method_roles", lambda: method_roles.method_roles(writes={}))
    async with fleet_of_two(sockets) as (proxy, blue, _):
        assert await code_of(asked(proxy, "Shutdown", "blue1", ())) is DENIED
        assert await code_of(asked(proxy, "Info", "blue1", ())) is grpc.StatusCode.OK
        nowhere: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = proxy.channel.unary_unary("/guest_api.ProxiedGuestApi/Nothing")
        assert await code_of(nowhere(b"", timeout=10)) is grpc.StatusCode.UNIMPLEMENTED
        assert [stream.path for stream in blue.requests] == ["/guest_api.GuestApi/Info"]


async def test_what_a_refused_caller_sent_is_not_read_and_reaches_no_guest(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, blue, _):
        raw: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = proxy.channel.unary_unary("/guest_api.ProxiedGuestApi/Info")
        assert await code_of(raw(b"\xff\xff", timeout=10, metadata=bearer("nobody"))) is NO_CREDENTIALS
        assert await code_of(raw(b"\xff\xff", timeout=10)) is grpc.StatusCode.INVALID_ARGUMENT
        assert blue.requests == []


async def test_a_callers_credentials_never_reach_a_guest(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, blue, _):
        metadata = (*bearer("admin"), ("x-request-id", "r1"))
        for method in METHODS:
            assert await code_of(asked(proxy, method, "blue1", metadata)) is grpc.StatusCode.OK
        collection = proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=10, metadata=metadata)
        # Outcomes that come together are one message.
        assert len([guest async for answer in collection for guest in answer.guests]) == 2
        for stream in blue.requests:
            assert "authorization" not in stream.headers
            assert not [value for value in stream.headers.values() if secret("admin") in value]
        assert blue.requests[0].headers["x-request-id"] == "r1"

"""An API server that is lost, slow, busy, wrong or refuses: no guest is taken along, the reason is told, and it is followed again."""

from __future__ import annotations

import asyncio

import pytest

from tests.eventually import eventually
from tests.kubevirt.api_server import ApiServer
from tests.kubevirt.followed import Followed, watched
from tests.kubevirt.objects import NODE, instance
from vmm_proxy.directory.kubevirt.api_server import ApiServer as Connection
from vmm_proxy.directory.kubevirt.api_server import ApiServerError, open_api_server
from vmm_proxy.directory.kubevirt.follower import LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize("fault", ["cut", "end of the server"])
async def test_a_server_that_is_lost_takes_no_guest_along_and_is_followed_again(
    api: ApiServer, followed: Followed, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(instance("one", cid=41))
    await watched(api)
    await followed.becomes({"tenant-blue.one": "vsock:41:8000 running"})
    if fault == "end of the server":
        api.fault = "reset"
    api.cut()
    pauses = []
    for _ in range(8):
        problems, pause = await followed.stops()
        assert len(problems) == 1
        assert "is not reached" in problems[0]
        assert not followed.source.state.readable
        assert followed.known() == {"tenant-blue.one": "vsock:41:8000 running"}
        pauses.append(pause)
        if fault == "cut":
            break
        followed.go_on()
    assert all(pause <= LONGEST_PAUSE_SECONDS for pause in pauses)
    assert pauses == pauses[:1] or pauses[-1] >= LONGEST_PAUSE_SECONDS / 2
    told = [message for message in caplog.messages if "the last known guests stay" in message]
    assert 1 <= len(told) == len(set(told)), "each reason once, not at every attempt"
    api.fault = None
    api.put(instance("two", cid=42))
    followed.go_on()
    await followed.becomes({"tenant-blue.one": "vsock:41:8000 running", "tenant-blue.two": "vsock:42:8000 running"})
    await eventually(lambda: followed.source.state.readable)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": {"another"}}, "does not take the token or certificate: Unauthorized"),
        ({"allowed": {"list": set(), "watch": {"*"}}}, 'cannot list resource "virtualmachineinstances"'),
        ({"allowed": {"list": {"*"}, "watch": set()}}, 'cannot watch resource "virtualmachineinstances"'),
        ({"installed": False}, "is KubeVirt installed? the server could not find the requested resource"),
    ],
)
async def test_a_refusal_says_what_is_missing_and_is_over_when_it_is_given(
    api: ApiServer, followed: Followed, change: dict[str, object], words: str
) -> None:
    usual = {name: getattr(api, name) for name in change}
    for name, value in change.items():
        setattr(api, name, value)
    problems, _ = await followed.stops()
    assert words in problems[0]
    for name, value in usual.items():
        setattr(api, name, value)
    api.put(instance(cid=41))
    followed.go_on()
    await followed.becomes({"tenant-blue.vm1": "vsock:41:8000 running"})


async def test_a_server_under_load_is_left_alone_for_as_long_as_it_asks_within_reason(api: ApiServer, followed: Followed) -> None:
    api.busy = 60
    problems, pause = await followed.stops()
    assert "answers 429: Too many requests" in problems[0]
    assert 30 <= pause <= 60
    api.busy = 999
    followed.go_on()
    _, pause = await followed.stops()
    assert pause <= 120


@pytest.mark.parametrize(
    "event",
    [
        {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcdserver: leader changed"}},
        {"type": "ADDED", "object": "nothing"},
        {"type": "RENAMED", "object": instance()},
        {"kind": "Status"},
    ],
)
async def test_a_line_that_is_no_event_ends_the_watch_and_not_the_following(
    api: ApiServer, followed: Followed, event: dict[str, object]
) -> None:
    api.put(instance("one", cid=41))
    await watched(api)
    await followed.becomes({"tenant-blue.one": "vsock:41:8000 running"})
    api.send_to_watches(event)
    problems, _ = await followed.stops()
    assert len(problems) == 1
    assert "bug" not in problems[0]
    followed.go_on()
    api.put(instance("two", cid=42))
    await followed.becomes({"tenant-blue.one": "vsock:41:8000 running", "tenant-blue.two": "vsock:42:8000 running"})


async def _watch_to_the_end(server: Connection, version: str) -> None:
    async with server.watch(version) as events:
        async for _ in events:
            pass


async def test_a_server_that_is_silent_is_given_up_before_its_answer_and_in_a_watch(api: ApiServer) -> None:
    server = await asyncio.to_thread(open_api_server, api.kubeconfig(), node=NODE, answer_seconds=20.0, watch_limit_seconds=0.2)
    try:
        listing = await server.list(from_cache=True)
        with pytest.raises(ApiServerError, match="has not answered in time"):
            await _watch_to_the_end(server, listing.version)
        assert api.requests[-1].params["watch"] == "true"
    finally:
        await server.close()
    api.fault = "silence"
    silent = await asyncio.to_thread(open_api_server, api.kubeconfig(), node=NODE, answer_seconds=0.2)
    try:
        with pytest.raises(ApiServerError, match="has not answered in time"):
            await silent.list(from_cache=True)
    finally:
        await silent.close()


async def test_a_list_without_an_end_is_given_up(api: ApiServer, followed: Followed) -> None:
    await watched(api)
    api.end_watches()
    await followed.stops()
    for number in range(200):
        api.put(instance(f"vm{number}", cid=100 + number))
    api.compact()
    api.endless_pages = True
    followed.go_on()
    await followed.stops()
    followed.go_on()
    problems, _ = await followed.stops()
    assert problems == ["the list has no end: more than 4096 instances on one node"]
    assert followed.known() == {}

"""Following an API server over real TLS and HTTP: what it tells becomes guests, and whatever it does takes none of them away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from guest_transport.addresses import UnixAddress
from tests.eventually import eventually
from tests.kubevirt.api_server import ApiServer
from tests.kubevirt.objects import H200, NODE, in_phase, instance, moved
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.directory.kubevirt.api_server import WATCH_SECONDS, ApiServerError, open_api_server
from vmm_proxy.directory.kubevirt.api_server import ApiServer as Connection
from vmm_proxy.directory.kubevirt.follower import LONGEST_PAUSE_SECONDS
from vmm_proxy.directory.kubevirt.guests import KubevirtSource
from vmm_proxy.directory.kubevirt.settings import KubevirtSetup


class Followed:
    """A directory that follows the server. It waits for `go_on` before each new attempt."""

    def __init__(self, api: ApiServer, namespaces: tuple[str, ...] = (), *, kubeconfig: Path | None = None) -> None:
        self.directory = Directory()
        self.pauses: asyncio.Queue[float] = asyncio.Queue()
        self._next = asyncio.Semaphore(0)
        setup = KubevirtSetup(NODE, namespaces, (), 8000, kubeconfig or api.kubeconfig())
        self.source = KubevirtSource(setup, self.directory, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.put_nowait(seconds)
        await self._next.acquire()

    def go_on(self) -> None:
        self._next.release()

    def known(self) -> dict[str, str]:
        return {entry.id: f"{entry.address} {'running' if entry.running else 'stopped'}" for entry in self.directory.after()}

    async def becomes(self, expected: dict[str, str]) -> None:
        await eventually(lambda: self.known() == expected)

    async def stops(self) -> tuple[list[str], float]:
        """Wait for the end of an attempt: the problems then, and the pause that follows."""
        pause = await asyncio.wait_for(self.pauses.get(), 30)
        return list(self.source.problems), pause


@pytest.fixture
async def followed(api: ApiServer) -> AsyncIterator[Followed]:
    followed = Followed(api)
    followed.source.start()
    yield followed
    await followed.source.close()


async def watched(api: ApiServer) -> None:
    await eventually(lambda: api.watching == 1)


async def test_instances_of_this_node_come_and_go_by_their_events(api: ApiServer) -> None:
    one, two = instance("one", cid=41, gpus=[H200]), instance("two", cid=42, phase="Scheduled")
    api.put(one)
    api.put(instance("elsewhere", node="another", cid=43))
    followed = Followed(api)
    followed.source.start()
    try:
        await followed.becomes({"tenant-blue.one": "vsock:41:8000 running"})
        assert followed.directory.known("tenant-blue.one").gpus_given == 1
        await watched(api)
        api.put(two)
        api.put(in_phase(two, "Running"))
        await followed.becomes({"tenant-blue.one": "vsock:41:8000 running", "tenant-blue.two": "vsock:42:8000 running"})
        api.put(in_phase(one, "Succeeded"))
        await followed.becomes({"tenant-blue.one": "vsock:41:8000 stopped", "tenant-blue.two": "vsock:42:8000 running"})
        api.remove(one)
        await followed.becomes({"tenant-blue.two": "vsock:42:8000 running"})
        assert followed.source.state.readable
    finally:
        await followed.source.close()


async def test_an_instance_that_migrates_leaves_the_old_node_and_is_a_guest_of_the_new_one(
    api: ApiServer, followed: Followed
) -> None:
    here, there = instance("leaves", cid=41), instance("comes", cid=42, node="another")
    api.put(here)
    api.put(there)
    await followed.becomes({"tenant-blue.leaves": "vsock:41:8000 running"})
    await watched(api)
    api.put(moved(here, "another"))
    await followed.becomes({})
    api.put(moved(there, NODE))
    await followed.becomes({"tenant-blue.comes": "vsock:42:8000 running"})


async def test_a_vm_that_is_started_again_is_another_guest_of_the_same_name_whatever_its_cid(
    api: ApiServer, followed: Followed
) -> None:
    before = instance(cid=41)
    api.put(before)
    await followed.becomes({"tenant-blue.vm1": "vsock:41:8000 running"})
    await watched(api)
    first = followed.directory.known("tenant-blue.vm1").generation
    # Both while nothing is watched, so that the two come as one change.
    api.remove(before)
    api.put(instance(cid=41))
    await eventually(lambda: followed.directory.known("tenant-blue.vm1").generation != first)
    api.put(instance(cid=77))
    await followed.becomes({"tenant-blue.vm1": "vsock:77:8000 running"})


async def test_a_restart_that_only_a_new_list_shows_is_another_guest_too(api: ApiServer, followed: Followed) -> None:
    before = instance(cid=41)
    api.put(before)
    await watched(api)
    first = followed.directory.known("tenant-blue.vm1").generation
    api.cut()
    await followed.stops()
    api.remove(before)
    api.put(instance(cid=41))
    api.compact()
    followed.go_on()
    await followed.stops()
    followed.go_on()
    await watched(api)
    assert followed.directory.known("tenant-blue.vm1").generation != first


async def test_the_watch_goes_on_where_it_was_and_lists_nothing_again(api: ApiServer, followed: Followed) -> None:
    api.put(instance("one", cid=41))
    await watched(api)
    api.end_watches()
    assert (await followed.stops())[0] == []
    api.put(instance("two", cid=42))
    followed.go_on()
    await followed.becomes({"tenant-blue.one": "vsock:41:8000 running", "tenant-blue.two": "vsock:42:8000 running"})
    assert ["watch" in request.params for request in api.requests] == [False, True, True]
    assert all(request.params["labelSelector"] == f"kubevirt.io/nodeName={NODE}" for request in api.requests)
    assert api.requests[1].params["timeoutSeconds"] == str(WATCH_SECONDS)


async def test_a_bookmark_saves_the_list_that_a_quiet_nodes_old_version_would_need(api: ApiServer, followed: Followed) -> None:
    await watched(api)
    api.pass_time()
    api.bookmark()
    api.compact()
    api.end_watches()
    await followed.stops()
    followed.go_on()
    await watched(api)
    assert ["watch" in request.params for request in api.requests] == [False, True, True]
    assert api.requests[-1].params["resourceVersion"] == "1010"


@pytest.mark.parametrize("answer", ["event", "status"])
async def test_a_version_that_is_forgotten_is_listed_again_and_no_guest_is_lost_meanwhile(
    api: ApiServer, followed: Followed, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = instance("one", cid=41)
    api.put(one)
    await watched(api)
    await followed.becomes({"tenant-blue.one": "vsock:41:8000 running"})
    api.end_watches()
    await followed.stops()
    api.remove(one)
    api.put(instance("two", cid=42))
    api.compact()
    api.gone_as_status = answer == "status"
    followed.go_on()
    problems, _ = await followed.stops()
    assert problems == [], "it is no fault of anybody's"
    assert followed.known() == {"tenant-blue.one": "vsock:41:8000 running"}
    followed.go_on()
    await followed.becomes({"tenant-blue.two": "vsock:42:8000 running"})
    await watched(api)
    assert "are listed again: too old resource version" in caplog.text
    # The first list may come from the server's cache; one after 410 must not, or it might be as old as before.
    lists = [request.params for request in api.requests if "watch" not in request.params]
    assert [params.get("resourceVersion") for params in lists] == ["0", None]


async def test_a_list_in_pages_is_whole_and_begins_anew_when_its_pages_are_forgotten(api: ApiServer, followed: Followed) -> None:
    await watched(api)
    api.cut()
    await followed.stops()
    for number in range(7):
        api.put(instance(f"vm{number}", cid=100 + number))
    api.compact()
    api.page_limit = 3
    followed.go_on()
    await followed.stops()
    api.forget_pages = True
    followed.go_on()
    assert (await followed.stops())[0] == []
    assert followed.known() == {}, "half a list is no list"
    followed.go_on()
    await eventually(lambda: len(followed.known()) == 7)


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


async def test_a_token_that_the_kubelet_renewed_is_used_for_the_next_watch(api: ApiServer, tmp_path: Path) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("token-1\n")
    followed = Followed(api, kubeconfig=api.kubeconfig(tokenFile=str(account / "token")))
    followed.source.start()
    try:
        await watched(api)
        (account / "token").write_text("token-2\n")
        api.tokens = {"token-2"}
        api.end_watches()
        assert (await followed.stops())[0] == []
        followed.go_on()
        await watched(api)
        assert [request.token for request in api.requests] == ["token-1", "token-1", "token-2"]
        assert followed.source.problems == []
    finally:
        await followed.source.close()


async def test_in_a_pod_its_service_account_is_used(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("token-1\n")
    (account / "namespace").write_text("guestscope")
    (account / "ca.crt").write_bytes(api.ca.read_bytes())
    setup = KubevirtSetup(NODE, (), (), 8000, None)
    pauses: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(seconds: float) -> None:
        pauses.put_nowait(seconds)
        await asyncio.Event().wait()

    outside = KubevirtSource(setup, Directory(), service_account=account, sleep=sleep)
    outside.start()
    await asyncio.wait_for(pauses.get(), 30)
    assert outside.problems == ["this is no pod with a service account: set kubevirt.kubeconfig"]
    await outside.close()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
    api.put(instance(cid=41))
    directory = Directory()
    source = KubevirtSource(setup, directory, service_account=account, sleep=sleep)
    source.start()
    try:
        await eventually(lambda: len(directory) == 1)
    finally:
        await source.close()


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


async def test_two_namespaces_need_rights_for_these_only_and_one_that_fails_leaves_the_other(api: ApiServer) -> None:
    api.allowed = {"list": {"blue", "red"}, "watch": {"blue", "red"}}
    api.put(instance("one", "blue", cid=41))
    api.put(instance("two", "red", cid=42))
    api.put(instance("three", "green", cid=43))
    followed = Followed(api, ("blue", "red"))
    followed.source.start()
    try:
        await followed.becomes({"blue.one": "vsock:41:8000 running", "red.two": "vsock:42:8000 running"})
        await eventually(lambda: api.watching == 2)
        api.allowed = {"list": {"blue"}, "watch": {"blue"}}
        api.end_watches()
        for _ in range(2):
            await followed.stops()
            followed.go_on()
        await followed.stops()
        assert len(followed.source.problems) == 1
        assert 'in the namespace "red"' in followed.source.problems[0]
        assert not followed.source.state.readable
        api.put(instance("four", "blue", cid=44))
        await followed.becomes(
            {"blue.four": "vsock:44:8000 running", "blue.one": "vsock:41:8000 running", "red.two": "vsock:42:8000 running"}
        )
    finally:
        await followed.source.close()


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


async def test_one_instance_that_cannot_be_read_or_has_a_strange_cid_costs_no_other_its_place(
    api: ApiServer, followed: Followed
) -> None:
    api.put(instance("text", cid="forty"))
    api.put(instance("host", cid=2))
    api.put(instance("one", cid=41))
    await followed.becomes({"tenant-blue.one": "vsock:41:8000 running"})
    refused = followed.source.guests.found.refused
    assert "cannot be read" in refused["tenant-blue.text"]
    assert "CID 2 is no guest's" in refused["tenant-blue.host"]
    assert followed.source.state.refused == 2


async def test_of_two_instances_with_one_cid_the_second_is_refused_and_told_of_namespaces(
    api: ApiServer, followed: Followed
) -> None:
    api.put(instance("one", cid=3))
    await watched(api)
    api.put(instance("two", cid=3))
    await eventually(lambda: followed.source.guests.found.refused)
    assert followed.known() == {"tenant-blue.one": "vsock:3:8000 running"}
    assert "vsock namespaces" in followed.source.guests.found.refused["tenant-blue.two"]


async def test_a_guest_that_somebody_wrote_down_comes_first_and_the_found_one_is_back_when_it_is_gone(
    api: ApiServer, followed: Followed
) -> None:
    api.put(instance(cid=41))
    await followed.becomes({"tenant-blue.vm1": "vsock:41:8000 running"})
    followed.directory.add(GuestEntry("tenant-blue.vm1", UnixAddress("/pinned"), instance_id=b"\x01", source="vm1.toml"))
    await followed.becomes({"tenant-blue.vm1": "unix:/pinned running"})
    assert followed.source.state.refused == 0
    followed.directory.remove("tenant-blue.vm1")
    await followed.becomes({"tenant-blue.vm1": "vsock:41:8000 running"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]}, "asked by https only"),
        ({"users": [{"name": "u", "user": {"exec": {"apiVersion": "v1", "command": "sh"}}}]}, "runs a program"),
        ({"users": [{"name": "u", "user": {"tokenFile": "/nowhere"}}]}, "No such file"),
        ({"contexts": []}, "cannot be used"),
        ({"clusters": [{"name": "c"}]}, "cannot be used"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_says_why_and_is_read_again(
    api: ApiServer, change: dict[str, object], words: str
) -> None:
    file = api.kubeconfig()
    good = file.read_text()
    file.write_text(yaml.safe_dump({**yaml.safe_load(good), **change}))
    api.put(instance(cid=41))
    followed = Followed(api, kubeconfig=file)
    followed.source.start()
    try:
        problems, _ = await followed.stops()
        assert words in problems[0]
        file.write_text(good)
        followed.go_on()
        await followed.becomes({"tenant-blue.vm1": "vsock:41:8000 running"})
    finally:
        await followed.source.close()


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


async def test_a_server_whose_certificate_is_another_authoritys_is_not_asked_for_anything(api: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    api.ca.write_bytes(ApiServer(tmp_path / "other").ca.read_bytes())
    followed = Followed(api)
    followed.source.start()
    try:
        problems, _ = await followed.stops()
        assert "certificate" in problems[0].lower()
        assert api.requests == [], "no token was sent"
    finally:
        await followed.source.close()

"""Following an API server over real TLS and HTTP: what it tells becomes guests, in lists, watches and bookmarks."""

from __future__ import annotations

import logging

import pytest

from guest_transport.addresses import UnixAddress
from tests.eventually import eventually
from tests.kubevirt.api_server import ApiServer
from tests.kubevirt.followed import Followed, watched
from tests.kubevirt.objects import H200, NODE, in_phase, instance, moved
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.directory.kubevirt.api_server import WATCH_SECONDS


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

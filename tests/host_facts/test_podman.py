"""The container engine, as Podman really answers: list, states, logs, follow."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from guest_service.host_facts.containers import ContainerEngine
from guest_service.host_facts.errors import UnknownContainerError
from tests.host_facts.podman import IMAGE, Podman, missing_for_podman, running_podman

# Importing an image and starting containers takes seconds on an idle machine.
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    if missing := missing_for_podman():
        pytest.skip(f"needs Podman: {missing}")
    with running_podman() as running:
        yield running


async def test_running_and_ended_containers_are_listed_with_their_states(podman: Podman) -> None:
    running = podman("run", "--detach", "--name", "runs", IMAGE, "/bin/sleep", "600")
    podman("run", "--detach", "--name", "ended", IMAGE, "/bin/sh", "-c", "exit 3")
    assert podman("wait", "ended") == "3"
    begun = time.time()
    listed = {c.names[0].lstrip("/"): c for c in (await ContainerEngine([podman.socket]).list()).containers}
    assert {"runs", "ended"} <= set(listed)
    assert listed["runs"].id == running
    assert (listed["runs"].image, listed["runs"].state) == (IMAGE, "running")
    assert listed["runs"].status.startswith("Up")
    assert abs(listed["runs"].created - begun) < 600
    assert listed["runs"].image_id != ""
    assert listed["ended"].state == "exited"
    assert "3" in listed["ended"].status


async def test_the_log_of_a_container_has_both_its_streams_and_its_tail(podman: Podman) -> None:
    podman("run", "--name", "wrote", IMAGE, "/bin/sh", "-c", "echo one; echo two; echo oops >&2")
    engine = ContainerEngine([podman.socket])
    text = b"".join([chunk async for chunk in engine.logs("wrote")])
    assert sorted(text.splitlines()) == [b"one", b"oops", b"two"]
    tail = b"".join([chunk async for chunk in engine.logs("wrote", tail=1)])
    assert len(tail.splitlines()) == 1
    stamped = b"".join([chunk async for chunk in engine.logs("wrote", timestamps=True)])
    assert all(line.startswith(b"20") for line in stamped.splitlines())


async def test_a_log_is_followed_while_the_container_writes(podman: Podman) -> None:
    podman("run", "--detach", "--name", "writes", IMAGE, "/bin/sh", "-c", "while :; do echo tick; sleep 0.1; done")
    stream = await ContainerEngine([podman.socket]).open_logs("writes", follow=True)
    seen = b""
    while seen.count(b"tick\n") < 3:
        seen += await anext(stream)
    await stream.aclose()


async def test_a_name_that_podman_does_not_know_is_no_container(podman: Podman) -> None:
    with pytest.raises(UnknownContainerError):
        await ContainerEngine([podman.socket]).open_logs("nobody")

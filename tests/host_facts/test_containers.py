"""The container engine: none, good, bad, slow, and its logs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from guest_service.host_facts import containers
from guest_service.host_facts.containers import ANSWER_LIMIT_BYTES, ContainerEngine
from guest_service.host_facts.errors import FactError, UnknownContainerError
from tests.eventually import turns
from tests.host_facts.engine import CONTAINER, Engine, frame, running_engine


@pytest.fixture
def engine_socket(short_path: Path) -> Path:
    return short_path / "engine.sock"


@pytest.fixture
def engine(engine_socket: Path) -> Iterator[Engine]:
    with running_engine(engine_socket) as running:
        yield running


async def ended(engine: Engine, name: str) -> None:
    """Let the engine answer, and wait for the thread that still waits for it."""
    assert engine.hold is not None
    threads = [thread for thread in threading.enumerate() if thread.name == name]
    engine.hold.set()
    for thread in threads:
        await asyncio.to_thread(thread.join, 20)


async def test_a_guest_without_an_engine_has_no_containers_and_pays_for_no_sdk(tmp_path: Path) -> None:
    assert (await ContainerEngine([tmp_path / "absent"]).list()).SerializeToString() == b""
    program = (
        "import asyncio, sys; from pathlib import Path; from guest_service.host_facts.containers import ContainerEngine; "
        "asyncio.run(ContainerEngine([Path('/absent')]).list()); sys.exit('docker' in sys.modules)"
    )
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await child.wait() == 0


async def test_an_engine_that_the_configuration_names_must_be_there(tmp_path: Path) -> None:
    engine = ContainerEngine([tmp_path / "absent"], named=True)
    for ask in (engine.list, lambda: engine.open_logs("web")):
        with pytest.raises(FactError, match=r"absent does not exist, and containers\.socket names it"):
            await ask()


async def test_a_socket_that_cannot_be_looked_at_is_a_failure_and_not_a_guest_without_an_engine() -> None:
    with pytest.raises(FactError, match="containers: "):
        await ContainerEngine([Path("/" + 300 * "x")]).list()


async def test_all_containers_are_listed_whole(engine: Engine, engine_socket: Path) -> None:
    stopped = CONTAINER | {"Names": None, "State": "exited", "Created": 0}
    engine.list_body = json.dumps([CONTAINER, stopped]).encode()
    first, second = (await ContainerEngine([Path("/absent"), engine_socket]).list()).containers
    assert (first.id, list(first.names), first.image) == (CONTAINER["Id"], ["/web"], "docker.io/library/nginx:1")
    assert (first.image_id, first.created, first.state, first.status) == ("sha256:12", 1700000000, "running", "Up 3 hours")
    assert (list(second.names), second.state) == ([], "exited")
    assert engine.queries[-1]["all"] == ["1"]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b'{"message": "database is locked"}', "database is locked"),
        (200, b"not json", "answers badly"),
        (200, b"[{}]", "not as documented"),
        (200, b'{"message": "odd"}', "not as documented"),
        (200, json.dumps([CONTAINER | {"Created": "yesterday"}]).encode(), "not as documented"),
        (200, json.dumps([CONTAINER | {"Created": 2**64}]).encode(), "not as documented"),
        (200, json.dumps([CONTAINER | {"Names": [1]}]).encode(), "not as documented"),
        (200, json.dumps([CONTAINER | {"Image": "\udc80"}]).encode(), "not as documented"),
        (404, b"{}", "containers"),
        (200, b"[" * 100_000, "answers badly"),
        (200, b"[" + b" " * ANSWER_LIMIT_BYTES + b"]", "more than 8388608 bytes"),
    ],
)
async def test_an_engine_that_answers_badly_is_a_failure_with_its_reason_and_never_an_empty_list(
    engine: Engine, engine_socket: Path, status: int, body: bytes, words: str
) -> None:
    engine.list_status, engine.list_body = status, body
    facts = ContainerEngine([engine_socket])
    with pytest.raises(FactError, match=words):
        await facts.list()
    engine.list_status, engine.list_body = 200, b"[]"
    assert len((await facts.list()).containers) == 0


@pytest.mark.parametrize("version", [None, 5, [1], "0.1", "1.43/../..", "abc", ""])
async def test_an_engine_of_a_version_that_is_none_is_a_failure_too(engine: Engine, engine_socket: Path, version: object) -> None:
    engine.version = version
    with pytest.raises(FactError, match="answers badly"):
        await ContainerEngine([engine_socket]).list()


async def test_a_socket_that_nobody_serves_is_a_failure(engine_socket: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(engine_socket))
    with pytest.raises(FactError, match="Connection refused"):
        await ContainerEngine([engine_socket]).list()


async def test_a_slow_engine_is_not_waited_for_past_its_bound(engine: Engine, engine_socket: Path) -> None:
    engine.hold = threading.Event()
    facts = ContainerEngine([engine_socket], bound_seconds=0.3)
    with pytest.raises(FactError, match=r"no answer within 0\.3 s"):
        await facts.list()
    await ended(engine, "read containers")


async def test_fifty_lists_leave_no_descriptor_behind(engine: Engine, engine_socket: Path) -> None:
    facts = ContainerEngine([engine_socket])
    await facts.list()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        await facts.list()
    # The engine is in this process too and may be about to close its side of the last call.
    assert len(os.listdir("/proc/self/fd")) <= before + 2


async def test_a_log_is_streamed_to_its_end(engine: Engine, engine_socket: Path) -> None:
    facts = ContainerEngine([engine_socket])
    assert b"".join([chunk async for chunk in facts.logs("web")]) == b"one\ntwo\n"
    engine.terminal = True
    assert b"".join([chunk async for chunk in facts.logs("web")]) == b"one\ntwo\n"


async def test_what_is_asked_of_a_log_reaches_the_engine(engine: Engine, engine_socket: Path) -> None:
    facts = ContainerEngine([engine_socket])
    async for _ in facts.logs("web", since=1700000000.0, until=1700000100.0, tail=7, timestamps=True):
        pass
    query = engine.queries[-1]
    assert (query["since"], query["until"], query["tail"]) == (["1700000000"], ["1700000100"], ["7"])
    assert (query["timestamps"], query["follow"]) == (["1"], ["0"])


async def test_a_followed_log_goes_on_until_its_reader_leaves_and_then_its_connection_is_gone(
    engine: Engine, engine_socket: Path
) -> None:
    stream = await ContainerEngine([engine_socket]).open_logs("web", follow=True)
    seen = b""
    while seen != b"one\ntwo\n":
        seen += await anext(stream)
    engine.follow_more.set()
    assert (await anext(stream)).startswith(b"more\n")
    await stream.aclose()
    assert await asyncio.to_thread(engine.streams_ended.acquire, timeout=20)


async def test_a_reader_that_leaves_while_the_log_is_silent_ends_its_thread(engine: Engine, engine_socket: Path) -> None:
    stream = await ContainerEngine([engine_socket]).open_logs("web", follow=True)
    thread = next(t for t in threading.enumerate() if t.name == "logs web")
    await stream.aclose()
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()


async def test_a_slow_reader_makes_the_engine_wait_instead_of_piling_up(engine: Engine, engine_socket: Path) -> None:
    engine.logs["web"] = [b"x" * 60_000] * 400
    stream = await ContainerEngine([engine_socket]).open_logs("web")
    longest = total = 0
    async for chunk in stream:
        longest, total = max(longest, len(chunk)), total + len(chunk)
        await turns()
    assert total == 24_000_000
    assert longest <= 320 * 1024


@pytest.mark.parametrize("name", ["absent", "", "../web", "web/../../images/x/get", "a" * 129, "-web", "we b", "web\n", "%2e%2e"])
async def test_a_name_that_is_no_container_is_told_apart(engine: Engine, engine_socket: Path, name: str) -> None:
    with pytest.raises(UnknownContainerError):
        await ContainerEngine([engine_socket]).open_logs(name)


async def test_without_an_engine_no_name_is_a_container(tmp_path: Path) -> None:
    with pytest.raises(UnknownContainerError):
        await ContainerEngine([tmp_path / "absent"]).open_logs("web")


async def test_one_stream_too_many_is_refused_and_a_closed_one_makes_room(engine: Engine, engine_socket: Path) -> None:
    facts = ContainerEngine([engine_socket])
    streams = [await facts.open_logs("web", follow=True) for _ in range(containers.LOG_STREAMS)]
    with pytest.raises(FactError, match="16 log streams"):
        await facts.open_logs("web")
    await streams[0].aclose()
    await facts.open_logs("web")
    await facts.close()


async def test_an_engine_that_hangs_at_the_start_of_a_log_is_not_waited_for(engine: Engine, engine_socket: Path) -> None:
    engine.hold = threading.Event()
    facts = ContainerEngine([engine_socket], bound_seconds=0.3)
    with pytest.raises(FactError, match=r"no answer within 0\.3 s"):
        await facts.open_logs("web")
    await ended(engine, "logs web")


def test_a_frame_is_what_the_engine_writes() -> None:
    assert frame(b"ab", 2) == b"\x02\0\0\0\0\0\0\x02ab"

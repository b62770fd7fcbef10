"""Whatever the process that talks to libvirt does, it is ended and another one started, and the last list stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from vmm_proxy.directory.libvirt.follower import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Follower
from vmm_proxy.directory.libvirt.report import LINE_LIMIT_BYTES, Domain

LIST = """print('{"domains": [{"uuid": "u", "name": "n", "cid": 3}]}', flush=True)\n"""


class Pauses:
    """A sleep that lasts until the test lets it end, and says how long it was to be."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[float] = asyncio.Queue()
        self.over = asyncio.Semaphore(0)

    async def sleep(self, seconds: float) -> None:
        self.begun.put_nowait(seconds)
        await self.over.acquire()

    async def next(self) -> float:
        return await asyncio.wait_for(self.begun.get(), 20)


class Heard:
    """The lists that a follower told of."""

    def __init__(self) -> None:
        self.lists: asyncio.Queue[Sequence[Domain]] = asyncio.Queue()

    async def next(self) -> Sequence[Domain]:
        return await asyncio.wait_for(self.lists.get(), 20)


@contextlib.asynccontextmanager
async def following(
    script: str, pauses: Pauses, heard: Heard, *, patience_seconds: float = 20, command: list[str] | None = None
) -> AsyncIterator[Follower]:
    follower = Follower(
        command or [sys.executable, "-c", script], heard.lists.put_nowait, sleep=pauses.sleep, patience_seconds=patience_seconds
    )
    follower.start()
    try:
        yield follower
    finally:
        await follower.close()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("import os; os.abort()", f"status {-signal.SIGABRT}"),
        ("raise SystemExit(3)", "status 3"),
        ("print('nonsense')", "no report"),
        ("print('[]')", "no report"),
        ("""print('{"domains": 7}')""", "no report"),
        ("""print('{"surprise": 7}')""", "no report"),
        (f"print('x' * {LINE_LIMIT_BYTES + 2})", "no report"),
        ("""print('{"problem": "no such socket"}')""", "no such socket"),
    ],
)
async def test_a_reporter_that_fails_is_followed_by_another_and_its_list_stays(
    pauses: Pauses, heard: Heard, end: str, reason: str
) -> None:
    async with following(LIST + end, pauses, heard) as follower:
        for _ in range(3):
            assert await heard.next() == (Domain("u", "n", 3),)
            assert await pauses.next() == FIRST_PAUSE_SECONDS, "libvirt had answered, so the next try is soon"
            assert reason in follower.problem
            pauses.over.release()


async def test_a_reporter_that_hangs_is_killed(pauses: Pauses, heard: Heard, tmp_path: Path) -> None:
    ignoring = (
        "import os, signal\nfor number in (1, 2, 3, 13, 15): signal.signal(number, signal.SIG_IGN)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n{LIST}while True: signal.pause()"
    )
    async with following(ignoring, pauses, heard, patience_seconds=2) as follower:
        await heard.next()
        assert follower.problem == ""
        await pauses.next()
        assert "has not answered for 2 s" in follower.problem
        assert follower.pid is None
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_libvirt_that_stays_away_is_asked_for_ever_more_rarely_and_at_least_twice_a_minute(
    pauses: Pauses, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    async with following("""print('{"problem": "no such socket"}')""", pauses, heard):
        begun = []
        for _ in range(8):
            begun.append(await pauses.next())
            pauses.over.release()
    assert begun == [1, 2, 4, 8, 16, 30, 30, 30]
    assert begun[-1] == LONGEST_PAUSE_SECONDS
    assert sum("no such socket" in message for message in caplog.messages) == 1, "a steady fault is said once"


async def test_a_command_that_is_not_there_is_a_reason_and_no_failure(pauses: Pauses, heard: Heard) -> None:
    async with following("", pauses, heard, command=["/no/such/python"]) as follower:
        await pauses.next()
        assert follower.problem == "/no/such/python cannot be started: No such file or directory"


async def test_closing_ends_a_reporter_that_ignores_everything_but_sigkill(pauses: Pauses, heard: Heard) -> None:
    ignoring = (
        f"import signal\nfor number in (1, 2, 3, 13, 15): signal.signal(number, signal.SIG_IGN)\n{LIST}while True: signal.pause()"
    )
    async with following(ignoring, pauses, heard) as follower:
        await heard.next()
        pid = follower.pid
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_without_a_free_descriptor_a_silent_reporter_is_ended_all_the_same(pauses: Pauses, heard: Heard) -> None:
    async with following(f"{LIST}import signal\nsignal.pause()", pauses, heard, patience_seconds=1) as follower:
        await heard.next()
        pid, limits = follower.pid, resource.getrlimit(resource.RLIMIT_NOFILE)
        assert pid is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
        try:
            await pauses.next()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert follower.problem == "libvirt has not answered for 1 s"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

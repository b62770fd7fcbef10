"""Services are started, heard, stopped, killed and started again as a service manager would; real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from soak import service as service_module
from soak import watching
from soak.judging import Book, Kind
from soak.processes import Holding, children_of, processes_about, read_holding, state_of, waited_seconds
from soak.service import Service, ServiceError
from tests.eventually import eventually


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sk") as path:
        yield Path(path)


@asynccontextmanager
async def stand_in(folder: Path, mode: str) -> AsyncIterator[Service]:
    service = Service("one", ["tests.soak.stand_in", mode, str(folder / "mark")], folder)
    try:
        yield service
    finally:
        await service.discard()


async def test_a_service_is_ready_when_it_says_so_and_holds_something_until_it_ends(folder: Path) -> None:
    async with stand_in(folder, "good") as service:
        before = time.time()
        assert before <= await service.start() <= time.time()
        holding = read_holding(service.pid)
        assert holding is not None
        assert holding.resident_bytes > 1_000_000
        assert holding.descriptors >= 3
        assert (holding.threads, holding.children, holding.zombies) == (1, 0, 0)
        assert list(processes_about(folder)) == [service.pid]
        await service.stop()
        assert read_holding(service.pid) is None
        assert processes_about(folder) == {}
        assert not service.running


async def test_a_killed_service_is_another_process_after_its_next_start(folder: Path) -> None:
    async with stand_in(folder, "good") as service:
        await service.start()
        first = service.pid
        killed_at = await service.kill()
        assert state_of(first) is None
        assert await service.start() > killed_at
        assert service.pid != first


async def test_a_service_that_refuses_to_start_is_told_with_its_own_words(folder: Path) -> None:
    async with stand_in(folder, "refuses") as service:
        with pytest.raises(ServiceError, match=r"one ended with status 1 at its start\n.*the configuration is wrong"):
            await service.start()


async def test_a_service_that_does_not_end_when_asked_is_ended_and_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "STOP_SECONDS", 0.5)
    async with stand_in(folder, "deaf") as service:
        await service.start()
        with pytest.raises(ServiceError, match="did not end within"):
            await service.stop()
        assert state_of(service.pid) is None


async def test_an_exit_status_of_its_own_is_told(folder: Path) -> None:
    async with stand_in(folder, "leaves") as service:
        await service.start()
        with pytest.raises(ServiceError, match="ended with status 3 after SIGTERM"):
            await service.stop()


async def tells(service: Service, count: int) -> list[float]:
    """The stalls until so many tells were heard."""
    stalls: list[float] = []

    def heard() -> bool:
        # The last one is the silence that still lasts.
        stalls.extend(service.ear.take_stalls()[:-1])
        return len(stalls) >= count

    await eventually(heard)
    return stalls


async def test_a_service_that_stood_still_told_its_watchdog_late_unless_that_is_excused(folder: Path) -> None:
    async with stand_in(folder, "good") as service:
        await service.start()
        await tells(service, 1)
        service.send(signal.SIGSTOP)
        await eventually(lambda: service.ear.take_stalls()[-1] >= 1.0)
        service.send(signal.SIGCONT)
        assert max(await tells(service, 1)) >= 1.0
        service.send(signal.SIGSTOP)
        service.ear.excuse()
        assert service.ear.take_stalls() == []
        service.send(signal.SIGCONT)
        await tells(service, 1)


async def test_a_zombie_and_a_child_are_counted() -> None:
    # Held by names: Popen reaps what it forgets.
    script = (
        "import subprocess as s, sys; a = s.Popen(['sleep', '60']); b = s.Popen(['true']); print(flush=True); sys.stdin.read()"
    )
    pipe = asyncio.subprocess.PIPE
    parent = await asyncio.create_subprocess_exec("python3", "-c", script, stdin=pipe, stdout=pipe)
    try:
        assert parent.stdout is not None
        await parent.stdout.readline()

        def with_a_zombie() -> Holding | None:
            holding = read_holding(parent.pid)
            return holding if holding is not None and holding.zombies else None

        holding = await eventually(with_a_zombie)
        assert (holding.children, holding.zombies) == (2, 1)
    finally:
        for child in children_of(parent.pid):
            if state_of(child) != "Z":
                await (await asyncio.create_subprocess_exec("kill", "-9", str(child))).wait()
        parent.kill()
        await parent.communicate()


def test_a_main_thread_that_was_kept_waiting_for_half_a_look_is_noted_and_one_that_was_not_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited = iter([1.0, 1.3, 1.9, 1.9])
    monkeypatch.setattr(watching, "waited_seconds", lambda _pid: next(waited))
    book, starving = Book(), watching.Starving("vm1", None)
    for now in (10.0, 11.0, 12.0, 13.0):
        starving.look(book, now)
    assert [(each.guest, each.kind, each.began, each.ended) for each in book.disturbances] == [("vm1", Kind.STARVED, 11.0, 12.0)]


def test_the_time_without_a_processor_is_there_for_a_process_and_unknown_for_none() -> None:
    assert (waited_seconds(os.getpid()) or 0.0) >= 0
    assert waited_seconds(os.getpid()) is not None
    assert waited_seconds(2**22 + 1) is None, "over the highest pid that Linux gives"

"""A blocking read off the loop: shared, bounded, and alone."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from guest_service.host_facts.containers import ContainerEngine
from guest_service.host_facts.disks import DiskSizes
from guest_service.host_facts.errors import FactError, PartLog
from guest_service.host_facts.off_loop import OffLoop
from tests.eventually import turns
from tests.host_facts.machine import make_procfs


class Gate:
    """A read that waits until it is let through; counts how often it was begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.open = threading.Event()

    def read(self) -> int:
        self.begun += 1
        self.open.wait()
        return self.begun


async def test_callers_at_one_time_share_one_read() -> None:
    gate = Gate()
    read = OffLoop("part", gate.read, 30)
    callers = [asyncio.create_task(read.get()) for _ in range(5)]
    await turns()
    gate.open.set()
    assert await asyncio.gather(*callers) == [1] * 5
    assert await read.get() == 2


async def test_a_read_that_hangs_is_named_and_a_later_caller_is_not_kept_waiting_for_it() -> None:
    gate = Gate()
    read = OffLoop("part", gate.read, 0.02)
    try:
        with pytest.raises(FactError, match=r"^part: no answer within 0.02 s$"):
            await read.get()
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(FactError):
            await read.get()
        assert loop.time() - started < 0.02
        assert gate.begun == 1
    finally:
        gate.open.set()


async def test_a_cancelled_caller_leaves_the_read_to_the_others() -> None:
    gate = Gate()
    read = OffLoop("part", gate.read, 30)
    gone, stays = asyncio.create_task(read.get()), asyncio.create_task(read.get())
    await turns()
    gone.cancel()
    gate.open.set()
    assert await stays == 1


async def test_what_the_read_raises_reaches_every_caller() -> None:
    def fail() -> int:
        raise FactError("part", "broken\nline")

    read = OffLoop("part", fail, 30)
    answers = await asyncio.gather(read.get(), read.get(), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["part: broken\\nline"] * 2


def test_a_read_that_hangs_does_not_hold_up_the_end_of_the_loop() -> None:
    gate = Gate()

    async def main() -> None:
        with pytest.raises(FactError):
            await OffLoop("part", gate.read, 0.01).get()

    asyncio.run(main())
    gate.open.set()


async def test_a_machine_without_a_free_thread_is_a_fault_with_its_reason_and_no_bug(tmp_path: Path) -> None:
    read = OffLoop("part", lambda: 1, 30)
    disks = DiskSizes(["/"], procfs=make_procfs(tmp_path), part_log=PartLog())
    engine = ContainerEngine([tmp_path / "engine.sock"])
    # A stack that no machine has: every further thread is refused, as at a limit on tasks.
    before = threading.stack_size(1 << 46)
    try:
        with pytest.raises(FactError, match="part: no thread can be started"):
            await read.get()
        assert await disks.read() == []
        with pytest.raises(FactError, match="containers: no thread can be started"):
            await engine.open_logs("web")
    finally:
        threading.stack_size(before)
    assert await read.get() == 1

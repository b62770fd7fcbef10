"""Full collections of garbage run on their beat, and at no other time."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from tests.eventually import eventually
from vmm_proxy import garbage


class Cycle:
    """Garbage once nobody holds it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


async def test_old_garbage_is_found_at_the_beat_and_the_beat_ends_with_its_context() -> None:
    rounds: asyncio.Queue[None] = asyncio.Queue()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await rounds.get()

    cycle: Cycle | None = Cycle()
    async with garbage.collected(600.0, sleep):
        gc.unfreeze()
        old = weakref.ref(cycle)
        # Survives the young generations, as a connection that stays open does.
        gc.collect()
        cycle = None
        gc.collect(1)
        assert old() is not None
        rounds.put_nowait(None)
        await eventually(lambda: len(waits) >= 2)
        assert old() is None
        task_count = len(asyncio.all_tasks())
    assert len(asyncio.all_tasks()) == task_count - 1
    assert waits == [600.0, 600.0]


async def test_no_number_of_young_collections_begins_a_full_one() -> None:
    async with garbage.collected():
        before = gc.get_stats()[2]["collections"]
        kept = [Cycle() for _ in range(200_000)]
        assert gc.get_stats()[2]["collections"] == before
        assert gc.get_stats()[1]["collections"] > 0
        del kept

"""Asking many guests: in turns with the loop's other work, and for nobody any more once the reader has left."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from guest_api import guest_api_pb2
from tests.eventually import turns
from vmm_proxy.fleet.collect import STARTS_AT_A_TIME, ask_each, collect
from vmm_proxy.fleet.outcome import GuestOutcome
from vmm_proxy.upstream.passed_metadata import Metadata
from vmm_proxy.upstream.shared_call import Answer

GUESTS = [f"vm{number}" for number in range(20 * STARTS_AT_A_TIME)]


async def test_other_work_of_the_loop_has_its_turn_while_many_guests_are_asked() -> None:
    asked: list[str] = []
    seen = [0]

    async def other_work() -> None:
        while len(asked) < len(GUESTS):
            await turns()
            seen.append(len(asked))

    await asyncio.gather(other_work(), ask_each(GUESTS, asked.append))
    assert asked == GUESTS
    assert max(later - earlier for earlier, later in itertools.pairwise(seen)) <= STARTS_AT_A_TIME


async def test_a_reader_who_leaves_has_no_further_guest_asked() -> None:
    asked: list[str] = []

    def answers_at_once(
        guest_id: str,
        metadata: Metadata,
        deadline: float,
        wall_clock: Callable[[], float],
        *,
        told: Callable[[GuestOutcome], None],
    ) -> None:
        asked.append(guest_id)
        answer = Answer(guest_api_pb2.GpuInfoResponse(), (), 0)
        told(GuestOutcome(guest_id, answer, wall_clock(), 0.0))

    collected = collect(answers_at_once, GUESTS, (), asyncio.get_running_loop().time() + 10, lambda: 0.0)
    outcomes = await anext(collected)
    assert [outcome.guest_id for outcome in outcomes] == GUESTS[: len(outcomes)]
    await collected.aclose()
    begun = len(asked)
    assert begun < len(GUESTS)
    await turns(len(GUESTS))
    assert len(asked) == begun

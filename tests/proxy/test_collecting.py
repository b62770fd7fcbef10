"""Asking many guests: in turns with the loop's other work, and for nobody any more once the reader has left."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from guest_api import guest_api_pb2
from tests.eventually import eventually, turns
from vmm_proxy.fleet.collect import STARTS_AT_A_TIME, Free, ask_each, collect
from vmm_proxy.fleet.outcome import GuestOutcome
from vmm_proxy.pacing import Pace
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

    def answered_at_once(guest_id: str, free: Free) -> None:
        asked.append(guest_id)
        free()

    await asyncio.gather(other_work(), ask_each(GUESTS, answered_at_once, Pace(STARTS_AT_A_TIME)))
    assert asked == GUESTS
    assert max(later - earlier for earlier, later in itertools.pairwise(seen)) <= STARTS_AT_A_TIME


async def test_no_more_guests_are_asked_than_may_answer_at_once_until_one_answers_or_stays_silent() -> None:
    asked: dict[str, Free] = {}
    asking = asyncio.create_task(ask_each(GUESTS, asked.__setitem__, Pace(4)))
    await turns(20)
    assert list(asked) == GUESTS[:4]
    asked[GUESTS[2]]()
    asked[GUESTS[2]]()
    await turns(20)
    assert list(asked) == GUESTS[:5], "one place is given back once"
    # The others are silent; after a moment each gives its place to the next one.
    await eventually(lambda: len(asked) >= 9)
    asking.cancel()


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

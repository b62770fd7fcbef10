"""Waits for what no event tells: looks again until a condition holds, and fails with the condition's own words where it never does.

A bare sleep says neither what it waits for nor what was wrong when it was too short. So a test waits for an event, moves a clock of its
own (tests/telemetry/virtual_time.py), or waits here. A real sleep that is left has its reason beside it; tests/test_sleeps.py looks for
others. Rejected: a package that retries; it is one loop.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

# Far beyond what anything here takes on a machine at a load of 20, and under the 60 s in which pytest-timeout ends a test.
WITHIN_SECONDS = 40.0
# What happens in this loop is there after a few turns of it. What another process does is not worth a busy core.
_TURNS = 100
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 0.1


@overload
async def eventually(condition: Callable[[], Awaitable[T | None]], within_seconds: float = ...) -> T: ...
@overload
async def eventually(condition: Callable[[], T | None], within_seconds: float = ...) -> T: ...
async def eventually(condition: Callable[[], object], within_seconds: float = WITHIN_SECONDS) -> object:
    """The first true value of `condition`, which may be asynchronous; AssertionError with its source when there is none in time."""
    give_up, looks, pause = time.monotonic() + within_seconds, 0, _PAUSE_SECONDS
    while True:
        found = condition()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        assert time.monotonic() < give_up, f"in {within_seconds} s this was never true: {_words(condition)}"
        looks += 1
        if looks < _TURNS and found is value:
            await turns()
            continue
        # For time to pass, because nothing tells when to look again.
        await asyncio.sleep(pause)
        pause = min(pause * 1.2, _LONGEST_PAUSE_SECONDS)


def eventually_here(condition: Callable[[], T | None], within_seconds: float = WITHIN_SECONDS) -> T:
    """The same where no loop runs."""
    give_up = time.monotonic() + within_seconds
    while not (value := condition()):
        assert time.monotonic() < give_up, f"in {within_seconds} s this was never true: {_words(condition)}"
        # For time to pass, because nothing tells when to look again.
        time.sleep(_PAUSE_SECONDS)
    return value


async def turns(count: int = 1) -> None:
    """Let the loop run what is ready, `count` times: tasks that were made begin, callbacks are called. No time passes."""
    for _ in range(count):
        # Not for time to pass: this is how a coroutine gives the loop a turn.
        await asyncio.sleep(0)


def _words(condition: object) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())  # type: ignore[arg-type] # whatever has no source is shown as it is
    except (OSError, TypeError):
        return repr(condition)

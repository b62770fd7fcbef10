"""Waiting for a condition gives its value, and fails with its words when it never comes."""

from __future__ import annotations

import asyncio

import pytest

from tests.eventually import eventually, eventually_here


async def test_what_comes_to_be_is_returned() -> None:
    found: list[str] = []
    asyncio.get_running_loop().call_soon(found.append, "it")
    assert await eventually(lambda: found) == ["it"]


async def test_a_condition_that_is_asked_is_asked_again() -> None:
    answers = iter([0, 0, 7])

    async def ask() -> int:
        return next(answers)

    assert await eventually(ask) == 7


async def test_what_never_comes_to_be_fails_with_the_words_of_the_condition() -> None:
    never: list[str] = []
    with pytest.raises(AssertionError, match=r"this was never true: .*lambda: never"):
        await eventually(lambda: never, within_seconds=0)
    with pytest.raises(AssertionError, match=r"this was never true: .*lambda: never"):
        eventually_here(lambda: never, within_seconds=0)

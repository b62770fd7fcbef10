"""No test sleeps for time to pass: each sleep of the tests has the reason beside it why nothing better will do.

Code in strings is left alone: a child that sleeps for ever is a child that hangs, not a test that waits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MODULES = {"asyncio", "time", "anyio"}


def _sleeps(source: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr="sleep")) if module in MODULES:
                yield node.lineno
            case ast.ImportFrom(module=str(module), names=names) if module in MODULES and any(
                each.name == "sleep" for each in names
            ):
                yield node.lineno


def bare_sleeps(source: str) -> list[int]:
    """The lines of `source` that sleep with a comment neither behind them nor on the line above."""
    lines = source.splitlines()
    return [line for line in _sleeps(source) if "  # " not in lines[line - 1] and not lines[line - 2].lstrip().startswith("# ")]


def test_every_sleep_of_the_tests_has_its_reason_beside_it() -> None:
    bare = {str(file.relative_to(TESTS)): found for file in TESTS.rglob("*.py") if (found := bare_sleeps(file.read_text()))}
    assert not bare, f"wait for an event, for a clock of your own, or with tests.eventually: {bare}"


@pytest.mark.parametrize(
    ("source", "bare"),
    [
        ("while not done:\n    await asyncio.sleep(0.01)\n", [2]),
        ("\ntime.sleep(1)\n", [2]),
        ("\nfrom time import sleep\n", [2]),
        ("# Nothing tells when it is read.\ntime.sleep(1)\n", []),
        ("time.sleep(1)  # nothing tells when it is read\n", []),
        ("\nCHILD = 'import time; time.sleep(1000)'\n", []),
        ("\nawait clock.sleep(1)\n", []),
    ],
)
def test_a_sleep_without_a_reason_is_found_and_nothing_else_is(source: str, bare: list[int]) -> None:
    assert bare_sleeps(source) == bare

"""Checks run side by side within bounds, and whatever one of them does, the report is complete."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_transport.doctor.checks import Check, Examined, in_thread, run_checks
from guest_transport.doctor.findings import Finding, Verdict, note, ok, wrong
from guest_transport.doctor.report import TEXT_LIMIT_CHARACTERS, anything_wrong, as_json, as_text


async def _sound(_machine: str) -> Sequence[Finding]:
    return [ok("as it should be")]


async def _hangs(_machine: str) -> Sequence[Finding]:
    await asyncio.Event().wait()
    raise AssertionError


async def _never_lets_go(_machine: str) -> Sequence[Finding]:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling() > 1:  # type: ignore[union-attr] # it runs in one
                raise


async def _bug(_machine: str) -> Sequence[Finding]:
    raise KeyError("nobody thought of this")


def check(name: str, examine: object, bound_seconds: float = 30) -> Check[str]:
    return Check(name, "a test's", examine, bound_seconds=lambda _: bound_seconds)  # type: ignore[arg-type] # coroutine functions above


async def test_a_check_that_hangs_is_a_line_of_that_check_and_costs_the_others_nothing() -> None:
    report = await run_checks([check("first", _sound), check("hung", _hangs, 0.05), check("last", _sound)], "machine")
    assert [examined.check for examined in report] == ["first", "hung", "last"]
    (hung,) = report[1].findings
    assert (hung.verdict, "0.05 s" in hung.seen) == (Verdict.WRONG, True)
    assert report[0].findings == report[2].findings == (ok("as it should be"),)


async def test_a_check_that_does_not_even_end_when_told_to_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guest_transport.doctor.checks.ENDING_SECONDS", 0.05)
    (stuck,) = await run_checks([check("stuck", _never_lets_go, 0.05)], "machine")
    assert stuck.findings[0].verdict is Verdict.WRONG


async def test_a_bug_of_a_check_is_a_line_that_says_so() -> None:
    report = await run_checks([check("bug", _bug), check("sound", _sound)], "machine")
    (fault,) = report[0].findings
    assert fault.verdict is Verdict.WRONG
    assert "KeyError" in fault.seen
    assert "bug" in fault.advice
    assert report[1].findings[0].verdict is Verdict.OK


async def test_a_read_that_hangs_in_a_thread_is_left_behind_with_its_thread() -> None:
    let_go, begun = threading.Event(), threading.Event()

    def read() -> None:
        begun.set()
        let_go.wait(30)

    async def examine(_machine: str) -> Sequence[Finding]:
        await in_thread(read)
        return []

    try:
        (hung,) = await run_checks([check("read", examine, 0.2)], "machine")
        assert begun.is_set()
        assert hung.findings[0].verdict is Verdict.WRONG
    finally:
        let_go.set()


async def test_what_a_read_in_a_thread_raises_reaches_the_one_who_waits() -> None:
    def fail() -> None:
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError, match="gone"):
        await in_thread(fail)


def test_only_wrong_makes_the_whole_wrong() -> None:
    assert not anything_wrong([Examined("a", (ok("x"), note("y")))])
    assert anything_wrong([Examined("a", (ok("x"),)), Examined("b", (note("y"), wrong("z", "mend it")))])


def test_text_has_a_line_per_finding_with_what_to_do_and_a_last_one_with_the_counts() -> None:
    text = as_text([Examined("grpc", (ok("fine"), wrong("not fine", "mend it"))), Examined("clock", (note("odd"),))])
    assert text.splitlines() == [
        "ok     grpc   fine",
        "wrong  grpc   not fine -- mend it",
        "note   clock  odd",
        "2 checks, 3 findings: 1 ok, 1 wrong, 1 note",
    ]


@given(st.text(max_size=2000), st.text(max_size=2000))
def test_whatever_text_a_guest_or_a_driver_chose_stays_one_printable_bounded_line(seen: str, advice: str) -> None:
    report = [Examined("guests", (wrong(seen, advice),))]
    lines = as_text(report).split("\n")
    assert len(lines) == 2
    assert all(c.isprintable() or c == " " for c in lines[0])
    (finding,) = json.loads(as_json(report))["findings"]
    for text in (finding["seen"], finding["do"]):
        assert len(text) <= TEXT_LIMIT_CHARACTERS
        assert all(c.isprintable() or c == " " for c in text)

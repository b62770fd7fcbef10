"""Each bound of a soak is one that a run can pass."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from soak.ages import Ages
from soak.judging import Book, Kind
from soak.processes import Holding
from soak.service import Service
from soak.verdict import MEBIBYTE, STALL_SECONDS, Verdict, judge_ages, judge_calls, judge_disturbances, judge_logs, judge_parts
from soak.watching import Watch

QUIET = Holding(resident_bytes=60 * MEBIBYTE, descriptors=20, threads=10, children=0, zombies=0)


def a_watch() -> Watch:
    with tempfile.TemporaryDirectory() as folder:
        return Watch([], Service("proxy", [], Path(folder)), Book())


def parts(under_load: Callable[[int], Holding], *, end: Holding = QUIET, stalls: tuple[float, ...] = ()) -> list[str]:
    """The reasons of a run of ten minutes in which the proxy held what `under_load` says at each second."""
    watch = a_watch()
    watch.series["proxy", 7] = [(float(second), under_load(second)) for second in range(600)]
    watch.stalls["proxy"] += stalls
    verdict = Verdict()
    judge_parts(verdict, watch, ({"proxy": QUIET}, {"proxy": end}), {"proxy": 7})
    return verdict.reasons


def test_a_steady_proxy_with_samples_in_flight_passes() -> None:
    assert parts(lambda second: replace(QUIET, descriptors=20 + second % 7, children=second % 2), stalls=(0.5,)) == []


@pytest.mark.parametrize(
    ("under_load", "words"),
    [
        (lambda second: replace(QUIET, resident_bytes=60 * MEBIBYTE + second * 20_000), "memory grew by MiB: 11"),
        (lambda second: replace(QUIET, descriptors=20 + second // 60), "descriptors grew by"),
        (lambda second: replace(QUIET, threads=10 + second // 60), "threads grew by"),
        (lambda second: replace(QUIET, zombies=1, children=1), "zombies most of the time"),
    ],
)
def test_growth_under_load_is_told(under_load: Callable[[int], Holding], words: str) -> None:
    (reason,) = parts(under_load)
    assert reason.startswith(f"proxy: {words}")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (replace(QUIET, descriptors=40), "descriptors, quiet, end less start: 20, and 12 is allowed"),
        (replace(QUIET, threads=20), "threads, quiet"),
        (replace(QUIET, children=1), "children at the end"),
        (replace(QUIET, children=1, zombies=1), "zombies at the end"),
    ],
)
def test_what_is_left_in_the_last_quiet_moment_is_told(end: Holding, words: str) -> None:
    assert any(words in reason for reason in parts(lambda _: QUIET, end=end))


def test_a_loop_that_stood_still_is_told() -> None:
    (reason,) = parts(lambda _: QUIET, stalls=(0.1, STALL_SECONDS + 1))
    assert "longest stall of its event loop" in reason


def test_a_lost_call_is_told_with_its_guest_and_status() -> None:
    book = Book()
    book.note("gpu_info", "vm1", 1, 2, status="UNAVAILABLE", text="connection refused")
    verdict = Verdict()
    judge_calls(verdict, book, {}, not_made=0, loaded_seconds=60)
    assert verdict.reasons == ["lost: gpu_info about vm1: UNAVAILABLE connection refused"]


def test_a_run_without_its_load_or_without_a_disturbance_proves_nothing() -> None:
    book, verdict = Book(), Verdict()
    judge_calls(verdict, book, {"info": 100}, not_made=2, loaded_seconds=60)
    judge_disturbances(verdict, book, (Kind.HANGS,))
    judge_ages(verdict, Ages(["vm1"], book))
    assert [reason.split(":")[0] for reason in verdict.reasons] == [
        "only 0 of some 100 info were made",
        "calls not made because too many of their kind were in flight",
        "no guest hangs",
        "age of a sample in a call",
        "age of a sample on the page",
        "between two updates of a watch",
    ]


def test_old_samples_and_long_gaps_are_told() -> None:
    ages, verdict = Ages(["vm1"], Book()), Verdict()
    for _ in range(99):
        ages.sampled("vm1", 1.0)
        ages.updated("vm1", 1.0)
    ages.scraped('dstack_gpu_sample_age_seconds{vm_id="vm1"} 9\n', 0)
    ages.sampled("vm1", 25.0)
    ages.updated("vm1", 25.0)
    ages.sampled("somebody who is disturbed", 1000.0)
    judge_ages(verdict, ages)
    assert [reason.rpartition(":")[0] for reason in verdict.reasons if "greatest" in reason] == [
        "age of a sample in a call, s, greatest",
        "between two updates of a watch, s, greatest",
    ]
    assert any(reason.startswith("age of a sample on the page, s, 99th percentile: 9") for reason in verdict.reasons)


@pytest.mark.parametrize(("told", "young"), [(0.3, True), (9.5, False), (12.0, False)])
def test_an_answer_of_a_stopped_guest_may_not_be_told_as_younger_than_its_stop(told: float, *, young: bool) -> None:
    book = Book()
    hang = book.begin("vm1", Kind.HANGS, 100.0)
    ages = Ages([], book)
    ages.scraped(f'vmm_proxy_guest_answer_age_seconds{{vm_id="vm1"}} {told}\n', 110.0)
    assert bool(ages.told_too_young) is young
    # Once it goes on, everything is young again.
    hang.ended = 111.0
    ages.scraped('vmm_proxy_guest_answer_age_seconds{vm_id="vm1"} 0.1\n', 112.0)
    assert len(ages.told_too_young) == young


def test_a_traceback_in_a_log_is_told() -> None:
    verdict = Verdict()
    judge_logs(verdict, {"vm1": "all well\nTraceback (most recent call last):\n", "vm2": "listening\n"})
    assert verdict.reasons == ["vm1: its log has: Traceback (most recent call last):"]


def test_a_machine_without_a_processor_excuses_late_answers_only_and_not_for_long() -> None:
    book, verdict = Book(), Verdict()
    for second in range(20):
        book.begin("", Kind.STARVED, float(second)).ended = second + 1.0
    book.note("gpu_info", "vm1", 5, 6, status="DEADLINE_EXCEEDED")
    book.note("gpu_info", "vm1", 5, 6, status="UNAVAILABLE")
    judge_calls(verdict, book, {}, not_made=0, loaded_seconds=60)
    assert [reason.split(":")[0] for reason in verdict.reasons] == ["lost", "for 20 of 60 s the machine had no processor for it"]

"""The bounds of a soak, each with its reason, and what was found against them. It judges; measuring and printing are elsewhere.

A bound holds for every machine that the soak is run on, so it is wide in time (two cores with ten other programs on them) and narrow in
what may be left behind. A run in which nothing was disturbed or hardly anything called proves nothing, and fails.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from soak.ages import Ages, spread
from soak.judging import Book, Kind
from soak.processes import Holding
from soak.trend import Bound, growth
from soak.watching import Watch

MEBIBYTE = 1024 * 1024
# Arenas of the allocator and caches of gRPC fill late: 3 to 5 MiB were seen in the first minutes and nothing after. 0.1 MiB a minute, of
# some 2000 calls, is 50 bytes a call: less than any object that could be kept for one.
MEMORY = Bound(once=6 * MEBIBYTE, per_minute=0.1 * MEBIBYTE)
# A connection that is just being made again, a collector's two pipes and pidfd.
DESCRIPTORS = Bound(once=4, per_minute=0)
# Between two quiet moments: the line of a guest that has just come back stands once it is called, and behind hybrid vsock a line takes five
# descriptors with its relay. Two such guests may be one way and then the other (6 were seen, while the slope was flat).
LINES = Bound(once=12, per_minute=0)
# Pools of threads (file reads, the resolver of gRPC) fill to their size when work first comes together.
THREADS = Bound(once=4, per_minute=0)
# The sample TTL of 1 s, the time of a sample, and up to a second until the next one asks: 2 s where the machine does nothing else, and
# 4.4 s (99 %) were seen with 30 processes waiting for two cores. Twice that is no machine's business any more.
SAMPLE_AGE_99_SECONDS = 8.0
SAMPLE_AGE_SECONDS = 20.0
# Watched every second; the same.
WATCH_GAP_99_SECONDS = 8.0
WATCH_GAP_SECONDS = 20.0
# A third of the units' WatchdogSec: a loop that stalls for half of it misses a tell.
STALL_SECONDS = 10.0
# Half of what the rate promises. Below it the load was not there, and what was found says nothing.
CALLS_SHARE = 0.5
# Calls that fail while the machine has no processor are excused; a run that was like that for more than this share was no load.
STARVED_LIMIT_SHARE = 0.25
# Words that a healthy log never has: Python's for an exception that nobody foresaw.
BAD_WORDS = ("Traceback (most recent call last)", "was never awaited", "Task was destroyed", "never retrieved")


@dataclass(frozen=True, slots=True)
class Part:
    """How one service fared: from the first quiet moment to the last, and by slope under load in between."""

    start: Holding
    end: Holding
    memory_growth: float
    descriptors_growth: float
    threads_growth: float
    stalls: dict[str, float]


@dataclass
class Verdict:
    """The findings; `reasons` are the bounds that were passed, one line each."""

    parts: dict[str, Part] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def bound(self, what: str, value: float, limit: float) -> None:
        """`value` may not be over `limit`."""
        if value > limit:
            self.reasons.append(f"{what}: {value:.4g}, and {limit:.4g} is allowed")


def judge_parts(verdict: Verdict, watch: Watch, quiet: Sequence[Mapping[str, Holding]], lasting: Mapping[str, int]) -> None:
    """Judge what services hold; `quiet` are the first and the last quiet moment, `lasting` those that ran all the time, with their pids."""
    first, last = quiet
    for name, end in last.items():
        stalls = spread(watch.stalls[name])
        verdict.bound(f"{name}: longest stall of its event loop, s", stalls.get("greatest", 0.0), STALL_SECONDS)
        verdict.bound(f"{name}: zombies at the end", end.zombies, 0)
        verdict.bound(f"{name}: children at the end", end.children, 0)
        if name not in lasting:
            continue
        series, start = watch.series[name, lasting[name]], first[name]
        seconds = series[-1][0] - series[0][0] if series else 0.0
        part = Part(
            start,
            end,
            growth([(at, held.resident_bytes) for at, held in series]),
            growth([(at, held.descriptors) for at, held in series]),
            growth([(at, held.threads) for at, held in series]),
            stalls,
        )
        verdict.parts[name] = part
        verdict.bound(f"{name}: memory grew by MiB", part.memory_growth / MEBIBYTE, MEMORY.over(seconds) / MEBIBYTE)
        verdict.bound(f"{name}: descriptors grew by", part.descriptors_growth, DESCRIPTORS.over(seconds))
        verdict.bound(f"{name}: threads grew by", part.threads_growth, THREADS.over(seconds))
        verdict.bound(f"{name}: descriptors, quiet, end less start", end.descriptors - start.descriptors, LINES.over(seconds))
        verdict.bound(f"{name}: threads, quiet, end less start", end.threads - start.threads, THREADS.over(seconds))
        zombies = statistics.median([held.zombies for _, held in series]) if series else 0
        verdict.bound(f"{name}: zombies most of the time", zombies, 0)


def judge_calls(verdict: Verdict, book: Book, promised: Mapping[str, float], not_made: int, loaded_seconds: float) -> None:
    """Judge what became of the calls; `promised` is how many of each kind the rate makes."""
    for failure in book.lost():
        about = f" about {failure.guest}" if failure.guest else ""
        verdict.reasons.append(f"lost: {failure.what}{about}: {failure.status} {failure.text[:200]}")
    for what, count in promised.items():
        if book.calls[what] < count * CALLS_SHARE:
            verdict.reasons.append(
                f"only {book.calls[what]} of some {count:.0f} {what} were made: the machine was too busy to prove anything"
            )
    starved = [each for each in book.disturbances if each.kind is Kind.STARVED and not each.guest]
    seconds = {round(each.began) for each in starved}
    if len(seconds) > loaded_seconds * STARVED_LIMIT_SHARE:
        verdict.reasons.append(
            f"for {len(seconds)} of {loaded_seconds:.0f} s the machine had no processor for it: too busy to prove anything"
        )
    verdict.bound("calls not made because too many of their kind were in flight", not_made, 0)


def judge_disturbances(verdict: Verdict, book: Book, wanted: Sequence[Kind]) -> Counter[Kind]:
    """Each of the `wanted` kinds must have happened; how often each did."""
    happened = Counter(each.kind for each in book.disturbances)
    for kind in wanted:
        if not happened[kind]:
            verdict.reasons.append(f"no guest {kind.value}: there was no time to disturb one")
    return happened


def judge_ages(verdict: Verdict, ages: Ages) -> dict[str, dict[str, float]]:
    """Judge how old things were; the spreads of all of them."""
    found = {
        "age of a sample in a call": spread(ages.samples),
        "age of a sample on the page": spread(ages.page_samples),
        "age of an answer on the page": spread(ages.page_answers),
        "between two updates of a watch": spread(ages.watch_gaps),
        "between two events of the page": spread(ages.page_gaps),
    }
    for what, limit_99, limit in (
        ("age of a sample in a call", SAMPLE_AGE_99_SECONDS, SAMPLE_AGE_SECONDS),
        ("age of a sample on the page", SAMPLE_AGE_99_SECONDS, SAMPLE_AGE_SECONDS),
        ("between two updates of a watch", WATCH_GAP_99_SECONDS, WATCH_GAP_SECONDS),
    ):
        if not found[what]["count"]:
            verdict.reasons.append(f"{what}: there was none")
            continue
        verdict.bound(f"{what}, s, 99th percentile", found[what]["p99"], limit_99)
        verdict.bound(f"{what}, s, greatest", found[what]["greatest"], limit)
    for guest, told, stopped in ages.told_too_young:
        verdict.reasons.append(
            f"{guest}: its answer was told to be {told:.2f} s old when it had been stopped for {stopped:.2f} s"
        )
    return found


def judge_logs(verdict: Verdict, logs: Mapping[str, str]) -> None:
    """Find what no log may hold."""
    for name, text in logs.items():
        for line in text.splitlines():
            if any(words in line for words in BAD_WORDS):
                verdict.reasons.append(f"{name}: its log has: {line[:200]}")

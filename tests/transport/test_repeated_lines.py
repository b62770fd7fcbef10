"""A fault that stays is a line a minute with a count, and nothing else is lost: through a real logger, with a clock of the test's own."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from guest_transport.process import repeated_lines
from guest_transport.process.logs import JsonFormatter, TextFormatter
from guest_transport.process.repeated_lines import EVERY_ONE, RepeatedLinesHandler, about


class Bench:
    """A logger of its own, the lines that it wrote, and a clock whose hand the test moves."""

    def __init__(self, later: Callable[[float, Callable[[], None]], None] | None = None) -> None:
        self.now = 1000.0
        self.clock_reads = 0
        self.alarms: list[tuple[float, Callable[[], None]]] = []
        self.stream = io.StringIO()
        self.handler = RepeatedLinesHandler(self.stream, clock=self._clock, later=later or self._later)
        self.handler.setFormatter(TextFormatter())
        # Not of the process's own tree: pytest listens there.
        self.log = logging.Logger("guest_service.test")  # noqa: LOG001
        self.log.addHandler(self.handler)

    def _clock(self) -> float:
        self.clock_reads += 1
        return self.now

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self.alarms.append((self.now + seconds, act))

    def wait(self, seconds: float) -> None:
        """Let time pass; alarms go off in it."""
        end = self.now + seconds
        while due := [alarm for alarm in self.alarms if alarm[0] <= end]:
            alarm = min(due, key=lambda each: each[0])
            self.alarms.remove(alarm)
            self.now = max(self.now, alarm[0])
            alarm[1]()
        self.now = end

    @property
    def lines(self) -> list[str]:
        return [line.partition("guest_service.test: ")[2] for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.handler.close()


def test_a_fault_ten_times_a_second_is_one_line_at_once_and_one_a_minute_with_its_count(bench: Bench) -> None:
    for _ in range(1800):
        bench.log.warning("guest %s: cannot be dialled", "vm1")
        bench.wait(0.1)
    assert bench.lines[0] == "guest vm1: cannot be dialled"
    assert bench.lines[1:3] == [f"guest vm1: cannot be dialled ({held} like it in 60 s)" for held in (600, 600)]
    assert len(bench.lines) <= 4


def test_no_occurrence_is_missing_from_the_counts(bench: Bench) -> None:
    for _ in range(1234):
        bench.log.warning("the same")
        bench.wait(0.17)
    bench.wait(120)
    first, *later = bench.lines
    assert first == "the same"
    assert 1 + sum(int(line.partition("(")[2].split()[0]) for line in later) == 1234


def test_a_fault_that_has_ended_still_tells_its_count_within_a_minute(bench: Bench) -> None:
    for _ in range(3):
        bench.log.error("engine: refused")
    assert bench.lines == ["engine: refused"]
    bench.wait(60)
    assert bench.lines == ["engine: refused", "engine: refused (2 like it in 60 s)"]
    bench.wait(600)
    assert len(bench.lines) == 2
    assert not bench.alarms


def test_a_count_that_is_due_comes_before_the_next_line_where_no_thread_could_be_had() -> None:
    def no_thread(seconds: float, act: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    bench = Bench(no_thread)
    bench.log.warning("a")
    bench.log.warning("a")
    bench.wait(60)
    bench.log.warning("b")
    assert bench.lines == ["a", "a (1 like it in 60 s)", "b"]
    bench.handler.close()


def test_what_is_counted_is_told_at_the_end_of_the_process() -> None:
    code = """
import logging
from guest_transport.process.logs import log_to_stderr
log_to_stderr()
for _ in range(50):
    logging.getLogger("x").warning("the engine %s is gone", "podman")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    first, last = ended.stderr.splitlines()
    assert first.endswith("WARNING x: the engine podman is gone")
    assert "the engine podman is gone (49 like it in " in last


def test_a_real_timer_tells_the_count_of_a_fault_that_ended() -> None:
    code = """
import logging, threading
from guest_transport.process import repeated_lines
repeated_lines.WINDOW_SECONDS = 3.0
from guest_transport.process.logs import log_to_stderr
log_to_stderr()
for _ in range(3):
    logging.getLogger("x").warning("again")
for thread in threading.enumerate():
    if isinstance(thread, threading.Timer):
        thread.join(20)
print("before the end", file=__import__("sys").stderr)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    first, later, *rest = [line.rpartition("x: ")[2] for line in ended.stderr.splitlines()]
    assert first == "again"
    assert later.startswith("again (2 like it in ")
    assert rest == ["before the end"]


def test_the_same_fault_of_another_guest_is_not_the_same_fault(bench: Bench) -> None:
    for guest in ("vm1", "vm2", "vm12"):
        bench.log.warning("guest %s: unreachable", guest)
        bench.log.warning("%s: refused no more", PurePosixPath("/etc/guests.d") / guest)
    assert len(bench.lines) == 6


@pytest.mark.parametrize(
    ("template", "one", "other"),
    [
        ("collector process %d did not answer", (17,), (18,)),
        ("guest %s: %d deadlines missed in %.2f s", ("vm1", 3, 0.31), ("vm1", 4, 0.47)),
        ("Task exception: <Task name='Task-7' coro=<f() at 0x7f00aa>>", (), ()),
        ("lost: %s", (OSError("port 5001 is taken"),), (OSError("port 5002 is taken"),)),
    ],
)
def test_numbers_that_differ_each_time_do_not_make_a_fault_new(
    bench: Bench, template: str, one: tuple[object, ...], other: tuple[object, ...]
) -> None:
    bench.log.warning(template, *one)
    bench.log.warning(template.replace("7f00aa", "7f11bb").replace("Task-7", "Task-8"), *other)
    assert len(bench.lines) == 1


def test_words_that_somebody_else_chose_do_not_make_a_fault_new_where_the_call_names_its_thing(bench: Bench) -> None:
    for words in ("cannot open", "has crashed", "sings a song"):
        bench.log.warning("engine: %s", words, extra=about("engine"))
    bench.log.warning("engine: %s", "cannot open", extra=about("another"))
    bench.wait(60)
    assert bench.lines == ["engine: cannot open", "engine: cannot open", "engine: sings a song (2 like it in 60 s)"]


def test_a_worse_level_is_told_at_once(bench: Bench) -> None:
    bench.log.info("disk full")
    bench.log.error("disk full")
    assert len(bench.lines) == 2


def test_events_of_their_own_and_debug_lines_are_all_written(bench: Bench) -> None:
    for _ in range(100):
        bench.log.warning("audit: %s", "{}", extra=EVERY_ONE)
        bench.log.debug("a detail")
    assert bench.lines.count("audit: {}") == 100
    assert bench.lines.count("a detail") == 100


def test_a_traceback_is_written_with_the_first_of_its_kind_only(bench: Bench) -> None:
    for number in range(3):
        try:
            raise LookupError(f"no {number}")
        except LookupError:
            bench.log.exception("a call failed in the proxy itself")
    bench.wait(60)
    first, later = bench.lines
    assert "Traceback" in first
    assert later == "a call failed in the proxy itself: LookupError: no 2 (2 like it in 60 s)"


def test_another_exception_at_the_same_place_is_another_fault(bench: Bench) -> None:
    for error in (ValueError(), KeyError()):
        bench.log.warning("failed", exc_info=error)
    assert len(bench.lines) == 2


def test_a_caller_who_invents_faults_gets_a_bounded_number_of_lines_and_of_memory(bench: Bench) -> None:
    for number in range(3 * repeated_lines.FAULTS_LIMIT):
        for _ in range(2):
            bench.log.warning("refused %s", f"caller {number}")
    assert len(bench.lines) <= repeated_lines.FAULTS_LIMIT + 1
    bench.log.error("a fault of another level")
    assert bench.lines[-1] == "a fault of another level"
    written = len(bench.lines)
    bench.wait(61)
    assert bench.lines[-1].endswith(" like it in 60 s)")
    # Each fault that is kept tells its count once.
    assert len(bench.lines) - written <= repeated_lines.FAULTS_LIMIT + 1
    bench.wait(60)
    bench.log.warning("refused %s", "somebody new")
    assert bench.lines[-1] == "refused somebody new"


def test_comparing_a_line_takes_time_in_its_length_only() -> None:
    assert repeated_lines.without_numbers("a" * 100_000) == "a" * 300


def test_a_call_with_wrong_arguments_is_counted_too(bench: Bench) -> None:
    for _ in range(3):
        bench.log.warning("%d of %d", "many")  # noqa: PLE1206 - the wrong call is what is tested
    assert len(bench.lines) == 1


class Wordless:
    """What cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("message", "arguments", "extra"),
    [
        ("the card says %s", (Wordless(),), None),
        ("the card ended: %s", (ValueError(Wordless()),), None),
        (Wordless(), (), None),
        ({"unhashable": []}, (), about("card 0")),
        ("the card says nothing", (), {"thing": Wordless()}),
    ],
)
def test_what_cannot_be_shown_is_a_counted_line_and_never_raises_in_whoever_logs(
    bench: Bench, message: object, arguments: tuple[object, ...], extra: dict[str, object] | None
) -> None:
    for _ in range(3):
        try:
            raise OSError(Wordless())
        except OSError:
            bench.log.exception(message, *arguments, extra=extra)
    bench.wait(61)
    assert [line for line in bench.lines if line.endswith("(2 like it in 60 s)")] == bench.lines[-1:]


def test_a_flood_of_new_faults_is_not_compared_with_all_that_are_known(bench: Bench) -> None:
    for number in range(repeated_lines.FAULTS_LIMIT):
        bench.log.warning("refused %s", f"caller {number}")
    bench.clock_reads = 0
    for number in range(100):
        bench.log.warning("refused %s", f"newcomer {number}")
    # Two for each line, to see what is due. To see when the next one is due, all that are known are looked through: once, for the alarm.
    assert bench.clock_reads <= 2 * 100 + 3


def test_json_has_the_count_beside_the_words(bench: Bench) -> None:
    bench.handler.setFormatter(JsonFormatter())
    for _ in range(3):
        bench.log.warning("again")
    bench.wait(60)
    first, later = map(json.loads, bench.stream.getvalue().splitlines())
    assert "held" not in first
    assert (later["message"], later["held"], later["held_seconds"]) == ("again", 2, 60)


def test_a_count_that_is_due_when_the_stream_is_closed_is_told_to_nobody_once(bench: Bench, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        bench.handler.setStream(file)
        bench.log.warning("the same")
        bench.log.warning("the same")
    bench.wait(60)
    assert bench.alarms == []
    assert (tmp_path / "log").read_text().count("the same") == 1

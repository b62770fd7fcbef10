"""Writes a repeated log line once, and from then on at most once a minute with its count: a log of a bad night must still be readable.

The first line of a fault is written at once. Equal ones are counted, and a minute after the line before them the last of them is written
with their count; so a fault that has ended still tells its whole count, at the latest a minute later or when the process ends. Equal are
lines of one logger and level that are about the same thing and read the same but for their numbers (a process id, a port, a duration, an
address in memory). The thing is the first argument, unless that is a number or an exception: log.warning("guest %s: …", guest_id). A call
whose words are chosen by somebody else names it with extra=about(thing): then the words do not count.

All loggers are covered, those of libraries too, at every level but DEBUG (whoever turns it on wants every line). Never held back is what is
an event of its own and marked with extra=EVERY_ONE: lines of the audit log, an accepted Shutdown and what became of it, a reload, a change
of the directory. Start and stop are such events by themselves: they come once.

Rejected: a limit of lines a minute whatever they say (the one line that matters is lost behind a thousand that repeat); counting at each
place that logs (every new line has to remember it, and libraries do not); writing the count with the next equal line only (a fault
that ended says nothing); comparing whole lines (each has another process id).
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TextIO

# What was promised to operators: no repeated fault more than once a minute.
WINDOW_SECONDS = 60.0
# Two faults for each of a thousand guests. Beyond it, faults of one logger and level are counted together until some have ended: whoever
# invents new ones gets no more lines than this a minute, and holds no more memory than so many lines.
FAULTS_LIMIT = 2048
# What tells one line from another stands in its first words; the rest is not looked at.
_COMPARED_CHARACTERS = 300
# Decimal numbers, and hexadecimal ones that have a digit or a 0x in front: addresses in memory, container ids, UUIDs.
# Written so that it takes one step a character, whatever the text.
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|(?<![0-9a-fA-F])[a-fA-F]*+[0-9][0-9a-fA-F]*")
# What Python shows of an object that has no name.
_IN_MEMORY = re.compile(r"\b0x[0-9a-f]+")

# For `extra` of a line that is an event of its own.
EVERY_ONE: Mapping[str, object] = {"every_one": True}


def about(thing: str) -> Mapping[str, object]:
    """For `extra`: the line is about `thing`, and equal to others of the same place in the code about it, whatever their words."""
    return {"thing": thing}


def without_numbers(text: str) -> str:
    """The begin of `text` with # for each number: equal for two lines that differ in their numbers only."""
    return _NUMBERS.sub("#", text[:_COMPARED_CHARACTERS])


def message_of(record: logging.LogRecord) -> str:
    """The words of `record`, also of one whose arguments do not fit."""
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001  # a wrong log call must neither raise nor write lines of its own
        return f"{shown(record.msg, repr)} {shown(record.args, repr)} (does not format: {shown(error, repr)})"


def shown(thing: object, show: Callable[[object], str] = str) -> str:
    """`thing` in its own words, or why it has none."""
    try:
        return show(thing)
    except Exception as error:  # noqa: BLE001  # the same
        return f"<{type(thing).__name__} that cannot be shown: {type(error).__name__}>"


@dataclass(slots=True)
class _Fault:
    """When it was last written (by the clock), how many equal lines came since, and the last of those."""

    written_at: float
    held: int = 0
    last: logging.LogRecord | None = None


class RepeatedLines:
    """Decides about each line; `clock` is monotonic, in seconds. A line that stands for others has `held` and `held_seconds`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # In the order of written_at, so that those whose minute is over are in front.
        self._faults: OrderedDict[object, _Fault] = OrderedDict()

    def passes(self, record: logging.LogRecord) -> bool:
        """Whether `record` is written now; else it is counted. Ask due() first."""
        if record.levelno <= logging.DEBUG or "every_one" in record.__dict__:
            return True
        key = _key(record)
        if key not in self._faults and len(self._faults) >= FAULTS_LIMIT:
            key = (record.name, record.levelno)
        fault = self._faults.get(key)
        if fault is None:
            self._faults[key] = _Fault(self._clock())
            return True
        fault.held += 1
        fault.last = record
        return False

    def due(self) -> Iterator[logging.LogRecord]:
        """The counted lines whose minute is over, each the last of its kind."""
        return self._told(self._clock() - WINDOW_SECONDS)

    def rest(self) -> Iterator[logging.LogRecord]:
        """All counted lines, at the end."""
        return self._told(self._clock())

    def seconds_to_next(self) -> float | None:
        """When due() has something again; None while nothing is counted."""
        counted = next((fault for fault in self._faults.values() if fault.held), None)
        return None if counted is None else max(0.0, counted.written_at + WINDOW_SECONDS - self._clock())

    def _told(self, written_before: float) -> Iterator[logging.LogRecord]:
        now = self._clock()
        for key, fault in list(self._over(written_before)):
            del self._faults[key]
            if fault.last is not None:
                self._faults[key] = _Fault(now)
                yield _standing_for(fault.last, fault.held, now - fault.written_at)

    def _over(self, written_before: float) -> Iterator[tuple[object, _Fault]]:
        for key, fault in self._faults.items():
            if fault.written_at > written_before:
                return
            yield key, fault


def _key(record: logging.LogRecord) -> object:
    kind = record.exc_info[0] if record.exc_info else None
    thing = record.__dict__.get("thing")
    if thing is not None:
        return record.name, record.levelno, shown(record.msg), shown(thing)[:_COMPARED_CHARACTERS], kind
    return record.name, record.levelno, _first_argument(record), without_numbers(message_of(record)), kind


def _first_argument(record: logging.LogRecord) -> str | None:
    """The first argument where it can be a name."""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else None
    if first is None or isinstance(first, int | float | BaseException):
        return None
    return _IN_MEMORY.sub("#", shown(first)[:_COMPARED_CHARACTERS])


def _standing_for(last: logging.LogRecord, held: int, seconds: float) -> logging.LogRecord:
    """A copy of `last` that says how many it stands for. Its traceback was written with the first of them."""
    text = message_of(last)
    if last.exc_info and last.exc_info[1] is not None:
        text += f": {type(last.exc_info[1]).__name__}: {shown(last.exc_info[1])}"
    plain = {"msg": text, "args": (), "exc_info": None, "exc_text": None, "stack_info": None}
    return logging.makeLogRecord({**last.__dict__, **plain, "held": held, "held_seconds": seconds})


def _later(seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


class RepeatedLinesHandler(logging.StreamHandler[TextIO]):
    """Writes to `stream` what RepeatedLines lets through, and what it counted when its time has come.

    One thread waits while something is counted, and none otherwise. Where none can be had, the counts come with the next line.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] = _later,
    ) -> None:
        super().__init__(stream if stream is not None else sys.stderr)
        self._faults = RepeatedLines(clock)
        self._later = later
        self._waiting = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write or count `record`; logging calls it with the handler's lock held."""
        for counted in self._faults.due():
            super().emit(counted)
        if self._faults.passes(record):
            super().emit(record)
        else:
            self._tell_later()

    def close(self) -> None:
        """Write what is still counted; logging.shutdown() calls it at the end of the process."""
        self._write(self._faults.rest)
        super().close()

    def _tell_later(self) -> None:
        # In this order: in a flood of new faults each line would look through all that are known.
        seconds = None if self._waiting else self._faults.seconds_to_next()
        if seconds is None:
            return
        try:
            self._later(seconds, self._tell)
        except RuntimeError:
            # The machine is at its limit on threads.
            return
        self._waiting = True

    def _tell(self) -> None:
        self._write(self._faults.due)
        self.acquire()
        try:
            self._waiting = False
            self._tell_later()
        finally:
            self.release()

    def _write(self, counted: Callable[[], Iterator[logging.LogRecord]]) -> None:
        self.acquire()
        try:
            for record in counted():
                # A stream that is closed has nobody left to tell; a timer would only die of it.
                if not self.stream.closed:
                    super().emit(record)
            if not self.stream.closed:
                self.flush()
        finally:
            self.release()

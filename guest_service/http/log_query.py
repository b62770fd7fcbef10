"""The query of `/logs/{container}`, judged before any engine is asked.

Every parameter is known and bounded; what is not known is refused with the list of what is, because `tails=5` silently taken as
"everything" is worse than an error. Times are unix seconds, or 90s, 10m, 2h, 1d, 1w before now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# What a terminal shows without thinking, as `kubectl logs` and `docker logs` users ask for.
DEFAULT_TAIL = 1000
# At 200 bytes a line 20 MB: more is a job for the engine's own tool.
MAX_TAIL = 100_000
_UNITS_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
# The year 9999; more does not fit engines' calendars.
_LATEST = 253402300799
_PARAMETERS = ("since", "until", "tail", "follow", "timestamps")


class LogQueryError(ValueError):
    """A query that is refused; the message names the parameter and what is allowed."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What part of a container's output is wanted. Times in unix seconds; `tail` None means from the beginning."""

    since: float | None = None
    until: float | None = None
    tail: int | None = DEFAULT_TAIL
    follow: bool = False
    timestamps: bool = False


def parse_log_query(items: Iterable[tuple[str, str]], now: float) -> LogQuery:
    """The query in a URL's parameters; raises LogQueryError."""
    values: dict[str, str] = {}
    for name, value in items:
        if name not in _PARAMETERS:
            raise LogQueryError(f"{name[:40]!a} is no parameter; known are {', '.join(_PARAMETERS)}")
        if name in values:
            raise LogQueryError(f"{name} is given twice")
        values[name] = value
    query = LogQuery(
        since=_time("since", values.get("since"), now),
        until=_time("until", values.get("until"), now),
        tail=_tail(values.get("tail")),
        follow=_flag("follow", values.get("follow")),
        timestamps=_flag("timestamps", values.get("timestamps")),
    )
    if query.since is not None and query.until is not None and query.since > query.until:
        raise LogQueryError("since is later than until")
    return query


def _time(name: str, text: str | None, now: float) -> float | None:
    if text is None or text == "":
        return None
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text) and float(text) <= _LATEST:
        return float(text)
    if ago := re.fullmatch(r"([0-9]{1,9})([smhdw])", text):
        return max(0.0, now - int(ago[1]) * _UNITS_SECONDS[ago[2]])
    raise LogQueryError(f"{name} must be unix seconds, or a time before now such as 10m, 2h or 1d")


def _tail(text: str | None) -> int | None:
    if text is None or text == "":
        return DEFAULT_TAIL
    if text == "all":
        return None
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text) <= MAX_TAIL:
        return int(text)
    raise LogQueryError(f"tail must be a number from 0 to {MAX_TAIL}, or all")


def _flag(name: str, text: str | None) -> bool:
    if text is None or text in ("0", "false", "no"):
        return False
    if text in ("", "1", "true", "yes"):
        return True
    raise LogQueryError(f"{name} must be true or false")

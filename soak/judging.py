"""Says of each failed call whether something that was done to its guest explains it; a call that nothing explains is lost.

An explanation needs both: a disturbance of that very guest which was there while the call was, and a status that such a disturbance may
cause. So a guest that hangs explains no INTERNAL, and one guest's death explains nothing about another. It only judges; who disturbs and
who calls are elsewhere.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

# After a guest is back the proxy's channel has it again within its backoff of 1 s and a handshake (2 s at most); the rest is for a
# machine with other work.
SETTLING_SECONDS = 3.0

# What an agent is called in the book when it is asked directly: the proxy's death explains nothing there.
DIRECT = "agent of "

OK = "OK"
# What stands in place of a status: GpuInfo said that the GPUs are unknown; a collection left the guest out, named it twice, or ended too
# late without it; a page was not there or not whole.
GPUS_UNKNOWN = "GPUS_UNKNOWN"
MISSING = "MISSING"
NOT_IN_TIME = "NOT_IN_TIME"
TWICE = "TWICE"
BAD_PAGE = "BAD_PAGE"

_LOST_CONNECTION = frozenset({"UNAVAILABLE"})
_NO_ANSWER = frozenset({"DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", GPUS_UNKNOWN, BAD_PAGE, NOT_IN_TIME})


class Kind(enum.Enum):
    """What was done to a guest, and which outcomes of its calls that explains."""

    # SIGSTOP of the whole machine: its calls fill its slots (RESOURCE_EXHAUSTED) and miss their deadlines, its sample is late afterwards.
    HANGS = "hangs"
    # Its registration and its agent are gone.
    GONE = "gone"
    # Its agent was killed, and is started again.
    KILLED = "killed"
    # The proxy itself was killed.
    PROXY_KILLED = "proxy killed"
    # Neither: whoever had to answer, or to ask, waited for a processor most of the time (soak.watching). A machine that is out of them is
    # no fault of the product, and a run with much of this fails as no proof.
    STARVED = "the machine was busy"
    # Its collector was killed: the reason stands in the answer until the next sample.
    COLLECTOR_KILLED = "collector killed"


EXPLAINED: dict[Kind, frozenset[str]] = {
    Kind.HANGS: _NO_ANSWER,
    # A collection that began before may name it and one that began after may not.
    Kind.GONE: _LOST_CONNECTION | {"NOT_FOUND", MISSING, NOT_IN_TIME, BAD_PAGE},
    Kind.KILLED: _LOST_CONNECTION | {BAD_PAGE},
    Kind.PROXY_KILLED: _LOST_CONNECTION | {BAD_PAGE, MISSING, NOT_IN_TIME},
    Kind.STARVED: frozenset({"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", NOT_IN_TIME, BAD_PAGE}),
    Kind.COLLECTOR_KILLED: frozenset({GPUS_UNKNOWN}),
}


@dataclass(slots=True)
class Disturbance:
    """Something done to `guest` (empty: to all) from `began` (loop time) until `ended`, None while it lasts."""

    guest: str
    kind: Kind
    began: float
    ended: float | None = None

    def was_there(self, began: float, ended: float) -> bool:
        """Whether it, or its settling, overlapped this time."""
        return self.began <= ended and (self.ended is None or began <= self.ended + SETTLING_SECONDS)


@dataclass(frozen=True, slots=True)
class Failure:
    """A call about `guest` (empty: about none) that did not end with OK, in loop time."""

    what: str
    guest: str
    began: float
    ended: float
    status: str
    text: str


@dataclass
class Book:
    """All calls and all disturbances; `always` holds the statuses that hostile and sick guests always earn."""

    always: dict[str, frozenset[str]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)

    def begin(self, guest: str, kind: Kind, now: float) -> Disturbance:
        """Note that `guest` is disturbed from now on; its end is for the caller to set."""
        disturbance = Disturbance(guest, kind, now)
        self.disturbances.append(disturbance)
        return disturbance

    def note(self, what: str, guest: str, began: float, ended: float, *, status: str = OK, text: str = "") -> None:
        """Note how a call ended."""
        self.calls[what] += 1
        if status != OK:
            self.failures.append(Failure(what, guest, began, ended, status, text))

    def disturbed(self, guest: str, began: float, ended: float) -> bool:
        """Whether anything was done to `guest` in this time."""
        return any(each.guest in {"", guest} and each.was_there(began, ended) for each in self.disturbances)

    def explanation(self, failure: Failure) -> str | None:
        """What explains `failure`; None: it is lost."""
        if failure.status in self.always.get(failure.guest, ()):
            return "always so"
        for each in self.disturbances:
            concerned = each.guest == failure.guest or (not each.guest and not failure.guest.startswith(DIRECT))
            if concerned and failure.status in EXPLAINED[each.kind] and each.was_there(failure.began, failure.ended):
                return each.kind.value
        return None

    def lost(self) -> list[Failure]:
        """The failures that nothing explains."""
        return [failure for failure in self.failures if self.explanation(failure) is None]

    def explained(self) -> Counter[tuple[str, str, str]]:
        """How often each call failed with which status for which reason."""
        found: Counter[tuple[str, str, str]] = Counter()
        for failure in self.failures:
            if reason := self.explanation(failure):
                found[failure.what, failure.status, reason] += 1
        return found

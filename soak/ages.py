"""How old what was served is, how long streams were silent, and whether an answer that must be old was ever told as young.

Only of guests that nobody disturbs are ages judged by their size. Of one that was stopped (SIGSTOP) the opposite is asked: from the moment
it was stopped it can say nothing new, so each page must show it at least as old as the stop is long.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from soak import pages
from soak.judging import Book, Kind

# A reply may be on its way when its guest is stopped, and be received a moment later; on a busy machine that is a long moment.
ON_ITS_WAY_SECONDS = 1.0
ANSWER_AGE = "vmm_proxy_guest_answer_age_seconds"
SAMPLE_AGE = "dstack_gpu_sample_age_seconds"


class Ages:
    """What was measured about the guests in `steady`; the disturbances stand in `book`. Times are the loop's."""

    def __init__(self, steady: Sequence[str], book: Book) -> None:
        self._steady = frozenset(steady)
        self._book = book
        self.samples: list[float] = []
        self.page_samples: list[float] = []
        self.page_answers: list[float] = []
        self.watch_gaps: list[float] = []
        self.page_gaps: list[float] = []
        # Guest, how old the page said its answer is, and how long it had been stopped by then.
        self.told_too_young: list[tuple[str, float, float]] = []

    def sampled(self, guest: str, age_seconds: float) -> None:
        """A call was answered with a sample of this age."""
        if guest in self._steady:
            self.samples.append(age_seconds)

    def updated(self, guest: str, gap_seconds: float) -> None:
        """A watcher waited so long for the next update of `guest`."""
        if guest in self._steady:
            self.watch_gaps.append(gap_seconds)

    def page_spoke(self, gap_seconds: float) -> None:
        """A viewer of the fleet page waited so long for the next event."""
        self.page_gaps.append(gap_seconds)

    def scraped(self, page: str, began: float) -> None:
        """A page of the proxy, asked for at `began`."""
        answers = pages.values(page, ANSWER_AGE)
        self.page_answers += [age for guest, age in answers.items() if guest in self._steady]
        self.page_samples += [age for guest, age in pages.values(page, SAMPLE_AGE).items() if guest in self._steady]
        for each in self._book.disturbances:
            if each.kind is Kind.HANGS and each.ended is None and each.guest in answers:
                stopped = began - each.began
                if answers[each.guest] < stopped - ON_ITS_WAY_SECONDS:
                    self.told_too_young.append((each.guest, answers[each.guest], stopped))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Count, median, 99th percentile and greatest of `values`; of none, the count alone."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "median": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "greatest": ordered[-1],
    }

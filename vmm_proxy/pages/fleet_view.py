"""The dashboard's rows from what GuestAnswers knows: made once for all who watch.

Rendering a guest with 8 cards takes half a millisecond, and a hundred viewers want the same row; a row is kept until there is something
new about its guest, or its age would be wrong by more than a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.metrics.guest_answers import GuestAnswers
from vmm_proxy.metrics.last_answers import LastKnown
from vmm_proxy.pacing import LoopTurns
from vmm_proxy.pages.dashboard.history import History
from vmm_proxy.pages.dashboard.render import Pages
from vmm_proxy.pages.dashboard.summary import Summary, summary
from vmm_proxy.pages.dashboard.view import guest_rows

KEPT_SECONDS = 1.0


class FleetView:
    """Rows and summary now."""

    def __init__(self, directory: Directory, guest_answers: GuestAnswers, pages: Pages) -> None:
        self._directory = directory
        self._answers = guest_answers
        self.history = History(guest_answers.clock)
        self._rows: dict[str, tuple[object, object, float, str]] = {}
        self.pages = pages
        guest_answers.subscribe(self._noted)

    def entries(self) -> Sequence[GuestEntry]:
        """Every guest of the directory, stopped ones too."""
        return self._directory.after()

    def rows(self, guest_id: str) -> str | None:
        """One guest's rows; None for a guest that is not known any more."""
        entry = self._directory.get(guest_id)
        if entry is None:
            self._rows.pop(guest_id, None)
            return None
        known = self._answers.get(guest_id)
        now = self._answers.clock()
        # Another caller's call may tell that the guest is gone.
        version = (known.version, known.reachability.state) if known else None
        kept = self._rows.get(guest_id)
        if kept and kept[0] is (known or entry) and kept[1] == version and now - kept[2] <= KEPT_SECONDS:
            return kept[3]
        html = self.pages.guest(guest_rows(entry, known, self.history, now))
        self._rows[guest_id] = (known or entry, version, now, html)
        return html

    async def rows_of(self, guest_ids: Sequence[str]) -> dict[str, str | None]:
        """Each guest's rows, made in turns with the loop's other work; a guest that became another VM meanwhile is made anew at the end."""
        turns = LoopTurns()
        made: dict[str, tuple[object, str | None]] = {}
        for guest_id in guest_ids:
            await turns.yield_if_due()
            made[guest_id] = (self._subject(guest_id), self.rows(guest_id))
        return {
            guest_id: html if self._subject(guest_id) is subject else self.rows(guest_id)
            for guest_id, (subject, html) in made.items()
        }

    def _subject(self, guest_id: str) -> object:
        return self._answers.get(guest_id) or self._directory.get(guest_id)

    def summary(self) -> Summary:
        """The fleet in one line."""
        return summary(self._answers.guests(), len(self._directory), self._answers.clock())

    def forget_rows(self) -> None:
        """Nobody watches any more."""
        self._rows.clear()

    def _noted(self, guest: LastKnown, here: bool) -> None:
        if not here:
            self.history.forget(guest.id)
        elif guest.gpus.answers and guest.gpus.answer is not None:
            self.history.note(guest.id, guest.gpus.answer.gpus)

"""What goes wrong when the guest is asked about itself, as one tree that the API translates to statuses.

    FactError               a part that cannot be read now              UNAVAILABLE
    └── UnknownContainerError     the name is no container of this guest      NOT_FOUND (404 on a page)

A message is one bounded line "<part>: <reason>". It never holds a zero-valued stand-in for what is missing. Rejected: an error field per
part in the contract (its numbers belong to dstack).
"""

from __future__ import annotations

import logging

from guest_transport.process.logs import escape
from guest_transport.process.repeated_lines import about

log = logging.getLogger(__name__)

# A reason is read by a person in one line of a terminal; an engine's whole error page is not.
REASON_LIMIT_CHARACTERS = 400


class FactError(Exception):
    """A part of the guest's facts cannot be read; `part` names it and `reason` says why."""

    def __init__(self, part: str, reason: str) -> None:
        self.part = part
        self.reason = escape(reason[:REASON_LIMIT_CHARACTERS]) or "no reason given"
        super().__init__(f"{part}: {self.reason}")


class UnknownContainerError(FactError):
    """A name that is no container here."""


class PartLog:
    """Logs a part's failure when it begins or changes, and its end; a scrape every second must not fill the disk."""

    def __init__(self) -> None:
        self._failing: dict[str, str] = {}

    def failed(self, part: str, error: BaseException | str) -> None:
        """Say that `part` fails, unless that was the last thing said about it."""
        reason = escape(str(error)[:REASON_LIMIT_CHARACTERS])
        if self._failing.get(part) == reason:
            return
        self._failing[part] = reason
        cause = error.__cause__ if isinstance(error, BaseException) else None
        said = reason if reason.startswith(part) else f"{part}: {reason}"
        log.warning("%s%s", said, f" ({cause!r})" if cause else "", extra=about(part))

    def works(self, part: str) -> None:
        """Say that `part` works again, if it failed before."""
        if self._failing.pop(part, None) is not None:
            log.warning("%s: works again", part)

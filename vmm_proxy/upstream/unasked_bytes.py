"""How many bytes a guest may send that no call asked for, and how soon it is dialled again when it sent more.

HTTP/2 lets a peer send frames that mean nothing for as long as it likes: WINDOW_UPDATE by 1, RST_STREAM of calls that have ended, PING,
early headers. gRPC reads them all, at a core's full speed. So the bytes are counted where they pass (the relay), and what answers and
time do not explain is bounded. A guest over the bound loses its connection, and each further time it waits twice as long for the next
one. Measured with each kind of frame: docs/decisions/guest-floods.md. Rejected: parsing the frames (TLS hides them, and an honest
guest's would be parsed as well), and a limit of bytes a second (a guest that answers a megabyte at once is honest).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from guest_transport.options import REPLY_LIMIT_BYTES

log = logging.getLogger(__name__)

# Eight replies of the greatest length that nobody could use: those of as many calls at once, each refused for its size or too late. Of
# small frames it is some 650 000.
UNASKED_LIMIT_BYTES = 8 * REPLY_LIMIT_BYTES
# What a reply needs beside its message: headers and trailers, which gRPC bounds to 16 KiB.
ANSWER_BYTES = 16 * 1024
# Forgotten with time, so that a reply which is refused every ten seconds is no flood. Of small frames it is 10 000.
BYTES_A_SECOND = 128 * 1024
# A guest that is over the limit is dialled again after the first of these, and after the last at the latest.
FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 64.0
# After so long without an offence the next one counts as the first.
FORGIVEN_SECONDS = 600.0


class FloodedError(OSError):
    """The guest is not dialled for now; the message says why, and for how long."""


class UnaskedBytes:
    """What one guest sent beyond its answers, over all its connections."""

    def __init__(self, guest_id: str, clock: Callable[[], float]) -> None:
        self._guest_id = guest_id
        self._clock = clock
        self._unasked = 0.0
        self._counted_at = clock()
        self._pause = 0.0
        self._ends_at = float("-inf")

    def require_dialable(self) -> None:
        """Raise FloodedError while the guest is not to be dialled."""
        rest = self._ends_at - self._clock()
        if rest > 0:
            raise FloodedError(errno.EBUSY, f"it sent more than it was asked for, and is dialled again in {rest:.0f} s")

    def answered(self, message_bytes: int) -> None:
        """A call has ended; so many bytes of what came are its answer."""
        self._unasked = max(0.0, self._unasked - message_bytes - ANSWER_BYTES)

    def received(self, count: int) -> bool:
        """Whether the connection that brought `count` more bytes may stay."""
        now = self._clock()
        self._unasked = max(0.0, self._unasked - (now - self._counted_at) * BYTES_A_SECOND) + count
        self._counted_at = now
        if self._unasked <= UNASKED_LIMIT_BYTES:
            return True
        forgiven = now - self._ends_at > FORGIVEN_SECONDS
        self._pause = FIRST_PAUSE_SECONDS if forgiven else min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        self._ends_at = now + self._pause
        log.warning(
            "guest %s: sent %d bytes that no call asked for; its connection is closed, and dialled again in %g s",
            self._guest_id,
            self._unasked,
            self._pause,
        )
        self._unasked = 0.0
        return False

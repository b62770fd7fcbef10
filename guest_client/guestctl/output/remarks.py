"""What is said on stderr beside an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from google.protobuf.message import Message

from guest_client.guestctl.output.json_view import unknown_numbers

# Shows one line on stderr, escaped.
Say: TypeAlias = Callable[[str], object]
# A hostile guest can send any number of fields; a person reads a few names.
_NAMED_LIMIT = 20


class UnknownFields:
    """Names each field that a newer server sent and this version does not know, once, so that it is not dropped silently."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._named: set[str] = set()

    def look_at(self, message: Message) -> None:
        """Name what is new in `message`."""
        new = unknown_numbers(message) - self._named
        shown = sorted(new)[: max(_NAMED_LIMIT - len(self._named), 0)]
        if shown:
            self._named.update(shown)
            self._say(f"not shown, because this version does not know them: fields {', '.join(shown)}")

"""What stops a server before it serves, and the exit status that says so.

    StartError
    ├── SettingsError    configuration that is refused        exit 2
    └── ListenError      an address that cannot be bound      exit 1

Each message is one line that names the thing and what to do.
"""

from __future__ import annotations

# A message quotes paths, keys and other programs' words; what is longer than this is not read by anybody.
MESSAGE_LIMIT_CHARACTERS = 1000


class StartError(Exception):
    """A server cannot start; the message is one bounded line for the operator."""

    exit_status = 1

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= MESSAGE_LIMIT_CHARACTERS else message[: MESSAGE_LIMIT_CHARACTERS - 1] + "…")


class SettingsError(StartError):
    """Configuration is refused: file, key and what is allowed are in the message."""

    exit_status = 2


class ListenError(StartError):
    """An address cannot be listened on: it is taken, or the path or host does not allow it."""

"""A table of a rack file, taken key by key: a key is checked when it is taken, and what is left at the end is an unknown key."""

from __future__ import annotations

import re
from collections.abc import Mapping

# A message quotes the rack's name and TOML's words; neither is shown at a megabyte's length.
MESSAGE_LIMIT_CHARACTERS = 600
LISTED_LIMIT_CHARACTERS = 240


class RackError(Exception):
    """A rack is refused or cannot be read; the text is one line that names the rack, the key and what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= MESSAGE_LIMIT_CHARACTERS else message[: MESSAGE_LIMIT_CHARACTERS - 1] + "…")


class Table:
    """One table; `where` comes before a key in messages, such as "rack lab.toml: card 2: "."""

    def __init__(self, where: str, values: Mapping[str, object]) -> None:
        self.where = where
        self._values = dict(values)

    def refuse(self, key: str, reason: str) -> RackError:
        """The error that names `key` of this table; raise it."""
        return RackError(f"{self.where}{key}: {reason}")

    def integer(self, key: str, least: int, most: int) -> int | None:
        """A whole number from `least` to `most`, or None when the key is absent."""
        value = self._values.pop(key, None)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.refuse(key, f"must be a whole number from {least} to {most}, not {_shown(value)}")
        return value

    def seconds(self, key: str, most: int) -> float | None:
        """A number of seconds, or None when the key is absent."""
        value = self._values.pop(key, None)
        if value is None:
            return None
        # NaN is in no range, and a whole number beyond all floats must not be made one.
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
            raise self.refuse(key, f"must be a number of seconds from 0 to {most}, not {_shown(value)}")
        return float(value)

    def boolean(self, key: str) -> bool | None:
        """true or false, or None when the key is absent."""
        value = self._values.pop(key, None)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(key, f"must be true or false, not {_shown(value)}")
        return value

    def text(self, key: str, form: re.Pattern[str], meaning: str) -> str | None:
        """A text that is wholly of this form, or None when the key is absent; `meaning` says the form in words."""
        value = self._values.pop(key, None)
        if value is not None and (not isinstance(value, str) or not form.fullmatch(value)):
            raise self.refuse(key, f"must be {meaning}, not {_shown(value)}")
        return value

    def code(self, key: str, most: int) -> int | str | None:
        """An NVML code or "hang", or None when the key is absent."""
        if self._values.get(key) == "hang":
            return str(self._values.pop(key))
        if isinstance(self._values.get(key), str):
            raise self.refuse(key, f'must be an NVML code from 1 to {most} or "hang", not {_shown(self._values[key])}')
        return self.integer(key, 1, most)

    def table(self, key: str) -> Table:
        """The table under `key`, empty when the key is absent."""
        value = self._values.pop(key, {})
        if not isinstance(value, dict):
            raise self.refuse(key, f"must be a table, not {_shown(value)}")
        return Table(f"{self.where}{key}.", value)

    def only(self, allowed: tuple[str, ...]) -> Mapping[str, object]:
        """The table itself, for others to read; refuses a key that is not allowed."""
        for key in self._values:
            if key not in allowed:
                raise self.unknown(key, allowed)
        return self._values

    def tables(self, key: str, most: int, others: Mapping[str, object]) -> list[Table]:
        """The tables under `[[key]]`, none when the key is absent; what one does not say is as in `others`."""
        value = self._values.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.refuse(key, f"must be tables, written as [[{key}]]")
        if len(value) > most:
            raise self.refuse(key, f"at most {most}, not {len(value)}")
        return [Table(f"{self.where}{key} {index}: ", {**others, **item}) for index, item in enumerate(value)]

    def end(self, allowed: tuple[str, ...]) -> None:
        """Refuse what was not taken; `allowed` is what could have been."""
        for key in self._values:
            raise self.unknown(key, allowed)

    def unknown(self, key: str, allowed: tuple[str, ...]) -> RackError:
        """The error for a key that is not allowed; a long list of those that are is cut: a screen full of names helps no reader."""
        listed = ", ".join(allowed)
        if len(listed) > LISTED_LIMIT_CHARACTERS:
            listed = f"{listed[:LISTED_LIMIT_CHARACTERS].rpartition(', ')[0]} and others (docs/simulator.md)"
        return self.refuse(str(key)[:80], f"unknown key; allowed are {listed}")


def _shown(value: object) -> str:
    """A value as TOML would write it, near enough for a message, and bounded."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:
        # Python writes no decimal of more than 4300 digits, and TOML's hexadecimal can stand for one.
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:79]}…"

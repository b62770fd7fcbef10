"""Reads a TOML file into a frozen msgspec struct, or refuses it in one line that names the file, the key and what is allowed.

msgspec checks types and unknown keys; its message says where, this module adds which file and, for an enumeration or an unknown key,
what would have been right. Defaults live in the structs, each with its reason; nothing here knows a key. Rejected: pydantic (ten times the
import time for the same check).
"""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from guest_transport.errors import SettingsError
from guest_transport.process.logs import escape
from guest_transport.settings.toml_text import load_toml

# A configuration of 10,000 guests takes about 2 MB; more is a wrong file.
SETTINGS_LIMIT_BYTES = 8 * 1024 * 1024
# A message quotes keys and values of the file; a value of a megabyte is not shown whole.
_MESSAGE_LIMIT = 600
# Keys shown for an unknown one; a longer list helps nobody.
_KEYS_SHOWN = 20

# A host's name, for settings of both servers: letters, digits, `-`, `_` and dots, as resolvers take it, at most 253 (RFC 1035).
HostName = Annotated[str, msgspec.Meta(pattern=r"^(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?$", max_length=253)]

S = TypeVar("S", bound=msgspec.Struct)


def read_settings(path: Path, shape: type[S]) -> S:
    """The settings in the TOML file at `path`; raises SettingsError when it is missing, malformed or not of this shape."""
    return parse_settings(read_file(path), str(path), shape)


def read_file(path: Path) -> bytes:
    """The bytes of the regular file at `path`, at most one more than parse_settings takes; raises SettingsError."""
    try:
        # Without O_NONBLOCK, opening a named pipe waits for a writer, perhaps for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:  # noqa: PTH123  # a descriptor, not a path
            if not (stat.S_ISREG(kind := os.fstat(fd).st_mode) or stat.S_ISCHR(kind)):
                raise _refusal(str(path), "is no regular file")
            # None: a terminal, at which nobody has typed.
            data: bytes | None = file.read(SETTINGS_LIMIT_BYTES + 1)
    except OSError as error:
        raise _refusal(str(path), f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise _refusal(str(path), "no path has a NUL character") from error
    if data is None:
        raise _refusal(str(path), "is no regular file, and holds nothing now")
    return data


def parse_settings(data: bytes, where: str, shape: type[S]) -> S:
    """The settings in the TOML text `data`; `where` names its origin in messages."""
    if len(data) > SETTINGS_LIMIT_BYTES:
        raise _refusal(where, f"larger than {SETTINGS_LIMIT_BYTES} bytes")
    try:
        return convert(load_toml(data.decode("utf-8")), where, shape)
    except UnicodeDecodeError as error:
        raise _refusal(where, f"not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise _refusal(where, "not TOML that can be read: nested too deeply") from error
    except ValueError as error:
        # A TOMLDecodeError, or Python's limit on the digits of a number.
        raise _refusal(where, f"not TOML: {error}") from error


def convert(tree: Mapping[str, object], where: str, shape: type[S]) -> S:
    """The settings in a tree that was read already, or in a part of one, whose place `where` then names; raises SettingsError."""
    if impossible := _impossible(tree):
        raise _refusal(where, impossible)
    try:
        return msgspec.convert(tree, shape)
    except msgspec.ValidationError as error:
        raise _refusal(where, _say(str(error), shape)) from error


def _refusal(where: str, message: str) -> SettingsError:
    text = escape(f"{where}: {message}")
    return SettingsError(text if len(text) <= _MESSAGE_LIMIT else text[:_MESSAGE_LIMIT] + "…")


def _impossible(tree: object, place: str = "") -> str | None:
    """What no setting may hold, with its place: NaN and infinity pass bounds such as "at least 1"; no path or argument can have a NUL."""
    match tree:
        case float():
            return None if math.isfinite(tree) else f"{place}: must be a finite number"
        case str():
            return f"{place}: must not have a NUL character" if "\0" in tree else None
        case dict():
            entries = ((f"{place}.{key}" if place else str(key), value) for key, value in tree.items())
        case list():
            entries = ((f"{place}[{index}]", value) for index, value in enumerate(tree))
        case _:
            return None
    return next((found for inner, value in entries if (found := _impossible(value, inner))), None)


def _say(message: str, shape: type[msgspec.Struct]) -> str:
    """msgspec's words with the key in front, as an operator writes it: `gpu.refresh: …` for `… - at `$.gpu.refresh``."""
    # The place comes last; a value quoted in the message may itself hold " - at ".
    text, _, place = message.rpartition(" - at ")
    if not text:
        text, place = message, ""
    in_key = "key in " if place.startswith("key in ") else ""
    key = place.removeprefix("key in ").strip("`").removeprefix("$").removeprefix(".")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        return f"{_join(key, unknown.group(1))}: unknown key{_known_keys(shape, key, unknown.group(1))}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text, re.DOTALL):
        return f"{_join(key, missing.group(1))}: missing"
    if text.startswith("Invalid enum value"):
        text = f"{text.replace('enum value', 'value')}; allowed: {', '.join(map(repr, _allowed(shape, key))) or 'see the documentation'}"
    return f"{in_key}{key}: {text}" if key else f"{in_key}{text}"


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _known_keys(shape: type[msgspec.Struct], key: str, unknown: str) -> str:
    known = sorted({field.encode_name for struct in _kinds_at(shape, key) for field in getattr(struct, "fields", ())})
    if close := difflib.get_close_matches(unknown[:100], known, 1):
        return f"; did you mean {close[0]}?"
    return f"; known here: {', '.join(known)}" if 0 < len(known) <= _KEYS_SHOWN else ""


def _allowed(shape: type[msgspec.Struct], key: str) -> list[object]:
    allowed: list[object] = []
    for kind in _kinds_at(shape, key):
        if isinstance(kind, msgspec.inspect.LiteralType):
            allowed.extend(kind.values)
        elif isinstance(kind, msgspec.inspect.EnumType):
            allowed.extend(member.value for member in kind.cls)
    return allowed


def _kinds_at(shape: type[msgspec.Struct], key: str) -> list[msgspec.inspect.Type]:
    """The types that may stand at `key` ("guest[0].state"), unions taken apart."""
    kinds = _taken_apart(msgspec.inspect.type_info(shape))
    for step in re.findall(r"[^.\[\]]+|\[[0-9.]+\]", key):
        kinds = [inner for kind in kinds for inner in _inside(kind, step)]
    return kinds


def _inside(kind: msgspec.inspect.Type, step: str) -> list[msgspec.inspect.Type]:
    match kind:
        case msgspec.inspect.StructType():
            return [inner for field in kind.fields if field.encode_name == step for inner in _taken_apart(field.type)]
        case msgspec.inspect.DictType():
            return _taken_apart(kind.value_type)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType() | msgspec.inspect.SetType():
            return _taken_apart(kind.item_type)
    return []


def _taken_apart(kind: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    match kind:
        case msgspec.inspect.UnionType():
            return [inner for member in kind.types for inner in _taken_apart(member)]
        case msgspec.inspect.Metadata():
            return _taken_apart(kind.type)
    return [kind]

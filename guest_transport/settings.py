"""Reads a TOML file into a frozen msgspec struct, or refuses it in one line that names the file, the key and what is allowed.

msgspec checks types and unknown keys; its message says where, this module adds which file. Defaults live in the structs, each with its
reason; nothing here knows a key. Rejected: pydantic (ten times the import time for the same check).
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TypeVar

import msgspec

from guest_transport.errors import SettingsError

# A configuration of 10,000 guests takes about 2 MB; more is a wrong file.
SETTINGS_LIMIT_BYTES = 8 * 1024 * 1024

S = TypeVar("S", bound=msgspec.Struct)


def read_settings(path: Path, shape: type[S]) -> S:
    """The settings in the TOML file at `path`; raises SettingsError when it is missing, malformed or not of this shape."""
    try:
        with path.open("rb") as file:
            data = file.read(SETTINGS_LIMIT_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > SETTINGS_LIMIT_BYTES:
        raise SettingsError(f"{path}: larger than {SETTINGS_LIMIT_BYTES} bytes")
    return parse_settings(data, str(path), shape)


def parse_settings(data: bytes, where: str, shape: type[S]) -> S:
    """The settings in the TOML text `data`; `where` names its origin in messages."""
    try:
        tree = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SettingsError(f"{where}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{where}: not TOML: {error}") from error
    try:
        return msgspec.convert(tree, shape)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{where}: {_say(str(error))}") from error


def _say(message: str) -> str:
    """msgspec's words with the key in front, as an operator writes it: `gpu.refresh: …` for `… - at `$.gpu.refresh``."""
    text, _, place = message.partition(" - at ")
    key = place.strip("`").removeprefix("$").removeprefix(".")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        return f"{f'{key}.' if key else ''}{unknown.group(1)}: unknown key"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text, re.DOTALL):
        return f"{f'{key}.' if key else ''}{missing.group(1)}: missing"
    return f"{key}: {text}" if key else text

"""JSON from a program that may be hostile, read so that nothing in it can mean two things.

Python's json takes NaN, keeps the last of two equal keys, rounds 1e999 to infinity, and dies of deep nesting; each of them would let two
readers of one evidence disagree. All of them are refused here, anywhere in the text. Rejected: msgspec.json, which keeps the last of two
equal keys without a word.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import NoReturn

from guest_service.boot_gate.errors import UnreadableError


def parse_strict(data: bytes, what: str) -> dict[str, object]:
    """The one JSON object in `data`; raises UnreadableError, whose message starts with `what` and never quotes the text at length."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{what}: not UTF-8 at byte {error.start}") from error
    try:
        tree = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError as error:
        raise UnreadableError(f"{what}: nested too deeply to be read") from error
    except ValueError as error:
        raise UnreadableError(f"{what}: not JSON that can be judged: {str(error)[:200]}") from error
    if not isinstance(tree, dict):
        raise UnreadableError(f"{what}: a JSON object is needed, and this is {kind(tree)}")
    return tree


def kind(value: object) -> str:
    """JSON's name for what `value` is."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
    return "an object"


def sha256(data: bytes) -> str:
    """The hash under which evidence is named in a report."""
    return hashlib.sha256(data).hexdigest()


def canonical(tree: object) -> bytes:
    """The one byte sequence for `tree` that its hash is taken of: sorted keys, no spaces, ASCII."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return tree


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large to be told from infinity")
    return value

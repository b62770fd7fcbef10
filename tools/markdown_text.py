"""Text of the product (comments, help, defaults) as Markdown, for the pages that are generated.

Text comes as its author wrote it for a terminal or an editor, where `<field>`, `eth*` and a bar mean nothing; in a page they would be
markup and columns. Code between backquotes stays code. Rejected: a Markdown library that writes (none does tables without a tree first).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`]+`)")
_MARKUP = re.compile(r"([*\[\]\\])")


def text(words: str) -> str:
    """`words` on one line, showing exactly what they say; code between backquotes is kept."""
    parts = _CODE.split(" ".join(words.split()))
    return "".join(part if part.startswith("`") else _plain(part) for part in parts)


def cell(words: str) -> str:
    """The same for a table, where a bar ends a cell also within code."""
    return text(words).replace("|", r"\|")


def code(words: str) -> str:
    """`words` as code in a cell; nothing for nothing."""
    return f"`{words}`".replace("|", r"\|") if words else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already, with a blank line behind it."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def note(make_target: str, source: str) -> str:
    """What tells an editor of a generated page where to go."""
    return f"<!-- Written by `make {make_target}` from {source}. Do not edit. -->\n\n"


def _plain(words: str) -> str:
    return _MARKUP.sub(r"\\\1", words).replace("<", "&lt;")

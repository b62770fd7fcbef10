"""TOML without the keys that take a whole machine: what tomllib takes, less dotted keys of more names than anything here has.

tomllib keeps each beginning of a dotted key, so that 64 KiB of `a.a.a…` take 4 GiB of memory (measured, Python 3.11), and the tree that
comes of it is deeper than Python's stack. Only the standard library is imported, because the collector reads racks without any other.
Rejected: a limit on memory (it would end the server and not the reading), and a parser of our own.
"""

from __future__ import annotations

import re
import tomllib

# No setting lies deeper than four names.
DOTS_LIMIT = 100
# Names with a dot behind each, as in a dotted key. Where it does not match it takes nothing, so that a stray quote hides no key.
_DOTTED = re.compile(r"""(?:(?:(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)++""")


def load_toml(text: str) -> dict[str, object]:
    """The tree in `text`; raises ValueError, and RecursionError for lists and tables in each other."""
    if any(found.group().count(".") > DOTS_LIMIT for found in _DOTTED.finditer(text)):
        raise ValueError(f"a key of more than {DOTS_LIMIT} names")
    return tomllib.loads(text)

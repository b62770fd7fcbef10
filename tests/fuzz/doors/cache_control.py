"""`cache-control` of a call's metadata: gRPC passes visible ASCII, so latin-1 is more than ever comes."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from guest_contract.cache_control import LONGEST_SECONDS, CacheControlError, parse_max_age
from tests.fuzz.door import Door, one_line

# RFC 9110, 5.6.1 and 5.6.4, written a second time: a directive ends at a comma outside quotes; an open quote runs to the end.
_DIRECTIVE = re.compile(r'(?:"(?:\\.|[^"\\])*(?:"|\\?\Z)|[^,"])*(?:,|\Z)', re.DOTALL)


def check(data: bytes) -> None:
    """The same age as another reading of the RFC gives, or CacheControlError in one line; several values (one a line) are one list."""
    values = data.decode("latin-1").split("\n")
    expected = [age for value in values for age in _ages(value)]
    try:
        age = parse_max_age(values)
    except CacheControlError as error:
        one_line(str(error), 300)
        assert None in expected, f"refused: {error}"
        return
    assert None not in expected, f"accepted as {age}"
    assert age == min((each for each in expected if each is not None), default=None)


def _ages(value: str) -> list[float | None]:
    """None stands for a max-age that is no number."""
    ages: list[float | None] = []
    for directive in _DIRECTIVE.findall(value):
        name, _, argument = directive.removesuffix(",").partition("=") if not _quoted_end(directive) else directive.partition("=")
        if name.strip().lower() == "no-cache":
            ages.append(0.0)
        elif name.strip().lower() == "max-age":
            number = re.fullmatch(r'[0-9]+|"[0-9]+"', argument.strip())
            ages.append(float(min(int(number[0].strip('"')[-4000:]), LONGEST_SECONDS)) if number else None)
    return ages


def _quoted_end(directive: str) -> bool:
    """Whether the comma at the end is inside a quoted string that never ends."""
    return len(re.findall(r'(?<!\\)"', directive)) % 2 == 1


_NAMES = st.sampled_from(["max-age", "Max-Age ", " no-cache", "no-store", "private", 'x="a,b"', ""])
_VALUES = st.one_of(
    st.integers(-1, 2**40).map(str),
    st.sampled_from(['"5"', '"', "", "\u0661", "1e3", "0x1", "1_0", "9" * 5000]),
    st.text('"\\,=5 ', max_size=6),
)
_LISTS = st.lists(st.one_of(_NAMES, st.builds("{}={}".format, _NAMES, _VALUES)), max_size=5).map(",".join)

CACHE_CONTROL = Door(
    "cache-control",
    check,
    _LISTS.map(lambda text: text.encode("latin-1", "replace")),
    words=(b"max-age", b"no-cache", b"=", b",", b'"', b"\\", b"\n", b"2147483648", b"\xb2"),
    examples=150,
    guided=True,
)

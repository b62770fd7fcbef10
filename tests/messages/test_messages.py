"""Each error text of the product stands once in messages.txt, so that a new one is read beside all others before it reaches anybody.

Whether a text names the thing and what to do is for a reader to judge: whoever changes one runs `make messages` and reads the difference.
What no reader is needed for is judged here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tools.messages import FILE, collect, page, texts_of

# They tell a person nothing: neither what is wrong with the thing nor what would be right.
EMPTY_WORDS = re.compile(r"\b(invalid|illegal|unexpected|an error occurred|something went wrong|oops)\b", re.IGNORECASE)
# One line of a journal, beside the time and the name of the unit; what is put in comes on top and is bounded where it is put in.
LONGEST_CHARACTERS = 240


@pytest.fixture(scope="module")
def found() -> Mapping[str, set[str]]:
    """Every text of the product. Not read at import: each worker of a run imports all tests, and this takes seconds."""
    return collect()


def test_the_file_holds_each_text_of_the_product_once(found: Mapping[str, set[str]]) -> None:
    assert FILE.read_text(encoding="utf-8") == page(found), (
        "make messages, then read the difference: does each name the thing and what to do?"
    )
    listed = [
        line.strip().partition("  (also ")[0] for line in FILE.read_text(encoding="utf-8").splitlines() if line.startswith("  ")
    ]
    assert len(listed) == len(set(listed)) == len(found)


def test_no_text_is_empty_words_or_more_than_a_line(found: Mapping[str, set[str]]) -> None:
    assert [text for text in found if EMPTY_WORDS.search(text)] == []
    assert [text for text in found if len(text) > LONGEST_CHARACTERS or "\n" in text] == []


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("raise SettingsError(f'{where}: no such file')", ["{where}: no such file"]),
        (
            "def f():\n    text = f'a {b}' + (' one more' if c else '')\n    raise CallError(code, text)",
            ["a {b} one more", "a {b}"],
        ),
        ("log.warning('guest %s: gone', guest)", ["guest %s: gone"]),
        ("wrong(f'{path}: closed to us', 'chmod it')", ["{path}: closed to us", "chmod it"]),
        ("_REASONS = {1: 'the first reason', 2: f'the {second}'}", ["the first reason", "the {second}"]),
        ("def _advice(x):\n    return {'a': 'do this first'}.get(x)", ["do this first"]),
        ("raise OSError(code, str(error))", []),
        ("log.info('all is well')", []),
    ],
)
def test_a_text_is_found_wherever_it_is_made(source: str, texts: list[str]) -> None:
    assert set(texts_of(source)) == set(texts)

"""Lines of many sources whose numbers change and whose names seldom do, formatted family by family.

A fleet's page of 92,000 lines costs half as much in this way as with lines that are made one by one. A form is made from lines that were
written one by one. It is used only if filling it with their numbers gives these very lines; otherwise (a guest that shows one card twice)
lines are written one by one each time. Rejected: forms written by hand (two
texts that must stay the same), and finished lines kept for each source (half of the time then goes into moving them).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar, cast

from google.protobuf.message import Message

from guest_metrics import table
from guest_metrics.exposition import Fragment, Lines, Number, number_text

M = TypeVar("M", bound=Message)
# What lines have apart from numbers, and the numbers in the lines' order; None for a line that is not there.
Told: TypeAlias = tuple[Hashable, Sequence[Number | None]]


_NO_NUMBERS = slice(0, 0)
# A thousand guests with 8 cards have so many lines of most families, which take a millisecond; of why clocks are held they have ten times
# as many.
LINES_AT_ONCE = 8000


class Form:
    """The lines of a fragment without their numbers: for each family what stands before each number, the end of the line before it
    included, and which of the numbers are its own."""

    __slots__ = ("heads", "numbers", "spans")

    def __init__(self, fragment: Fragment) -> None:
        numbers: list[str] = []
        self.heads: dict[str, list[str]] = {}
        self.spans: dict[str, slice] = {}
        for name, text in fragment.lines.items():
            # The only line breaks are the ends of lines; one in a label is escaped.
            parts = [line.rpartition(" ") for line in text[:-1].split("\n")]
            self.heads[name] = [f"\n{head} " for head, _, _ in parts]
            self.spans[name] = slice(len(numbers), len(numbers) + len(parts))
            numbers += [number for _, _, number in parts]
        self.numbers: Sequence[Number | str] = tuple(numbers)


class Filled(NamedTuple):
    """A form and the numbers in it."""

    form: Form
    numbers: Sequence[Number | str]


NOTHING = Filled(Form(Fragment({})), ())


def filled(lines: Lines) -> Filled:
    """Lines that were made the ordinary way."""
    form = Form(lines.fragment())
    return Filled(form, form.numbers)


class KeptForm(Generic[M]):
    """The form of one source's messages: `write` makes their lines, `read` says what is on them."""

    __slots__ = ("_form", "_of", "_read", "_write")

    def __init__(self, write: Callable[[Lines, M], None], read: Callable[[M], Told]) -> None:
        self._write = write
        self._read = read
        self._of: Hashable = None
        self._form: Form | None = None

    def of(self, message: M, empty: Lines) -> Filled:
        """The lines of `message`. `empty` has the source's own labels, the same ones each time."""
        names, numbers = self._read(message)
        absent: Sequence[int] = ()
        there = cast("Sequence[Number]", numbers)
        if None in numbers:
            absent = tuple([at for at, number in enumerate(numbers) if number is None])
            there = [number for number in numbers if number is not None]
        of = (names, absent)
        if of == self._of and self._form is not None:
            return Filled(self._form, there)
        lines = empty.fresh()
        self._write(lines, message)
        made = filled(lines)
        self._of = of
        self._form = made.form if made.numbers == tuple(map(number_text, there)) else None
        return made


class Sheet:
    """The blocks of a page that sources of one kind fill together, by family name."""

    def __init__(self) -> None:
        self.blocks: Mapping[str, Sequence[bytes]] = {}
        # By family: head, number, head, number, …, end of the last line. Joining such a list takes half the time of formatting.
        # Beside it for each source the span of its numbers.
        self._pieces: Mapping[str, tuple[list[str], list[slice]]] = {}
        self._forms: Sequence[Form] = ()
        self._numbers: Sequence[Sequence[Number | str]] = ()

    def fill(self, sources: Sequence[Filled]) -> Iterator[None]:
        """Bring `blocks` up to date in steps of a millisecond; what did not change since the last time is not made again."""
        forms = [source.form for source in sources]
        numbers = [source.numbers for source in sources]
        if forms != self._forms:
            yield from self._reform(forms)
        elif all(map(operator.is_, numbers, self._numbers)):
            return
        blocks: dict[str, Sequence[bytes]] = {}
        for name, (pieces, spans) in self._pieces.items():
            values = map(str, itertools.chain.from_iterable(map(operator.getitem, numbers, spans)))
            made = blocks[name] = []
            # The last piece is the end of the last line.
            for begin in range(0, len(pieces) - 1, 2 * LINES_AT_ONCE):
                end = min(begin + 2 * LINES_AT_ONCE, len(pieces) - 1)
                pieces[begin + 1 : end : 2] = itertools.islice(values, (end - begin) // 2)
                yield
                made.append("".join(pieces[begin : end + (end + 1 == len(pieces))]).encode())
                yield
        self.blocks, self._numbers = blocks, numbers

    def _reform(self, forms: Sequence[Form]) -> Iterator[None]:
        made: dict[str, tuple[list[str], list[slice]]] = {}
        for family in table.ALL:
            heads: list[str] = []
            for form in forms:
                heads += form.heads.get(family.name, ())
                if len(heads) % LINES_AT_ONCE < len(form.heads.get(family.name, ())):
                    yield
            if heads:
                pieces = ["\n"] * (2 * len(heads) + 1)
                pieces[0:-1:2] = heads
                pieces[0] = heads[0][1:]
                made[family.name] = (pieces, [form.spans.get(family.name, _NO_NUMBERS) for form in forms])
                yield
        self._pieces, self._forms = made, forms

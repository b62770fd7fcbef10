"""What a door is: where bytes of somebody else come in, and what must hold whatever they are.

One input of a door is one byte string. So a corpus entry is a plain file (or an expression in made.py, where it repeats one piece), a
crasher is saved as it is, and two engines (Hypothesis, and atheris where its guidance by branches pays) drive the same check. Rejected:
Hypothesis's own example database as the corpus (its entries mean nothing after a strategy has changed, and a review cannot read them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz.made import MADE

CORPUS = Path(__file__).with_name("corpus")
# An input is shown in a message up to here; the whole of it is in its file.
SHOWN_BYTES = 200
# Edits of one corpus entry: more of them leave nothing of what made it worth keeping.
EDITS = 4


@dataclass(frozen=True, slots=True)
class Door:
    """`check` returns for every input, or raises whatever shows the fault."""

    name: str
    check: Callable[[bytes], None]
    # Inputs that have the door's own grammar; mutated corpus entries are tried beside them.
    inputs: st.SearchStrategy[bytes]
    # What an edit may put into an entry: words that mean something here.
    words: tuple[bytes, ...] = ()
    # Examples in the ordinary suite, sized so that all doors together take a few seconds.
    examples: int = 60
    # Plain Python that decides byte by byte: worth guiding by branches.
    guided: bool = False

    @property
    def folder(self) -> Path:
        """Where the files of this door's corpus lie."""
        return CORPUS / self.name

    def corpus(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of each entry: the files by their names, then what made.py adds."""
        for file in sorted(self.folder.iterdir()):
            yield file.name, file.read_bytes()
        yield from MADE.get(self.name, {}).items()

    def all_inputs(self) -> st.SearchStrategy[bytes]:
        """What Hypothesis draws from: the grammar, edited entries of the corpus, and any bytes."""
        entries = [content for _, content in self.corpus()]
        return st.one_of(self.inputs, _edited(entries, self.words), st.binary(max_size=300))


class Misbehaved(AssertionError):
    """A door let something through; names the door, the input and how to try it again."""

    def __init__(self, door: Door, entry: str, content: bytes, error: BaseException) -> None:
        shown = repr(content[:SHOWN_BYTES]) + ("…" if len(content) > SHOWN_BYTES else "")
        super().__init__(f"door {door.name}, corpus entry {entry}: {shown}: {type(error).__name__}: {error}")


def replay(door: Door) -> int:
    """Check every entry of the corpus; how many there are. Raises Misbehaved."""
    count = 0
    for count, (entry, content) in enumerate(door.corpus(), 1):  # noqa: B007 -- counted for the caller
        try:
            door.check(content)
        except Exception as error:
            raise Misbehaved(door, entry, content, error) from error
    return count


def _edited(entries: list[bytes], words: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """An entry with pieces cut out, doubled, overwritten, joined with a piece of another, or with words put in."""
    piece = st.one_of(st.sampled_from(words), st.binary(max_size=8)) if words else st.binary(max_size=8)

    @st.composite
    def edited(draw: st.DrawFn) -> bytes:
        content = draw(st.sampled_from(entries))
        for _ in range(draw(st.integers(1, EDITS))):
            at = draw(st.integers(0, len(content)))
            until = draw(st.integers(at, min(len(content), at + 64)))
            match draw(st.sampled_from(("cut", "double", "put", "over", "join", "end"))):
                case "cut":
                    content = content[:at] + content[until:]
                case "double":
                    content = content[:until] + content[at:until] * draw(st.integers(1, 20)) + content[until:]
                case "put":
                    content = content[:at] + draw(piece) + content[at:]
                case "over":
                    content = content[:at] + draw(piece) + content[until:]
                case "join":
                    content = content[:at] + draw(st.sampled_from(entries))[at:]
                case _:
                    content = content[:at]
        return content

    return edited()


def one_line(message: str, limit: int) -> None:
    """A message of the product for a person: not empty, bounded, on one line, without a control or direction mark."""
    assert message, "the message is empty"
    assert message.isprintable(), f"the message has control characters: {message!r}"
    assert len(message) <= limit, f"the message has {len(message)} characters"

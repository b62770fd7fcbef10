"""How a page with a guest's text is compared with the same page without it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

# Attributes whose values may differ: a guest's text stands in them, or they tell the time (d: a graph).
TEXT_ATTRIBUTES = {"title", "data-search", "href", "data-age", "d"}


class Skeleton(HTMLParser):
    """The tags of a page with their attributes, as a browser would see them, without the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.links: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts.append(f"<{tag} {sorted((name, '' if name in TEXT_ATTRIBUTES else value) for name, value in attrs)}>")
        self.links += [value or "" for name, value in attrs if name in {"href", "src"}]

    def handle_endtag(self, tag: str) -> None:
        self.parts.append(f"</{tag}>")

    def handle_comment(self, data: str) -> None:
        self.parts.append("<!---->")

    def handle_decl(self, decl: str) -> None:
        self.parts.append("<!>")

    def handle_pi(self, data: str) -> None:
        self.parts.append("<?>")

    def unknown_decl(self, data: str) -> None:
        self.parts.append("<![>")


def same_markup(page: str, quiet: str) -> None:
    """A guest's text added no tag and no attribute, leads nowhere, and left no character that a reader cannot see."""
    found, expected = Skeleton(page), Skeleton(quiet)
    for number, (part, usual) in enumerate(zip(found.parts, expected.parts, strict=False)):
        assert part == usual, f"tag {number} is {part}, not {usual}"
    assert len(found.parts) == len(expected.parts), f"{len(found.parts)} tags, not {len(expected.parts)}"
    for link in found.links:
        # Ids of guests are the directory's words, not a guest's.
        known = {"metrics", "sd", "healthz", "guests/vm-calm", "guests/vm-loud"}
        ours = link.startswith(("assets/", "logs/")) or re.sub("#gpu[0-9]+$", "", link) in known
        assert ours, f"a link to {link!r}"
    hidden = {c for c in page if not (c.isprintable() or c == "\n")}
    assert not hidden, f"characters that nobody sees: {hidden}"

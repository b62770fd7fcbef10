"""Checks a built site as a reader's browser would meet it: every link within it leads somewhere, and nothing is loaded from elsewhere.

Sphinx judges the links that it understands as links of its own; what a theme, a template or HTML in a page puts into the result is seen
only in the result. A site that loads a font or a script from another host tells that host who reads it, and is broken without a network.
Links that a reader follows to other hosts are let through and not tried: a build must not need a network. Rejected: linkchecker (asks the
network, or judges nothing).

    python -m tools.site_check FOLDER    # exit status 1 and one line per fault
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads without being asked, by tag. `link` is judged by its rel: a canonical address is only named.
LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "track": "src",
    "embed": "src",
    "object": "data",
    "image": "href",
    "use": "href",
}
NAMED_ONLY = {"canonical", "next", "prev", "search", "index", "author", "license", "copyright"}
_CSS_LOADS = re.compile(r"""@import\s+["']?([^"')\s;]+)|url\(\s*["']?([^"')]+)""")
_JS_LOADS = re.compile(r"""(?:fetch|import|importScripts|Worker)\s*\(\s*["'`](https?:)?//|\.src\s*=\s*["'`](https?:)?//""")


@dataclass(slots=True)
class Page:
    """What a page offers to be linked to, what it links to, and what it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what the tag says."""
        told = {name: value or "" for name, value in attrs}
        self.page.anchors |= {told[name] for name in ("id", "name") if name in told}
        self._in_style = tag == "style"
        if tag == "a" and "href" in told:
            self.page.links.append(told["href"])
        elif tag == "link" and "href" in told:
            named = told.get("rel", "") in NAMED_ONLY
            (self.page.links if named else self.page.loads).append(told["href"])
        elif told.get(LOADED.get(tag, "")):
            self.page.loads.append(told[LOADED[tag]])
        self.page.loads += [each.split()[0] for each in told.get("srcset", "").split(",") if each.strip()]
        self.page.loads += css_loads(told.get("style", ""))

    def handle_data(self, data: str) -> None:
        """Take what a style sheet within the page loads."""
        if self._in_style:
            self.page.loads += css_loads(data)


def css_loads(text: str) -> list[str]:
    """What a style sheet loads."""
    return [found[1] or found[2] for found in _CSS_LOADS.finditer(text)]


@functools.cache
def read_page(file: Path) -> Page:
    """The page in `file`."""
    reader = _Reader()
    reader.feed(file.read_text(encoding="utf-8"))
    return reader.page


def faults(site: Path) -> Iterator[str]:
    """One line per dead link and per thing that is loaded from elsewhere."""
    site = site.resolve()
    for file in sorted(site.rglob("*")):
        where = file.relative_to(site)
        if file.suffix == ".html":
            page = read_page(file)
            for link in page.links:
                if not _elsewhere(link):
                    yield from (f"{where}: {link}: {fault}" for fault in _dead(site, file, link))
            yield from (f"{where}: {fault}" for load in page.loads for fault in _load_faults(site, file, load))
        elif file.suffix in {".css", ".svg"}:
            text = file.read_text(encoding="utf-8")
            loads = css_loads(text) if file.suffix == ".css" else [*css_loads(text), *read_page(file).loads]
            yield from (f"{where}: {fault}" for load in loads for fault in _load_faults(site, file, load))
        elif file.suffix == ".js" and (found := _JS_LOADS.search(file.read_text(encoding="utf-8"))):
            yield f"{where}: loads from elsewhere: {found[0]}"


def _load_faults(site: Path, file: Path, load: str) -> Iterator[str]:
    if load.startswith(("data:", "#")):
        return
    if _elsewhere(load):
        yield f"{load}: is loaded from elsewhere"
    else:
        yield from (f"{load}: {fault}" for fault in _dead(site, file, load))


def _elsewhere(link: str) -> bool:
    parts = urlsplit(link)
    return bool(parts.scheme or parts.netloc)


def _dead(site: Path, file: Path, link: str) -> Iterator[str]:
    """Why the link within the site leads nowhere."""
    parts = urlsplit(link)
    path = unquote(parts.path)
    there = (site / path.lstrip("/") if path.startswith("/") else file.parent / path).resolve() if path else file
    if not there.is_relative_to(site):
        yield "leaves the site"
    elif not there.is_file():
        yield "there is no such file"
    elif parts.fragment and there.suffix == ".html" and unquote(parts.fragment) not in read_page(there).anchors:
        yield "there is no such place in that page"


def main(arguments: list[str]) -> int:
    """Print the faults of the site; returns the exit status."""
    if len(arguments) != 1 or not (site := Path(arguments[0])).is_dir():
        sys.stderr.write("usage: python -m tools.site_check FOLDER, a folder with a built site\n")
        return 2
    found = list(faults(site))
    sys.stdout.write("".join(f"{each}\n" for each in found))
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

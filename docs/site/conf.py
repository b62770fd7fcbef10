"""How Sphinx makes the site of the Markdown pages, which stay where a reader of the repository finds them.

The source folder is the repository itself, so that a relative link means the same on the site and in a file browser; a file that is linked
and is no page (a unit, an example) comes along as a download. The order of pages stands here and not in the pages: a toctree would be
a block of code to whoever reads them elsewhere. A page that stands in no section is a warning of Sphinx's, and `make docs` takes every
warning as an error. Nothing is loaded from another host: tools/site_check.py holds it. Rejected: copies of the pages in a folder for
Sphinx (two places to edit, and warnings that name the wrong one).
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
PAGE_FOLDERS = {"docs", "benchmarks", "deploy"}

# Sections of the site and their pages, without .md. A page that is not there yet is left out.
SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Begin", ("docs/start", "docs/concepts", "docs/simulator")),
    (
        "Install",
        (
            *("docs/install-guest", "docs/install-host", "docs/running", "docs/libvirt"),
            *("docs/kubevirt", "docs/dstack", "deploy/kubernetes/README", "deploy/examples/README"),
        ),
    ),
    ("Operate", ("docs/guestctl", "docs/cards", "docs/fleet", "docs/scale", "docs/doctor", "docs/runbook", "docs/gpu-check")),
    ("Secure", ("docs/security", "docs/access", "docs/boot-gate", "SECURITY")),
    ("Look up", ("docs/configuration", "docs/commands", "docs/contract", "docs/metrics", "docs/client")),
    ("The project", ("CONTRIBUTING", "docs/decisions/README", "docs/soak", "benchmarks/RESULTS", "CHANGELOG")),
)
# What stands in the list of pages where a page's own title says too little without its folder.
TITLES = {"benchmarks/RESULTS": "Benchmarks", "docs/running": "From the wheel, by hand", "deploy/examples/README": "Examples"}
# Pages with pages below them, found by pattern.
CHAPTERS = {"docs/decisions/README": "docs/decisions/*.md", "deploy/examples/README": "deploy/examples/*/README.md"}

project = "Guestscope"
author = "the Guestscope authors"
project_copyright = author
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "benchmarks/*.md", "deploy/**.md"]
# Whole folders, so that Sphinx does not walk through environments and build outputs.
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in PAGE_FOLDERS]
# Links to headings, as the repository's own browser makes them.
myst_heading_anchors = 4
nitpicky = True
# What stands in quotes is often to be typed.
smartquotes = False

html_theme = "furo"
html_title = f"Guestscope {release}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
# index.html, which leads to the front page.
html_extra_path = ["root"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_domain_indices = html_use_index = False


def _toctree(caption: str, pages: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), "", *pages, "```", ""])


def _entry(page: str) -> str:
    return f"{TITLES[page]} </{page}>" if page in TITLES else f"/{page}"


def add_order(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append to the front page the order of all pages, and to the first page of a chapter the others."""
    if page == root_doc:
        for caption, pages in SECTIONS:
            source[0] += _toctree(caption, [_entry(each) for each in pages if (ROOT / f"{each}.md").is_file()])
    elif page in CHAPTERS:
        found = sorted(str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.glob(CHAPTERS[page]))
        source[0] += _toctree("", [f"/{each}" for each in found if each != page])


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", add_order)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""What the check of the built site lets through and what it finds, on sites of a few files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.site_check import faults, main


def site(folder: Path, **pages: str) -> list[str]:
    (folder / "inner").mkdir()
    files = {"index.html": '<p id="top">', "inner/page.html": '<a name="old">', "style.css": "", **pages}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return list(faults(folder))


WITHIN = [
    '<a href="inner/page.html">',
    '<a href="inner/page.html#old">',
    '<a href="#here"></a><h1 id="here">',
    '<a href="https://example.org/anything">',
    '<a href="mailto:somebody@example.org">',
    '<link rel="stylesheet" href="style.css?v=1">',
    '<link rel="canonical" href="https://example.org/">',
    '<img src="data:image/png;base64,AAAA">',
    "<style>p { background: url(data:image/png;base64,AAAA) }</style>",
]


@pytest.mark.parametrize("markup", WITHIN)
def test_what_leads_somewhere_within_the_site_is_let_through(tmp_path: Path, markup: str) -> None:
    assert site(tmp_path, **{"a.html": markup}) == []


WRONG = [
    ('<a href="inner/absent.html">', "there is no such file"),
    ('<a href="inner/page.html#absent">', "there is no such place in that page"),
    ('<a href="#absent">', "there is no such place in that page"),
    ('<a href="../outside.html">', "leaves the site"),
    ('<img src="absent.svg">', "there is no such file"),
    ('<img srcset="absent.svg 2x">', "there is no such file"),
    ('<script src="https://cdn.example.org/a.js">', "is loaded from elsewhere"),
    ('<script src="//cdn.example.org/a.js">', "is loaded from elsewhere"),
    ('<link rel="preconnect" href="https://fonts.example.org">', "is loaded from elsewhere"),
    ('<link rel="stylesheet" href="https://fonts.example.org/a.css">', "is loaded from elsewhere"),
    ("<style>@import 'https://fonts.example.org/a.css';</style>", "is loaded from elsewhere"),
    ('<p style="background: url(https://example.org/a.png)">', "is loaded from elsewhere"),
]


@pytest.mark.parametrize(("markup", "fault"), WRONG)
def test_a_dead_link_or_something_from_another_host_is_found(tmp_path: Path, markup: str, fault: str) -> None:
    (found,) = site(tmp_path, **{"a.html": markup})
    assert found.startswith("a.html: ")
    assert found.endswith(fault)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("inner/a.css", '@font-face { src: url("https://fonts.example.org/a.woff2") }'),
        ("inner/a.css", "p { background: url(absent.png) }"),
        ("inner/a.svg", '<svg><image href="https://example.org/a.png"/></svg>'),
        ("inner/a.js", 'fetch("https://example.org/search.json")'),
    ],
)
def test_what_styles_drawings_and_scripts_load_is_looked_at_too(tmp_path: Path, name: str, text: str) -> None:
    (found,) = site(tmp_path, **{name: text})
    assert found.startswith(f"{name}: ")


def test_a_fault_is_a_line_and_exit_status_1_and_no_folder_is_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    site(tmp_path, **{"a.html": '<a href="b.html">'})
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == "a.html: b.html: there is no such file\n"
    assert main([str(tmp_path / "absent")]) == 2

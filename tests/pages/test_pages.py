"""What the pages tell a reader to type is there: commands, options, make targets, links, and every page can be found."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from guest_client.guestctl.commands import guestctl
from guest_service.cli import doors
from guest_service.config import GuestConfig
from vmm_proxy.cli import main as vmm_proxy
from vmm_proxy.config import ProxyConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in ("docs", "benchmarks", "deploy") for page in (ROOT / folder).rglob("*.md"))]
)
PROGRAMS: dict[str, click.Group] = {"guest-service": doors, "vmm-proxy": vmm_proxy, "guestctl": guestctl}
# What ends a command on its line; a bar between two values (table|json) has no blanks around it.
END = re.compile(r" \|\|? | #|;|&&| &$|\)")


def _code(page: Path) -> Iterator[str]:
    """The lines of the page's code blocks, and its code in running text."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^ *```\w*\n.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL))


def _commands() -> Iterator[tuple[str, str, str]]:
    """Page, program, and what stands behind it."""
    for page in PAGES:
        for line in _code(page):
            for found in re.finditer(
                # A container's or a group's name is no command.
                r"(?<![\w/.=-])(?<!--name )(?<!getent group )(?:\S*/bin/)?(guest-service|vmm-proxy|guestctl)((?: .*)?)$",
                line.replace("\\|", "|"),
            ):
                yield str(page.relative_to(ROOT)), found[1], END.split(found[2])[0].strip()


def _options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"-h", "--help"}


@pytest.mark.parametrize(("page", "program", "rest"), sorted(set(_commands())))
def test_a_command_of_a_page_has_its_subcommand_and_its_options(page: str, program: str, rest: str) -> None:
    group = PROGRAMS[program]
    context = click.Context(group)
    names = group.list_commands(context)
    words = re.findall(r"[^\s\[\]…]+", rest)
    if words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        assert words[0] in names, page
    command = next((group.get_command(context, word) for word in words if word in names), None)
    known = _options(group) | (_options(command) if command is not None else set())
    for word in words:
        if re.match(r"--?[a-z]", word):
            assert word.partition("=")[0].rstrip(",.") in known, f"{page}: {program} {rest}"


def test_pages_do_name_commands_and_one_that_does_not_exist_would_be_seen() -> None:
    found = {(program, rest.split()[0]) for _, program, rest in _commands() if rest}
    assert {("guest-service", "serve"), ("vmm-proxy", "check-config"), ("guestctl", "gpu")} <= found
    with pytest.raises(AssertionError):
        test_a_command_of_a_page_has_its_subcommand_and_its_options("page", "vmm-proxy", "serve --confg FILE")
    with pytest.raises(AssertionError):
        test_a_command_of_a_page_has_its_subcommand_and_its_options("page", "guestctl", "gpus")


def test_the_help_of_both_servers_names_the_addresses_that_they_take_by_default() -> None:
    for group, config in ((doors, GuestConfig()), (vmm_proxy, ProxyConfig())):
        command = group.get_command(click.Context(group), "serve")
        assert command is not None
        told = {name: each.help or "" for each in command.params if isinstance(each, click.Option) for name in each.opts}
        assert f"(default {', '.join(config.grpc.listen)})" in told["--grpc"]
        assert f"(default {config.http.listen})" in told["--http"]


def test_a_make_target_of_a_page_or_of_help_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].replace("\\", "").split()) == targets
    told = {
        (str(page.relative_to(ROOT)), target)
        for page in PAGES
        for line in _code(page)
        for target in re.findall(r"^(?:\S*/)?make ([a-z][\w-]*)(?![\w…-])", line)
    }
    helped = re.findall(r"^\t@echo 'make ([a-z -]+?)  ", makefile, re.MULTILINE)
    told |= {("make help", target) for line in helped for target in line.split()}
    assert len(told) > 10
    assert {target for _, target in told} <= targets, told


def _places(page: Path) -> set[str]:
    """What a link may have behind its #: the headings, as repository browsers and MyST name them."""
    text = re.sub(r"^ *```\w*\n.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    places: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *$", text, re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w -]", "", plain.lower()).replace(" ", "-")
        places.add(next(each for each in (name, *(f"{name}-{number}" for number in range(1, 99))) if each not in places))
    return places


def test_every_page_is_reached_from_the_readme_and_every_link_leads_to_a_file_and_a_heading_that_are_there() -> None:
    reached = {ROOT / "README.md"}
    waiting = list(reached)
    while waiting:
        page = waiting.pop()
        for target, place in re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            there = (page.parent / target).resolve() if target else page
            # The site has no page for a folder.
            assert there.is_file(), f"{page.name}: {target}"
            assert not place or place in _places(there), f"{page.name}: {target}#{place}"
            if there.suffix == ".md" and there not in reached:
                reached.add(there)
                waiting.append(there)
    assert [page.name for page in PAGES if page not in reached] == []


def test_a_heading_is_named_as_a_link_names_it() -> None:
    assert {"when-something-is-wrong", "in-the-guest"} <= _places(ROOT / "docs/running.md")
    assert "shell-completion" in _places(ROOT / "docs/guestctl.md")
    assert "list-id" not in _places(ROOT / "docs/guestctl.md")


def test_the_front_page_is_one_screen_with_a_picture_that_says_in_words_what_it_shows() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 60
    assert any(re.match(r"!\[.{40,}\]\(docs/pictures/[\w-]+\.svg\)", line) for line in lines)


@pytest.mark.parametrize("picture", sorted((ROOT / "docs/pictures").glob("*.svg")), ids=lambda file: file.name)
def test_a_drawing_has_a_title_a_description_and_colours_for_a_dark_screen_and_loads_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert re.search(r"<title\b[^>]*>[^<]{10,}</title>", text)
    assert re.search(r"<desc\b[^>]*>[^<]{40,}</desc>", text)
    assert "prefers-color-scheme: dark" in text
    assert "://" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")


@pytest.mark.parametrize("target", [[], ["help"]])
def test_make_without_a_target_shows_the_targets_and_does_nothing(target: list[str]) -> None:
    done = subprocess.run(["make", "-C", str(ROOT), "--no-print-directory", *target], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "make demo " in done.stdout
    assert sys.prefix not in done.stdout

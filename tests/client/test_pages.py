"""What the pages for users promise is what is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from guest_client import errors
from guest_client.guestctl import cli, request, run
from guest_client.guestctl.fleet.health import CARDS_NOT_OK
from guest_client.guestctl.request import DEFAULT_PROXY, Subject

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_every_dependency_has_its_reason_and_every_reason_its_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"])
    wanted += [each for group in project["dependency-groups"].values() for each in group]
    wanted += [each for extra in project["project"].get("optional-dependencies", {}).values() for each in extra]
    explained = re.findall(
        r"^\| ([a-z0-9-]+)(?: \(extra `[a-z]+`\))? \| .{5,} \|$", (DOCS / "decisions/dependencies.md").read_text(), re.MULTILINE
    )
    names = [re.split(r"[\[<>=!~; ]", each)[0] for each in wanted]
    assert sorted(set(explained) - {"package"}) == sorted(set(names))


def test_every_error_and_every_exit_status_is_documented() -> None:
    client = (DOCS / "client.md").read_text()
    kinds: list[type[Exception]] = [errors.ClientError, *errors.ClientError.__subclasses__(), *errors.CallError.__subclasses__()]
    for kind in kinds:
        assert f"`{kind.__name__}`" in client or f".{kind.__name__}`" in client
    tree = errors.__doc__ or ""
    for kind in kinds[1:]:
        assert f"── {kind.__name__} " in tree
    page = (DOCS / "guestctl.md").read_text()
    statuses = {*cli.EXIT_STATUSES, *run.EXIT_STATUS.values(), CARDS_NOT_OK}
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == statuses
    assert DEFAULT_PROXY in page
    for variable in (request.PROXY_VARIABLE, *request.ACCESS_VARIABLES.values()):
        assert f"`{variable}`" in page
    for name in request.SHARED:
        flag = "-o" if name == "output" else f"--{name.replace('_', '-')}"
        assert f"{flag} " in page or f"`{flag}`" in page
    for subject in Subject:
        assert f"`{subject.value}" in page

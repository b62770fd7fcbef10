"""`guestctl` run in the test's own process: what it prints, and the one line with which it refuses."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from guest_client.guestctl.cli import run


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """What it prints; beside it there is one line if the status is not 0, and nothing otherwise."""
    assert run(list(arguments)) == status
    printed, err = capsys.readouterr()
    assert err.count("\n") == (0 if status == 0 else 1), err
    return printed


def refusal_of(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    """The one line that it says when it ends with `status`, having printed nothing."""
    assert run(list(arguments)) == status
    printed, err = capsys.readouterr()
    assert (printed, err.count("\n")) == ("", 1)
    assert err.startswith("guestctl: ")
    return err


def json_lines(text: str) -> list[Any]:  # Any: JSON trees
    return [json.loads(line) for line in text.splitlines()]


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))

"""The container file of the proxy, judged by hadolint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.source_tree import ROOT

FILE = ROOT / "deploy/container/Dockerfile"
HADOLINT = Path(sys.executable).with_name("hadolint")


def last_stage() -> list[str]:
    text = FILE.read_text(encoding="utf-8").replace("\\\n", " ")
    return ["FROM " + text.rpartition("\nFROM ")[2].splitlines()[0], *text.rpartition("\nFROM ")[2].splitlines()[1:]]


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is missing: its package is not for this processor")
def test_hadolint_has_nothing_to_say() -> None:
    judged = subprocess.run([HADOLINT, "--failure-threshold", "style", FILE], check=False, capture_output=True, text=True)
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")


def test_the_image_runs_without_root_and_needs_no_shell() -> None:
    stage = last_stage()
    assert "USER 65532:65532" in stage
    assert not [line for line in stage if line.startswith("RUN ")]
    assert [line for line in stage if line.startswith("ENTRYPOINT [")]


def test_what_is_copied_into_the_image_exists() -> None:
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY ") and "--from" not in line and "dist/" not in line:
            assert (ROOT / line.split()[1]).exists(), line

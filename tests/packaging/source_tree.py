"""Copies of the source tree that differ in everything that must not matter, and the distributions built from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION: str = PROJECT["project"]["version"]
# What a distribution is made from; the rest of the tree cannot change it.
PARTS = [
    ".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "deploy", "generated", "guest_client", "guest_contract",
    "guest_metrics", "guest_pages", "guest_service",
    "guest_transport", "proto", "pyproject.toml", "requirements", "vmm_proxy",
]  # fmt: skip
# Any commit's time will do, as long as it is one.
COMMIT_SECONDS = "1700000000"


@dataclass(frozen=True)
class Distributions:
    wheel: Path
    sdist: Path


def copy_tree(to: Path) -> Path:
    """The parts of the tree at `to`, without what running left behind, all just written."""
    to.mkdir(parents=True)
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, to / part, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile)
        else:
            shutil.copyfile(ROOT / part, to / part)
    return to


def build(tree: Path, into: Path, *, umask: int = 0o022, environment: Mapping[str, str] | None = None) -> Distributions:
    """Wheel and sdist of `tree`, as `make wheel` builds them."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(into)],
        cwd=tree,
        env={**os.environ, "SOURCE_DATE_EPOCH": COMMIT_SECONDS, **(environment or {})},
        umask=umask,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (wheel,), (sdist,) = into.glob("*.whl"), into.glob("*.tar.gz")
    return Distributions(wheel, sdist)

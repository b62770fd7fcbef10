"""An environment that holds the wheel and what requirements/runtime.lock.txt names, and nothing else.

The packages are those of the environment that runs the tests, linked file by file (compiled files too), so that no test needs a network
and none waits for it. That the locked files can be fetched and have these hashes is seen where they are fetched: `make deb`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

from tests.packaging.source_tree import ROOT
from tools.floors import pins


def make_environment(folder: Path, wheel: Path) -> Path:
    """Makes it in `folder`; returns the folder of its programs."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    scheme = sysconfig.get_preferred_scheme("prefix") if sysconfig.get_default_scheme() != "venv" else "venv"
    site = Path(sysconfig.get_path("purelib", scheme, {"base": str(folder), "platbase": str(folder)}))
    for name in pins((ROOT / "requirements/runtime.lock.txt").read_text(encoding="utf-8")):
        _take_over(name, site)
    bin_folder = folder / "bin"
    _pip(bin_folder, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel))
    return bin_folder


def check_requirements(bin_folder: Path) -> None:
    """Fails when a package lacks what it asks for, or has another version of it."""
    _pip(bin_folder, "check")


def bare_variables() -> dict[str, str]:
    """This process's environment variables but those that let an interpreter find more than its own packages."""
    return {name: value for name, value in os.environ.items() if not re.match("PYTHON|VIRTUAL_ENV", name)}


def _take_over(name: str, site: Path) -> None:
    distribution = metadata.distribution(name)
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file)))
        if file.parts[0] != ".." and source.exists():
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)


def _pip(bin_folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(bin_folder / "python"), *arguments]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=bare_variables())
    assert ended.returncode == 0, ended.stdout + ended.stderr

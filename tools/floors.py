"""Writes requirements/floor.lock.txt: each runtime dependency at exactly the floor that pyproject.toml promises.

`make test-floor` runs the suite there, so that a floor is a release that was seen to work. Everything else is as new as the floors let it
be, and never newer than in requirements/dev.lock.txt: a test runner at its own oldest release would fail for reasons that concern nobody.
A floor that cannot be installed together with the others is refused by the resolver, which is the answer that is wanted. Rejected: uv's
`--resolution lowest-direct`, which silently passes over a floor when a development tool asks for more.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEV_LOCK = ROOT / "requirements/dev.lock.txt"
FLOOR_LOCK = ROOT / "requirements/floor.lock.txt"
_PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^ ;\\]+)", re.MULTILINE)
_FLOOR = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)>=([0-9][0-9A-Za-z.]*)(?:,<[0-9][0-9A-Za-z.]*)?")


def pins(lock: str) -> dict[str, str]:
    """Version by name of package in the text of a lock file."""
    return dict(_PIN.findall(lock))


def floors(pyproject: str) -> dict[str, str]:
    """The floor by normalised name of each runtime dependency in the text of pyproject.toml; ValueError for one without a floor."""
    found = {}
    for dependency in tomllib.loads(pyproject)["project"]["dependencies"]:
        match = _FLOOR.fullmatch(dependency)
        if match is None:
            raise ValueError(f"pyproject.toml: dependencies: {dependency!r} is not NAME>=VERSION, or NAME>=VERSION,<VERSION")
        found[re.sub(r"[-_.]+", "-", match[1]).lower()] = match[2]
    return found


def constraints(lowered: Mapping[str, str], locked: Mapping[str, str]) -> str:
    """A constraints file: `lowered` exactly, nothing else newer than `locked`."""
    lines = [f"{name}=={version}" for name, version in lowered.items()]
    lines += [f"{name}<={version}" for name, version in locked.items() if name not in lowered]
    return "\n".join([*lines, ""])


def main() -> int:
    """Write the lock file; returns the resolver's exit status."""
    lowered = floors((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(constraints(lowered, pins(DEV_LOCK.read_text(encoding="utf-8"))))
        file.flush()
        command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "pyproject.toml"]
        command += ["--extra", "kubevirt", "--group", "dev"]
        command += ["--constraint", file.name, "--universal", "--python-version", "3.11", "--generate-hashes", "--upgrade"]
        command += ["--no-emit-index-url", "--no-emit-find-links", "--no-annotate", "--no-header", "--quiet"]
        return subprocess.run([*command, "-o", str(FLOOR_LOCK)], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())

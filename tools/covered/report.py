"""What a measured run covered, by package and by module, and whether that is enough.

A module that nothing imported counts with all of its branches as missed: it is looked for on the disk, not in the data.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import coverage

from tools.covered.measuring import DATA, FOLDER, PACKAGES, ROOT

# Of a package and of each module; below it, code waits for its first bug. Not 100: what is left is mostly what an operating system has to
# refuse (no descriptor, no thread, no memory), and a test that forces it tells more about the test.
ENOUGH_PERCENT = 90.0
# Shown and not judged as single modules, each with where the rest of it is tested; their packages count them all the same.
ELSEWHERE = {
    "vmm_proxy/directory/libvirt/reporter.py": "tests/domains ends reporters with -9, as the proxy does, and such a process saves nothing",
    "guest_transport/sockets/vsock.py": "what needs a VM: make vm-test",
    "guest_transport/relay/single_connection.py": "the same",
}


@dataclass
class Counted:
    """Statements and branches, and how many of them ran."""

    possible: int = 0
    ran: int = 0

    @property
    def percent(self) -> float:
        """100 where there is nothing to run."""
        return 100.0 * self.ran / self.possible if self.possible else 100.0

    def add(self, other: Counted) -> None:
        """Count `other` too."""
        self.possible += other.possible
        self.ran += other.ran


def combine() -> dict[str, Counted]:
    """The data of all processes put together, by file; also written to build/coverage/html and coverage.json."""
    measured = coverage.Coverage(data_file=str(DATA / "process"), config_file=str(FOLDER / "coverage.toml"))
    measured.combine([str(DATA)])
    measured.load()
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            measured.get_data().touch_file(str(file))
    written = FOLDER / "coverage.json"
    measured.json_report(outfile=str(written))
    measured.html_report(directory=str(FOLDER / "html"))
    return {
        str(Path(file).relative_to(ROOT) if Path(file).is_absolute() else file): _counted(entry["summary"])
        for file, entry in json.loads(written.read_text())["files"].items()
    }


def _counted(summary: dict[str, int]) -> Counted:
    return Counted(
        summary["num_statements"] + summary["num_branches"],
        summary["covered_lines"] + summary["covered_branches"],
    )


def judge(files: dict[str, Counted]) -> bool:
    """Print the table of packages and each module that is short of ENOUGH_PERCENT; whether there is none."""
    packages: dict[str, Counted] = defaultdict(Counted)
    for file, counted in files.items():
        packages[file.partition("/")[0]].add(counted)
    short = {name: counted for name, counted in [*packages.items(), *files.items()] if counted.percent < ENOUGH_PERCENT}
    for package in PACKAGES:
        sys.stdout.write(_line(package, packages[package]))
    for name, counted in sorted(short.items(), key=lambda item: item[1].percent):
        sys.stdout.write(f"under {ENOUGH_PERCENT:.0f} %: {_line(name, counted)}")
        if name in ELSEWHERE:
            sys.stdout.write(f"    not judged: {ELSEWHERE[name]}\n")
    sys.stdout.write(f"line by line: {(FOLDER / 'html' / 'index.html').relative_to(ROOT)}\n")
    return not short.keys() - ELSEWHERE.keys()


def _line(name: str, counted: Counted) -> str:
    return f"{name:<45} {counted.percent:6.2f} %  {counted.ran:>6} of {counted.possible:>6} statements and branches\n"

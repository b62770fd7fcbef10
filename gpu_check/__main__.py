"""Runs all checks and figures in a folder of their own, prints one table, and writes JSON."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from gpu_check import __doc__ as about
from gpu_check import figures, nvidia_smi
from gpu_check.checks import Checks, all_checks
from gpu_check.machine import Machine, facts
from gpu_check.verdict import Result, Seen, Verdict, run
from guest_service.inventory import InventoryError, read_inventory

# A scraper's usual beat.
GAP_SECONDS = 20.0
RUNS = 15


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--only", action="append", metavar="NAME", help="this check or figure alone; repeatable")
    parser.add_argument("--sysfs", type=Path, default=Path("/sys"), metavar="DIR", help="root of sysfs (default /sys)")
    parser.add_argument("--nvml-library", type=Path, metavar="FILE", help="this libnvidia-ml instead of the system's")
    parser.add_argument("--nvidia-smi", default=shutil.which("nvidia-smi"), metavar="FILE", help="default: the one on PATH")
    parser.add_argument("--gap", type=float, default=GAP_SECONDS, metavar="SECONDS", help="between two scrapes (default 20)")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help="of each program in each round of the ratio (15)")
    return parser.parse_args()


def everything(machine: Machine, folder: Path) -> dict[str, Callable[[], Seen]]:
    """All checks and figures by name, in the order of the table."""
    checks = Checks(machine, folder)
    return {
        **all_checks(checks),
        "nvidia-smi": lambda: nvidia_smi.compare(machine, checks),
        "ratio": lambda: figures.ratio(machine, folder),
        "groups": lambda: figures.groups(machine, folder),
        "at-once": lambda: figures.at_once(machine),
        "confidential": lambda: figures.confidential(machine),
    }


def results(machine: Machine, folder: Path, only: list[str] | None) -> Iterator[Result]:
    """Each result as it comes; raises SystemExit for a name that is none."""
    named = everything(machine, folder)
    if unknown := set(only or ()) - set(named):
        sys.exit(f"gpu_check: --only {sorted(unknown)[0]}: not one of {', '.join(named)}")
    for name, check in named.items():
        if not only or name in only:
            yield run(name, check)


def nothing_to_check(sysfs: Path) -> bool:
    """Whether the PCI bus was looked at and has no NVIDIA card; a bus that cannot be read is for the checks to tell."""
    try:
        return read_inventory(sysfs).nvidia == 0
    except InventoryError:
        return False


def main() -> int:
    """The exit status: 1 when a check failed, 2 when there is no card to check."""
    options = arguments()
    if not options.only and nothing_to_check(options.sysfs):
        print("gpu_check: no NVIDIA card is on the PCI bus of this machine: nothing was checked", file=sys.stderr)
        return 2
    machine = Machine(options.sysfs, options.nvml_library, options.nvidia_smi, options.gap, options.runs)
    head = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "version": version("guestscope"), **facts(machine)}
    for name, value in head.items():
        print(f"{name:12}{'not found' if value is None else value}")
    print()
    found = []
    with tempfile.TemporaryDirectory(prefix="gs-gpu-") as folder:
        for result in results(machine, Path(folder), options.only):
            found.append(result)
            lines = [f"{result.name:16}{result.verdict:9}{result.seconds:7.1f} s  {result.seen}"]
            print("\n".join([*lines, *(f"    {line}" for line in result.table)]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": head, "results": [asdict(result) for result in found]}, indent=1) + "\n")
    return int(any(result.verdict is Verdict.FAILED for result in found))


if __name__ == "__main__":
    sys.exit(main())

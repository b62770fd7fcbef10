"""One sample, process start to exit: the collector against a C program that does the same work, on the scripted library; then the groups.

    python -m benchmarks.sample [--runs N]

A B A B in one run, medians, and their ratio; nvmlInit takes 90 ms (as on an H200 in confidential-computing mode), then 0 ms. The targets
are the design's: at most 1.12 times the C program, 28 ms CPU, 15 MiB peak RSS, all with a 90 ms init. Exit status 1 when one is missed.

Then eight cards, in parts as the agent has them (to /dev/null): what the groups add to the base values, at most 8 ms wall and CPU for
the default ones; and what each group takes by the clocks of the process that asks, beside the same calls in C.

Compiled Python files are used as an installed wheel has them (the first run makes them).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from gpu_check.group_costs import HEAD, group_costs
from gpu_check.yardstick import RATIO_LIMIT, ROUNDS, Figures, compared, compiled
from guest_contract.card_fields import DEFAULT_GROUPS, GROUPS
from guest_service.collector.command import collector_command
from tests.nvml_library.fixture import NvmlBuild, ScriptedNvml

CPU_LIMIT_MS = 28.0
RSS_LIMIT_MIB = 15.0
# What the default groups may add to a sample of eight cards.
ADDED_LIMIT_MS = 8.0
CARDS = 8
# time_process.c discards what is written there.
PARTS = ("--parts-to", "3")


def report(init_ms: int, figures: dict[str, Figures]) -> None:
    yardstick = figures["C program"].wall_ms
    print(f"nvmlInit {init_ms} ms        wall ms    ratio   CPU ms   peak RSS MiB")
    for name, row in figures.items():
        print(f"  {name:18}{row.wall_ms:9.2f}{row.wall_ms / yardstick:9.3f}{row.cpu_ms:9.2f}{row.peak_rss_mib:15.1f}")


def missed(figures: dict[str, Figures]) -> list[str]:
    collector = figures["collector"]
    ratio = collector.wall_ms / figures["C program"].wall_ms
    limits = [("ratio", ratio, RATIO_LIMIT), ("CPU ms", collector.cpu_ms, CPU_LIMIT_MS)]
    limits.append(("peak RSS MiB", collector.peak_rss_mib, RSS_LIMIT_MIB))
    return [f"{name} {value:.3f} is over {limit}" for name, value, limit in limits if value > limit]


def groups_added(timer: str, yardstick: str, library: Path, runs: int) -> list[str]:
    """Report what groups add to the base values of eight cards; what is over the limit."""
    asked = {"base": (), "default": DEFAULT_GROUPS, "all": GROUPS}
    commands = {f"C, {name}": [yardstick, str(library), *groups] for name, groups in asked.items()}
    commands |= {name: [*collector_command(nvml_library=library, groups=groups), *PARTS] for name, groups in asked.items()}
    figures = compared(timer, runs, commands)
    print(f"{CARDS} cards, nvmlInit 0 ms   wall ms   added   CPU ms   added")
    for name, row in figures.items():
        base = figures["C, base" if name.startswith("C, ") else "base"]
        print(f"  {name:18}{row.wall_ms:9.2f}{row.wall_ms - base.wall_ms:8.2f}{row.cpu_ms:9.2f}{row.cpu_ms - base.cpu_ms:8.2f}")
    print(HEAD, *group_costs(yardstick, library, runs), sep="\n")
    base, default = figures["base"], figures["default"]
    added = {"wall": default.wall_ms - base.wall_ms, "CPU": default.cpu_ms - base.cpu_ms}
    return [f"default groups add {ms:.2f} ms {name}, over {ADDED_LIMIT_MS}" for name, ms in added.items() if ms > ADDED_LIMIT_MS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help=f"runs of each command in each of {ROUNDS} rounds")
    runs: int = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="gs-bench-") as scratch:
        folder = Path(scratch)
        timer, yardstick = compiled("time_process", folder), compiled("sample", folder)
        library = ScriptedNvml(folder, NvmlBuild(folder / "build"))
        commands = {
            "C program": [yardstick, str(library.path)],
            "collector": collector_command(nvml_library=library.path),
            "guest-service": [
                str(Path(sys.executable).with_name("guest-service")),
                "gpu-info",
                "--nvml-library",
                str(library.path),
            ],
        }
        complaints = []
        for init_ms in (90, 0):
            library.write(f"cards 1\nnvmlInit_v2 - * sleep {init_ms}\n")
            figures = compared(timer, runs, commands)
            report(init_ms, figures)
            complaints += missed(figures) if init_ms else []
        library.write(f"cards {CARDS}\n")
        complaints += groups_added(timer, yardstick, library.path, runs)
    for complaint in complaints:
        print(f"MISSED: {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

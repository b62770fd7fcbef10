"""One sample, process start to exit: the collector against a C program that does the same work, on the scripted library; then the groups.

    python -m benchmarks.sample [--runs N]

A B A B in one run; nvmlInit takes 90 ms (as on an H200 in confidential-computing mode), 0 ms, and for eight cards 700 ms. The targets are
the design's: at most 1.12 times the C program where init takes its time, 28 ms CPU, 15 MiB peak RSS. Exit status 1 when one is missed.

Then eight cards, in parts as the agent has them (to /dev/null): what the groups add to the base values, at most 8 ms wall and CPU for
the default ones; and what each group takes by the clocks of the process that asks, beside the same calls in C.

Compiled Python files are used as an installed wheel has them (the first run makes them).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import Report
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


def report(to: Report, init_ms: int, cards: int, figures: dict[str, Figures], *, judged: bool) -> None:
    """The ratio to the C program in each round, and what else has a target."""
    yardstick, collector = figures["C program"], figures["collector"]
    where = f"{cards} card{'s' if cards > 1 else ''}, init {init_ms} ms"
    to.add(f"{where}: collector / C", ratios(collector, yardstick), "x", RATIO_LIMIT if judged else None)
    to.add(f"{where}: collector", collector.rounds_wall_ms, "ms")
    if judged and cards == 1:
        to.add(f"{where}: collector, CPU", collector.rounds_cpu_ms, "ms", CPU_LIMIT_MS)
        to.add(f"{where}: collector, peak RSS", [collector.peak_rss_mib], "MiB", RSS_LIMIT_MIB)
    if "guest-service" in figures:
        to.add(f"{where}: guest-service gpu-info / C", ratios(figures["guest-service"], yardstick), "x")


def ratios(one: Figures, other: Figures) -> list[float]:
    """Of wall time, round by round."""
    return [ours / theirs for ours, theirs in zip(one.rounds_wall_ms, other.rounds_wall_ms, strict=True)]


def groups_added(to: Report, timer: str, yardstick: str, library: Path, runs: int) -> None:
    """What groups add to the base values of eight cards, round by round; and what each of them takes."""
    asked = {"base": (), "default": DEFAULT_GROUPS, "all": GROUPS}
    commands = {f"C, {name}": [yardstick, str(library), *groups] for name, groups in asked.items()}
    commands |= {name: [*collector_command(nvml_library=library, groups=groups), *PARTS] for name, groups in asked.items()}
    figures = compared(timer, runs, commands)
    for name in ("default", "all", "C, default", "C, all"):
        base, row = figures["C, base" if name.startswith("C, ") else "base"], figures[name]
        limit = ADDED_LIMIT_MS if name == "default" else None
        for what, ours, theirs in (
            ("wall", row.rounds_wall_ms, base.rounds_wall_ms),
            ("CPU", row.rounds_cpu_ms, base.rounds_cpu_ms),
        ):
            to.add(f"{CARDS} cards: {name} groups add, {what}", [a - b for a, b in zip(ours, theirs, strict=True)], "ms", limit)
    print(HEAD, *group_costs(yardstick, library, runs), sep="\n")


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
        to = Report(
            "sample",
            "One sample on the scripted library, process start to exit, beside a C program that asks the same.",
        )
        for cards, init_ms, judged in ((1, 90, True), (1, 0, False), (CARDS, 90, True), (CARDS, 700, True)):
            library.write(f"cards {cards}\nnvmlInit_v2 - * sleep {init_ms}\n")
            of = commands if cards == 1 else {name: commands[name] for name in ("C program", "collector")}
            report(to, init_ms, cards, compared(timer, runs if init_ms < 200 else max(3, runs // 5), of), judged=judged)
        library.write(f"cards {CARDS}\n")
        groups_added(to, timer, yardstick, library.path, runs)
    return to.end()


if __name__ == "__main__":
    sys.exit(main())

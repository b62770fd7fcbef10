"""One sample, process start to exit: the collector against a C program that does the same work, on the scripted library.

    python -m benchmarks.sample [--runs N]

A B A B in one run, medians, and their ratio; nvmlInit takes 90 ms (as on an H200 in confidential-computing mode), then 0 ms. The targets
are the design's: at most 1.12 times the C program, 28 ms CPU, 15 MiB peak RSS, all with a 90 ms init. Exit status 1 when one is missed.
Compiled Python files are used as an installed wheel has them (the first run makes them). Rejected: hyperfine, which measures no memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from guest_service.collector.command import collector_command
from tests.nvml_library.fixture import NvmlBuild, ScriptedNvml, nvml_header_folder

HERE = Path(__file__).parent
RATIO_LIMIT = 1.12
CPU_LIMIT_MS = 28.0
RSS_LIMIT_MIB = 15.0
ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over all runs of one command, and its highest peak RSS."""

    wall_ms: float
    cpu_ms: float
    peak_rss_mib: float


def compile_c(name: str, folder: Path) -> str:
    program = folder / name
    source = HERE / f"{name}.c"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-isystem", str(nvml_header_folder())]
    subprocess.run(["gcc", *flags, str(source), "-o", str(program)], check=True)
    return str(program)


def measure(timer: str, runs: int, command: list[str]) -> list[tuple[float, float, float]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run([timer, str(runs), *command], env=environment, capture_output=True, text=True, check=True)
    rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    if len(rows) != runs or any(status != 0 for *_, status in rows):
        sys.exit(f"{command[0]} failed: {done.stdout}{done.stderr}")
    return [(wall / 1000, cpu / 1000, rss / 1024) for wall, cpu, rss, _ in rows]


def compare(timer: str, runs: int, commands: dict[str, list[str]]) -> dict[str, Figures]:
    """The commands in turns, ROUNDS times, so that a machine that slows down slows all of them."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
    for command in commands.values():
        measure(timer, 1, command)
    for _ in range(ROUNDS):
        for name, command in commands.items():
            found[name] += measure(timer, runs, command)
    return {
        name: Figures(median(row[0] for row in rows), median(row[1] for row in rows), max(row[2] for row in rows))
        for name, rows in found.items()
    }


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help=f"runs of each command in each of {ROUNDS} rounds")
    runs: int = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="gs-bench-") as scratch:
        folder = Path(scratch)
        timer, yardstick = compile_c("time_process", folder), compile_c("sample", folder)
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
            figures = compare(timer, runs, commands)
            report(init_ms, figures)
            complaints += missed(figures) if init_ms else []
    for complaint in complaints:
        print(f"MISSED: {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

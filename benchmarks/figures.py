"""What a benchmark found: for each figure its rounds, its median, how far they spread, its target, and what that means.

Rounds alternate between the things compared, so that a busy machine slows all alike. A figure is MET or MISSED by its median, and noisy
where the rounds spread further than the median is from the target: then another run may say the opposite, and nobody should believe this
one. Printed as a table, and written as JSON with the machine, the commit and the load, from which benchmarks/RESULTS.md is made
(`make results`).
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

# Where a run's JSON goes; `make results` reads it there.
FOLDER = Path(os.environ.get("BENCH_RESULTS", Path(__file__).parent.parent / "build" / "bench"))
ROUNDS_LEAST = 5


@dataclass(frozen=True)
class Figure:
    """One value of each round, in `unit`; `target` is the most that it may be, with `at_least` the least. Without one it is only told."""

    name: str
    rounds: Sequence[float]
    unit: str
    target: float | None = None
    at_least: bool = False

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """Between the quartiles of the rounds: one round that another program disturbed changes it little."""
        if len(self.rounds) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return third - first

    @property
    def missed(self) -> bool:
        """Whether the median is on the wrong side of the target."""
        return self.target is not None and (self.median < self.target if self.at_least else self.median > self.target)

    @property
    def verdict(self) -> str:
        """MET or MISSED, and whether that can be believed; empty without a target."""
        if self.target is None:
            return ""
        said = "MISSED" if self.missed else "MET"
        few = len(self.rounds) < ROUNDS_LEAST
        noisy = self.spread > abs(self.median - self.target)
        return f"{said}, {'few rounds' if few else 'noisy'}" if few or noisy else said

    @property
    def aim(self) -> str:
        """The target in words."""
        return "" if self.target is None else f"{'at least ' if self.at_least else ''}{self.target:g} {self.unit}"


class Report:
    """The figures of one run of the benchmark `name`; `about` says in one line what was measured."""

    def __init__(self, name: str, about: str) -> None:
        self.name = name
        self.about = about
        self.figures: list[Figure] = []
        self._began = time.time()
        self._load = os.getloadavg()[0]

    def add(self, name: str, rounds: Sequence[float], unit: str, target: float | None = None, *, at_least: bool = False) -> None:
        """Take one figure in."""
        self.figures.append(Figure(name, tuple(rounds), unit, target, at_least))

    def end(self) -> int:
        """Print the table and write the JSON; the exit status: 1 where a target is missed."""
        print(f"\n{self.about}")
        width = max(len(figure.name) for figure in self.figures)
        for figure in self.figures:
            value = f"{figure.median:10.3f} {figure.unit:4} spread {figure.spread:8.3f}"
            print(f"  {figure.name:{width}} {value}  {figure.aim:16} {figure.verdict}".rstrip())
        FOLDER.mkdir(parents=True, exist_ok=True)
        file = FOLDER / f"{self.name}.json"
        file.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        print(f"  written to {file}")
        return int(any(figure.missed for figure in self.figures))

    def as_json(self) -> dict[str, object]:
        """All that is known of the run."""
        return {
            "benchmark": self.name,
            "about": self.about,
            "figures": [
                asdict(figure) | {"median": figure.median, "spread": figure.spread, "verdict": figure.verdict}
                for figure in self.figures
            ],
            "began": datetime.fromtimestamp(self._began, UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._began, 1),
            "load": {"before": round(self._load, 2), "after": round(os.getloadavg()[0], 2)},
            "machine": machine(),
        }


def machine() -> dict[str, object]:
    """What the figures depend on."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    models = [
        line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    ]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "commit": commit.stdout.strip() or "unknown",
    }

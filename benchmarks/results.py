"""Writes the tables of benchmarks/RESULTS.md anew from what the benchmarks wrote: `make results`.

A table stands between `<!-- figures: NAME -->` and `<!-- end -->`; what is around it is a person's. A table whose benchmark has not run
stays as it is; one that has no place yet is added at the end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.figures import FOLDER

RESULTS = Path(__file__).with_name("RESULTS.md")


def table(run: dict[str, Any]) -> str:
    """One run as Markdown. Any: it is JSON."""
    of, load = run["machine"], run["load"]
    where = f"{of['cores']} cores of {of['processor']}, kernel {of['kernel']}, Python {of['python']}, grpcio {of['grpcio']}"
    when = f"{run['began'][:10]}, commit {of['commit']}, {where}, load {load['before']} before and {load['after']} after."
    lines = [run["about"], "", when, "", "| figure | median | spread | target | |", "|---|---|---|---|---|"]
    for figure in run["figures"]:
        least, unit = "at least " if figure["at_least"] else "", figure["unit"]
        aim = "" if figure["target"] is None else f"{least}{figure['target']:g} {unit}"
        value = f"{figure['median']:.3f} {unit} | {figure['spread']:.3f}"
        lines.append(f"| {figure['name']} | {value} | {aim} | {figure['verdict']} |")
    return "\n".join(lines)


def written(page: str, runs: dict[str, str]) -> str:
    """`page` with the tables of `runs` in their places."""
    for name, made in runs.items():
        begin, end = f"<!-- figures: {name} -->\n", "\n<!-- end -->"
        before, found, after = page.partition(begin)
        if not found:
            before, after = f"{page.rstrip()}\n\n## {name}\n\n", f"{end}\n"
        page = f"{before}{begin}{made}{end}{after.partition(end)[2]}"
    return page


def main() -> None:
    """Every run that is there."""
    runs = {file.stem: table(json.loads(file.read_text())) for file in sorted(FOLDER.glob("*.json"))}
    if not runs:
        raise SystemExit(f"{FOLDER}: no run is there; make bench")
    RESULTS.write_text(written(RESULTS.read_text(), runs))
    print(f"{RESULTS}: {', '.join(runs)}")


if __name__ == "__main__":
    main()

"""`make attack SECONDS=n`: the proxy and the agent attacked in each known way, with honest callers beside it.

    python -m soak.attack [--seconds N] [--rows WORDS] [-o FILE]

Each row is one attacker, a process of its own that ends by itself; all rows meet the same services, so that what one leaves behind shows in
the next. Prints the table of benchmarks/RESULTS.md. Exit status 1 when an honest call failed, memory passed its bound or stayed; in a run
of LONG_SECONDS and more also when a wait or a share of a core passed its own. A service that takes HALT_BYTES more ends the row: a machine
with other work must outlive it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from soak import report
from soak.attack_rows import ATTACK_MEMORY_BYTES, CALM, MEBIBYTE, PAGE, WAIT_SECONDS, Row, rows
from soak.attacked import Attacked
from soak.honest import SCRAPER, Honest
from soak.processes import read_holding, used_seconds
from soak.service import ServiceError

LOOK_SECONDS = 0.05
# In one row: eight times the widest bound of an attacker without guests.
HALT_BYTES = 512 * MEBIBYTE
# From here on a run is no CI's, and time is judged too.
LONG_SECONDS = 300.0
# Of a long run: allocators give back what they held. A short one waits a tenth.
REST_SECONDS = 60.0
SHORT_REST_SECONDS = 6.0
# Channels connect, caches fill, the first pages are made.
WARM_UP_SECONDS = 5.0
LEAST_ROW_SECONDS = 1.0
# For an attacked service to answer again, so that the next row's failures are its own.
SETTLE_SECONDS = 10.0
# An attacker starts a Python of its own; it stops by itself, and is killed when it does not.
ATTACKER_START_SECONDS = 15.0
# Memory may stay this much over what it was before the first row. The servers give free pages back once a minute, longer than a short run
# rests: there what one attack may take may still be held.
BACK_SHARE = 0.10


@dataclass(slots=True)
class Found:
    """What one row found."""

    row: str
    about: str
    before_bytes: int = 0
    peak_bytes: int = 0
    after_bytes: int = 0
    cpu_share: float = 0.0
    halted: bool = False
    load: float = 0.0
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Honest calls that failed."""
        return sum(count for kinds in self.failures.values() for count in kinds.values())

    @property
    def calls(self) -> int:
        """Honest calls."""
        return sum(int(each["count"]) for each in self.seconds.values())

    def longest(self) -> dict[str, float]:
        """The worst p50, p99 and longest wait of those who call; scrapes are left out."""
        kept = [each for who, each in self.seconds.items() if who != SCRAPER and each["count"]]
        return {name: max((each[name] for each in kept), default=0.0) for name in ("median", "p99", "greatest")}


class Run:
    """The rows of one run against `attacked`, each of so many seconds."""

    def __init__(self, attacked: Attacked, honest: Honest, row_seconds: float) -> None:
        self._attacked = attacked
        self._honest = honest
        self._seconds = row_seconds

    def resident(self, about: str) -> int:
        """What a service holds; raises ServiceError when it is gone."""
        holding = read_holding(self._attacked.services[about].pid)
        if holding is None or not self._attacked.services[about].running:
            raise ServiceError(f"{about} is gone\n{self._attacked.services[about].said()}")
        return holding.resident_bytes

    async def row(self, row: Row) -> Found:
        """Attack once."""
        found = Found(row.name, row.about, before_bytes=self.resident(row.about), load=os.getloadavg()[0])
        pid = self._attacked.services[row.about].pid
        used, began = used_seconds(pid) or 0.0, time.monotonic()
        self._honest.begin(row.about)
        attacker = None if row.name == CALM else await self._attacker(row)
        ends = began + self._seconds + (0 if attacker is None else ATTACKER_START_SECONDS)
        while time.monotonic() < ends and (attacker is None or attacker.returncode is None):
            resident = self.resident(row.about)
            found.peak_bytes = max(found.peak_bytes, resident)
            if resident - found.before_bytes > HALT_BYTES:
                found.halted = True
                break
            await asyncio.sleep(LOOK_SECONDS)
        if attacker is not None:
            if attacker.returncode is None:
                attacker.send_signal(signal.SIGKILL)
            status = await attacker.wait()
            if status != 0 and not found.halted:
                raise ServiceError(f"the attacker of {row.name!r} ended with status {status}")
        seconds, failures = await self._honest.end()
        found.cpu_share = ((used_seconds(pid) or 0.0) - used) / (time.monotonic() - began)
        found.seconds, found.failures = seconds, {who: dict(kinds) for who, kinds in failures.items()}
        await self._honest.settle(row.about, SETTLE_SECONDS)
        found.after_bytes = self.resident(row.about)
        found.peak_bytes = max(found.peak_bytes, found.after_bytes)
        return found

    async def _attacker(self, row: Row) -> asyncio.subprocess.Process:
        attacked = self._attacked
        if row.path:
            host, port = attacked.page
            address = f"{host}:{port}" if row.path == PAGE else attacked.tcp(row.about)
            path = "/metrics" if row.path == PAGE else row.path
            words = ["soak.attackers", row.attack, f"{self._seconds}", address, path]
            words += [attacked.tokens["red"]] if row.token else []
        else:
            folder = str(attacked.folder)
            words = [
                "soak.attacking_guests",
                row.attack,
                f"{self._seconds}",
                folder,
                attacked.tcp("proxy"),
                attacked.tokens["red"],
            ]
        # Should this process be killed, the attacker still ends by itself: it counts its own seconds.
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", *words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )


def judge(found: list[Found], chosen: list[Row], back: dict[str, tuple[int, int]], *, times: bool) -> list[str]:
    """What passed its bound; with `times`, of a long run, waits and shares of a core too, and memory at the end more strictly."""
    reasons = []
    calm = {each.about: each.cpu_share for each in found if each.row == CALM}
    for each, row in zip(found, chosen, strict=True):
        about = f"{each.about}, {each.row}"
        grown = each.peak_bytes - each.before_bytes
        if each.failed:
            reasons.append(f"{about}: {each.failed} of {each.calls} honest calls failed: {each.failures}")
        if grown > row.memory_bytes:
            reasons.append(f"{about}: {grown / MEBIBYTE:.0f} MiB more, over {row.memory_bytes / MEBIBYTE:.0f}")
        if times and each.longest()["greatest"] > WAIT_SECONDS:
            reasons.append(f"{about}: an honest call took {each.longest()['greatest']:.3f} s, over {WAIT_SECONDS}")
        if times and row.cpu_share is not None and each.cpu_share - calm.get(each.about, 0) > row.cpu_share:
            reasons.append(f"{about}: {each.cpu_share - calm.get(each.about, 0):.2f} of a core more, over {row.cpu_share}")
    for name, (start, end) in back.items():
        if end > (start * (1 + BACK_SHARE) if times else start + ATTACK_MEMORY_BYTES):
            reasons.append(f"{name}: {end / MEBIBYTE:.0f} MiB at the end, {start / MEBIBYTE:.0f} MiB at the start")
    return reasons


def show(found: list[Found], back: dict[str, tuple[int, int]]) -> None:
    """Print the table."""
    print("\n| attacked | by | RSS MiB, before → peak → after | CPU, cores | honest p50, p99, longest ms | failed | load |")
    print("|---|---|---|---|---|---|---|")
    for each in found:
        rss = " → ".join(f"{value / MEBIBYTE:.0f}" for value in (each.before_bytes, each.peak_bytes, each.after_bytes))
        waits = ", ".join(f"{value * 1000:.0f}" for value in each.longest().values())
        ended = " (halted)" if each.halted else ""
        print(
            f"| {each.about} | {each.row} | {rss}{ended} | {each.cpu_share:.2f} | {waits} | "
            f"{each.failed} of {each.calls} | {each.load:.1f} |"
        )
    for name, (start, end) in back.items():
        print(
            f"\n{name}: {start / MEBIBYTE:.0f} MiB before the first row, {end / MEBIBYTE:.0f} MiB after the last one and a rest"
        )


async def run(folder: Path, seconds: float, chosen: list[Row]) -> dict[str, Any]:  # Any: JSON
    """All rows; raises ServiceError."""
    long = seconds >= LONG_SECONDS
    rest = REST_SECONDS if long else SHORT_REST_SECONDS
    row_seconds = max((seconds - rest - 2 * WARM_UP_SECONDS) / len(chosen), LEAST_ROW_SECONDS)
    attacked = Attacked(folder)
    try:
        await attacked.start()
        honest = Honest(attacked)
        try:
            this = Run(attacked, honest, row_seconds)
            for about in attacked.services:
                honest.begin(about)
                await asyncio.sleep(WARM_UP_SECONDS)
                await honest.end()
            start = {about: this.resident(about) for about in attacked.services}
            found = [await this.row(row) for row in chosen]
            await asyncio.sleep(rest)
            back = {about: (size, this.resident(about)) for about, size in start.items()}
        finally:
            await honest.close()
    finally:
        await attacked.discard()
    show(found, back)
    return {
        "rows": [asdict(each) for each in found],
        "memory at the start and after the rest": back,
        "seconds of a row": row_seconds,
        "reasons": judge(found, chosen, back, times=long),
    }


def main() -> int:
    """Read the command line, run, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=480.0, help="how long all of it takes (default 480)")
    parser.add_argument("--rows", default="", help="only rows with these words in their name, and the calm ones")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write all that was found as JSON")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    wanted = [row for row in rows() if row.name == CALM or chosen.rows in f"{row.about} {row.name}"]
    print(f"{len(wanted)} rows, load of the machine {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="attack") as folder:
        try:
            facts = asyncio.run(run(Path(folder), chosen.seconds, wanted))
        except ServiceError as error:
            print(f"FAILED {error}", file=sys.stderr)
            return 1
    facts["machine"] = report.machine()
    if chosen.output:
        chosen.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return report.conclude(facts["reasons"])


if __name__ == "__main__":
    sys.exit(main())

"""Check 9: the dashboard against nvidia-smi, card by card.

Two programs cannot ask at the same moment. A total is the same at any time; what moves is compared with the widest difference between
two looks a second apart that an otherwise idle card explains: two degrees, 15 W and a tenth, 64 MiB, 20 points of utilization. A
machine whose cards work hard may fail it; it says by how much.
"""

from __future__ import annotations

import csv
import subprocess
from dataclasses import dataclass

from gpu_check.checks import SAMPLE_SECONDS, Checks
from gpu_check.machine import COMMAND_SECONDS, Machine
from gpu_check.page import ShownCard, shown_cards
from gpu_check.verdict import CheckSkippedError, Seen, need
from guest_client import GuestClient

FIELDS = ("uuid", "utilization.gpu", "temperature.gpu", "power.draw", "memory.used", "memory.total")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a value may move between two looks: a fixed part, and a share of the value."""

    fixed: float
    share: float = 0.0

    def covers(self, one: float, other: float) -> bool:
        """Whether the two may be the same."""
        return abs(one - other) <= self.fixed + self.share * max(abs(one), abs(other))


# The dashboard shows sizes with two decimals: 0.01 GB is 10 MiB.
TOLERANCES = {
    "utilization_percent": Tolerance(20),
    "temperature_c": Tolerance(2),
    "power_w": Tolerance(15, 0.1),
    "memory_used_mib": Tolerance(64, 0.01),
    "memory_total_mib": Tolerance(16, 0.0001),
}


def compare(machine: Machine, checks: Checks) -> Seen:
    """Every card that nvidia-smi lists is on the dashboard with the same values."""
    if machine.nvidia_smi is None:
        raise CheckSkippedError("nvidia-smi is not on PATH")
    with checks.agent() as guest:
        with GuestClient(guest.grpc) as client:
            client.gpu_info(max_age_seconds=0, timeout_seconds=SAMPLE_SECONDS)
        listed = _listed(machine.nvidia_smi)
        shown = {card.uuid: card for card in shown_cards(guest.page("/")).values()}
    need(set(shown) == set(listed), f"the dashboard shows {sorted(shown)}, nvidia-smi {sorted(listed)}")
    complaints = [f"{uuid}: {words}" for uuid in listed for words in _differences(shown[uuid], listed[uuid])]
    need(not complaints, "; ".join(complaints))
    return Seen(
        f"{len(listed)} cards with the same values", {"nvidia_smi": {uuid: _plain(card) for uuid, card in listed.items()}}
    )


def _listed(program: str) -> dict[str, ShownCard]:
    command = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    need(done.returncode == 0, f"nvidia-smi exited with {done.returncode}: {done.stdout[-100:]}{done.stderr[-100:]}")
    rows = [[cell.strip() for cell in row] for row in csv.reader(done.stdout.splitlines()) if row]
    need(all(len(row) == len(FIELDS) for row in rows), f"nvidia-smi printed {done.stdout[:200]!r}")
    return {row[0]: ShownCard(row[0], *(_number(cell) for cell in row[1:])) for row in rows}


def _number(cell: str) -> float | None:
    """A value; nvidia-smi writes [N/A] and the like where there is none."""
    try:
        return float(cell)
    except ValueError:
        return None


def _differences(shown: ShownCard, listed: ShownCard) -> list[str]:
    found = []
    for name, tolerance in TOLERANCES.items():
        one, other = getattr(shown, name), getattr(listed, name)
        if (one is None) != (other is None) or (one is not None and not tolerance.covers(one, other)):
            found.append(f"{name} {one} on the dashboard, {other} in nvidia-smi")
    return found


def _plain(card: ShownCard) -> dict[str, float | None]:
    return {name: getattr(card, name) for name in TOLERANCES}

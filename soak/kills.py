"""`make kills`: agents, collectors and the proxy are killed with -9 at random moments under load, and everything must be whole and back.

    python -m soak.kills [--kills N] [--guests N] [--seed N] [-o FILE]

After each death the service is started again as a service manager would, at the same place, with nothing cleaned up. Then: every change of
the directory that was answered is in its file and in the proxy, every line of the audit log is one, no answered change lacks its lines, no
collector is left without its agent, and the other guests' calls did not notice. Prints how long everything took, and exits with 1 and the
reasons when something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from guest_client import ClientError
from soak import report
from soak.ages import spread
from soak.fleet import Fleet
from soak.killing import BACK_AIM_SECONDS, Kills
from soak.service import ServiceError


async def run(folder: Path, kills: int, guests: int, seed: int) -> Kills:
    """One run in `folder`; raises ServiceError."""
    fleet = Fleet(folder)
    run_of_kills = Kills(fleet, guests, seed)
    try:
        await run_of_kills.run(kills)
    finally:
        await fleet.discard()
        await run_of_kills.vmm.discard()
    return run_of_kills


def facts_of(done: Kills, seed: int) -> dict[str, object]:
    """What was found, for JSON."""
    within = [back <= BACK_AIM_SECONDS for victim in ("proxy", "agent") for back in done.backs[victim]]
    return {
        "machine": report.machine(),
        "seed": seed,
        "kills": {victim: len(backs) for victim, backs in done.backs.items()},
        "seconds": {
            **{f"{victim}: from the kill to READY": spread(starts) for victim, starts in done.starts.items()},
            **{
                f"{victim}: from {'the kill' if victim == 'collector' else 'READY'} to a good call": spread(backs)
                for victim, backs in done.backs.items()
            },
        },
        "restarts back within 2 s of READY": [sum(within), len(within)],
        "changes of the directory answered": len(done.ledger.promises),
        "calls": dict(done.book.calls),
        "explained": [[*key, count] for key, count in sorted(done.book.explained().items())],
        "faults": done.faults,
    }


def main() -> int:
    """Read the command line, run, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--guests", type=int, default=3, help="guest agents (default 3)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="who dies, and when (printed)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write all that was found as JSON")
    chosen = parser.parse_args()
    if chosen.kills < 1 or chosen.guests < 1:
        parser.error("one kill and one guest at the least")
    print(f"{chosen.kills} kills, seed {chosen.seed}, load of the machine {os.getloadavg()[0]:.1f}", flush=True)
    logging.basicConfig(level=logging.WARNING)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills") as folder:
        try:
            done = asyncio.run(run(Path(folder), chosen.kills, chosen.guests, chosen.seed))
        except (ServiceError, ClientError, TimeoutError) as error:
            print(f"FAILED {error}", file=sys.stderr)
            return 1
    facts = facts_of(done, chosen.seed)
    report.show_kills(facts)
    if chosen.output:
        chosen.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"took {time.monotonic() - began:.0f} s")
    return report.conclude(done.faults)


if __name__ == "__main__":
    sys.exit(main())

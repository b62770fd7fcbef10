"""How old the samples are that a steady scraper is served, refreshing ahead and lazily, and how many samples that takes.

    python -m benchmarks.refresh_ahead [--beat SECONDS] [--beats N] [--rack NAME|FILE]

Time is compressed ten to one by default: a beat of 1.5 s and a TTL of 0.5 s stand for 15 s and 5 s, with the real collector in real
processes on a simulated rack. Both ways run at once, each with telemetry of its own. The first requests, from which the beat is learned,
are not counted. Targets, refreshing ahead: age at the 95th percentile at most 7 % of the beat, at most 1.05 samples per beat. Exit
status 1 when one is missed. Rejected: a fake sampler (what is late on a busy machine is the process).
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from dataclasses import dataclass
from statistics import median

from benchmarks.figures import ROUNDS_LEAST, Report
from guest_service.simulator import load_rack
from guest_service.telemetry import build_telemetry

AGE_LIMIT_SHARE = 0.07
SAMPLES_LIMIT = 1.05
# Two gaps make a beat; the request after that is the first to be met.
LEARNING = 4
# TTL and beat as 5 s and 15 s.
TTL_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class Served:
    """What one scraper saw: ages as shares of the beat, and samples per beat."""

    ages: list[float]
    samples_per_beat: float

    @property
    def age_95(self) -> float:
        """The age that 95 % of the answers did not exceed."""
        return sorted(self.ages)[math.ceil(0.95 * len(self.ages)) - 1]


async def scrape(refresh: str, rack: str, beat: float, beats: int, offset: float) -> Served:
    """Scrape at the beat, by absolute times, as a scraper does."""
    telemetry = build_telemetry(
        simulate=load_rack(rack),
        sample_ttl_seconds=beat * TTL_SHARE,
        refresh="ahead" if refresh == "ahead" else "lazy",
    )
    await telemetry.start()
    loop = asyncio.get_running_loop()
    began = loop.time() + offset
    ages, counted_from = [], 0
    for number in range(1, LEARNING + beats + 1):
        await asyncio.sleep(began + number * beat - loop.time())
        reply = telemetry.last("scraper")
        if number == LEARNING:
            counted_from = sum(telemetry.stats.samples.values())
        elif number > LEARNING:
            if reply.error:
                raise SystemExit(f"no sample: {reply.error}")
            ages.append(reply.sample_age_ms / 1000 / beat)
    samples = sum(telemetry.stats.samples.values()) - counted_from
    await telemetry.close()
    return Served(ages, samples / beats)


async def compare(rack: str, beat: float, beats: int) -> int:
    """Rounds of both at once; 1 when a target is missed."""
    # Half a beat apart, so that the two do not slow each other down.
    both = (("ahead", 0.0), ("lazy", beat / 2))
    rounds = [
        await asyncio.gather(*(scrape(name, rack, beat, beats, offset) for name, offset in both)) for _ in range(ROUNDS_LEAST)
    ]
    to = Report(
        "ahead", f"How old the samples are that a scraper with a beat of {beat:g} s is served, in rounds of {beats} beats."
    )
    for at, name in enumerate(("ahead", "lazy")):
        served = [each[at] for each in rounds]
        limits = (100 * AGE_LIMIT_SHARE, SAMPLES_LIMIT) if name == "ahead" else (None, None)
        to.add(f"{name}: age, median", [100 * median(each.ages) for each in served], "%")
        to.add(f"{name}: age, 95th percentile", [100 * each.age_95 for each in served], "%", limits[0])
        to.add(f"{name}: samples per beat", [each.samples_per_beat for each in served], "", limits[1])
    return to.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--beat", type=float, default=1.5, help="seconds between two scrapes")
    parser.add_argument("--beats", type=int, default=12, help="in each round")
    parser.add_argument("--rack", default="h200")
    chosen = parser.parse_args()
    return asyncio.run(compare(chosen.rack, chosen.beat, chosen.beats))


if __name__ == "__main__":
    sys.exit(main())

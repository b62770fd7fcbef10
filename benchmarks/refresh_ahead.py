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
    """Print both; 1 when a target is missed."""
    # Half a beat apart, so that the two do not slow each other down.
    ahead, lazy = await asyncio.gather(scrape("ahead", rack, beat, beats, 0.0), scrape("lazy", rack, beat, beats, beat / 2))
    print(f"{beats} beats of {beat:g} s   median age   95th percentile   samples per beat")
    for name, served in (("ahead", ahead), ("lazy", lazy)):
        print(f"{name:20} {median(served.ages):10.1%} {served.age_95:17.1%} {served.samples_per_beat:18.2f}")
    print(f"target (ahead)                  {AGE_LIMIT_SHARE:17.1%} {SAMPLES_LIMIT:18.2f}")
    return 0 if ahead.age_95 <= AGE_LIMIT_SHARE and ahead.samples_per_beat <= SAMPLES_LIMIT else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--beat", type=float, default=1.5, help="seconds between two scrapes")
    parser.add_argument("--beats", type=int, default=20)
    parser.add_argument("--rack", default="h200")
    chosen = parser.parse_args()
    return asyncio.run(compare(chosen.rack, chosen.beat, chosen.beats))


if __name__ == "__main__":
    sys.exit(main())

"""`make soak MINUTES=n`: a fleet under load in which guests hang, go, come back and die; at the end nothing has grown or got lost.

    python -m soak [--minutes N] [--guests N] [--seed N] [-o FILE]

Start, warm-up, quiet moments and end are part of the minutes. Prints a table; exit status 1, with the reasons, when a bound of
soak.verdict was passed.
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
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

from guest_client import AsyncProxyClient
from soak import hostile, report
from soak.ages import Ages
from soak.callers import Callers
from soak.disturbing import Disturber, Registrar
from soak.fleet import Fleet
from soak.judging import GPUS_UNKNOWN, NOT_IN_TIME, Book, Kind
from soak.processes import Holding
from soak.service import Service, ServiceError
from soak.verdict import Verdict, judge_ages, judge_calls, judge_disturbances, judge_logs, judge_parts
from soak.watching import Watch

# Allocators and caches have their size, each kind of disturbance has happened, the proxy has looked for garbage once. Of a short run a
# quarter, of a long one this.
WARM_UP_SECONDS = 600.0
WARM_UP_SHARE = 0.25
# The last quiet moment, the end of all services and the table.
END_SECONDS = 9.0
# What is left for measuring must hold some disturbances of each kind.
LEAST_MINUTES = 0.9
# Up to this a run is one of CI, and starting more guests would take its time.
SHORT_MINUTES = 2
# Thirty agents take 2 GB; a guest's name ends with one digit.
MOST_GUESTS = 9

# Seconds between two calls of a kind. Some 33 calls a second, of which 15 reach guests as calls of their own: a fifth of one core here, so
# that the load is there on a machine that does other things too.
RATES = {
    "gpu_info": 0.1,
    "info": 0.5,
    "sys_info": 0.5,
    "network_info": 1.0,
    "list_containers": 1.0,
    "list_guests": 1.0,
    "scrape": 1.0,
    "scrape of a guest": 1.0,
}
COLLECT_SECONDS = 2.0
HOSTILE_SECONDS = 0.5
# A hostile guest's silence should end soon, and with it the quiet moment's wait.
HOSTILE_CALL_SECONDS = 2.0
WATCHES = 2
VIEWERS = 2

# What is always told about guests that are none; a fleet's page may besides find a place taken by another's call.
SLOTS_TAKEN = "RESOURCE_EXHAUSTED"
ALWAYS = {
    "silent": frozenset({"DEADLINE_EXCEEDED", NOT_IN_TIME, SLOTS_TAKEN}),
    "hole": frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", NOT_IN_TIME, SLOTS_TAKEN}),
    # All of them are one process, which owes nobody an answer in time.
    "broken": frozenset({"INTERNAL", "DEADLINE_EXCEEDED"}),
    # What it sends over the limit answers nothing, so its connection is closed now and then (docs/decisions/guest-floods.md).
    "oversized": frozenset({"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNAVAILABLE"}),
    "rude": frozenset({"ABORTED", "DEADLINE_EXCEEDED"}),
    "sick": frozenset({GPUS_UNKNOWN}),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to be."""

    minutes: float
    guests: int
    seed: int


class Soak:
    """One run in `folder`; `began` is the loop's time at which its minutes began."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        numbers = range(plan.guests)
        self.fleet = Fleet(folder)
        self.steady = [f"steady{number}" for number in range(plan.guests + 1)]
        self.ways = {f"{kind.name.lower()}{n}": kind for n in numbers for kind in (Kind.HANGS, Kind.GONE, Kind.KILLED)}
        for name in (*self.steady, *self.ways):
            self.fleet.add_guest(name)
        self.fleet.add_guest("sick", sick=True)
        self.book = Book(always=ALWAYS)
        self.ages = Ages(self.steady, self.book)
        self.hostile = [*hostile.ANSWERS, hostile.BLACK_HOLE]
        # Every second guest of a kind.
        self.fleet.hybrid = {name for name in (*self.steady, *self.ways) if int(name[-1]) % 2}
        self.others = [
            Service("hostile", ["soak.hostile", str(folder)], folder),
            Service("vmm", ["soak.vmm", str(folder), *sorted(self.fleet.hybrid)], folder),
        ]

    @property
    def known(self) -> list[str]:
        """Guests that the proxy's configuration names; the others are registered."""
        return [*self.steady, *(name for name, kind in self.ways.items() if kind is not Kind.GONE), "sick", *self.hostile]

    async def start(self, registrar: Registrar) -> None:
        """Start everything; raises ServiceError."""
        self.fleet.configure_proxy((name, self.fleet.dialled_address(name)) for name in self.known)
        await asyncio.gather(*(service.start() for service in [*self.others, *self.fleet.services]))
        for name, kind in self.ways.items():
            if kind is Kind.GONE:
                await registrar.register(name)

    def load(self, callers: Callers) -> None:
        """Begin all calls and streams."""
        real = [*self.steady, *self.ways]
        for method in ("info", "sys_info", "network_info", "list_containers"):
            callers.each(RATES[method], callers.in_turn(method, real))
        callers.each(RATES["gpu_info"], callers.in_turn("gpu_info", [*real, "sick"]))
        callers.each(HOSTILE_SECONDS, callers.in_turn("gpu_info", self.hostile, HOSTILE_CALL_SECONDS))
        callers.each(RATES["list_guests"], callers.list_guests)
        callers.each(COLLECT_SECONDS, callers.collect(lambda: [*self.known, *self.ways]))
        callers.each(RATES["scrape"], callers.scrape(self.fleet.proxy_page))
        for name in real:
            callers.each(RATES["scrape of a guest"] * len(real), callers.scrape(self.fleet.guest_page(name), name))
        for _ in range(WATCHES):
            callers.stay(callers.watch)
        for _ in range(VIEWERS):
            callers.stay(callers.follow_page)

    async def run(self) -> tuple[Verdict, dict[str, object]]:
        """All of it; raises ServiceError and what a registration ends with."""
        registrar = Registrar(self.fleet)
        client = AsyncProxyClient(self.fleet.proxy_address)
        try:
            await self.start(registrar)
            callers = Callers(client, self.fleet.proxy_page, self.book, self.ages)
            disturber = Disturber(self.fleet, self.book, registrar, self.ways, self._plan.seed)
            watch = Watch(self.fleet.services, self.fleet.proxy, self.book)
            whole = self._plan.minutes * 60
            before = self._loop.time() - self._began
            first, _ = await self._phase(callers, disturber, watch, min(WARM_UP_SECONDS, whole * WARM_UP_SHARE))
            watch.series.clear()
            lasting = self._lasting()
            last, loaded = await self._phase(callers, disturber, watch, self._began + whole - END_SECONDS - self._loop.time())
            lasting = {name: pid for name, pid in lasting.items() if self._lasting().get(name) == pid}
            for service in [*self.fleet.services, *self.others]:
                await service.stop()
        finally:
            await client.close()
            await registrar.close()
            await self.fleet.discard()
            for service in self.others:
                await service.discard()
        verdict = Verdict()
        judge_parts(verdict, watch, (first, last), lasting)
        promised = {what: loaded / seconds for what, seconds in RATES.items()}
        judge_calls(verdict, self.book, promised, callers.not_made, self._loop.time() - self._began)
        happened = judge_disturbances(verdict, self.book, (Kind.HANGS, Kind.GONE, Kind.KILLED))
        spreads = judge_ages(verdict, self.ages)
        judge_logs(verdict, {service.name: service.log_text() for service in self.fleet.services})
        facts: dict[str, object] = {
            "plan": asdict(self._plan),
            "seconds": {"start": before, "under load after the warm-up": loaded, "all": self._loop.time() - self._began},
            "calls": dict(self.book.calls),
            "disturbances": {kind.value: count for kind, count in happened.items()},
            "explained": [[*key, count] for key, count in sorted(self.book.explained().items())],
            "lost": [asdict(failure) for failure in self.book.lost()],
            "ages and gaps, seconds": spreads,
            "parts": {name: asdict(part) for name, part in verdict.parts.items()},
            "resident MiB, by seconds": {name: watch.resident(name, pid) for name, pid in lasting.items()},
            "stalls, seconds": {name: report.spread_of(stalls) for name, stalls in watch.stalls.items()},
            "reasons": verdict.reasons,
        }
        return verdict, facts

    def _lasting(self) -> dict[str, int]:
        return {service.name: service.pid for service in self.fleet.services}

    async def _phase(
        self, callers: Callers, disturber: Disturber, watch: Watch, seconds: float
    ) -> tuple[dict[str, Holding], float]:
        """Load and disturb for so long, then let everything settle: what is held then, and how long the load was there."""
        began = self._loop.time()
        self.load(callers)
        watch.start()
        disturber.start()
        failing = asyncio.create_task(disturber.first_failure())
        await asyncio.wait({failing}, timeout=max(seconds, 0))
        await disturber.stop()
        await failing
        loaded = self._loop.time() - began
        await callers.pause()
        await watch.stop()
        return await watch.quiet(), loaded


def main() -> int:
    """Read the command line, run, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long all of it takes (default 10)")
    parser.add_argument(
        "--guests", type=int, help=f"guests that are disturbed in each way (default 1; over {SHORT_MINUTES} minutes 2)"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="of the disturbances (printed)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write all that was found as JSON")
    chosen = parser.parse_args()
    guests = chosen.guests or (1 if chosen.minutes <= SHORT_MINUTES else 2)
    if chosen.minutes < LEAST_MINUTES or not 1 <= guests <= MOST_GUESTS:
        parser.error(f"a soak takes {LEAST_MINUTES} minutes at the least, and 1 to {MOST_GUESTS} guests of each kind")
    plan = Plan(chosen.minutes, guests, chosen.seed)
    print(f"soak of {plan.minutes:g} min, seed {plan.seed}, load of the machine {os.getloadavg()[0]:.1f}", flush=True)
    began = time.monotonic()

    async def run(folder: Path) -> tuple[Verdict, dict[str, object]]:
        return await Soak(folder, plan).run()

    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="soak") as folder:
        try:
            verdict, facts = asyncio.run(run(Path(folder)))
        except (ServiceError, grpc.aio.AioRpcError, TimeoutError) as error:
            print(f"FAILED {error}", file=sys.stderr)
            return 1
    facts["machine"] = report.machine()
    report.show(facts)
    if chosen.output:
        chosen.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"took {time.monotonic() - began:.0f} s")
    return report.conclude(verdict.reasons)


if __name__ == "__main__":
    sys.exit(main())

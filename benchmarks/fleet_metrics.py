"""The fleet's metrics for 1000 guests with 8 cards: what a page costs, and how long the event loop is held.

    make bench-fleet-metrics

1. A page of which every guest changed, and one of which none did, against prometheus_client's from the same answers: processor time,
   medians of A B A B.
   Goals: at most 1/10 and 1/50; for the usual groups, and for all that there are.
2. Whole scrapes over HTTP, with and without gzip, of a fleet whose guests all changed, while a ticker in the same loop notes how
   long it is kept from its turn. Goal: never computing more than 10 ms on end. The client is a process of its own.
3. A first scrape that really asks 1000 guests, served by a few processes over Unix sockets, with the same ticker.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from benchmarks.figures import Report
from benchmarks.fleet_guests import CARDS, gpus, guest_processes, system
from benchmarks.prometheus_page import FromMessages, guest_samples
from guest_contract.card_fields import HEALTH
from guest_metrics.exposition import Format
from guest_metrics.groups import OF_A_FLEET, OF_A_GUEST
from guest_transport.addresses import TcpAddress, UnixAddress
from guest_transport.http.server import PageServer
from vmm_proxy.app import Parts, build, join_pages
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.garbage import collect_rarely
from vmm_proxy.pages.app import create_http_app
from vmm_proxy.pages.dashboard.render import Pages
from vmm_proxy.pages.parts import PageParts
from vmm_proxy.pages.settings import PageSetup
from vmm_proxy.upstream.reachability import ReachabilityState

TURN_GOAL_SECONDS = 0.010
CHANGED_LEAST, UNCHANGED_LEAST = 10, 50
RSS_LIMIT_MIB = 260


def known_fleet(guests: int) -> PageParts:
    """A proxy's pages over `guests` guests; what they answer is put in by change()."""
    directory = Directory(GuestEntry(f"vm-{number:04d}", UnixAddress(f"/nowhere/{number}")) for number in range(guests))
    return pages_of(build(directory), with_containers=False)


def pages_of(proxy: Parts, *, with_containers: bool) -> PageParts:
    return join_pages(PageSetup(None, {}, with_containers, None), proxy, Pages("bench"), PageServer())


def change(parts: PageParts, turn: int, cards: int = CARDS, *, only_base: bool = False) -> None:
    """Give every guest a new answer, as a look at it would."""
    now = parts.guest_answers.clock()
    for number, guest in enumerate(parts.guest_answers.guests()):
        guest.gpus.answer, guest.gpus.received_at = gpus(number, turn, cards, only_base=only_base), now
        guest.system.answer, guest.system.received_at = system(number, turn), now
        guest.reachability.state = ReachabilityState.SERVING
        guest.look_seconds, guest.asked_at = 0.003, now + 3600


class Ticker:
    """How late a timer of 1 ms comes, and how much of that the loop's own thread was computing: the rest it waited for a processor."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.computing: list[float] = []
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            started, computed = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            self.late.append(time.perf_counter() - started - 0.001)
            self.computing.append(time.thread_time() - computed)

    async def stop(self) -> tuple[float, float]:
        self._task.cancel()
        await asyncio.wait({self._task})
        return max(self.late), max(self.computing)


async def page_of(parts: PageParts, groups: frozenset[str]) -> list[bytes]:
    return await parts.page.of_all(Format.TEXT, parts.own.lines(None), groups)


async def timed(work: Callable[[], Any]) -> float:
    """Processor time of this process, which a busy neighbour changes least."""
    gc.collect()
    started = time.process_time()
    done = work()
    if asyncio.iscoroutine(done):
        await done
    return time.process_time() - started


def peak_mib() -> float:
    """The most resident memory that this process has had, prometheus_client's part included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def against_prometheus_client(to: Report, guests: int, rounds: int, groups: frozenset[str], title: str) -> None:
    parts = known_fleet(guests)
    change(parts, 0)
    registry = CollectorRegistry()
    registry.register(FromMessages(parts, groups))
    ours, theirs = guest_samples(b"".join(await page_of(parts, groups))), guest_samples(generate_latest(registry))
    assert ours == theirs, "the two pages do not hold the same samples"
    library: list[float] = []
    changed: list[float] = []
    unchanged: list[float] = []
    for turn in range(1, rounds + 1):
        change(parts, turn)
        library.append(await timed(lambda: generate_latest(registry)))
        changed.append(await timed(lambda: page_of(parts, groups)))
        unchanged.append(await timed(lambda: page_of(parts, groups)))
    size = sum(map(len, await page_of(parts, groups)))
    await parts.close()
    to.add(f"{title}: samples", [float(len(ours))], "")
    to.add(f"{title}: size of the page", [size / 1e6], "MB")
    to.add(f"{title}: prometheus_client, CPU", [1000 * each for each in library], "ms")
    for what, ours_cpu, least in (("changed", changed, CHANGED_LEAST), ("unchanged", unchanged, UNCHANGED_LEAST)):
        to.add(f"{title}: {what}, CPU", [1000 * each for each in ours_cpu], "ms")
        times = [theirs_cpu / cpu for theirs_cpu, cpu in zip(library, ours_cpu, strict=True)]
        to.add(f"{title}: {what}, prometheus_client / ours", times, "x", least, at_least=True)


CLIENT = """
import http.client, sys, time
host, port, gzip = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "gzip"
connection = http.client.HTTPConnection(host, port, timeout=60)
started = time.perf_counter()
connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip" if gzip else "identity"})
answer = connection.getresponse()
body = answer.read()
print(answer.status, len(body), time.perf_counter() - started)
"""


async def scrape(address: TcpAddress, coding: str) -> tuple[int, float, tuple[float, float]]:
    """Bytes of the page, seconds, and how the loop was held from when the client runs: starting it is not the proxy's work."""
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, address.host, str(address.port), coding, stdout=asyncio.subprocess.PIPE
    )
    ticker = Ticker()
    out, _ = await client.communicate()
    held = await ticker.stop()
    status, size, seconds = out.split()
    assert status == b"200", out
    return int(size), float(seconds), held


async def scraped(to: Report, parts: PageParts, rounds: int, before_each: Callable[[int], None], title: str) -> None:
    server = PageServer()
    await server.start(create_http_app(parts), TcpAddress("127.0.0.1", 0))
    [address] = server.addresses
    assert isinstance(address, TcpAddress)
    collect_rarely()
    for coding in ("identity", "gzip"):
        held, times = [], []
        for turn in range(rounds):
            before_each(turn)
            size, seconds, kept = await scrape(address, coding)
            held.append(kept)
            times.append(seconds)
        late, computing = zip(*held, strict=True)
        to.add(f"{title}, {coding}: whole scrape", [1000 * each for each in times], "ms")
        to.add(f"{title}, {coding}: page", [size / 1e6], "MB")
        # The longest of each scrape: what a call beside it may wait.
        to.add(f"{title}, {coding}: loop computing on end", [1000 * each for each in computing], "ms", 1000 * TURN_GOAL_SECONDS)
        to.add(f"{title}, {coding}: a timer late by", [1000 * each for each in late], "ms")
    await server.stop()


async def asked_for_real(to: Report, guests: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        async with guest_processes(guests, folder):
            await scraped_for_real(to, guests, rounds, folder)


async def scraped_for_real(to: Report, guests: int, rounds: int, folder: str) -> None:
    directory = Directory(
        GuestEntry(f"vm-{number:04d}", UnixAddress(str(Path(folder) / str(number)))) for number in range(guests)
    )
    proxy = build(directory)
    parts = pages_of(proxy, with_containers=True)

    def due(_turn: int) -> None:
        for guest in parts.guest_answers.guests():
            guest.asked_at = float("-inf")

    try:
        await scraped(to, parts, rounds, due, "scrape that asks")
        to.add("memory of the proxy, at most", [peak_mib()], "MiB", RSS_LIMIT_MIB)
    finally:
        await parts.close()
        await proxy.close()


async def main() -> int:
    parser = argparse.ArgumentParser(description="What the fleet's metrics cost.")
    parser.add_argument("--guests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    about = (
        f"The fleet's metrics for {options.guests} guests with {CARDS} cards, beside prometheus_client's from the same answers."
    )
    to = Report("fleet-metrics", about)
    # First, in a process that has done nothing else: its memory is the proxy's.
    await asked_for_real(to, options.guests, options.rounds)
    for title, chosen in (("group=health", frozenset({HEALTH})), ("usual groups", OF_A_FLEET), ("all groups", OF_A_GUEST)):
        await against_prometheus_client(to, options.guests, options.rounds, chosen, title)
    parts = known_fleet(options.guests)
    await scraped(to, parts, options.rounds, lambda turn: change(parts, turn), "scrape, all changed")
    await parts.close()
    return to.end()


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))

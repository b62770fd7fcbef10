"""The honest, who call while somebody attacks: a tenant's caller, a scraper, an administrator, and a health check.

Each calls at its own rate by the clock, as soak.callers does, and each call that is not answered well is a failure: nothing is excused. The
channels stay open from row to row, as theirs do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from guest_client import AsyncProxyClient, CallError
from soak import pages
from soak.ages import spread
from soak.attacked import Attacked

# What a caller and a scraper wait for; a call that takes longer is a failure.
CALL_SECONDS, SCRAPE_SECONDS = 5.0, 10.0
# Some 20 calls a second: enough for a 99th percentile of a row, and a small part of a core. A page of 2.6 MB once a second is a scraper
# in a hurry.
CALLER, SCRAPER, ADMINISTRATOR, HEALTH = "caller", "scraper", "administrator", "health"
EVERY_SECONDS = {CALLER: 0.1, SCRAPER: 1.0, ADMINISTRATOR: 0.5, HEALTH: 0.25, "/healthz": 0.5}

Call = Callable[[], Awaitable[object]]


class Honest:
    """Calls the services in `attacked`; use as a context. What it found since the last take() is in take()."""

    def __init__(self, attacked: Attacked) -> None:
        self._attacked = attacked
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._failures: dict[str, Counter[str]] = defaultdict(Counter)
        self._running: list[asyncio.Task[None]] = []
        self._in_flight: set[asyncio.Task[None]] = set()
        self._caller = AsyncProxyClient(attacked.tcp("proxy"), token=attacked.tokens["blue"])
        self._admin = AsyncProxyClient(attacked.unix("proxy"))
        self._health = {name: grpc.aio.insecure_channel(attacked.unix(name)) for name in attacked.services}

    async def close(self) -> None:
        """Close the channels."""
        await self._caller.close()
        await self._admin.close()
        for channel in self._health.values():
            await channel.close()

    def begin(self, about: str) -> None:
        """Call from now on; health and pages are those of the service `about`. What goes through the proxy ends at the agent anyway."""
        page = self._attacked.page if about == "proxy" else self._attacked.agent_page
        calls: dict[str, Call] = {
            CALLER: lambda: self._caller.gpu_info("healthy", timeout_seconds=CALL_SECONDS),
            SCRAPER: lambda: pages.get(page, "/metrics", SCRAPE_SECONDS),
            ADMINISTRATOR: self._list_guests,
            HEALTH: lambda: self._check(about),
        }
        if about == "proxy":
            calls["/healthz"] = lambda: pages.get(page, "/healthz", CALL_SECONDS)
        self._running = [asyncio.create_task(self._by_the_clock(who, call)) for who, call in calls.items()]

    async def end(self) -> tuple[dict[str, dict[str, float]], Mapping[str, Mapping[str, int]]]:
        """Make no more calls, and wait for those in flight: seconds and failures by who called."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, *self._in_flight, return_exceptions=True)
        seconds, self._seconds = self._seconds, defaultdict(list)
        failures, self._failures = self._failures, defaultdict(Counter)
        return {who: spread(found) for who, found in seconds.items()}, failures

    async def settle(self, about: str, seconds: float) -> None:
        """Wait until a caller and a health check are answered again, so many seconds at most; nothing of it is counted."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    with contextlib.suppress(CallError, grpc.aio.AioRpcError):
                        await self._check(about)
                        await self._caller.gpu_info("healthy", timeout_seconds=CALL_SECONDS)
                        return
                    await asyncio.sleep(EVERY_SECONDS[CALLER])

    async def _by_the_clock(self, who: str, call: Call) -> None:
        began = asyncio.get_running_loop().time()
        for number in itertools.count():
            await asyncio.sleep(began + number * EVERY_SECONDS[who] - asyncio.get_running_loop().time())
            task = asyncio.create_task(self._timed(who, call))
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)

    async def _timed(self, who: str, call: Call) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await call()
        except CallError as error:
            self._failures[who][f"{error.code.name} {error.reason}"[:80]] += 1
        except grpc.aio.AioRpcError as error:
            self._failures[who][f"{error.code().name} {error.details()}"[:80]] += 1
        except pages.PageError as error:
            self._failures[who][str(error)[:80]] += 1
        # A refusal counts with its time: the wait for it was a wait.
        self._seconds[who].append(asyncio.get_running_loop().time() - began)

    async def _list_guests(self) -> None:
        async for _ in self._admin.list_guests(timeout_seconds=CALL_SECONDS):
            pass

    async def _check(self, about: str) -> None:
        stub = health_pb2_grpc.HealthStub(self._health[about])
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)

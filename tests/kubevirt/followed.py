"""A directory that follows a stand-in of an API server, for the tests of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.eventually import eventually
from tests.kubevirt.api_server import ApiServer
from tests.kubevirt.objects import NODE
from vmm_proxy.directory.directory import Directory
from vmm_proxy.directory.kubevirt.guests import KubevirtSource
from vmm_proxy.directory.kubevirt.settings import KubevirtSetup


class Followed:
    """A directory that follows the server. It waits for `go_on` before each new attempt."""

    def __init__(self, api: ApiServer, namespaces: tuple[str, ...] = (), *, kubeconfig: Path | None = None) -> None:
        self.directory = Directory()
        self.pauses: asyncio.Queue[float] = asyncio.Queue()
        self._next = asyncio.Semaphore(0)
        setup = KubevirtSetup(NODE, namespaces, (), 8000, kubeconfig or api.kubeconfig())
        self.source = KubevirtSource(setup, self.directory, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.put_nowait(seconds)
        await self._next.acquire()

    def go_on(self) -> None:
        self._next.release()

    def known(self) -> dict[str, str]:
        return {entry.id: f"{entry.address} {'running' if entry.running else 'stopped'}" for entry in self.directory.after()}

    async def becomes(self, expected: dict[str, str]) -> None:
        await eventually(lambda: self.known() == expected)

    async def stops(self) -> tuple[list[str], float]:
        """Wait for the end of an attempt: the problems then, and the pause that follows."""
        pause = await asyncio.wait_for(self.pauses.get(), 30)
        return list(self.source.problems), pause


async def watched(api: ApiServer) -> None:
    await eventually(lambda: api.watching == 1)

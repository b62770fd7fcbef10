"""Keeps the instances of one namespace, or of all, equal to the API server's: a list, then watches without end.

After a broken watch the next one goes on where it was, so that a server that restarts is not asked for a list by every node at once; only
when it does not remember that far back (410 Gone) all is listed again. What was known stays meanwhile, because VMs run on without an API
server. Each list or watch has a connection of its own, with token and certificates read anew. Rejected: counting VMs as stopped while the
server is away, and polling (a list a minute costs the server more than a watch that says nothing).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from guest_transport.process.repeated_lines import about
from vmm_proxy.directory.kubevirt.api_server import ApiServer, ApiServerError, Event, ExpiredError
from vmm_proxy.directory.kubevirt.instance import Instance, Metadata

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
# An API server that stays away is asked twice a minute.
LONGEST_PAUSE_SECONDS = 30.0
# A server may ask for more patience, within reason.
RETRY_AFTER_LIMIT_SECONDS = 120.0

Sleep = Callable[[float], Awaitable[None]]


class Name(NamedTuple):
    """What tells one instance of a cluster from another."""

    namespace: str
    name: str


class Unreadable(NamedTuple):
    """An instance that is there and cannot be read."""

    metadata: Metadata
    reason: str


Known = Mapping[Name, Instance | Unreadable]
Tell = Callable[[Known], None]
# Opens a connection; blocks, and raises ApiServerError.
Open = Callable[[], ApiServer]


class _Named(msgspec.Struct, frozen=True):
    metadata: Metadata


def read_instance(raw: msgspec.Raw) -> Instance | Unreadable:
    """What `raw` says; raises ApiServerError for what is no object at all."""
    try:
        metadata = msgspec.json.decode(raw, type=_Named).metadata
    except msgspec.MsgspecError as error:
        raise ApiServerError(f"what the server shows is no object: {error}") from error
    try:
        return msgspec.json.decode(raw, type=Instance)
    except msgspec.MsgspecError as error:
        return Unreadable(metadata, f"cannot be read: {error}")


def by_name(items: Iterable[msgspec.Raw]) -> dict[Name, Instance | Unreadable]:
    """The instances of a list."""
    read = [read_instance(item) for item in items]
    return {Name(instance.metadata.namespace, instance.metadata.name): instance for instance in read}


class Follower:
    """Tells of all instances after each change. `problem` says why it cannot; empty while the API server is being followed."""

    def __init__(
        self,
        open_api_server: Open,
        tell: Tell,
        *,
        namespace: str = "",
        sleep: Sleep = asyncio.sleep,
        part: Callable[[], float] = random.random,
    ) -> None:
        self._open = open_api_server
        self._tell = tell
        self._where = f"namespace {namespace}" if namespace else "the cluster"
        self._sleep = sleep
        # From 0 to 1: how much of half a pause is waited, so that the nodes of a cluster do not come back all at once.
        self._part = part
        self._known: dict[Name, Instance | Unreadable] = {}
        # What the next watch goes on from; None: a list is due.
        self._version: str | None = None
        self._listed = False
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._task: asyncio.Task[None] | None = None
        self.problem = "the API server has not answered yet"

    def start(self) -> None:
        """Begin; waits for nothing."""
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """End it; what was told stays."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                await self._list_and_watch()
                self._pause_seconds = pause = FIRST_PAUSE_SECONDS
            except ExpiredError as error:
                log.info("instances of %s are listed again: %s", self._where, error)
                self._version, pause = None, self._longer_pause()
            except ApiServerError as error:
                self._say(str(error))
                pause = max(self._longer_pause(), min(error.retry_after_seconds, RETRY_AFTER_LIMIT_SECONDS))
            except Exception:
                # A task's top: no fault in here may end the following for good.
                log.exception("following instances failed; please report it with these lines")
                self._say("a bug in the proxy, see its log")
                pause = self._longer_pause()
            await self._sleep(pause * (1 + self._part()) / 2)

    async def _list_and_watch(self) -> None:
        """A list, where one is due, and one watch to its end; raises ApiServerError."""
        api = await asyncio.to_thread(self._open)
        try:
            if self._version is None:
                listing = await api.list(from_cache=not self._listed)
                self._known, self._version, self._listed = by_name(listing.items), listing.version, True
                self._tell(self._known)
            async with api.watch(self._version) as events:
                self._say("")
                async for event in events:
                    self._take(event)
                    self._pause_seconds = FIRST_PAUSE_SECONDS
        finally:
            await api.close()

    def _take(self, event: Event) -> None:
        instance = read_instance(event.object)
        name = Name(instance.metadata.namespace, instance.metadata.name)
        match event.type:
            case "ADDED" | "MODIFIED":
                self._known[name] = instance
            case "DELETED":
                # Also an instance that has left for another node: the server selects by the label of the node.
                self._known.pop(name, None)
            case "BOOKMARK":
                pass
            case _:
                raise ApiServerError(f"an event of the unknown type {event.type[:40]!a}")
        # After the event, never before: one that was not taken must come again.
        self._version = instance.metadata.resource_version
        if event.type != "BOOKMARK":
            self._tell(self._known)

    def _longer_pause(self) -> float:
        pause = self._pause_seconds
        self._pause_seconds = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return pause

    def _say(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning(
                "instances of %s cannot be followed, the last known guests stay: %s",
                self._where,
                problem,
                extra=about(self._where),
            )
        elif self.problem and not problem:
            log.info("instances of %s are being followed", self._where)
        self.problem = problem

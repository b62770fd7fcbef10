"""Registers, changes and removes guests at the proxy without pause, and knows exactly what it was promised.

A change that was answered is promised; one that was cut off may or may not have happened, and the next look at the directory settles which.
Every change carries a number in a label, so that the file and the audit log can be held to each single one. Rejected: comparing counts (a
lost change and a doubled one would cancel out).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from soak.judging import Book

# What a label says the number of the change in.
NUMBER = "change"
# Ids of one clerk: the file stays a few KB, and each id is registered and removed again and again.
IDS_OF_A_CLERK = 8
CHANGE_SECONDS = 15.0
# After each change: three clerks then make some 60 a second, more than any VMM, and a proxy is mostly killed in the middle of one.
PAUSE_SECONDS = 0.02
# A registered guest's id begins with this; the fleet's own guests do not.
PREFIX = "kept"


@dataclass(frozen=True, slots=True)
class Promise:
    """A change that was answered with OK: the method, the guest, and its number (0 for a removal, which carries none)."""

    method: str
    guest: str
    number: int


@dataclass
class Ledger:
    """What each guest's entry must be: the number of its last change, None for no entry; several where a change was cut off."""

    allowed: dict[str, set[int | None]] = field(default_factory=dict)
    promises: list[Promise] = field(default_factory=list)

    def asked(self, guest: str, number: int | None) -> None:
        """`number` is under way."""
        self.allowed[guest] = self.allowed.get(guest, {None}) | {number}

    def kept(self, guest: str, number: int | None, promise: Promise) -> None:
        """It was answered."""
        self.allowed[guest] = {number}
        self.promises.append(promise)

    def faults_of(self, seen: dict[str, int], where: str) -> list[str]:
        """What is wrong with the directory as `seen` (guests and the numbers of their changes); doubts are settled by it."""
        faults = []
        for guest, allowed in self.allowed.items():
            number = seen.get(guest)
            if number not in allowed:
                faults.append(f"{where}: {guest} is at change {number}, and {sorted(map(str, allowed))} was answered")
            self.allowed[guest] = {number}
        faults += [f"{where}: {guest} was never registered" for guest in seen.keys() - self.allowed.keys()]
        return faults


class Clerk:
    """Makes one change after the other while the proxy is up; `name` keeps its ids apart from other clerks'."""

    def __init__(
        self, name: str, directory: fleet_pb2_grpc.DirectoryServiceAsyncStub, ledger: Ledger, book: Book, seed: int
    ) -> None:
        self._name = name
        self._directory = directory
        self._ledger = ledger
        self._book = book
        self._random = random.Random(f"{seed} {name}")  # noqa: S311 - no secrets are made of it
        self._numbers = itertools.count(1)
        self.idle = asyncio.Event()
        self.may_work = asyncio.Event()

    async def work(self) -> None:
        """Work until cancelled, pausing while `may_work` is not set."""
        while True:
            if not self.may_work.is_set():
                self.idle.set()
                await self.may_work.wait()
                self.idle.clear()
            await self._change(f"{PREFIX}-{self._name}-{self._random.randrange(IDS_OF_A_CLERK)}")

    async def _change(self, guest: str) -> None:
        present = self._ledger.allowed.get(guest, {None}) != {None}
        number = None if present and self._random.random() < 1 / 3 else next(self._numbers)
        self._ledger.asked(guest, number)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            promise = await self._ask(guest, number, present=present)
        except grpc.aio.AioRpcError as error:
            self._book.note("change", "", began, loop.time(), status=error.code().name, text=error.details() or "")
            # Cut off, or no proxy there. Whether it happened is seen later; to try on at once would only spin.
            self.may_work.clear()
            return
        self._book.note("change", "", began, loop.time())
        self._ledger.kept(guest, number, promise)
        await asyncio.sleep(PAUSE_SECONDS)

    async def _ask(self, guest: str, number: int | None, *, present: bool) -> Promise:
        if number is None:
            await self._directory.DeregisterGuest(fleet_pb2.DeregisterGuestRequest(id=guest), timeout=CHANGE_SECONDS)
            return Promise("DeregisterGuest", guest, 0)
        entry = fleet_pb2.GuestEntry(id=guest, address=f"unix:/nowhere/{guest}", labels={NUMBER: str(number)})
        if present:
            await self._directory.UpdateGuest(fleet_pb2.UpdateGuestRequest(guest=entry), timeout=CHANGE_SECONDS)
            return Promise("UpdateGuest", guest, number)
        await self._directory.RegisterGuest(fleet_pb2.RegisterGuestRequest(guest=entry), timeout=CHANGE_SECONDS)
        return Promise("RegisterGuest", guest, number)


def numbers_in_file(file: Path) -> dict[str, int]:
    """The registered guests in the directory's file, with the numbers of their changes; raises ValueError for a file that is not whole."""
    if not file.exists():
        return {}
    held = json.loads(file.read_text(encoding="utf-8"))
    return {guest["id"]: int(guest["labels"][NUMBER]) for guest in held["guests"] if guest["id"].startswith(PREFIX)}


def faults_of_audit(file: Path, promises: list[Promise]) -> list[str]:
    """Lines of the audit log that are none, and promises without their two lines (asked, and done with OK)."""
    found: Counter[tuple[str, str, str, int]] = Counter()
    faults = []
    for place, line in enumerate(file.read_text(encoding="utf-8").split("\n")[:-1], start=1):
        try:
            event = json.loads(line)
        except ValueError:
            faults.append(f"audit log, line {place}: no JSON: {line[:200]!r}")
            continue
        labels = event.get("change", {}).get("labels", {})
        done = f"{event['event']} {event.get('outcome', '')}".strip()
        key = (done, event.get("method", "").rpartition("/")[2], event.get("guest", ""), int(labels.get(NUMBER, 0)))
        found[key] += 1
    faults += [
        f"audit log: {event} of {promise} stands there less often than the {made} times it was answered"
        for promise, made in Counter(promises).items()
        for event in ("asked", "done OK")
        if found[event, promise.method, promise.guest, promise.number] < made
    ]
    return faults

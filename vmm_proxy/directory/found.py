"""Guests that a source found by itself, kept equal to what the source tells: libvirt's domains, KubeVirt's instances.

A guest that somebody wrote down (a file, a flag, DirectoryService) comes before one that was found, whichever came first: the found one
gives precedence, and is back when the other is gone. What is refused has no entry at all, not even its last one, because its old address
may be another VM's by now. Rejected: the same care in each source (two copies would differ after the first fix).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping

from vmm_proxy.directory.directory import AlreadyKnownError, Directory, DirectoryError, GuestEntry

log = logging.getLogger(__name__)


class FoundGuests:
    """The directory's entries from one source. `what` names one of them in the log: domain, instance."""

    def __init__(self, directory: Directory, *, source: str, what: str) -> None:
        self._directory = directory
        self._source = source
        self._what = what
        self._wanted: Mapping[str, GuestEntry] = {}
        self._unfit: Mapping[str, str] = {}
        # Those of ours that are in the directory, by id.
        self._entries: dict[str, GuestEntry] = {}
        # Why one is refused, by its id.
        self.refused: dict[str, str] = {}
        # Those of them whose id somebody wrote down.
        self._written_down: set[str] = set()
        self._applying = False
        self._again: asyncio.Handle | None = None
        directory.subscribe(self._on_change)

    def apply(self, wanted: Mapping[str, GuestEntry], unfit: Mapping[str, str]) -> None:
        """Make the directory's entries of this source those of `wanted`, by id; `unfit` says why others can be none."""
        with self._own_changes():
            self._wanted, self._unfit = wanted, unfit
            refused = dict(unfit)
            # Whoever leaves an address does so first: two guests may have swapped theirs.
            for guest_id, old in list(self._entries.items()):
                if guest_id not in wanted or wanted[guest_id].address != old.address:
                    self._directory.remove(guest_id)
                    del self._entries[guest_id]
            written_down: set[str] = set()
            for guest_id, entry in wanted.items():
                try:
                    self._put(entry)
                except DirectoryError as error:
                    refused[guest_id] = str(error)
                    if isinstance(error, AlreadyKnownError):
                        written_down.add(guest_id)
            self._say(refused, written_down)

    @property
    def out_of_reach(self) -> int:
        """How many nobody can reach through the proxy; not those that somebody wrote down."""
        return len(self.refused.keys() - self._written_down)

    @property
    def written_down(self) -> frozenset[str]:
        """Those that are not taken because somebody wrote their id down."""
        return frozenset(self._written_down)

    def close(self) -> None:
        """Judge nothing again; the entries stay."""
        if self._again:
            self._again.cancel()

    def _put(self, entry: GuestEntry) -> None:
        if entry.id in self._entries:
            self._directory.replace(entry)
        else:
            self._directory.add(entry)
        self._entries[entry.id] = entry

    def _on_change(self, before: GuestEntry | None, after: GuestEntry | None) -> None:
        """Somebody else changed the directory: what gave precedence is gone, and what was refused may fit now."""
        if self._applying:
            return
        if before and before.source == self._source and after is None:
            self._entries.pop(before.id, None)
        if self._again is None and (self._wanted or self._unfit):
            self._again = asyncio.get_running_loop().call_soon(self._judge_again)

    def _judge_again(self) -> None:
        self._again = None
        self.apply(self._wanted, self._unfit)

    @contextlib.contextmanager
    def _own_changes(self) -> Iterator[None]:
        self._applying = True
        try:
            yield
        finally:
            self._applying = False

    def _say(self, refused: dict[str, str], written_down: set[str]) -> None:
        for guest_id, reason in refused.items():
            if self.refused.get(guest_id) != reason:
                level = logging.INFO if guest_id in written_down else logging.WARNING
                log.log(level, "%s %s of %s: %s", self._what, guest_id, self._source, reason)
        for guest_id in self.refused.keys() - refused.keys():
            log.info("%s %s of %s: refused no more", self._what, guest_id, self._source)
        self.refused = refused
        self._written_down = written_down

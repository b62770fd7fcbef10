"""Makes libvirt's running domains with a vsock device guests of the directory, and keeps them equal to what libvirt says.

A guest that somebody wrote down (a file, a flag, DirectoryService) comes before one that was found here, whichever came first: the found
one makes way, and is back when the other is gone. A domain that is refused has no entry at all, not even its last one, because its old CID
may be another VM's by now. Rejected: the domain's name as id (it may change, and hold any character).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from guest_contract.identifiers import GUEST_ID_RULE, valid_guest_id
from guest_transport.addresses import VsockAddress
from guest_transport.errors import SettingsError
from guest_transport.process.logs import escape
from vmm_proxy.directory.directory import (
    AlreadyKnownError,
    Directory,
    DirectoryError,
    GuestEntry,
)
from vmm_proxy.directory.entry import check_gpus
from vmm_proxy.directory.labels import LABEL_VALUE_LIMIT_BYTES
from vmm_proxy.directory.libvirt.follower import Follower, reporter_command
from vmm_proxy.directory.libvirt.report import Domain
from vmm_proxy.directory.libvirt.settings import LibvirtSettings, require_module
from vmm_proxy.directory.sources import SourceState

log = logging.getLogger(__name__)

# What stands in GuestEntry.source.
SOURCE = "libvirt"
# vsock(7): 0 to 2 are the hypervisor, this machine itself, and the host.
LEAST_GUEST_CID = 3


class LibvirtGuests:
    """The directory's entries that libvirt told of."""

    def __init__(self, directory: Directory, *, port: int) -> None:
        self._directory = directory
        self._port = port
        self._domains: Sequence[Domain] = ()
        # Those of ours that stand in the directory, by id.
        self._entries: dict[str, GuestEntry] = {}
        # Why a domain is refused, by its UUID.
        self.refused: dict[str, str] = {}
        # Those of them whose id somebody wrote down.
        self._written_down: set[str] = set()
        self._applying = False
        self._again: asyncio.Handle | None = None
        directory.subscribe(self._on_change)

    def apply(self, domains: Sequence[Domain]) -> None:
        """Make the directory's entries of libvirt those of `domains`."""
        with self._own_changes():
            self._domains = domains
            refused: dict[str, str] = {}
            wanted = self._wanted(domains, refused)
            # Whoever leaves an address does so first: two domains may have swapped theirs.
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
        """Domains that nobody can reach through the proxy; not those that somebody wrote down."""
        return len(self.refused.keys() - self._written_down)

    def close(self) -> None:
        """Judge nothing again; the entries stay."""
        if self._again:
            self._again.cancel()

    def _wanted(self, domains: Sequence[Domain], refused: dict[str, str]) -> dict[str, GuestEntry]:
        wanted: dict[str, GuestEntry] = {}
        for domain in domains:
            if domain.problem:
                refused[domain.uuid] = domain.problem
            elif domain.cid is not None:
                try:
                    wanted[domain.uuid] = self._entry(domain, domain.cid)
                except SettingsError as error:
                    refused[domain.uuid] = str(error)
        return wanted

    def _entry(self, domain: Domain, cid: int) -> GuestEntry:
        if cid < LEAST_GUEST_CID:
            raise SettingsError(f"CID {cid} is no guest's; a guest has one from {LEAST_GUEST_CID}")
        if not valid_guest_id(domain.uuid):
            raise SettingsError(f"its UUID must be {GUEST_ID_RULE}")
        return GuestEntry(
            id=domain.uuid,
            address=VsockAddress(cid, self._port),
            labels={"name": _label(domain.name)},
            gpus=check_gpus(domain.gpus, "hostdev"),
            source=SOURCE,
            yields=True,
        )

    def _put(self, entry: GuestEntry) -> None:
        if entry.id in self._entries:
            self._directory.replace(entry)
        else:
            self._directory.add(entry)
        self._entries[entry.id] = entry

    def _on_change(self, before: GuestEntry | None, after: GuestEntry | None) -> None:
        """Somebody else changed the directory: what made way is gone, and what was refused may fit now."""
        if self._applying:
            return
        if before and before.source == SOURCE and after is None:
            self._entries.pop(before.id, None)
        if self._again is None and self._domains:
            self._again = asyncio.get_running_loop().call_soon(self._judge_again)

    def _judge_again(self) -> None:
        self._again = None
        self.apply(self._domains)

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
                log.log(
                    logging.INFO if guest_id in written_down else logging.WARNING, "domain %s of libvirt: %s", guest_id, reason
                )
        for guest_id in self.refused.keys() - refused.keys():
            log.info("domain %s of libvirt: refused no more", guest_id)
        self.refused = refused
        self._written_down = written_down


class LibvirtSource:
    """libvirt's domains and the process that tells of them, as app.py joins them."""

    def __init__(self, settings: LibvirtSettings, directory: Directory) -> None:
        require_module()
        self.guests = LibvirtGuests(directory, port=settings.port)
        self.follower = Follower(reporter_command(settings.uri or "", Path("/sys")), self.guests.apply)

    @property
    def state(self) -> SourceState:
        """Whether libvirt is being followed, and how many domains are refused."""
        return SourceState(not self.follower.problem, self.guests.out_of_reach)

    async def close(self) -> None:
        """End the process."""
        await self.follower.close()
        self.guests.close()


def _label(name: str) -> str:
    """`name` as a label's value: printable, and no longer than a label may be."""
    return escape(name).encode()[:LABEL_VALUE_LIMIT_BYTES].decode(errors="ignore")

"""Makes libvirt's running domains with a vsock device guests of the directory.

A domain that is refused is no guest, with the reason (found.py keeps both). Rejected: the domain's name as id (it may change, and hold any
character).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from guest_contract.identifiers import GUEST_ID_RULE, valid_guest_id
from guest_transport.addresses import VsockAddress
from guest_transport.errors import SettingsError
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.directory.entry import LEAST_GUEST_CID, check_gpus
from vmm_proxy.directory.found import FoundGuests
from vmm_proxy.directory.labels import shown_label
from vmm_proxy.directory.libvirt.follower import Follower, reporter_command
from vmm_proxy.directory.libvirt.report import Domain
from vmm_proxy.directory.libvirt.settings import LibvirtSettings, require_module
from vmm_proxy.directory.sources import SourceState

# What stands in GuestEntry.source.
SOURCE = "libvirt"


class LibvirtGuests:
    """The directory's entries that libvirt told of."""

    def __init__(self, directory: Directory, *, port: int) -> None:
        self._port = port
        self.found = FoundGuests(directory, source=SOURCE, what="domain")

    def apply(self, domains: Sequence[Domain]) -> None:
        """Make the directory's entries of libvirt those of `domains`."""
        wanted: dict[str, GuestEntry] = {}
        unfit: dict[str, str] = {}
        for domain in domains:
            if domain.problem:
                unfit[domain.uuid] = domain.problem
            elif domain.cid is not None:
                try:
                    wanted[domain.uuid] = self._entry(domain, domain.cid)
                except SettingsError as error:
                    unfit[domain.uuid] = str(error)
        self.found.apply(wanted, unfit)

    def _entry(self, domain: Domain, cid: int) -> GuestEntry:
        if cid < LEAST_GUEST_CID:
            raise SettingsError(f"CID {cid} is no guest's; a guest has one from {LEAST_GUEST_CID}")
        if not valid_guest_id(domain.uuid):
            raise SettingsError(f"its UUID must be {GUEST_ID_RULE}")
        return GuestEntry(
            id=domain.uuid,
            address=VsockAddress(cid, self._port),
            labels={"name": shown_label(domain.name)},
            gpus=check_gpus(domain.gpus, "hostdev"),
            source=SOURCE,
            yields=True,
        )


class LibvirtSource:
    """libvirt's domains and the process that tells of them, as app.py joins them."""

    def __init__(self, settings: LibvirtSettings, directory: Directory) -> None:
        require_module()
        self.guests = LibvirtGuests(directory, port=settings.port)
        self.follower = Follower(reporter_command(settings.uri or "", Path("/sys")), self.guests.apply)

    @property
    def state(self) -> SourceState:
        """Whether libvirt is being followed, and how many domains are refused."""
        return SourceState(not self.follower.problem, self.guests.found.out_of_reach)

    async def close(self) -> None:
        """End the process."""
        await self.follower.close()
        self.guests.found.close()

"""Makes this node's instances guests of the directory, and keeps them equal to what the API server tells.

Several namespaces are followed one by one, and each tells of its own part; what a part last told stays while it cannot be followed.
Rejected: one guest list per namespace (two of them may show one CID, and only a judge of all sees that).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from guest_transport.errors import SettingsError
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.directory.found import FoundGuests
from vmm_proxy.directory.kubevirt.api_server import SERVICE_ACCOUNT, open_api_server
from vmm_proxy.directory.kubevirt.follower import Follower, Known, Sleep, Unreadable
from vmm_proxy.directory.kubevirt.instance import SOURCE, guest_id, guest_of
from vmm_proxy.directory.kubevirt.settings import KubevirtSetup
from vmm_proxy.directory.sources import SourceState


class KubevirtGuests:
    """The directory's entries that the API server told of."""

    def __init__(self, directory: Directory, setup: KubevirtSetup) -> None:
        self._setup = setup
        self._parts: dict[str, Known] = {}
        self.found = FoundGuests(directory, source=SOURCE, what="instance")

    def apply(self, part: str, known: Known) -> None:
        """Make the entries of `part`, a namespace or all of them, those of `known`."""
        self._parts[part] = known
        wanted: dict[str, GuestEntry] = {}
        unfit: dict[str, str] = {}
        for instance in (instance for part_known in self._parts.values() for instance in part_known.values()):
            identifier = guest_id(instance.metadata)
            if isinstance(instance, Unreadable):
                unfit[identifier] = instance.reason
                continue
            try:
                if entry := guest_of(instance, self._setup):
                    wanted[identifier] = entry
            except SettingsError as error:
                unfit[identifier] = str(error)
        self.found.apply(wanted, unfit)


class KubevirtSource:
    """A cluster's instances and what follows them, as app.py joins them."""

    def __init__(
        self,
        setup: KubevirtSetup,
        directory: Directory,
        *,
        service_account: Path = SERVICE_ACCOUNT,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.guests = KubevirtGuests(directory, setup)
        self.followers: Mapping[str, Follower] = {
            namespace: self._follower(setup, namespace, service_account, sleep) for namespace in setup.namespaces or ("",)
        }

    def start(self) -> None:
        """Begin; waits for nothing."""
        for follower in self.followers.values():
            follower.start()

    @property
    def problems(self) -> Sequence[str]:
        """Why a part cannot be followed at present."""
        return [follower.problem for follower in self.followers.values() if follower.problem]

    @property
    def state(self) -> SourceState:
        """Whether all of it is being followed, and how many instances are refused."""
        return SourceState(not self.problems, self.guests.found.out_of_reach)

    async def close(self) -> None:
        """End it."""
        await asyncio.gather(*(follower.close() for follower in self.followers.values()))
        self.guests.found.close()

    def _follower(self, setup: KubevirtSetup, namespace: str, service_account: Path, sleep: Sleep) -> Follower:
        return Follower(
            lambda: open_api_server(setup.kubeconfig, node=setup.node, namespace=namespace, service_account=service_account),
            lambda known: self.guests.apply(namespace, known),
            namespace=namespace,
            sleep=sleep,
        )

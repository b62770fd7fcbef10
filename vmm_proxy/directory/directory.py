"""Which guests exist, where, and in what state: the one answer that every other part of the proxy asks for.

It holds entries and tells its listeners what changed; it opens no channel and reads no file. It refuses a second entry with one
id, and a second running guest with one address, because then one VM would answer for another. Each entry has a generation, a number that
is given once: whatever is kept about a guest is kept with it, and is worth nothing once the entry has another. Rejected: asking the VMM at
each call (a call would wait for a third party), and comparing addresses where something is kept (a guest that is removed and added again
has the same one).

    DirectoryError          a change that is refused
    ├── AlreadyKnownError   the id has an entry
    ├── UnknownGuestError   the id has none
    └── AddressTakenError   another running guest has the address
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from guest_transport.addresses import Address, VsockAddress
from vmm_proxy.directory.guest_tls import GuestTls

# In front of the address of a guest that runs dstack's own agent.
DSTACK_PREFIX = "dstack+"


class DirectoryError(Exception):
    """A change of the directory that is refused; the message names the guest and the reason."""


class AlreadyKnownError(DirectoryError):
    """The id has an entry already."""


class UnknownGuestError(DirectoryError):
    """The id has no entry."""


class AddressTakenError(DirectoryError):
    """Another running guest has the address."""


@dataclass(frozen=True, slots=True)
class GuestEntry:
    """What is known of one guest without asking it."""

    id: str
    address: Address
    labels: Mapping[str, str] = field(default_factory=dict)
    running: bool = True
    # Pin: the instance_id that the guest must show, raw bytes; empty for none.
    instance_id: bytes = b""
    # Host PCI addresses of the cards given to it, in the guest's order; empty when not known.
    gpus: tuple[str, ...] = ()
    # How many cards were given to it, where their addresses are not known; 0: not known either.
    gpus_without_address: int = 0
    # Which run of the VM it is, where its source tells: another run is another VM, whatever its address. No text for people.
    run: str = ""
    # Its own TLS; None for the proxy's usual one, if any.
    tls: GuestTls | None = None
    # Where the entry comes from, for messages and so that each source changes its own entries only.
    source: str = ""
    # Makes way for an entry that somebody wrote down: this one was found, and a person's word comes before it.
    yields: bool = False
    # It runs dstack's own agent, which is asked in HTTP/1.1, not gRPC. No part of where it is: nobody else can be at its address.
    dstack: bool = False
    # The directory's own: one number for as long as the entry means the same run of the same VM. No part of what the entry says.
    generation: int = field(default=0, compare=False)

    @property
    def gpus_given(self) -> int | None:
        """How many cards were given to it; None when that is not known."""
        return len(self.gpus) or self.gpus_without_address or None

    @property
    def written_address(self) -> str:
        """Its address as people write it."""
        return f"{DSTACK_PREFIX}{self.address}" if self.dstack else str(self.address)

    def same_vm(self, other: GuestEntry) -> bool:
        """Whether both mean one VM: labels and cards may differ, and whether it runs."""
        mine = (self.address, self.dstack, self.instance_id, self.tls, self.run)
        return mine == (other.address, other.dstack, other.instance_id, other.tls, other.run)


# Called after a change with the entry before and the entry after; None stands for no entry.
Listener = Callable[[GuestEntry | None, GuestEntry | None], None]


def _makes_way(known: GuestEntry, entry: GuestEntry) -> bool:
    return known.yields and not entry.yields


def _of_namespaces(address: Address) -> str:
    if not isinstance(address, VsockAddress):
        return ""
    return " (VMs in vsock namespaces of their own, as of KubeVirt, share CIDs: give each by a Unix socket, unix:/path)"


class Directory:
    """The entries by id. Changes take effect at once and are told to every listener."""

    def __init__(self, entries: Iterable[GuestEntry] = ()) -> None:
        self._entries: dict[str, GuestEntry] = {}
        self._order: list[str] = []
        # Which running guest has an address: a directory of ten thousand is loaded at start, so nothing here may walk all of it.
        self._at: dict[Address, str] = {}
        self._listeners: list[Listener] = []
        self._generations = itertools.count(1)
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self._order)

    def subscribe(self, listener: Listener) -> None:
        """Tell `listener` of every change from now on."""
        self._listeners.append(listener)

    def get(self, guest_id: str) -> GuestEntry | None:
        """The entry of `guest_id`, or None."""
        return self._entries.get(guest_id)

    def after(self, guest_id: str = "") -> Sequence[GuestEntry]:
        """The entries whose ids come after `guest_id`, in id order."""
        return [self._entries[known] for known in self._order[bisect.bisect_right(self._order, guest_id) :]]

    def check(self, entry: GuestEntry, leaving: Collection[str] = ()) -> None:
        """Raise what add() would, were the guests `leaving` not there."""
        known = self._entries.get(entry.id)
        if known and entry.id not in leaving and not _makes_way(known, entry):
            origin = f" from {known.source}" if known.source else ""
            raise AlreadyKnownError(f"guest {entry.id} is known already{origin}; an id is given once")
        holder = self._holder(entry)
        if holder != entry.id and holder not in leaving and not _makes_way(self._entries[holder], entry):
            raise AddressTakenError(
                f"guest {entry.id}: its address belongs to the running guest {holder} already; "
                f"correct one of the two, or stop the guest whose VM is gone{_of_namespaces(entry.address)}"
            )

    def add(self, entry: GuestEntry) -> None:
        """Add a guest; raises AlreadyKnownError or AddressTakenError."""
        self.check(entry)
        self._clear_the_way(entry, {entry.id, self._holder(entry)})
        entry = replace(entry, generation=next(self._generations))
        self._keep(None, entry)
        bisect.insort(self._order, entry.id)
        self._tell(None, entry)

    def replace(self, entry: GuestEntry) -> None:
        """Put `entry` in place of the guest's present entry; raises UnknownGuestError or AddressTakenError."""
        before = self.known(entry.id)
        self.check(entry, (entry.id,))
        self._clear_the_way(entry, {self._holder(entry)} - {entry.id})
        stays = before.same_vm(entry) and before.running == entry.running
        entry = replace(entry, generation=before.generation if stays else next(self._generations))
        self._keep(before, entry)
        if before != entry:
            self._tell(before, entry)

    def remove(self, guest_id: str) -> None:
        """Forget a guest; raises UnknownGuestError."""
        before = self.known(guest_id)
        self._keep(before, None)
        del self._order[bisect.bisect_left(self._order, guest_id)]
        self._tell(before, None)

    def known(self, guest_id: str) -> GuestEntry:
        """The entry of `guest_id`; raises UnknownGuestError."""
        entry = self._entries.get(guest_id)
        if entry is None:
            raise UnknownGuestError(f"guest {guest_id} is not known")
        return entry

    def _holder(self, entry: GuestEntry) -> str:
        """Whose the address of `entry` is, were it running; its own id when it is nobody's."""
        return self._at.get(entry.address, entry.id) if entry.running else entry.id

    def _clear_the_way(self, entry: GuestEntry, ids: Collection[str]) -> None:
        for guest_id in ids:
            known = self._entries.get(guest_id)
            if known and _makes_way(known, entry):
                self.remove(guest_id)

    def _keep(self, before: GuestEntry | None, after: GuestEntry | None) -> None:
        if before:
            del self._entries[before.id]
            if before.running:
                del self._at[before.address]
        if after:
            self._entries[after.id] = after
            if after.running:
                self._at[after.address] = after.id

    def _tell(self, before: GuestEntry | None, after: GuestEntry | None) -> None:
        for listener in self._listeners:
            listener(before, after)

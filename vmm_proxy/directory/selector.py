"""Which guests a GuestSelector means.

Ids that cannot be ids are refused, because a selector such as `vm1,vm2` in one value would else select nothing and look like
success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import grpc

from guest_contract.identifiers import GUEST_ID_RULE, valid_guest_id
from guest_fleet.v1 import fleet_pb2
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.errors import CallError


class Guests(Protocol):
    """The directory, or what a caller sees of it."""

    def get(self, guest_id: str) -> GuestEntry | None:
        """The entry of `guest_id`, or None."""

    def after(self, guest_id: str = "") -> Sequence[GuestEntry]:
        """The entries whose ids come after `guest_id`, in id order."""


class Selection:
    """The guests that a checked selector means; with neither ids nor labels all of them."""

    def __init__(self, ids: frozenset[str], labels: Mapping[str, str]) -> None:
        self._ids = ids
        self._labels = labels

    def matches(self, entry: GuestEntry) -> bool:
        """Whether `entry` is meant."""
        if self._ids and entry.id not in self._ids:
            return False
        return all(entry.labels.get(key) == value for key, value in self._labels.items())

    def names(self, guest_id: str) -> bool:
        """Whether the guest is asked for by name."""
        return guest_id in self._ids

    def choose(self, guests: Guests) -> list[str]:
        """The ids that are meant, in order. An id that is asked for by name and not known is among them, so that it gets its NOT_FOUND."""
        if not self._ids:
            return [entry.id for entry in guests.after() if self.matches(entry)]
        known = ((guest_id, guests.get(guest_id)) for guest_id in sorted(self._ids))
        return [guest_id for guest_id, entry in known if entry is None or self.matches(entry)]


def selection(selector: fleet_pb2.GuestSelector) -> Selection:
    """The selection of `selector`; raises CallError INVALID_ARGUMENT."""
    for guest_id in selector.ids:
        if not valid_guest_id(guest_id):
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"selector.ids: one id per entry, each {GUEST_ID_RULE}")
    return Selection(frozenset(selector.ids), dict(selector.labels))

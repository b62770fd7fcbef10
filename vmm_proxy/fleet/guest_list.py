"""FleetService.ListGuests: the directory in id order, in pages, with what the calls say of each guest.

A page token is the last id of the page before, so that guests which come or go between two pages are neither shown twice nor
make others vanish. Rejected: an offset, which does both.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Callable, Iterator

import grpc

from guest_contract.identifiers import valid_guest_id
from guest_fleet.v1 import fleet_pb2
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.directory.selector import Guests, selection
from vmm_proxy.errors import CallError
from vmm_proxy.fleet.info_refresh import InfoRefresh
from vmm_proxy.fleet.outbox import MESSAGE_BYTES
from vmm_proxy.upstream.pool import Pool
from vmm_proxy.upstream.reachability import ReachabilityState

# Both stand in the contract, at ListGuestsRequest.page_size.
PAGE_SIZE = 100
LARGEST_PAGE_SIZE = 1000
# The tag and length of one guest in the page, and a share of the page token.
ENTRY_BYTES = 16
# Says which kind of token it is, so that another kind can come later.
_PAGE_KIND = "after:"

_STATES = {
    ReachabilityState.SERVING: fleet_pb2.GUEST_STATE_SERVING,
    ReachabilityState.UNREACHABLE: fleet_pb2.GUEST_STATE_UNREACHABLE,
    ReachabilityState.UNKNOWN: fleet_pb2.GUEST_STATE_UNKNOWN,
}


class GuestList:
    """Pages of guests."""

    def __init__(self, pool: Pool, info_refresh: InfoRefresh) -> None:
        self._pool = pool
        self._info_refresh = info_refresh

    async def page(
        self, request: fleet_pb2.ListGuestsRequest, guests: Guests, *, with_addresses: Callable[[], bool]
    ) -> fleet_pb2.ListGuestsResponse:
        """The page of `guests` that `request` asks for; raises CallError INVALID_ARGUMENT.

        A page ends before its size where a message would be too large. Who is seen, and whether addresses are, is asked when the page is
        made: a look at its guests lies in between.
        """
        size = _page_size(request.page_size)
        selected = selection(request.selector)
        after = _last_id(request.page_token)

        def matching() -> Iterator[GuestEntry]:
            return (entry for entry in guests.after(after) if selected.matches(entry))

        await self._info_refresh.refresh(itertools.islice(matching(), size))
        response = fleet_pb2.ListGuestsResponse()
        with_address, held = with_addresses(), 0
        for entry in matching():
            guest = self._guest(entry, with_address=with_address)
            held += guest.ByteSize() + ENTRY_BYTES
            if response.guests and (len(response.guests) == size or held > MESSAGE_BYTES):
                response.next_page_token = _token(response.guests[-1].id)
                break
            response.guests.append(guest)
        return response

    def _guest(self, entry: GuestEntry, *, with_address: bool) -> fleet_pb2.Guest:
        reachability = self._pool.reachability(entry.id)
        guest = fleet_pb2.Guest(
            id=entry.id,
            address=entry.written_address if with_address else "",
            labels=entry.labels,
            state=_STATES[reachability.state] if entry.running else fleet_pb2.GUEST_STATE_STOPPED,
            agent_version=reachability.agent_version,
            gpus=reachability.gpus,
            pci_devices=reachability.pci_devices,
            gpus_given=entry.gpus_given,
        )
        if reachability.answered_at is not None:
            guest.last_contact.FromMilliseconds(round(reachability.answered_at * 1000))
        return guest


def _page_size(asked: int) -> int:
    if asked < 0:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "page_size: must not be negative")
    return min(asked or PAGE_SIZE, LARGEST_PAGE_SIZE)


def _token(last_id: str) -> str:
    return base64.urlsafe_b64encode(f"{_PAGE_KIND}{last_id}".encode()).decode()


def _last_id(token: str) -> str:
    if not token:
        return ""
    try:
        text = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True).decode("ascii")
    except (UnicodeError, binascii.Error):
        text = ""
    last_id = text.removeprefix(_PAGE_KIND)
    if not text.startswith(_PAGE_KIND) or not valid_guest_id(last_id):
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "page_token: must be the next_page_token of an answer of this proxy")
    return last_id

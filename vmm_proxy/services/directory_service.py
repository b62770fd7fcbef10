"""guest_fleet.v1.DirectoryService: a VMM that calls tells which guests there are.

The interceptor (policy) requires the administrator's role and writes the audit log. The lines logged here are for operators who read
the proxy's log only.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from guest_contract.identifiers import GUEST_ID_RULE, valid_guest_id
from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.errors import SettingsError
from guest_transport.process.repeated_lines import EVERY_ONE, about
from guest_transport.server.grpc_server import Service
from vmm_proxy.directory.directory import (
    AddressTakenError,
    AlreadyKnownError,
    DirectoryError,
    GuestEntry,
    UnknownGuestError,
)
from vmm_proxy.directory.entry import GuestSettings, guest_entry
from vmm_proxy.directory.registered import SOURCE, NotKeptError, RegisteredGuests, TooManyError
from vmm_proxy.errors import CallError, refuse
from vmm_proxy.policy.permit import current_permit

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
R = TypeVar("R")

_NAME = fleet_pb2.DESCRIPTOR.services_by_name["DirectoryService"].full_name

# FAILED_PRECONDITION for what is left: the entry comes from elsewhere.
_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (AlreadyKnownError, grpc.StatusCode.ALREADY_EXISTS),
    (AddressTakenError, grpc.StatusCode.ALREADY_EXISTS),
    (UnknownGuestError, grpc.StatusCode.NOT_FOUND),
    (TooManyError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DirectoryError, grpc.StatusCode.FAILED_PRECONDITION),
    (SettingsError, grpc.StatusCode.INVALID_ARGUMENT),
    (NotKeptError, grpc.StatusCode.UNAVAILABLE),
)


class DirectoryService(fleet_pb2_grpc.DirectoryServiceServicer):
    """The servicer; without `registered` nothing can be kept and every change is refused."""

    def __init__(self, registered: RegisteredGuests | None, *, allow_plaintext: bool) -> None:
        self._registered = registered
        self._allow_plaintext = allow_plaintext

    def service(self) -> Service:
        """What a server needs to serve it."""
        return Service(_NAME, lambda server: fleet_pb2_grpc.add_DirectoryServiceServicer_to_server(self, server))

    async def RegisterGuest(  # noqa: N802 - the contract's name
        self, request: fleet_pb2.RegisterGuestRequest, context: Context
    ) -> fleet_pb2.RegisterGuestResponse:
        """Add a guest."""

        async def register(guests: RegisteredGuests) -> fleet_pb2.RegisterGuestResponse:
            entry = self._entry(request.guest)
            await guests.register(entry)
            return fleet_pb2.RegisterGuestResponse(guest=_message(entry))

        return await self._change("RegisterGuest", request.guest.id, context, register)

    async def UpdateGuest(  # noqa: N802 - the contract's name
        self, request: fleet_pb2.UpdateGuestRequest, context: Context
    ) -> fleet_pb2.UpdateGuestResponse:
        """Replace a guest's entry."""

        async def update(guests: RegisteredGuests) -> fleet_pb2.UpdateGuestResponse:
            entry = self._entry(request.guest)
            await guests.update(entry)
            return fleet_pb2.UpdateGuestResponse(guest=_message(entry))

        return await self._change("UpdateGuest", request.guest.id, context, update)

    async def DeregisterGuest(  # noqa: N802 - the contract's name
        self, request: fleet_pb2.DeregisterGuestRequest, context: Context
    ) -> fleet_pb2.DeregisterGuestResponse:
        """Remove a guest."""

        async def deregister(guests: RegisteredGuests) -> fleet_pb2.DeregisterGuestResponse:
            if not valid_guest_id(request.id):
                raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"id: must be {GUEST_ID_RULE}")
            await guests.deregister(request.id)
            return fleet_pb2.DeregisterGuestResponse()

        return await self._change("DeregisterGuest", request.id, context, deregister)

    async def _change(self, what: str, guest_id: str, context: Context, change: Callable[[RegisteredGuests], Awaitable[R]]) -> R:
        caller = current_permit().caller().name
        shown = guest_id if valid_guest_id(guest_id) else "without a valid id"
        try:
            answer = await change(self._writable())
        except CallError as error:
            failure = error
        except tuple(kind for kind, _ in _CODES) as error:
            code = next(code for kind, code in _CODES if isinstance(error, kind))
            failure = CallError(code, str(error))
        else:
            log.info("%s of guest %s by %s: done", what, shown, caller, extra=EVERY_ONE)
            return answer
        thing = f"{what} {shown}"
        log.warning("%s of guest %s by %s: refused: %s", what, shown, caller, failure.text, extra=about(thing))
        return await refuse(context, failure)

    def _writable(self) -> RegisteredGuests:
        if self._registered is None:
            raise CallError(
                grpc.StatusCode.FAILED_PRECONDITION, "directory.registered_file is not set: set it, or nothing could be kept"
            )
        return self._registered

    def _entry(self, guest: fleet_pb2.GuestEntry) -> GuestEntry:
        stopped = guest.state == fleet_pb2.DESIRED_STATE_STOPPED
        if guest.state not in fleet_pb2.DesiredState.values():
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "guest.state: must be running or stopped")
        settings = GuestSettings(
            id=guest.id,
            address=guest.address,
            labels=dict(guest.labels),
            state="stopped" if stopped else "running",
            instance_id=guest.instance_id.hex(),
            gpus=tuple(guest.gpus),
        )
        return guest_entry(settings, "guest.", source=SOURCE, allow_plaintext=self._allow_plaintext)


def _message(entry: GuestEntry) -> fleet_pb2.GuestEntry:
    return fleet_pb2.GuestEntry(
        id=entry.id,
        address=entry.written_address,
        labels=entry.labels,
        state=fleet_pb2.DESIRED_STATE_RUNNING if entry.running else fleet_pb2.DESIRED_STATE_STOPPED,
        instance_id=entry.instance_id,
        gpus=entry.gpus,
    )

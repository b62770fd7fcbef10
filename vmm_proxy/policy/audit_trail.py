"""What the audit log says of a call that changes something: asked, and how it ended; or that it was refused.

Each line stands alone (who, what, which guest, when), and the two of one call share a number. What cannot be announced is not
done. Refusals are bounded in number: they cost the caller nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message

from guest_api import guest_api_pb2
from guest_fleet.v1 import fleet_pb2
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.errors import CallError
from vmm_proxy.policy.audit_log import Audit, AuditError
from vmm_proxy.policy.rate_limit import RateLimit
from vmm_proxy.policy.roles import Caller

# An entry of the directory with every field in use; more is the caller's own invention and is left out.
_CHANGE_LIMIT_BYTES = 8 * 1024
# As long as a pin may be; a hostile VM shows what it likes.
_SHOWN_BYTES = 64


class AuditTrail:
    """Writes to `audit`; `clock` is monotonic."""

    def __init__(self, audit: Audit, clock: Callable[[], float]) -> None:
        self._audit = audit
        self._refusals = RateLimit(clock)
        self._wrong_guests = RateLimit(clock)
        self._wrong: dict[str, bytes] = {}

    async def ask(self, path: str, caller: Caller, request: object) -> Mapping[str, object]:
        """Announce a call; what it returns is for end(). Raises CallError FAILED_PRECONDITION when that cannot be written."""
        about = {
            "call": secrets.token_hex(8),
            "who": caller.name,
            "role": caller.role.name.lower() if caller.role else "none",
            "method": path,
            **_target(request),
        }
        try:
            await self._audit.write({"event": "asked", **about})
        except AuditError as error:
            text = f"refused: the audit log cannot be written ({error})"
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, text) from error
        return about

    async def end(self, about: Mapping[str, object], code: str, text: str) -> None:
        """Say how an announced call ended; written on return, or logged why not, also when the caller leaves meanwhile."""
        await asyncio.shield(self._audit.note({"event": "done", **about, "outcome": code, "text": text}))

    def refused(self, path: str, who: str, request: object, error: CallError) -> None:
        """Say that a call was refused by the interceptor."""
        # The proxy's log counts repetitions by itself; a file keeps every line.
        left_out = self._refusals.take() if self._audit.is_a_file else 0
        if left_out is None:
            return
        event = {
            "event": "refused",
            "who": who,
            "method": path,
            **_target(request),
            "outcome": error.code.name,
            "text": error.text,
        }
        self._audit.note(event | {"left_out": left_out} if left_out else event)

    def wrong_guest(self, entry: GuestEntry, shown: bytes) -> None:
        """Say that another VM, which showed `shown`, answered in the place of a pinned guest; once for each that comes."""
        shown = shown[:_SHOWN_BYTES]
        if self._wrong.get(entry.id) == shown:
            return
        left_out = self._wrong_guests.take()
        if left_out is None:
            return
        self._wrong[entry.id] = shown
        event = {
            "event": "wrong guest",
            "guest": entry.id,
            "pinned": entry.instance_id.hex(),
            "shown": shown.hex(),
        }
        self._audit.note(event | {"left_out": left_out} if left_out else event)


def _target(request: object) -> dict[str, object]:
    """Which guest `request` is about, and what is to become of it."""
    if isinstance(request, bytes):
        try:
            return {"guest": guest_api_pb2.Id.FromString(request).id}
        except DecodeError:
            return {}
    if isinstance(request, fleet_pb2.RegisterGuestRequest | fleet_pb2.UpdateGuestRequest):
        return {"guest": request.guest.id, "change": _change(request.guest)}
    if isinstance(request, fleet_pb2.DeregisterGuestRequest):
        return {"guest": request.id}
    return {}


def _change(entry: Message) -> object:
    return MessageToDict(entry) if entry.ByteSize() <= _CHANGE_LIMIT_BYTES else "too long to be kept here"

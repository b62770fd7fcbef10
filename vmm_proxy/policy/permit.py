"""What the caller of the present call may do: the interceptor's verdict, as the services see it.

The interceptor sets it for the length of a call; a service that is reached past the interceptor finds none and fails (closed). When the
rules change while a stream runs, the next question is answered by the new ones. Read it at the begin of a call: tasks of the proxy's
own inherit that of whoever started them and must not ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

import grpc

from guest_transport.peers import UnixPeer, lasting_name
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.errors import CallError, not_known
from vmm_proxy.policy.access import Access
from vmm_proxy.policy.credentials import Credentials
from vmm_proxy.policy.roles import Caller, Role

_CURRENT: ContextVar[Permit] = ContextVar("permit")


class Permit:
    """A caller, and the role that its call needs."""

    def __init__(self, access: Access, credentials: Credentials, needed: Role) -> None:
        self._access = access
        self._credentials = credentials
        self._needed = needed
        self._version = access.version
        self._caller = access.judge(credentials)

    def caller(self) -> Caller:
        """Who calls, by the rules in force; raises CallError UNAUTHENTICATED."""
        if self._version != self._access.version:
            self._caller = self._access.judge(self._credentials)
            self._version = self._access.version
        return self._caller

    @property
    def account(self) -> str | None:
        """Whom the call is put down to: the same for all connections of one user, token or certificate. None for nobody in particular."""
        peer = self._credentials.peer
        if isinstance(peer, UnixPeer) and peer.uid is None and self._credentials.token_sha256 is None:
            return None
        return lasting_name(self.caller().name)

    def require_role(self) -> None:
        """Raises CallError UNAUTHENTICATED or PERMISSION_DENIED unless the caller has the role, about whichever guests."""
        role = self.caller().role
        if role is None or role < self._needed:
            raise _denied(self._needed)

    def require(self, entry: GuestEntry | None, guest_id: str) -> None:
        """Raises CallError NOT_FOUND unless the guest exists for the caller, PERMISSION_DENIED unless the role covers it."""
        caller = self.caller()
        if entry is None:
            raise not_known(guest_id)
        if not caller.may(self._needed, entry):
            raise _denied(self._needed, guest_id) if caller.sees(entry) else not_known(guest_id)

    def sees(self, entry: GuestEntry) -> bool:
        """Whether the guest exists for the caller; nobody who lost its credentials sees any."""
        try:
            return self.caller().sees(entry)
        except CallError:
            return False

    @property
    def is_admin(self) -> bool:
        """Whether the caller may know where guests are."""
        return self.caller().role is Role.ADMIN


class SeenGuests:
    """The directory as one caller sees it."""

    def __init__(self, directory: Directory, permit: Permit) -> None:
        self._directory = directory
        self._permit = permit

    def get(self, guest_id: str) -> GuestEntry | None:
        """The entry of `guest_id`, or None."""
        entry = self._directory.get(guest_id)
        return entry if entry is not None and self._permit.sees(entry) else None

    def after(self, guest_id: str = "") -> Sequence[GuestEntry]:
        """The entries whose ids come after `guest_id`, in id order."""
        return [entry for entry in self._directory.after(guest_id) if self._permit.sees(entry)]


def grant_permit(permit: Permit) -> None:
    """Make `permit` the present call's."""
    _CURRENT.set(permit)


def current_permit() -> Permit:
    """The present call's permit; raises CallError INTERNAL where it did not pass the interceptor."""
    try:
        return _CURRENT.get()
    except LookupError:
        raise CallError(grpc.StatusCode.INTERNAL, "a fault of the proxy: the call did not pass the interceptor") from None


def _denied(needed: Role, guest_id: str = "") -> CallError:
    about = f"guest {guest_id}: " if guest_id else ""
    return CallError(grpc.StatusCode.PERMISSION_DENIED, f"{about}this call needs the role {needed.name.lower()}")

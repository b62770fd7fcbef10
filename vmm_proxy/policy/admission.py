"""Who is admitted to a call, whatever it came by: the one decision that gRPC and HTTP share.

The caller must have the role that the method needs, and a place. A method that method_roles does not list is refused to everybody. Each
refusal is counted and told, that of a change in the audit log. It fails closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import grpc

from guest_transport.peers import Peer, lasting_name
from guest_transport.process.repeated_lines import about
from vmm_proxy.call_stats import CallCounts
from vmm_proxy.errors import CallError
from vmm_proxy.policy.access import Access
from vmm_proxy.policy.audit_trail import AuditTrail
from vmm_proxy.policy.credentials import Credentials
from vmm_proxy.policy.permit import Permit, grant_permit
from vmm_proxy.policy.roles import Role
from vmm_proxy.upstream.limits import Share, SharedConcurrencyLimit

log = logging.getLogger(__name__)


class Admission:
    """Admits by `access`; `needed` is the role of each method by path, `calls` are the places."""

    def __init__(
        self,
        access: Access,
        trail: AuditTrail,
        needed: Mapping[str, Role],
        calls: SharedConcurrencyLimit,
        counts: CallCounts | None = None,
    ) -> None:
        self.access = access
        self.trail = trail
        self._needed = needed
        self._calls = calls
        self._counts = counts

    def only_reads(self, path: str) -> bool:
        """Whether the method is for viewers; every other one stands in the audit log."""
        return self._needed.get(path) is Role.VIEWER

    def admit(self, path: str, peer: Peer, read: Callable[[], Credentials], request: object = None) -> tuple[Permit, Share]:
        """The permit of a caller that may call `path`, made the present one, and its taken place; raises CallError for every other.

        `read` gives what the caller at `peer` shows; `request` is that of a method which changes something.
        """
        credentials = Credentials(peer)
        try:
            needed = self._role_for(path)
            credentials = read()
            permit = Permit(self.access, credentials, needed)
            permit.require_role()
            place = self._calls.share_of(permit.account, admin=permit.is_admin)
            place.take()
        except CallError as error:
            if self._counts is not None:
                self._counts.refused(path, error)
            self._note_refusal(path, credentials, request, error)
            raise
        grant_permit(permit)
        return permit, place

    def _role_for(self, path: str) -> Role:
        needed = self._needed.get(path)
        if needed is None:
            raise CallError(grpc.StatusCode.PERMISSION_DENIED, "nobody may call this method: no role is set for it")
        return needed

    def _note_refusal(self, path: str, credentials: Credentials, request: object, error: CallError) -> None:
        try:
            who = self.access.judge(credentials).name
        except CallError:
            who = str(credentials.peer)
        if request is not None:
            self.trail.refused(path, who, request, error)
        else:
            # Each reason has its line, though they come from one caller: the reasons are ours, and few.
            same = about(f"{path} {lasting_name(who)} {error.text}")
            log.warning("%s by %s refused: %s", path, who, error.text, extra=same)

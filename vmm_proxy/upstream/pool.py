"""From a guest's id to the guest: who is known, who runs, and one Upstream for each that was called.

It follows the directory: a guest that was removed, stopped or moved loses its channel at once, and its calls in progress end with
UNAVAILABLE. A new label changes nothing here. Rejected: checking the directory only at the next call, which would leave a channel
to a VM that is gone, or to its successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from guest_contract.identifiers import GUEST_ID_RULE, valid_guest_id
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.directory.guest_tls import GuestTls, tls_for
from vmm_proxy.errors import CallError, not_known
from vmm_proxy.upstream.limits import PROXY_CALLS, PROXY_CALLS_KEPT, PROXY_CALLS_OF_ONE, Limit, SharedConcurrencyLimit
from vmm_proxy.upstream.reachability import Reachability, ReachabilityState
from vmm_proxy.upstream.upstream import Upstream

# Why the calls to a guest end before it answered.
REMOVED, STOPPED, MOVED = "it was removed from the directory", "it was stopped", "it was moved to another address"

# Raises CallError unless the caller may reach the guest: its entry, if there is one, and its id.
Require = Callable[[GuestEntry | None, str], None]
# Called with the entry of a pinned guest and the instance_id that was shown in place of its own.
OnWrongGuest = Callable[[GuestEntry, bytes], None]


class Pool:
    """The guests of `directory`, as far as they were called."""

    def __init__(
        self,
        directory: Directory,
        wall_clock: Callable[[], float],
        *,
        usual_tls: GuestTls | None = None,
        on_wrong_guest: OnWrongGuest | None = None,
    ) -> None:
        self._directory = directory
        self._usual_tls = usual_tls
        self._on_wrong_guest = on_wrong_guest
        self._wall_clock = wall_clock
        self._calls = SharedConcurrencyLimit(
            PROXY_CALLS, PROXY_CALLS_OF_ONE, "the proxy", kept=PROXY_CALLS_KEPT, what="calls to guests in progress"
        )
        self._upstreams: dict[str, Upstream] = {}
        # Kept while the guest is known, also across a stop: when it last answered is then still worth knowing.
        self._reachability: dict[str, Reachability] = {}
        self._closing: set[asyncio.Task[None]] = set()
        # Of upstreams that were ended; a count may not fall.
        self._past_redials = 0
        # Connections that another guest than the pinned one answered.
        self.identity_mismatches = 0
        directory.subscribe(self._changed)

    def upstream(self, guest_id: str, require: Require | None = None) -> Upstream:
        """The guest with this id, if it may be called, and by somebody whom `require` lets; raises CallError.

        Without `require` it is reached on the proxy's own account.
        """
        entry = self._directory.get(guest_id)
        if entry is None and not valid_guest_id(guest_id):
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"id: must be {GUEST_ID_RULE}")
        if require is not None:
            require(entry, guest_id)
        if entry is None:
            raise not_known(guest_id)
        upstream = self._upstreams.get(guest_id)
        if upstream is None:
            if not entry.running:
                raise CallError(grpc.StatusCode.FAILED_PRECONDITION, f"guest {guest_id}: stopped")
            upstream = self._upstreams[guest_id] = self._new(entry)
        return upstream

    def generation(self, guest_id: str) -> int:
        """Of the guest's entry now; 0 where there is none."""
        entry = self._directory.get(guest_id)
        return entry.generation if entry else 0

    def require_current(self, guest_id: str, generation: int, require: Require) -> None:
        """What every outcome passes when it is sent: raises CallError unless `require` lets now, and the VM of `generation`, 0 for none, is
        the entry's now."""
        entry = self._directory.get(guest_id)
        if entry is not None or not generation:
            require(entry, guest_id)
        if generation and (entry is None or entry.generation != generation):
            reason = REMOVED if entry is None else MOVED if entry.running else STOPPED
            raise CallError(grpc.StatusCode.UNAVAILABLE, f"guest {guest_id}: {reason}")

    def share_of(self, caller: str | None, *, admin: bool) -> Limit:
        """The places for calls to guests as `caller` has them; None for one who cannot be told from others."""
        return self._calls.share_of(caller, admin=admin)

    def renew_certificates(self) -> None:
        """Use renewed certificates towards guests from their next calls on; calls in progress finish."""
        for upstream in self._upstreams.values():
            upstream.channels.renew_certificates()

    def _new(self, entry: GuestEntry) -> Upstream:
        def wrong_guest(shown: bytes) -> None:
            self.identity_mismatches += 1
            if self._on_wrong_guest is not None:
                self._on_wrong_guest(entry, shown)

        return Upstream(
            entry.id,
            entry.address,
            dstack=entry.dstack,
            generation=entry.generation,
            pin=entry.instance_id,
            tls=tls_for(entry.address, entry.tls, self._usual_tls),
            reachability=self.reachability(entry.id),
            proxy_calls=self._calls.share_of(None),
            wall_clock=self._wall_clock,
            on_wrong_guest=wrong_guest,
        )

    def reachability(self, guest_id: str) -> Reachability:
        """What the calls to a guest say of it; all unknown where none was made."""
        known = self._reachability.get(guest_id)
        if known is None:
            known = Reachability()
            # Kept for a guest of the directory alone, so that whoever holds it sees what the first call says.
            if self._directory.get(guest_id) is not None:
                self._reachability[guest_id] = known
        return known

    @property
    def redials(self) -> int:
        """Channels that were replaced because their guest did not answer, since the proxy started."""
        return self._past_redials + sum(upstream.channels.redials for upstream in self._upstreams.values())

    async def close(self) -> None:
        """End every channel and every call."""
        for upstream in self._upstreams.values():
            self._close(upstream, "the proxy stops")
        self._upstreams.clear()
        await asyncio.gather(*self._closing)

    def _changed(self, before: GuestEntry | None, after: GuestEntry | None) -> None:
        if before is None:
            return
        if after is None:
            self._reachability.pop(before.id, None)
            self._end(before.id, REMOVED)
        elif not before.same_vm(after):
            # Version and times were another VM's.
            self._reachability.pop(before.id, None)
            self._end(before.id, MOVED)
        elif not after.running:
            self._end(before.id, STOPPED)

    def _end(self, guest_id: str, reason: str) -> None:
        if reachability := self._reachability.get(guest_id):
            reachability.state, reachability.reason = ReachabilityState.UNKNOWN, ""
        if upstream := self._upstreams.pop(guest_id, None):
            self._close(upstream, reason)

    def _close(self, upstream: Upstream, reason: str) -> None:
        self._past_redials += upstream.channels.redials
        task = asyncio.create_task(upstream.close(reason))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

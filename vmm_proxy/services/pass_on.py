"""One call to a guest for a caller, whatever it came by: counted, bounded, answered by the guest or by what is kept of it.

What was read is judged again before it is sent; what a guest was made to do is told however it went, also to who lost the right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import grpc

from guest_contract.methods import Method
from vmm_proxy.call_stats import CallCounts
from vmm_proxy.errors import CallError, Trailers
from vmm_proxy.policy.permit import current_permit
from vmm_proxy.upstream import passed_metadata
from vmm_proxy.upstream.pool import Pool
from vmm_proxy.upstream.shared_call import Answer

log = logging.getLogger(__name__)

RawMetadata = Iterable[tuple[str, str | bytes]]


class PassOn:
    """Passes calls on to the guests of `pool`, and counts them in `counts`."""

    def __init__(self, pool: Pool, counts: CallCounts) -> None:
        self._pool = pool
        self._counts = counts

    async def call(
        self, method: Method, guest_id: Callable[[], str], metadata: RawMetadata | None, deadline: float
    ) -> tuple[Answer, Trailers]:
        """The answer to the present permit's caller, and what of its trailers is for it; raises CallError. `guest_id` may raise it too."""
        with self._counts.call(method.name) as counted:
            try:
                answered = await self._ask(method, guest_id(), metadata, deadline)
            except CallError as error:
                counted.failed(error)
                raise
            except Exception as error:
                log.exception("%s failed in the proxy itself", method.name)
                failure = CallError(grpc.StatusCode.INTERNAL, "a fault of the proxy; its log says more")
                counted.failed(failure)
                raise failure from error
            counted.succeeded()
            return answered

    async def _ask(self, method: Method, guest_id: str, raw: RawMetadata | None, deadline: float) -> tuple[Answer, Trailers]:
        permit = current_permit()
        require = permit.require
        share = self._pool.share_of(permit.account, admin=permit.is_admin)
        upstream = self._pool.upstream(guest_id, require)
        metadata = passed_metadata.to_guest(raw)
        if kept := upstream.kept(method, metadata):
            return kept, kept.trailers
        try:
            answer = await upstream.call(method, metadata, deadline, share=share)
        except CallError as error:
            if method.only_reads:
                self._pool.require_current(guest_id, upstream.generation, require)
            error.trailers = passed_metadata.with_own_id(error.trailers, metadata)
            raise
        if method.only_reads:
            self._pool.require_current(guest_id, upstream.generation, require)
        return answer, passed_metadata.with_own_id(answer.trailers, metadata)

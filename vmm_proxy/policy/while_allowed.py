"""Ends what runs for a caller as soon as the access rules do not let it any more.

Right after the rules changed everybody who is being served is judged anew, so that a quiet stream ends like a busy one. What runs is
cancelled and its places are given back; it fails with the refusal. It fails closed. Rejected: looking at what is sent (a stream that sends
nothing lives on, and keeps its places), and a ticker (work each second for what happens once a month).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from vmm_proxy.policy.access import Access


@contextlib.asynccontextmanager
async def while_allowed(access: Access, require: Callable[[], None], refusal: type[Exception]) -> AsyncIterator[None]:
    """Run the block; once `require` raises a `refusal` after a change of the rules, cancel the block and raise that."""
    loop = asyncio.get_running_loop()
    refused: Exception | None = None

    def judge() -> None:
        nonlocal refused
        if refused is not None:
            return
        try:
            require()
        except refusal as error:
            refused = error
            limit.reschedule(loop.time())

    try:
        async with asyncio.timeout(None) as limit:
            with access.subscribed(judge):
                yield
    except TimeoutError:
        if refused is None or not limit.expired():
            raise
        raise refused from None

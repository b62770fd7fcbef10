"""How long a call to a guest may take: the caller's deadline less a margin, or the product's own bound.

The margin lets the guest's outcome, or ours, still reach the caller in time. Never longer than the caller waits: an answer
nobody waits for is work for nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

# Enough for a reply to travel back on a busy host; of a short deadline at most a tenth is taken.
MARGIN_SECONDS = 0.05
MARGIN_SHARE = 0.1
# What a collection has to say at its end may be a thousand failures of guests that never answered.
COLLECTION_MARGIN_SECONDS = 0.5
# A caller that sets hours means "no deadline"; a place towards the guest is not held that long. No method takes minutes.
LONGEST_SECONDS = 300.0


def guest_deadline(
    context: grpc.aio.ServicerContext[Any, Any], bound_seconds: float, margin_seconds: float = MARGIN_SECONDS
) -> float:
    """The deadline of the call to the guest, in the loop's time; `bound_seconds` applies where the caller set none.

    Where the caller set one, `margin_seconds` before it, and at most MARGIN_SHARE of the time that is left.
    """
    # grpc.aio gives None for a call without a deadline; its stubs promise a float.
    remaining: float | None = context.time_remaining()
    if remaining is None:
        return asyncio.get_running_loop().time() + bound_seconds
    margin = min(margin_seconds, remaining * MARGIN_SHARE)
    return asyncio.get_running_loop().time() + min(remaining - margin, LONGEST_SECONDS)

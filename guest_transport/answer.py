"""Waits for the answer of a call, so that giving it up costs nothing.

grpc.aio (1.85) never frees what a call holds in gRPC's core when its task is cancelled before the core is done: 960 bytes for each call
whose caller leaves or misses a deadline (docs/decisions/memory.md has the smallest form). Here the core is told to cancel, and gRPC's own
task goes on until it is; a stream's call still leaves 200 bytes then. Two members of grpc.aio that are not public are used; a test names
them, and where they are missing the call is awaited plainly. Rejected: leaving the call to its deadline, as the guest would work for nobody
until then.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import grpc

T = TypeVar("T")

RESPONSE_TASK = "_call_response"
CANCEL_IN_CORE = "_cancel"
# gRPC's own words for a call that its caller cancelled.
_WHY = "Locally cancelled by application!"


async def answer_of(call: grpc.aio.UnaryUnaryCall[Any, T]) -> T:
    """As `await call`."""
    response = getattr(call, RESPONSE_TASK, None)
    if response is not None and hasattr(call, CANCEL_IN_CORE):
        try:
            await asyncio.shield(response)
        except asyncio.CancelledError:
            cancel(call)
            raise
    return await call


async def message_of(call: grpc.aio.UnaryStreamCall[Any, T]) -> T | Any:
    """As `await call.read()`: the next message, or grpc.aio.EOF."""
    reading = asyncio.ensure_future(call.read())
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        # Nobody asks any more how it ended.
        reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        cancel(call)
        raise
    finally:
        # Its exception knows this frame, which would know it.
        del reading


def cancel(call: grpc.aio.Call) -> None:
    """As `call.cancel()`."""
    in_core = getattr(call, CANCEL_IN_CORE, None)
    if in_core is None:
        call.cancel()
    else:
        in_core(_WHY)

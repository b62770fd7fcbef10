"""Ends an rpc with a status, and leaves no garbage behind.

grpc.aio (1.85) keeps the exception that abort() raises, and with it every frame that it passed and the context that keeps it: 30 objects
in a cycle for each failed call, which only a full collection finds. The traceback is taken off once the handler has ended
(docs/decisions/memory.md). Rejected: set_code() and a return, which sends a message that nobody asked for before the status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

import grpc


# A servicer context is generic in its messages, which do not matter here.
async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    text: str,
    trailers: Sequence[tuple[str, str | bytes]] = (),
) -> NoReturn:
    """End the rpc with `code`; raises what grpc.aio raises for it."""
    try:
        await context.abort(code, text, tuple(trailers))
    except BaseException as raised:
        # The handler's task ends in this very step of the loop; what runs next finds the frames unused.
        asyncio.get_running_loop().call_soon(raised.with_traceback, None)
        raise

"""Bounds the calls that one peer has in progress, where no caller is known by name: by user, CID or IP address.

gRPC's own count is of all peers together, so whoever takes all it can get would leave nothing to the others. Health is not counted: whoever
watches over the server must hear from it; nor are Unix callers that the server cannot tell apart, who are for the socket's mode to bound.
Rejected: counting connections alone (each has 100 calls).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from guest_transport.abort import abort
from guest_transport.peers import Peers, told_apart
from guest_transport.server import health

# What one peer of a guest agent may have in progress: five clients of ours, and a small part of what the server takes.
CALLS_OF_ONE = 256

# Handlers of any service pass here.
_Context = grpc.aio.ServicerContext[Any, Any]
_HEALTH = f"/{health.SERVICE_NAME}/"


class CallsOfOne:
    """Counts the calls of each of `peers`; `limit` is the most for one. Request deadlines take a place here for each call."""

    def __init__(self, peers: Peers, limit: int, on_refused: Callable[[], None]) -> None:
        self._peers = peers
        self._on_refused = on_refused
        self._limit = limit
        self._held: Counter[str] = Counter()

    @staticmethod
    def counts(method: str) -> bool:
        """Whether calls of the method at this path are counted."""
        return not method.startswith(_HEALTH)

    @contextlib.asynccontextmanager
    async def place(self, context: _Context) -> AsyncIterator[None]:
        """Within it the call is one of its peer's; ends the call with RESOURCE_EXHAUSTED where the peer has too many."""
        who = told_apart(self._peers.of(context))
        if who is None:
            yield
            return
        if self._held[who] >= self._limit:
            self._on_refused()
            text = f"{who} has {self._limit} calls in progress already, which is the most for one peer; end one first"
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._held[who] += 1
        try:
            yield
        finally:
            self._held[who] -= 1
            if not self._held[who]:
                del self._held[who]

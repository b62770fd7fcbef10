"""Bounds the calls that one peer has in progress, where no caller is known by name: by user, CID or IP address.

gRPC's own count is of all peers together, so whoever takes all it can get would leave nothing to the others. Health is not counted: whoever
watches over the server must hear from it; nor are Unix callers that the server cannot tell apart, who are for the socket's mode to bound.
Rejected: counting connections alone (each has 100 calls).
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from guest_transport.abort import abort
from guest_transport.peers import Peers, told_apart
from guest_transport.server import health

# What one peer of a guest agent may have in progress: five clients of ours, and a small part of what the server takes.
CALLS_OF_ONE = 256

# Handlers of any service pass here.
_Context = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_HEALTH = f"/{health.SERVICE_NAME}/"


class CallsOfOne(grpc.aio.ServerInterceptor):
    """Stands in front of RequestDeadline, whose handlers all take a stream. `limit`: calls of one peer of `peers`."""

    def __init__(self, peers: Peers, limit: int) -> None:
        self._peers = peers
        self._limit = limit
        self._held: Counter[str] = Counter()
        # By the handler behind; both live as long as the server.
        self._made: dict[_Handler, _Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """The handler that gRPC calls, which takes a place first."""
        plain = await continuation(handler_call_details)
        if plain is None or handler_call_details.method.startswith(_HEALTH):
            return plain
        made = self._made.get(plain)
        if made is None:
            made = self._made[plain] = self._counting(plain)
        return made

    def _counting(self, plain: _Handler) -> _Handler:
        ways = (plain.request_deserializer, plain.response_serializer)
        # Any: the stubs know blocking handlers only.
        behind: Any = plain.stream_stream if plain.response_streaming else plain.stream_unary

        async def answer(requests: object, context: _Context) -> Any:
            async with self._place(context):
                return await behind(requests, context)

        async def answers(requests: object, context: _Context) -> AsyncIterator[Any]:
            async with self._place(context), contextlib.aclosing(behind(requests, context)) as messages:
                async for message in messages:
                    yield message

        if not plain.response_streaming:
            return grpc.stream_unary_rpc_method_handler(answer, *ways)
        # One that is no generator writes its answers through the context.
        stream: Any = answers if inspect.isasyncgenfunction(behind) else answer
        return grpc.stream_stream_rpc_method_handler(stream, *ways)

    @contextlib.asynccontextmanager
    async def _place(self, context: _Context) -> AsyncIterator[None]:
        who = told_apart(self._peers.of(context))
        if who is None:
            yield
            return
        if self._held[who] >= self._limit:
            text = f"{who} has {self._limit} calls in progress already, which is the most for one peer; end one first"
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._held[who] += 1
        try:
            yield
        finally:
            self._held[who] -= 1
            if not self._held[who]:
                del self._held[who]

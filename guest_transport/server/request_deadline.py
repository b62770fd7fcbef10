"""Ends a call whose request does not come: headers alone hold a place in the server, and cost their sender nothing.

gRPC waits for the message of a call for as long as the connection lives, and answers pings meanwhile. A stream of requests is not
waited for here; its service bounds it. Rejected: a deadline of the caller's (it chooses none), and a timer for each call (two more
calls into the loop for every request; one timer for the oldest does).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from guest_transport.peers import Peers, lasting_name
from guest_transport.process.repeated_lines import about
from guest_transport.server.calls_of_one import CallsOfOne

log = logging.getLogger(__name__)

# A request has at most 64 KiB and follows its headers at once; a slow line needs a second.
REQUEST_SECONDS = 10.0

# Handlers of any service pass here.
_Context = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class RequestDeadline(grpc.aio.ServerInterceptor):
    """Stands in front of all other interceptors of a server, whose peers are `peers`; bounds the `calls` of each, where given.

    To gRPC every method takes a stream, from which the one request is read here: of a call whose request is missing, gRPC gives an
    interceptor nothing to end it by.
    """

    def __init__(
        self,
        peers: Peers,
        seconds: float = REQUEST_SECONDS,
        on_ended: Callable[[], None] = lambda: None,
        calls: CallsOfOne | None = None,
    ) -> None:
        self._peers = peers
        self._on_ended = on_ended
        self._seconds = seconds
        self._calls = calls
        # Calls without a request and when they began, the oldest first.
        self._waiting: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        # By the method's own handler; both live as long as the server.
        self._made: dict[_Handler, _Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """The handler that gRPC calls, which takes a place and reads the request."""
        plain = await continuation(handler_call_details)
        calls = self._calls if self._calls and self._calls.counts(handler_call_details.method) else None
        if plain is None or (plain.request_streaming and not calls):
            return plain
        made = self._made.get(plain)
        if made is None:
            made = self._made[plain] = self._reading(plain, calls)
        return made

    def _reading(self, plain: _Handler, calls: CallsOfOne | None) -> _Handler:
        ways = (plain.request_deserializer, plain.response_serializer)
        # Any: the stubs know blocking handlers only.
        behind: Any = plain.stream_stream or plain.stream_unary or plain.unary_stream or plain.unary_unary

        def place(context: _Context) -> contextlib.AbstractAsyncContextManager[None]:
            return calls.place(context) if calls else contextlib.nullcontext()

        async def asked(requests: object, context: _Context) -> Any:
            return requests if plain.request_streaming else await self._request(context)

        async def answer(requests: object, context: _Context) -> Any:
            async with place(context):
                return await behind(await asked(requests, context), context)

        async def answers(requests: object, context: _Context) -> AsyncIterator[Any]:
            async with place(context), contextlib.aclosing(behind(await asked(requests, context), context)) as messages:
                async for message in messages:
                    yield message

        if not plain.response_streaming:
            return grpc.stream_unary_rpc_method_handler(answer, *ways)
        # One that is no generator writes its answers through the context.
        stream: Any = answers if inspect.isasyncgenfunction(behind) else answer
        return grpc.stream_stream_rpc_method_handler(stream, *ways)

    async def _request(self, context: _Context) -> Any:
        """The call's request; ends the call when it does not come."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # for mypy: gRPC runs each call in a task
        loop = asyncio.get_running_loop()
        self._waiting[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._end_late)
        try:
            request = await context.read()
        except asyncio.CancelledError:
            if task not in self._late or task.uncancel():
                raise
            who = lasting_name(str(self._peers.of(context)))
            text = f"no request came within {self._seconds:g} s of the headers"
            log.warning("ended a call of %s: %s", who, text, extra=about(who))
            self._on_ended()
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
        finally:
            self._waiting.pop(task, None)
            self._late.discard(task)
        if request is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call holds no request")
        return request

    def _end_late(self) -> None:
        """End every call that has waited too long, and come again for the oldest of the others."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._waiting:
            task, began = next(iter(self._waiting.items()))
            if (left := began + self._seconds - loop.time()) > 0:
                self._timer = loop.call_later(left, self._end_late)
                return
            del self._waiting[task]
            self._late.add(task)
            task.cancel()

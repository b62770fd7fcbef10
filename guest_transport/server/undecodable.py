"""Requests that do not decode: refused as the caller's mistake, without a line in the log.

grpc.aio (1.85) answers them with UNKNOWN and its own exception's text, and logs a traceback for each: any caller could fill the disk.
Rejected: an interceptor (asked on every call, and too late: the request is decoded behind it).
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, TypeAlias

import grpc

from guest_transport.abort import abort

# Any throughout: messages of any service pass through here.
_Context = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

REFUSAL = "the request does not decode"


class _Undecodable:
    """Stands for a request that does not decode."""


_UNDECODABLE = _Undecodable()


def careful(server: grpc.aio.Server) -> grpc.aio.Server:
    """`server` itself; services that are added from here on never see a request that does not decode."""
    add_generic, add_registered = server.add_generic_rpc_handlers, server.add_registered_method_handlers

    def add_careful_generic(generic: Iterable[grpc.GenericRpcHandler]) -> None:
        add_generic(tuple(_CarefulHandlers(handlers) for handlers in generic))

    def add_careful_registered(service: str, handlers: Mapping[str, _Handler]) -> None:
        add_registered(service, {method: _careful(handler) for method, handler in handlers.items()})

    # A subclass would have to be of gRPC's private class: generated code and reflection insist on gRPC's own server.
    server.add_generic_rpc_handlers = add_careful_generic  # type: ignore[assignment]
    server.add_registered_method_handlers = add_careful_registered  # type: ignore[assignment]
    return server


class _CarefulHandlers(grpc.GenericRpcHandler):
    def __init__(self, inner: grpc.GenericRpcHandler) -> None:
        self._inner = inner
        self._made: dict[_Handler, _Handler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _Handler | None:
        """The handler of a method, made careful once."""
        plain = self._inner.service(handler_call_details)
        if plain is None:
            return None
        made = self._made.get(plain)
        if made is None:
            made = self._made[plain] = _careful(plain)
        return made


def _careful(plain: _Handler) -> _Handler:
    """The same handler; one that takes bytes, or streams without a stream of answers, stays as it is."""
    decode, encode = plain.request_deserializer, plain.response_serializer
    if decode is None:
        return plain
    take = _taking(decode)
    if plain.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(_one_answer(plain.unary_unary), take, encode)
    if plain.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(_many_answers(plain.unary_stream), take, encode)
    if plain.stream_stream is not None:
        return grpc.stream_stream_rpc_method_handler(_stream_of(plain.stream_stream), take, encode)
    return plain


def _taking(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def take(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception:  # noqa: BLE001 -- whatever it is, the bytes are the caller's
            return _UNDECODABLE

    return take


def _one_answer(plain: Callable[..., Any]) -> Callable[..., Any]:
    async def answer(request: Any, context: _Context) -> Any:
        if request is _UNDECODABLE:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, REFUSAL)
        return await plain(request, context)

    return answer


def _many_answers(plain: Callable[..., Any]) -> Callable[..., Any]:
    if not inspect.isasyncgenfunction(plain):
        # It writes its answers through the context.
        return _one_answer(plain)

    async def answers(request: Any, context: _Context) -> AsyncIterator[Any]:
        if request is _UNDECODABLE:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, REFUSAL)
        async for answer in plain(request, context):
            yield answer

    return answers


def _stream_of(plain: Callable[..., Any]) -> Callable[..., Any]:
    async def decoded(requests: AsyncIterator[Any], context: _Context) -> AsyncIterator[Any]:
        async for request in requests:
            if request is _UNDECODABLE:
                await abort(context, grpc.StatusCode.INVALID_ARGUMENT, REFUSAL)
            yield request

    if not inspect.isasyncgenfunction(plain):
        return lambda requests, context: plain(decoded(requests, context), context)

    async def answers(requests: AsyncIterator[Any], context: _Context) -> AsyncIterator[Any]:
        async for answer in plain(decoded(requests, context), context):
            yield answer

    return answers

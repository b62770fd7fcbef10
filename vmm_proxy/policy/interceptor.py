"""Every gRPC call of every service passes here before its servicer sees a byte; admission.py decides.

It asks who calls, requires the role that the method needs, gives the servicer the permit, and accounts for what changes something. Whoever
loses the role while it is served is served no longer; what changes something is finished, because its outcome must be known.
Rejected: a check in each servicer (one is forgotten), and a wrapped
context object (gRPC's own is C and checks its type).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc

from guest_transport.peers import Peers
from vmm_proxy.call_stats import CallCounts
from vmm_proxy.errors import CallError, refuse
from vmm_proxy.policy.access import Access
from vmm_proxy.policy.admission import Admission
from vmm_proxy.policy.audit_trail import AuditTrail
from vmm_proxy.policy.credentials import read_credentials
from vmm_proxy.policy.method_roles import is_open
from vmm_proxy.policy.permit import Permit
from vmm_proxy.policy.roles import Role
from vmm_proxy.policy.while_allowed import while_allowed
from vmm_proxy.upstream.limits import CALLS, CALLS_KEPT, CALLS_OF_ONE, Share, SharedConcurrencyLimit

# Handlers of many message types pass here; none of them is looked into.
Context = grpc.aio.ServicerContext[Any, Any]
# In quotes: only its stubs are generic.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Unary = Callable[[Any, Context], Awaitable[Any]]
Stream = Callable[[Any, Context], AsyncIterator[Any]]


class PolicyInterceptor(grpc.aio.ServerInterceptor):
    """Stands in front of a server's services. `needed` is the role of each method by path."""

    def __init__(
        self,
        access: Access,
        peers: Peers,
        trail: AuditTrail,
        needed: Mapping[str, Role],
        *,
        counts: CallCounts | None = None,
    ) -> None:
        calls = SharedConcurrencyLimit(CALLS, CALLS_OF_ONE, "the proxy", kept=CALLS_KEPT, what="calls in progress")
        self._admission = Admission(access, trail, needed, calls, counts)
        self._access = access
        self._peers = peers
        self._trail = trail
        # By path, and only of methods that are served; made at a method's first call.
        self._guarded: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler that gRPC calls in place of the servicer's."""
        path = handler_call_details.method
        guarded = self._guarded.get(path)
        if guarded is not None:
            return guarded
        # gRPC gives None for a method that nobody serves, and takes it for UNIMPLEMENTED.
        handler = await continuation(handler_call_details)
        if handler is None or is_open(path):
            return handler
        guarded = self._guarded[path] = self._guard(path, handler)
        return guarded

    def _guard(self, path: str, handler: Handler) -> Handler:
        ways = (handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
            made = grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
            return made(self._stream(path, behaviour), *ways)  # type: ignore[arg-type] # the stubs know blocking handlers only
        if handler.request_streaming:
            raise NotImplementedError(f"{path}: no method of the contract takes a stream and answers once")
        unary = self._unary if self._admission.only_reads(path) else self._accounted
        return grpc.unary_unary_rpc_method_handler(unary(path, handler.unary_unary), *ways)  # type: ignore[arg-type] # the same

    def _unary(self, path: str, behaviour: Unary) -> Unary:
        async def unary(request: object, context: Context) -> object:
            try:
                permit, place = self._admit(path, context)
                try:
                    async with while_allowed(self._access, permit.require_role, CallError):
                        return await behaviour(request, context)
                finally:
                    place.give_back()
            except CallError as error:
                failure = error
            return await refuse(context, failure)

        return unary

    def _stream(self, path: str, behaviour: Stream) -> Stream:
        async def stream(request: object, context: Context) -> AsyncIterator[object]:
            try:
                permit, place = self._admit(path, context)
                try:
                    async with (
                        # Whoever lost the role, or the token, gets nothing more.
                        while_allowed(self._access, permit.require_role, CallError),
                        contextlib.aclosing(behaviour(request, context)) as messages,  # type: ignore[type-var] # a generator
                    ):
                        async for message in messages:
                            permit.require_role()
                            yield message
                finally:
                    place.give_back()
                return
            except CallError as error:
                failure = error
            await refuse(context, failure)

        return stream

    def _accounted(self, path: str, behaviour: Unary) -> Unary:
        async def accounted(request: object, context: Context) -> object:
            try:
                permit, place = self._admit(path, context, request)
            except CallError as error:
                return await refuse(context, error)
            try:
                about = await self._trail.ask(path, permit.caller(), request)
            except CallError as error:
                failure = error
            else:
                outcome, text = grpc.StatusCode.CANCELLED.name, "the caller left"
                try:
                    answer = await behaviour(request, context)
                    outcome, text = grpc.StatusCode.OK.name, ""
                except Exception:
                    outcome, text = _status(context)
                    raise
                finally:
                    await self._trail.end(about, outcome, text)
                return answer
            finally:
                place.give_back()
            return await refuse(context, failure)

        return accounted

    def _admit(self, path: str, context: Context, request: object = None) -> tuple[Permit, Share]:
        peer = self._peers.of(context)
        return self._admission.admit(path, peer, lambda: read_credentials(context, peer), request)


def _status(context: Context) -> tuple[str, str]:
    """How the servicer ended the call; what it raised without a status is gRPC's UNKNOWN."""
    # The stubs promise a StatusCode; grpc.aio gives the number, and 0 where none was set.
    code: object = context.code()
    number = code.value[0] if isinstance(code, grpc.StatusCode) else code
    names = {status.value[0]: status.name for status in grpc.StatusCode if status is not grpc.StatusCode.OK}
    return names.get(number, grpc.StatusCode.UNKNOWN.name), context.details() or ""

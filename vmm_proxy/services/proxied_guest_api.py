"""guest_api.ProxiedGuestApi: one path for all its methods, made from the service descriptor.

It reads the request's id, passes the call on and ends the rpc with the guest's answer or with a status of the contract; what a
method means it does not know. Requests arrive as bytes, because gRPC would answer one that does not decode with UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from guest_api import guest_api_pb2
from guest_contract.methods import PROXIED_SERVICE, Method, proxied_methods
from guest_transport.server.grpc_server import Service
from vmm_proxy.errors import CallError, refuse
from vmm_proxy.services.pass_on import PassOn
from vmm_proxy.upstream.deadlines import guest_deadline

# Bytes on both sides; grpc.aio gives the context of a generic handler no message types.
Context = grpc.aio.ServicerContext[Any, Any]
Forward = Callable[[bytes, Context], Awaitable[bytes]]


def proxied_api(pass_on: PassOn) -> Service:
    """The service over `pass_on`."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method.name: grpc.unary_unary_rpc_method_handler(_forward(method, pass_on), None, None) for method in proxied_methods()
    }
    generic = grpc.method_handlers_generic_handler(PROXIED_SERVICE.full_name, handlers)
    return Service(PROXIED_SERVICE.full_name, lambda server: server.add_generic_rpc_handlers((generic,)))


def _forward(method: Method, pass_on: PassOn) -> Forward:
    async def forward(request: bytes, context: Context) -> bytes:
        deadline = guest_deadline(context, method.bound_seconds)
        try:
            answer, trailers = await pass_on.call(method, partial(_guest_id, request), context.invocation_metadata(), deadline)
        except CallError as error:
            failure = error
        else:
            if trailers:
                context.set_trailing_metadata(trailers)
            return answer.wire
        return await refuse(context, failure)

    return forward


def _guest_id(request: bytes) -> str:
    try:
        return guest_api_pb2.Id.FromString(request).id
    except DecodeError as error:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "the request does not decode as guest_api.Id") from error

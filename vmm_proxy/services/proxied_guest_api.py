"""guest_api.ProxiedGuestApi: one path for all its methods, made from the service descriptor.

It reads the request's id, passes the call on and ends the rpc with the guest's answer or with a status of the contract; what a
method means it does not know. Requests arrive as bytes, because gRPC would answer one that does not decode with UNKNOWN.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from guest_api import guest_api_pb2
from guest_contract.methods import PROXIED_SERVICE, Method, proxied_methods
from guest_transport.server.grpc_server import Service
from vmm_proxy.call_stats import CallCounts
from vmm_proxy.errors import CallError, Trailers, refuse
from vmm_proxy.policy.permit import current_permit
from vmm_proxy.upstream import passed_metadata
from vmm_proxy.upstream.deadlines import guest_deadline
from vmm_proxy.upstream.pool import Pool
from vmm_proxy.upstream.shared_call import Answer

log = logging.getLogger(__name__)

# Bytes on both sides; grpc.aio gives the context of a generic handler no message types.
Context = grpc.aio.ServicerContext[Any, Any]
Forward = Callable[[bytes, Context], Awaitable[bytes]]


def proxied_api(pool: Pool, counts: CallCounts) -> Service:
    """The service, forwarding to `pool` and counted in `counts`."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method.name: grpc.unary_unary_rpc_method_handler(_forward(method, pool, counts), None, None)
        for method in proxied_methods()
    }
    generic = grpc.method_handlers_generic_handler(PROXIED_SERVICE.full_name, handlers)
    return Service(PROXIED_SERVICE.full_name, lambda server: server.add_generic_rpc_handlers((generic,)))


def _forward(method: Method, pool: Pool, counts: CallCounts) -> Forward:
    async def forward(request: bytes, context: Context) -> bytes:
        with counts.call(method.name) as counted:
            try:
                answer, trailers = await _ask(method, pool, request, context)
            except CallError as error:
                failure = error
            except Exception:
                log.exception("%s failed in the proxy itself", method.name)
                failure = CallError(grpc.StatusCode.INTERNAL, "a fault of the proxy; its log says more")
            else:
                counted.succeeded()
                if trailers:
                    context.set_trailing_metadata(trailers)
                return answer.wire
            counted.failed(failure)
        return await refuse(context, failure)

    return forward


async def _ask(method: Method, pool: Pool, request: bytes, context: Context) -> tuple[Answer, Trailers]:
    """The answer, and what of its trailers is this caller's.

    What was read is judged again before it is sent; what a guest was made to do is told however it went, also to who lost the right.
    """
    try:
        guest_id = guest_api_pb2.Id.FromString(request).id
    except DecodeError as error:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "the request does not decode as guest_api.Id") from error
    permit = current_permit()
    require = permit.require
    share = pool.share_of(permit.account, admin=permit.is_admin)
    upstream = pool.upstream(guest_id, require)
    metadata = passed_metadata.to_guest(context.invocation_metadata())
    if kept := upstream.kept(method, metadata):
        return kept, kept.trailers
    try:
        answer = await upstream.call(method, metadata, guest_deadline(context, method.bound_seconds), share=share)
    except CallError as error:
        if method.only_reads:
            pool.require_current(guest_id, upstream.generation, require)
        error.trailers = passed_metadata.with_own_id(error.trailers, metadata)
        raise
    if method.only_reads:
        pool.require_current(guest_id, upstream.generation, require)
    return answer, passed_metadata.with_own_id(answer.trailers, metadata)

"""How a CallError becomes the end of an rpc, with google.rpc.RetryInfo where trying again is worth it.

Kept apart from the errors themselves, so that fleet entries can carry the same failures without an rpc to abort.
"""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from guest_transport.abort import abort
from vmm_proxy.upstream.grpc_errors import CallError

STATUS_DETAILS = "grpc-status-details-bin"


def rpc_status(error: CallError) -> status_pb2.Status:
    """`error` as google.rpc.Status."""
    status = status_pb2.Status(code=error.code.value[0], message=error.text)
    if error.retry_after_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after_seconds * 1000))
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        status.details.append(detail)
    return status


# A servicer context is generic in its messages, which do not matter here.
async def refuse(context: grpc.aio.ServicerContext[Any, Any], error: CallError) -> NoReturn:
    """End the rpc with `error`, which whoever calls this still holds."""
    error.as_value()
    trailers: tuple[tuple[str, str | bytes], ...] = error.trailers
    if error.retry_after_seconds is not None:
        trailers = (*trailers, (STATUS_DETAILS, rpc_status(error).SerializeToString()))
    await abort(context, error.code, error.text, trailers)

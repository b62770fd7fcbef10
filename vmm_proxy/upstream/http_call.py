"""One call to a guest that runs dstack's own agent, and the one place where HTTP's failures become the statuses of the contract.

A status of HTTP is mapped as gRPC maps it (grpc/doc/http-grpc-status-mapping.md); 400 is what dstack's agent says for whatever a method
itself refused. The guest's own text is kept, bounded; a page of HTML is nobody's words. A reply in another form than the one that was asked
for is refused: protobuf keeps fields that this proxy does not know, JSON would lose them.
"""

from __future__ import annotations

import asyncio
import json

import grpc
import h11
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import StringValue

from guest_contract.methods import Method
from vmm_proxy.errors import CallError, LostError, NotSentError, Trailers, plain
from vmm_proxy.upstream import passed_metadata
from vmm_proxy.upstream.http_connection import OK, EndedError, HttpConnection, NotHttpError, Reply, ReplyError, TooLargeError
from vmm_proxy.upstream.passed_metadata import Metadata

_CODES = {
    400: grpc.StatusCode.INTERNAL,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED,
    429: grpc.StatusCode.UNAVAILABLE,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.UNAVAILABLE,
}


async def exchange(
    connection: HttpConnection, guest_id: str, method: Method, metadata: Metadata, deadline: float
) -> tuple[bytes, Trailers]:
    """The guest's reply on the wire and what of its headers travels; raises CallError, also NotSentError and LostError."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        async with asyncio.timeout_at(deadline) as limit:
            reply = await connection.post(f"/api/{method.name}", metadata)
    except (OSError, ReplyError) as error:
        if isinstance(error, TimeoutError) and limit.expired():
            text = f"guest {guest_id}: no answer within {loop.time() - started:.2f} s"
            raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from error
        raise _failed(connection, guest_id, method, error) from error
    except h11.LocalProtocolError as error:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "metadata: what travels to a guest must be a header's value") from error
    form = reply.header("content-type").partition(";")[0].strip().lower()
    if reply.status == OK and not _is_text(form):
        return reply.body, passed_metadata.to_caller(reply.headers, metadata)
    if reply.status == OK:
        code, instead = grpc.StatusCode.INTERNAL, f"its reply is {plain(form, 80)}, not protobuf"
    else:
        code = _CODES.get(reply.status, grpc.StatusCode.UNKNOWN)
        instead = f"it answered with HTTP status {reply.status}"
    trailers = passed_metadata.to_caller(reply.headers, metadata)
    text = f"guest {guest_id}: {plain(_words(reply, form)) or instead}"
    raise CallError(code, text, trailers=trailers, answered=True, wire_bytes=len(reply.body))


def _failed(connection: HttpConnection, guest_id: str, method: Method, error: Exception) -> CallError:
    match error:
        case NotHttpError():
            return CallError(grpc.StatusCode.UNAVAILABLE, f"guest {guest_id}: {error}")
        case TooLargeError(wire_bytes=wire_bytes):
            text = f"guest {guest_id}: {error}"
            return CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, text, answered=True, wire_bytes=wire_bytes)
        case ReplyError() if not isinstance(error, EndedError):
            return CallError(grpc.StatusCode.INTERNAL, f"guest {guest_id}: {error}", answered=True)
    if connection.used and not connection.heard and method.only_reads:
        # The guest ended a connection that it had kept, as it may at any time (RFC 9112, 9.5): the call is made on a new one.
        return NotSentError(grpc.StatusCode.UNAVAILABLE, f"guest {guest_id}: unreachable: the connection has ended")
    reason = error if isinstance(error, EndedError) else "the connection was lost during the call"
    return LostError(grpc.StatusCode.UNAVAILABLE, f"guest {guest_id}: {reason}")


def _is_text(form: str) -> bool:
    return form.startswith("text/") or form.endswith(("/json", "+json"))


def _words(reply: Reply, form: str) -> str:
    """What the guest says of an error; empty where it says nothing that can be read."""
    if form == "text/plain":
        return reply.body.decode("utf-8", "replace")
    try:
        if not _is_text(form):
            return StringValue.FromString(reply.body).value
        told = json.loads(reply.body) if form.endswith("json") else None
    except (DecodeError, ValueError, RecursionError):
        return ""
    said = told.get("error") if isinstance(told, dict) else ""
    return said if isinstance(said, str) else ""

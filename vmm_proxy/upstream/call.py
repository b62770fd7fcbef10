"""One call over one channel, from request to checked reply.

The reply is taken as hostile: its size, its lists and its encoding are checked before anything of it is passed on, and it is
encoded anew from what was decoded, unknown fields kept. Rejected: letting gRPC decode (it turns a reply that does not decode
into None with status OK), `wait_for_ready` for every call (a refused connection would then be told only at the caller's deadline),
and reading every call to its end (docs/decisions/guest-floods.md).
"""

from __future__ import annotations

import asyncio

import grpc
from google.protobuf.message import DecodeError

from guest_contract.methods import Method
from guest_transport.answer import answer_of, cancel, message_of
from guest_transport.options import CONNECT_SECONDS
from vmm_proxy.errors import CallError, LostError, NotSentError, Trailers
from vmm_proxy.upstream import passed_metadata, reply_limits
from vmm_proxy.upstream.channel import Channel, ReadToEndCall, UnaryCall
from vmm_proxy.upstream.grpc_errors import connection_lost, from_guest, handshake_timed_out, never_connected
from vmm_proxy.upstream.http_call import exchange
from vmm_proxy.upstream.http_connection import HttpConnection
from vmm_proxy.upstream.passed_metadata import Metadata
from vmm_proxy.upstream.shared_call import Answer

# A refused connection is known in milliseconds; one that took this long was accepted, or swallowed, and then ignored.
SWALLOWED_SECONDS = 0.5
# How long the redial of a swallowed connection is waited for: one whole attempt, then the guest counts as unreachable.
REDIAL_PATIENCE_SECONDS = CONNECT_SECONDS + 0.2
# A caller who leaves sooner says nothing of the guest: a healthy one may need as long on a busy host.
DOUBT_SECONDS = 0.1


async def ask(channel: Channel | HttpConnection, guest_id: str, method: Method, metadata: Metadata, deadline: float) -> Answer:
    """The guest's answer to `method`, asked over `channel` until `deadline` (loop time); raises CallError, also NotSentError, LostError."""
    asked = exchange if isinstance(channel, HttpConnection) else _ask_grpc
    wire, trailers = await asked(channel, guest_id, method, metadata, deadline)  # type: ignore[arg-type] # chosen by its type
    return _checked(wire, guest_id, method, trailers)


async def _ask_grpc(
    channel: Channel, guest_id: str, method: Method, metadata: Metadata, deadline: float
) -> tuple[bytes | None, Trailers]:
    path = method.guest_path
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        try:
            call = channel.call(path, timeout=deadline - started, metadata=metadata)
            wire = await _only_message(call, guest_id)
        except grpc.aio.AioRpcError as error:
            if channel.spent and never_connected(error):
                raise _not_sent(guest_id) from error
            if not _worth_a_redial(error, loop.time() - started):
                raise
            call = channel.call(path, timeout=deadline - loop.time(), metadata=metadata, wait_for_ready=True)
            wire = await _once_connected(call, channel, guest_id)
        answered_with = await call.trailing_metadata()
        channel.trust(path)
    except grpc.aio.UsageError as error:
        # The channel was replaced, and is closed by now, while this call waited for its turn on it.
        raise _not_sent(guest_id) from error
    except asyncio.CancelledError as error:
        if loop.time() - started >= DOUBT_SECONDS:
            channel.doubt(path)
        if _caller_cancelled():
            raise
        # The channel was closed under the call, which gRPC tells in the same way.
        text = f"guest {guest_id}: the connection was given up during the call"
        raise CallError(grpc.StatusCode.UNAVAILABLE, text) from error
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            channel.doubt(path)
        waited = loop.time() - started
        trailers = passed_metadata.to_caller(error.trailing_metadata(), metadata)
        told = from_guest(guest_id, error, trailers, waited_seconds=waited, refusal=channel.refusal)
        if connection_lost(error) and not channel.refusal:
            raise LostError(told.code, told.text, answered=told.answered) from error
        raise told from error
    return wire, passed_metadata.to_caller(answered_with, metadata) if answered_with else ()


async def _only_message(call: UnaryCall | ReadToEndCall, guest_id: str) -> bytes | None:
    """The reply of `call`, or None where it ended well without one; raises AioRpcError, CallError INTERNAL for a second message."""
    if isinstance(call, grpc.aio.UnaryUnaryCall):
        return await answer_of(call)
    try:
        wire = await message_of(call)
        if not isinstance(wire, bytes):
            return None
        second = await message_of(call)
        if not isinstance(second, bytes):
            return wire
    finally:
        # Nothing for one that has ended. One whose reader was cancelled before its request was sent would go on.
        cancel(call)
    text = f"guest {guest_id}: it sent a second message where the method has one"
    raise CallError(grpc.StatusCode.INTERNAL, text, answered=True, wire_bytes=len(wire) + len(second))


def _caller_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _not_sent(guest_id: str) -> NotSentError:
    return NotSentError(grpc.StatusCode.UNAVAILABLE, f"guest {guest_id}: unreachable: the connection has ended")


def _worth_a_redial(error: grpc.aio.AioRpcError, waited_seconds: float) -> bool:
    """Whether the guest cannot have seen the call, and the connection was swallowed and not refused."""
    return never_connected(error) and (waited_seconds >= SWALLOWED_SECONDS or handshake_timed_out(error))


async def _once_connected(call: UnaryCall | ReadToEndCall, channel: Channel, guest_id: str) -> bytes | None:
    """The reply of a call that waits for the redial; raises CallError UNAVAILABLE when patience ends without a connection."""
    unreachable = CallError(grpc.StatusCode.UNAVAILABLE, f"guest {guest_id}: unreachable: it does not answer the connection")
    gave_up = False

    def give_up() -> None:
        nonlocal gave_up
        if not channel.connected:
            gave_up = True
            cancel(call)

    clock = asyncio.get_running_loop().call_later(REDIAL_PATIENCE_SECONDS, give_up)
    try:
        return await _only_message(call, guest_id)
    except asyncio.CancelledError:
        if gave_up:
            raise unreachable from None
        raise
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not channel.connected:
            raise unreachable from error
        raise
    finally:
        clock.cancel()


def _checked(wire: bytes | None, guest_id: str, method: Method, trailers: Trailers) -> Answer:
    if wire is None:
        raise CallError(grpc.StatusCode.INTERNAL, f"guest {guest_id}: its reply holds no whole message", answered=True)
    try:
        reply_limits.check_wire(wire, method.reply)
        message = method.reply.FromString(wire)
        reply_limits.check_decoded(message, len(wire))
    except reply_limits.OverLimitError as error:
        text = f"guest {guest_id}: its reply is over the limit: {error}"
        raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, text, answered=True, wire_bytes=len(wire)) from error
    except DecodeError as error:
        text = f"guest {guest_id}: its reply does not decode as {method.reply.DESCRIPTOR.full_name}"
        raise CallError(grpc.StatusCode.INTERNAL, text, answered=True, wire_bytes=len(wire)) from error
    return Answer(message, trailers, len(wire))

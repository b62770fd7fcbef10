"""Whether the VM at the other end of a channel is the one that the directory means.

A CID or a socket path can be given to another VM while a guest is away. Where the directory pins an instance_id, every new
connection is asked for Info first, and nothing else is sent or passed on until it showed the pin: another VM never answers for
the guest, and never gets its Shutdown. It fails closed. Rejected: checking beside the first answer, when a Shutdown would have
been sent already.
"""

from __future__ import annotations

import asyncio
import hmac
import logging

import grpc

from guest_api import guest_api_pb2
from guest_contract.methods import proxied_methods
from vmm_proxy.errors import CallError
from vmm_proxy.upstream.call import ask
from vmm_proxy.upstream.channel import Channel
from vmm_proxy.upstream.http_connection import HttpConnection

log = logging.getLogger(__name__)

_INFO = next(method for method in proxied_methods() if method.name == "Info")


class WrongGuestError(CallError):
    """Another VM answers at the guest's address; `shown` is the instance_id that it showed, for the operator only."""

    def __init__(self, guest_id: str, shown: bytes, wire_bytes: int) -> None:
        text = f"guest {guest_id}: another VM answers at its address, its instance_id is not the pinned one"
        super().__init__(grpc.StatusCode.FAILED_PRECONDITION, text, wire_bytes=wire_bytes)
        self.shown = shown


async def prove(channel: Channel | HttpConnection, guest_id: str, deadline: float) -> None:
    """Return once the guest at the end of `channel` has shown its pin; raises WrongGuestError, or CallError where it could not be asked."""
    if channel.proven:
        return
    try:
        async with asyncio.timeout_at(deadline), channel.proving:
            if not channel.proven:
                await _ask_for_pin(channel, guest_id, deadline)
    except TimeoutError:
        text = f"guest {guest_id}: did not show its identity in time"
        raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None


async def _ask_for_pin(channel: Channel | HttpConnection, guest_id: str, deadline: float) -> None:
    try:
        answer = await ask(channel, guest_id, _INFO, (), deadline)
    except CallError as error:
        if not error.answered:
            raise
        # Its words may be another tenant's.
        text = f"guest {guest_id}: its pinned identity cannot be checked, Info ended with {error.code.name}"
        raise CallError(grpc.StatusCode.FAILED_PRECONDITION, text) from error
    shown = answer.message.instance_id if isinstance(answer.message, guest_api_pb2.GuestInfo) else b""
    if not hmac.compare_digest(shown, channel.pin):
        raise WrongGuestError(guest_id, shown, answer.wire_bytes)
    channel.proven = True

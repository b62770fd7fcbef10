"""Opens the client that a Question needs, with what it shows of itself."""

from __future__ import annotations

import asyncio
from typing import TypedDict

from guest_client.async_client import AsyncProxyClient
from guest_client.credentials import read_token
from guest_client.guestctl.request import Question
from guest_client.sync_client import GuestClient, ProxyClient
from guest_transport.tls import ClientTls


class _Shown(TypedDict):
    timeout_seconds: float | None
    tls: ClientTls | None
    token: str | None


def guest_client(question: Question) -> GuestClient:
    """The guest that the question names by its address; raises ClientError."""
    return GuestClient(question.address, **_shown(question))


def proxy_client(question: Question) -> ProxyClient:
    """The proxy; raises ClientError."""
    return ProxyClient(question.address, **_shown(question))


async def async_proxy_client(question: Question) -> AsyncProxyClient:
    """The proxy, for streams that something else goes on beside; raises ClientError."""
    shown = await asyncio.to_thread(_shown, question)  # reads the token's file
    return AsyncProxyClient(question.address, **shown)


def _shown(question: Question) -> _Shown:
    access = question.access
    tls = ClientTls(access.authorities, access.certificate, access.key) if access.tls else None
    token = read_token(access.token_file) if access.token_file is not None else None
    return {"timeout_seconds": question.timeout_seconds, "tls": tls, "token": token}

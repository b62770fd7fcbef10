"""The agent's pages on a socket: joins the app, the bounded server, and the end of what pages read from."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence

from guest_service.http.app import create_http_app
from guest_service.http.parts import HttpParts
from guest_transport.addresses import Address
from guest_transport.http.concurrency import REQUESTS_AT_ONCE
from guest_transport.http.connections import ClientLimits
from guest_transport.http.server import STOP_GRACE_SECONDS, PageServer


class HttpServer:
    """The pages of `parts` on one address, or on a socket that systemd already opened."""

    def __init__(
        self,
        parts: HttpParts,
        *,
        limits: ClientLimits | None = None,
        requests_at_once: int = REQUESTS_AT_ONCE,
        host_names: Collection[str] = (),
    ) -> None:
        self._parts = parts
        self._server = PageServer(limits=limits, requests_at_once=requests_at_once, host_names=host_names)

    @property
    def addresses(self) -> Sequence[Address]:
        """Where it listens; empty before start()."""
        return self._server.addresses

    async def start(self, listen: Address | socket.socket) -> None:
        """Listen; raises ListenError with one line that names the address and why not."""
        await self._server.start(create_http_app(self._parts, stopping=self._server.stopping), listen)

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Answer what is in progress within `grace_seconds`, end the rest, then the reads behind the pages."""
        await self._server.stop(grace_seconds)
        await self._parts.close()

"""In front of the pages where `http.need_token` is set: whoever wants one shows a token of access.token_file, as for gRPC.

Prometheus sends it as a bearer token, a browser as the password of any user (HTTP Basic), which it asks for by itself. Pages show all
guests, so a token that is for some of them only is refused: leaving the others out of the page would be a second place that decides who
sees whom. /healthz and /readyz stay open, as health does over gRPC. It fails closed.

Rejected: sessions with cookies (state, and a form to forge), and roles by Unix user on http.listen = "unix:…" (the folder and mode 0660
decide there already).
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guest_transport.peers import UnixPeer
from guest_transport.process.repeated_lines import about
from vmm_proxy.errors import CallError
from vmm_proxy.policy.access import Access
from vmm_proxy.policy.credentials import Credentials
from vmm_proxy.policy.http_credentials import CHALLENGE, shown_token_sha256
from vmm_proxy.policy.while_allowed import while_allowed

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/healthz", "/readyz"})


class RefusedError(Exception):
    """The page is not shown; `status` and one line why."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class TokenAuth:
    """`app` behind the tokens that `access` knows; a token that is taken away ends what streams with it."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            credentials = _credentials(scope)
            self._require_all_guests(credentials)
        except RefusedError as refusal:
            await _refuse(refusal, scope, receive, send)
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with while_allowed(self._access, lambda: self._require_all_guests(credentials), RefusedError):
                await self._app(scope, receive, sending)
        except RefusedError as refusal:
            if started:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                # The page took its time, and the token was taken away meanwhile.
                await _refuse(refusal, scope, receive, send)

    def _require_all_guests(self, credentials: Credentials) -> None:
        try:
            caller = self._access.judge(credentials)
        except CallError as error:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, error.text) from error
        if not any(not grant.labels for grant in caller.grants):
            text = f"{caller.name} is for some guests only, and pages show them all; ask over gRPC"
            raise RefusedError(HTTPStatus.FORBIDDEN, text)


async def _refuse(refusal: RefusedError, scope: Scope, receive: Receive, send: Send) -> None:
    client = scope["client"][0] if scope.get("client") else "unix"
    log.warning("a page for %s refused: %s", client, refusal, extra=about(f"{client} {refusal}"))
    headers = CHALLENGE if refusal.status is HTTPStatus.UNAUTHORIZED else None
    await PlainTextResponse(f"{refusal}\n", refusal.status, headers)(scope, receive, send)


def _credentials(scope: Scope) -> Credentials:
    try:
        # A token is judged by itself, whoever brings it.
        return Credentials(UnixPeer(), token_sha256=shown_token_sha256(scope["headers"]))
    except CallError as error:
        raise RefusedError(HTTPStatus.UNAUTHORIZED, error.text) from error

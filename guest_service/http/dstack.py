"""Answers the methods of GuestApi over HTTP/1.1, as dstack's own agent does: an unchanged dstack VMM dials the port and is answered.

A method is asked of the same servicer as over gRPC, with the same peer, so that switches, allow-lists and Shutdown's rule hold for both.
Every request of the contract is empty: a body is read to its end, within bounds, and dropped. Shutdown is POST's alone. A request that a
browser sends from another site's page is refused, because it may reach a loopback port. Rejected: a call to the agent's own gRPC port
(a channel for each peer), and dstack's paths on the pages' address (its VMM dials the port of the agent).
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NoReturn
from urllib.parse import parse_qsl

import grpc
from google.protobuf import empty_pb2
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from guest_contract.methods import GUEST_SERVICE, bound_seconds
from guest_contract.prpc import ALL_FIELDS, Form, form_of, write_error, write_reply
from guest_service.api import GuestApi
from guest_transport.http.connections import CONNECTION, Sender
from guest_transport.http.server import PageServer
from guest_transport.peers import Peer

log = logging.getLogger(__name__)

# /api/GpuInfo and /api/GuestApi.GpuInfo.
_PATH = re.compile(rf"/api/(?:{GUEST_SERVICE.name}\.)?(\w+)", re.ASCII)
# As much as dstack's own agent takes.
BODY_BYTES = 10 * 1024 * 1024
# A body that nobody needs comes in one packet.
BODY_SECONDS = 10.0
QUERY_MEMBERS = 16
# What only a browser says of a request, and it says `none` of one that its user typed in.
_OWN_SITES = {"same-origin", "none"}


class DstackServer:
    """dstack's methods over the servicer `api`, for connections that the gRPC server's listeners accepted."""

    def __init__(self, api: GuestApi, *, host_names: Collection[str] = ()) -> None:
        self._app = DstackApi(api)
        self._server = PageServer(host_names=host_names)
        self._started = False

    async def take(self, connection: socket.socket, peer: Peer, name: str) -> None:
        """Serve one connection of `peer`, whom gRPC would call `name`."""
        if not self._started:
            self._started = True
            await self._server.start(self._app, None)
        await self._server.take(connection, Sender(peer, name))

    async def stop(self) -> None:
        """Answer what is in progress, end the rest."""
        await self._server.stop()


class DstackApi:
    """The app. Raises nothing: what a method says against a call is 400 in the caller's form."""

    def __init__(self, api: GuestApi) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; what Shutdown asked for happens when its answer is out."""
        call = _Call(scope["state"][CONNECTION].sender)
        answer = await self._answer(Request(scope, receive), call)
        await answer(scope, receive, send)
        for done in call.done:
            done(None)

    async def _answer(self, request: Request, call: _Call) -> Response:
        try:
            query = dict(
                parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=QUERY_MEMBERS)
            )
        except ValueError:
            return _refusal(400, f"the query has more than {QUERY_MEMBERS} members", Form.JSON)
        form = form_of(request.method, request.headers.get("content-type", ""), query)
        if refused := _not_from_here(request, form):
            return refused
        match = _PATH.fullmatch(request.url.path)
        method = GUEST_SERVICE.methods_by_name.get(match[1]) if match else None
        if method is None:
            return _refusal(404, "no such method: ask /api/METHOD with a method of GuestApi", form)
        allowed = ("POST",) if method.name == "Shutdown" else ("GET", "POST")
        if request.method not in allowed:
            return _refusal(405, f"{method.name} answers {' and '.join(allowed)} only", form, {"allow": ", ".join(allowed)})
        if refused := await _drop_body(request, form):
            return refused
        seconds = call.seconds = bound_seconds(method.name)
        try:
            async with asyncio.timeout(seconds):
                behaviour: Callable[..., Awaitable[Message]] = getattr(self._api, method.name)
                reply = await behaviour(empty_pb2.Empty(), call)
        except _RefusedError as refusal:
            return _refusal(400, str(refusal), form)
        except TimeoutError:
            return _refusal(504, f"{method.name}: no answer within {seconds:g} s", form)
        except Exception:
            log.exception("%s failed", method.name)
            return _refusal(500, f"{method.name} failed inside the guest agent; its log says why", form)
        own_fields = query.get("fields") == ALL_FIELDS
        return Response(write_reply(reply, form, own_fields=own_fields), media_type=form.value)


class _RefusedError(Exception):
    """A method ended its call with a status; the text is for the caller."""


class _Call:
    """A call as GuestApi sees it: as much of gRPC's own context as it asks for."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.seconds = 0.0
        self.done: list[Callable[[object], None]] = []

    def peer(self) -> str:
        """As gRPC would call it."""
        return self._sender.name

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """None: what a header of HTTP means is not what metadata means."""
        return ()

    def auth_context(self) -> dict[str, Any]:
        """No TLS is spoken here."""
        return {}

    def time_remaining(self) -> float:
        """The contract's own bound; a caller over HTTP names none."""
        return self.seconds

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        """Called when the answer is out."""
        self.done.append(callback)

    async def abort(self, _code: grpc.StatusCode, text: str, _trailers: object = ()) -> NoReturn:
        """End the call."""
        raise _RefusedError(text)


def _not_from_here(request: Request, form: Form) -> Response | None:
    site = request.headers.get("sec-fetch-site", "none")
    if site in _OWN_SITES and "origin" not in request.headers:
        return None
    return _refusal(403, "a page of another site may not call the guest agent", form)


async def _drop_body(request: Request, form: Form) -> Response | None:
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > BODY_BYTES:
                    return _refusal(413, f"the body is over {BODY_BYTES} bytes", form, {"connection": "close"})
    except TimeoutError:
        return _refusal(408, f"the body did not come within {BODY_SECONDS:g} s", form, {"connection": "close"})
    return None


def _refusal(status: int, text: str, form: Form, headers: dict[str, str] | None = None) -> Response:
    return Response(write_error(text, form), status, headers, form.value)

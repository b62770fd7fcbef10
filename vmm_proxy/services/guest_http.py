"""ProxiedGuestApi over HTTP, as dstack's VMM serves it: `/guest/<Method>`, for its callers and for curl. Off unless `http.guest_api`.

A call is judged, bounded, counted and audited as over gRPC (admission.py, pass_on.py), and its status becomes one of HTTP by the
table in google/rpc/code.proto. What changes something answers POST only. No call is taken from a web page: a browser that is let in by
its address, or that remembers a password, sends both along for any page that asks it to. It fails closed. Rejected: routes of the pages'
app (pages show all guests, and their tokens are judged so), and CORS (nobody's page needs this).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus

import grpc
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from guest_api import guest_api_pb2
from guest_contract import prpc
from guest_contract.methods import PROXIED_SERVICE, Method, proxied_methods
from guest_contract.prpc import Form
from guest_transport.http.connections import CONNECTION
from guest_transport.options import REQUEST_LIMIT_BYTES
from guest_transport.peers import Peer, UnixPeer, tcp_peer, unix_peer
from vmm_proxy.errors import CallError, Trailers
from vmm_proxy.policy.admission import Admission
from vmm_proxy.policy.credentials import Credentials
from vmm_proxy.policy.http_credentials import CHALLENGE, shown_token_sha256, shows_token
from vmm_proxy.policy.permit import Permit
from vmm_proxy.policy.while_allowed import while_allowed
from vmm_proxy.services.pass_on import PassOn
from vmm_proxy.upstream.limits import HTTP_BODIES, ConcurrencyLimit
from vmm_proxy.upstream.passed_metadata import TO_GUEST
from vmm_proxy.upstream.shared_call import Answer

Call = Callable[[], Awaitable[tuple[Answer, Trailers]]]

PREFIX = "/guest/"
_SERVICE_PREFIX = f"{PROXIED_SERVICE.name}."
_METHODS = {method.name: method for method in proxied_methods()}
# What a reverse proxy adds: whoever is behind it is not who connects.
_FORWARDED = frozenset({"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"})
# A request is an id; a client that needs longer for it is none.
BODY_SECONDS = 10.0
# google/rpc/code.proto.
HTTP_STATUS: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DATA_LOSS: 500,
}


class RefusedError(Exception):
    """No call was made; `status` and one line why."""

    def __init__(self, status: HTTPStatus, code: grpc.StatusCode, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        # What is left of the request is not read.
        self.headers = {"connection": "close", **(headers or {})}


class GuestHttp:
    """In front of `app`: takes the paths under PREFIX. `anonymous`: callers on loopback TCP and Unix sockets need no token."""

    def __init__(
        self, app: ASGIApp, pass_on: PassOn, admission: Admission, *, anonymous: bool, body_seconds: float = BODY_SECONDS
    ) -> None:
        self._app = app
        self._pass_on = pass_on
        self._admission = admission
        self._anonymous = anonymous
        self._body_seconds = body_seconds
        self._bodies = ConcurrencyLimit(HTTP_BODIES, "bodies of requests")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the call, or pass the request on."""
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        form = prpc.form_of(request.method, request.headers.get("content-type", ""), request.query_params)
        try:
            method = _method(request)
            answer, trailers = await self._call(request, method, form)
            body = answer.wire if form is Form.PROTOBUF else await _json(answer, request.query_params)
            return Response(body, media_type=form.value, headers=dict(trailers))
        except RefusedError as refused:
            return _error(form, refused.status, refused.code, str(refused), refused.headers)
        except CallError as error:
            return _error(form, HTTP_STATUS[error.code], error.code, error.text, _headers(error))

    async def _call(self, request: Request, method: Method, form: Form) -> tuple[Answer, Trailers]:
        body = await self._body(request) if request.method == "POST" else b""

        def asked() -> guest_api_pb2.Id:
            try:
                return _from_query(request) if request.method == "GET" else prpc.read_request(guest_api_pb2.Id, form, body)
            except prpc.RequestError as error:
                raise CallError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error

        path = f"/{PROXIED_SERVICE.full_name}/{method.name}"
        peer = _peer(request.scope)
        target = None if method.only_reads else _target(asked)
        permit, place = self._admission.admit(path, peer, lambda: self._credentials(request.headers, peer), target)
        metadata = [(name, value) for name, value in request.headers.items() if name in TO_GUEST]
        deadline = asyncio.get_running_loop().time() + method.bound_seconds
        call = partial(self._pass_on.call, method, lambda: asked().id, metadata, deadline)
        try:
            if target is not None:
                return await self._accounted(path, permit, target, call)
            async with while_allowed(self._admission.access, permit.require_role, CallError):
                return await _while_there(request, call)
        finally:
            place.give_back()

    async def _body(self, request: Request) -> bytes:
        self._bodies.take()
        try:
            return await _read_body(request, self._body_seconds)
        finally:
            self._bodies.give_back()

    async def _accounted(self, path: str, permit: Permit, target: bytes, call: Call) -> tuple[Answer, Trailers]:
        """As the interceptor does it: finished though the caller leaves, because its outcome must be known."""
        about = await self._admission.trail.ask(path, permit.caller(), target)
        outcome, text = grpc.StatusCode.CANCELLED.name, "the proxy stops"
        try:
            answered = await call()
            outcome, text = grpc.StatusCode.OK.name, ""
        except CallError as error:
            outcome, text = error.code.name, error.text
            raise
        finally:
            await self._admission.trail.end(about, outcome, text)
        return answered

    def _credentials(self, headers: Headers, peer: Peer) -> Credentials:
        if shows_token(headers.raw) or not self._anonymous or not _FORWARDED.isdisjoint(headers):
            # A token is judged by itself, whoever brings it.
            return Credentials(peer, token_sha256=shown_token_sha256(headers.raw))
        return Credentials(peer)


def _method(request: Request) -> Method:
    """What is called; raises RefusedError, also for a page of another site."""
    method = _METHODS.get(request.scope["path"].removeprefix(PREFIX).removeprefix(_SERVICE_PREFIX))
    if method is None:
        text = f"no such method; there are {', '.join(_METHODS)}"
        raise RefusedError(HTTPStatus.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED, text)
    allowed = ("GET", "POST") if method.only_reads else ("POST",)
    if request.method not in allowed:
        text = f"{method.name} answers {' and '.join(allowed)} only"
        allow = {"allow": ", ".join(allowed)}
        raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, grpc.StatusCode.UNIMPLEMENTED, text, allow)
    # Each browser of today says one of the two with whatever a page makes it send (Fetch, "Sec-Fetch-Site"); a typed address is "none".
    if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
        text = "this answers programs, and no web page; open the address by itself"
        raise RefusedError(HTTPStatus.FORBIDDEN, grpc.StatusCode.PERMISSION_DENIED, text)
    return method


async def _json(answer: Answer, query: Mapping[str, str]) -> bytes:
    """In a thread: 2 KB of a hostile guest's are 1024 cards, which take 110 ms with all their fields (Python 3.11, EPYC, 2026-12)."""
    own_fields = query.get("fields") == prpc.ALL_FIELDS
    return await asyncio.to_thread(prpc.write_reply, answer.message, Form.JSON, own_fields=own_fields)


async def _read_body(request: Request, seconds: float) -> bytes:
    """The whole body; raises RefusedError for one that is too long or too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > REQUEST_LIMIT_BYTES:
                    text = f"the body has more than {REQUEST_LIMIT_BYTES} bytes"
                    raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, grpc.StatusCode.INVALID_ARGUMENT, text)
    except TimeoutError:
        text = f"the body did not come within {seconds:g} s"
        raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, grpc.StatusCode.INVALID_ARGUMENT, text) from None
    return bytes(body)


def _from_query(request: Request) -> guest_api_pb2.Id:
    ids = request.query_params.getlist("id")
    if len(ids) > 1:
        raise prpc.RequestError("id: must be there once")
    return prpc.request_of(guest_api_pb2.Id, {"id": ids[0]} if ids else {})


def _target(asked: Callable[[], guest_api_pb2.Id]) -> bytes:
    """Whom the audit log names; nobody where the request says it in no way that can be read."""
    try:
        return asked().SerializeToString()
    except CallError:
        return b""


def _peer(scope: Scope) -> Peer:
    client = scope.get("client")
    if client:
        return tcp_peer(client)
    connection = scope.get("state", {}).get(CONNECTION)
    held = connection.transport.get_extra_info("socket") if connection is not None else None
    try:
        return UnixPeer() if held is None else unix_peer(held)
    except OSError as error:
        raise ClientDisconnect from error


async def _while_there(request: Request, call: Call) -> tuple[Answer, Trailers]:
    """What `call` returns; it is cancelled when the caller leaves."""
    calling = asyncio.ensure_future(call())
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({calling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not calling.done():
            raise ClientDisconnect
        return calling.result()
    finally:
        calling.cancel()
        leaving.cancel()
        await asyncio.gather(calling, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _error(form: Form, status: int, code: grpc.StatusCode, text: str, headers: Mapping[str, str]) -> Response:
    return Response(prpc.write_error(text, form, status=code.name), status, headers, media_type=form.value)


def _headers(error: CallError) -> dict[str, str]:
    headers = dict(error.trailers)
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_seconds))
    if error.code is grpc.StatusCode.UNAUTHENTICATED and not error.answered:
        headers |= CHALLENGE
    return headers

"""Answers that several pages share: compressed when the client asks for it, and the name of who asks.

Compression runs in a thread, because 1 MB takes 20 ms that the event loop does not have. A body of many megabytes (a fleet's metrics) stays
in blocks and is sent in slices, because joining, framing and buffering it as one would hold the loop as well. Rejected: starlette's
GZipMiddleware, which compresses in the loop, and log streams too.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Awaitable, Callable, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

# Below one packet compression saves nothing.
COMPRESS_FROM_BYTES = 1400
# Level 4 makes a metrics page a tenth; level 9 takes five times as long for a twentieth less.
COMPRESS_LEVEL = 4
# zlib's number for its largest window with a gzip header around it (zlib.compressobj, wbits).
_GZIP_WINDOW = 31
# Framing and sending this much takes some 0.1 ms.
SLICE_BYTES = 256 * 1024


async def answer(request: Request, body: bytes, content_type: str, headers: dict[str, str] | None = None) -> Response:
    """A whole body, with gzip when asked for and worth it."""
    headers = {"content-type": content_type, "vary": "Accept, Accept-Encoding", **(headers or {})}
    if len(body) >= COMPRESS_FROM_BYTES and wants_gzip(request.headers.get("accept-encoding", "")):
        body = await asyncio.to_thread(gzip.compress, body, COMPRESS_LEVEL, mtime=0)
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers)


async def answer_blocks(
    request: Request, blocks: Sequence[bytes], content_type: str, headers: dict[str, str] | None = None
) -> Response:
    """Like answer(), for a body that is never in one piece."""
    headers = {"content-type": content_type, "vary": "Accept, Accept-Encoding", **(headers or {})}
    if sum(map(len, blocks)) >= COMPRESS_FROM_BYTES and wants_gzip(request.headers.get("accept-encoding", "")):
        blocks = await asyncio.to_thread(_gzip, blocks)
        headers["content-encoding"] = "gzip"
    return _Blocks(blocks, headers)


def _gzip(blocks: Sequence[bytes]) -> list[bytes]:
    gzip_stream = zlib.compressobj(COMPRESS_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    packed = [gzip_stream.compress(block) for block in blocks]
    return [*filter(None, packed), gzip_stream.flush()]


class _Blocks(Response):
    """A body in blocks, with its length, sent slice by slice as fast as the client takes it."""

    def __init__(self, blocks: Sequence[bytes], headers: dict[str, str]) -> None:
        super().__init__(None, headers=headers | {"content-length": str(sum(map(len, blocks)))})
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - a response's interface
        """Send it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for block in self._blocks:
            for at in range(0, len(block), SLICE_BYTES):
                await send({"type": "http.response.body", "body": block[at : at + SLICE_BYTES], "more_body": True})
                # A client that reads as fast as we write would otherwise have the loop for itself.
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def wants_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header takes gzip (RFC 9110, 12.5.3): named or by `*`, and not with weight 0."""
    weights: dict[str, float] = {}
    for entry in accept_encoding.lower().split(","):
        coding, _, parameter = entry.partition(";")
        name, _, value = parameter.strip().partition("=")
        try:
            weights[coding.strip()] = float(value) if name.strip() == "q" else 1.0
        except ValueError:
            weights[coding.strip()] = 0.0
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def error_answers(whose: str) -> dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]]:
    """Handlers for an app's errors: their text as it is, and for a bug of ours nothing but whose log has the cause."""

    async def plain(_request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)

    async def broken(_request: Request, _error: Exception) -> Response:
        # Starlette raises the error again after this answer, and it is logged there.
        return PlainTextResponse(f"internal error; {whose} log has the cause\n", 500)

    return {HTTPException: plain, Exception: broken}


def caller(request: Request, page: str) -> str:
    """Who asks, without the port that changes with each connection: telemetry follows the interval of each caller."""
    return f"http {page} {request.client.host if request.client else 'local'}"

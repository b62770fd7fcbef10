"""Answers that several pages share: compressed when the client asks for it, and the name of who asks.

Compression runs in a thread, because 1 MB takes 20 ms that the event loop does not have. Rejected: starlette's GZipMiddleware, which
compresses in the loop, and log streams too.
"""

from __future__ import annotations

import asyncio
import gzip

from starlette.requests import Request
from starlette.responses import Response

# Below one packet compression saves nothing.
COMPRESS_FROM_BYTES = 1400
# Level 4 makes a metrics page a tenth; level 9 takes five times as long for a twentieth less.
COMPRESS_LEVEL = 4


async def answer(request: Request, body: bytes, content_type: str, headers: dict[str, str] | None = None) -> Response:
    """A whole body, with gzip when asked for and worth it."""
    headers = {"content-type": content_type, "vary": "Accept, Accept-Encoding", **(headers or {})}
    if len(body) >= COMPRESS_FROM_BYTES and wants_gzip(request.headers.get("accept-encoding", "")):
        body = await asyncio.to_thread(gzip.compress, body, COMPRESS_LEVEL, mtime=0)
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers)


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


def caller(request: Request, page: str) -> str:
    """Who asks, without the port that changes with each connection: telemetry follows the beat of each caller."""
    return f"http {page} {request.client.host if request.client else 'local'}"

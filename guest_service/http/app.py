"""The routes of the agent's HTTP side, and the answers that are no page.

An ASGI app without a server, so that a test can run it on any socket. It refuses every method but GET and HEAD: HTTP never changes
anything here; what changes something (Shutdown) is gRPC's.
"""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from guest_service.http.dashboard_pages import DashboardPages
from guest_service.http.log_pages import LogPages
from guest_service.http.metrics_page import MetricsPage
from guest_service.http.parts import HttpParts
from guest_transport.http.answers import error_answers


def create_http_app(parts: HttpParts, *, stopping: asyncio.Event | None = None) -> Starlette:
    """The app over `parts`; log streams end when `stopping` is set."""
    metrics = MetricsPage(parts)
    dashboard = DashboardPages(parts)
    logs = LogPages(parts, stopping or asyncio.Event())

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        if not parts.telemetry.ready:
            return PlainTextResponse("not ready: no GPU sample has ended yet\n", 503)
        return PlainTextResponse("ready\n")

    app = Starlette(
        routes=[
            Route("/", dashboard.page),
            Route("/live", dashboard.live),
            Route("/assets/{name}", dashboard.asset),
            Route("/metrics", metrics.answer),
            Route("/logs/{container}", logs.answer),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ],
        exception_handlers=error_answers("the agent's"),
    )
    # A redirect from /metrics/ would be made of the Host header, which is the client's to choose.
    app.router.redirect_slashes = False
    return app

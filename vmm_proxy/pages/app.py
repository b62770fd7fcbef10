"""The routes of the proxy's HTTP side, and the answers that are no page.

An ASGI app without a server, so that a test can run it on any socket. It refuses every method but GET and HEAD: HTTP never changes
anything here.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from guest_transport.http.answers import error_answers
from vmm_proxy.pages.dashboard_page import DashboardPage
from vmm_proxy.pages.discovery import Discovery
from vmm_proxy.pages.guest_page import GuestPage
from vmm_proxy.pages.metrics_page import MetricsPage
from vmm_proxy.pages.parts import PageParts


def create_http_app(parts: PageParts) -> Starlette:
    """The app over `parts`."""
    metrics = MetricsPage(parts)
    discovery = Discovery(parts.guest_answers, parts.setup.labels, parts.setup.target)

    dashboard = DashboardPage(parts.guest_answers, parts.view)
    guest = GuestPage(
        parts.directory, parts.guest_answers, parts.view.history, parts.view.pages, with_containers=parts.setup.containers
    )

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        if not parts.ready():
            return PlainTextResponse("not ready: not every address is listened on yet\n", 503)
        return PlainTextResponse("ready\n")

    app = Starlette(
        routes=[
            Route("/", dashboard.page),
            Route("/events", parts.live.answer),
            Route("/guests/{id}", guest.page),
            Route("/guests/{id}/live", guest.live),
            Route("/assets/{name}", dashboard.asset),
            Route("/metrics", metrics.answer),
            Route("/sd", discovery.answer),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ],
        exception_handlers=error_answers("the proxy's"),
    )
    # A redirect from /metrics/ would be made of the Host header, which is the client's to choose.
    app.router.redirect_slashes = False
    return app

"""Renders the dashboard, whole or only what changes. Everything is escaped by jinja2; no template marks text as safe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import guest_pages
from guest_pages.view import ContainerView, GpuView, SystemView
from guest_transport.http.pages import Assets, templates, utf8

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Dashboard:
    """All that one page shows. A section that is None is not public; containers None with `containers_note`: unknown now."""

    version: str
    sysinfo: bool
    system: SystemView | None
    gpus: GpuView | None
    containers_public: bool
    containers: tuple[ContainerView, ...] | None
    containers_note: str
    logs: bool


class Pages:
    """Renders a Dashboard, whole or only what changes."""

    def __init__(self) -> None:
        self.assets = Assets(guest_pages.ASSETS)
        environment = templates(self.assets, guest_pages.TEMPLATES, _HERE / "templates")
        self._page = environment.get_template("page.html")
        self._live = environment.get_template("live.html")

    def page(self, dashboard: Dashboard) -> bytes:
        """The whole page."""
        return utf8(self._page.render(d=dashboard))

    def live(self, dashboard: Dashboard) -> bytes:
        """The part that changes, for the page's own refresh."""
        return utf8(self._live.render(d=dashboard))

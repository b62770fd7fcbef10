"""Templates and assets, read once when the agent is built, so that no request reads a file in the event loop.

Everything is escaped by jinja2; no template marks text as safe, and assets are the package's own. Each asset's address carries a hash of
its content, so browsers keep it for as long as it is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from guest_service.dashboard.view import ContainerView, GpuView, SystemView

_HERE = Path(__file__).parent
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that the page loads."""

    content: bytes
    content_type: str


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
        files = sorted((_HERE / "assets").iterdir())
        self.assets: Mapping[str, Asset] = {file.name: Asset(file.read_bytes(), _TYPES[file.suffix]) for file in files}
        environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.globals["asset"] = self._asset_address
        self._page = environment.get_template("page.html")
        self._live = environment.get_template("live.html")

    def page(self, dashboard: Dashboard) -> bytes:
        """The whole page."""
        return _utf8(self._page.render(d=dashboard))

    def live(self, dashboard: Dashboard) -> bytes:
        """The part that changes, for the page's own refresh."""
        return _utf8(self._live.render(d=dashboard))

    def _asset_address(self, name: str) -> str:
        return f"assets/{name}?v={hashlib.sha256(self.assets[name].content).hexdigest()[:12]}"


def _utf8(page: str) -> bytes:
    # Text of the system may hold lone surrogates (bytes that were no UTF-8); they stand as question marks.
    return page.encode("utf-8", "replace")

"""What pages are made with: templates that escape everything, assets whose address changes with their content, and the policy that a
browser holds them to.

Files are read once, in a thread, so that no request reads one in the event loop. No template marks text as safe. The look
(assets/look.css, assets/icon.svg) is here, because guest and proxy shall look like one product. Rejected: assets from elsewhere on the
network (a page must work on a host without any).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from guest_transport.http.answers import answer

if TYPE_CHECKING:
    from jinja2 import Environment

HTML = "text/html; charset=utf-8"
# Only our own files, fetched only from us; nothing may embed the page, and it sends no form.
PAGE_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SHARED = Path(__file__).parent / "assets"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that a page loads."""

    content: bytes
    content_type: str


class Assets:
    """The shared look and the files of `folders`."""

    def __init__(self, *folders: Path) -> None:
        files = [file for folder in (_SHARED, *folders) for file in sorted(folder.iterdir())]
        self._assets: Mapping[str, Asset] = {file.name: Asset(file.read_bytes(), _TYPES[file.suffix]) for file in files}

    def address(self, name: str) -> str:
        """Where a page finds an asset. It carries a hash of the content, so browsers keep it for as long as it is the same."""
        return f"assets/{name}?v={hashlib.sha256(self._assets[name].content).hexdigest()[:12]}"

    async def answer(self, request: Request) -> Response:
        """Answers `/assets/{name}`."""
        found = self._assets.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "not found")
        return await answer(request, found.content, found.content_type, {"cache-control": "public, max-age=86400"})


def templates(assets: Assets, *folders: Path) -> Environment:
    """The templates of `folders`; `asset('name')` in one is an asset's address."""
    from jinja2 import DictLoader, Environment, StrictUndefined  # noqa: PLC0415 -- 3 MiB, once somebody opens a page

    environment = Environment(
        loader=DictLoader({file.name: file.read_text(encoding="utf-8") for folder in folders for file in folder.iterdir()}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals["asset"] = assets.address
    return environment


def utf8(page: str) -> bytes:
    """A page's bytes. Text of the system may hold lone surrogates (bytes that were no UTF-8); they stand as question marks."""
    return page.encode("utf-8", "replace")

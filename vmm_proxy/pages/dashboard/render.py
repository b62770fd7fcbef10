"""Renders the dashboard: one guest at a time, so that a page of a thousand holds nobody up. Everything is escaped by jinja2."""

from __future__ import annotations

from pathlib import Path

import guest_pages
from guest_contract.card_fields import page_title
from guest_transport.http.pages import Assets, templates, utf8
from vmm_proxy.pages.dashboard.guest import GuestView
from vmm_proxy.pages.dashboard.history import GRAPHED
from vmm_proxy.pages.dashboard.summary import Summary
from vmm_proxy.pages.dashboard.view import COLUMNS, SORTS, GuestRows

_HERE = Path(__file__).parent


class Pages:
    """The fleet's page in its parts (head, guests, foot; the summary is in the head, and sent alone when it changes), and a guest's page.

    Making it reads files.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.assets = Assets(guest_pages.ASSETS, _HERE / "assets")
        environment = templates(self.assets, guest_pages.TEMPLATES, _HERE / "templates")
        environment.globals["version"] = version
        environment.globals["columns"] = [(page_title(row), row.name == GRAPHED[0].name) for row in COLUMNS]
        environment.globals["sorts"] = SORTS
        self._head = environment.get_template("head.html")
        self._summary = environment.get_template("summary.html")
        self._guest = environment.get_template("guest.html")
        self._foot = environment.get_template("foot.html")
        self._guest_page = environment.get_template("guest_page.html")
        self._guest_live = environment.get_template("guest_live.html")

    def head(self, fleet: Summary) -> bytes:
        """Everything before the first guest."""
        return utf8(self._head.render(s=fleet))

    def summary(self, fleet: Summary) -> str:
        """The summary alone."""
        return self._summary.render(s=fleet)

    def guest(self, rows: GuestRows) -> str:
        """One guest's rows."""
        return self._guest.render(r=rows)

    def guest_page(self, view: GuestView, *, whole: bool) -> bytes:
        """The page of one guest, or what of it changes."""
        return utf8((self._guest_page if whole else self._guest_live).render(d=view))

    def foot(self) -> bytes:
        """Everything after the last guest."""
        return utf8(self._foot.render())

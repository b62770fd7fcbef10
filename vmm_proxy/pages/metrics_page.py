"""`/metrics`: the fleet as it was last known, within the scraper's time; `/metrics?vm_id=ID`: one guest.

A guest that does not answer costs the others nothing; a guest that never answered delays the first page, at most as long as the scraper
waits. `labels=target` is for Prometheus behind `/sd`, which puts the guest's labels on its targets itself; on lines that had them too it
would rename ours. `group=`, which may be repeated, chooses what is on either page.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from guest_contract.identifiers import GUEST_ID_RULE, valid_guest_id
from guest_metrics import groups
from guest_metrics.exposition import Format, negotiate
from guest_metrics.scrape_time import SCRAPE_TIMEOUT_HEADER, page_seconds
from guest_transport.http.answers import answer, answer_blocks
from vmm_proxy.metrics.last_answers import LastKnown
from vmm_proxy.pages.parts import PageParts

# The process is looked at in a thread of its own and takes a millisecond; a page waits no longer for it.
OWN_LOOK_SECONDS = 1.0


class MetricsPage:
    """Answers `/metrics`."""

    def __init__(self, parts: PageParts) -> None:
        self._parts = parts

    async def answer(self, request: Request) -> Response:
        """The page in the format that the client asks for."""
        query, chosen = _query(request), _groups(request)
        form = negotiate(request.headers.get("accept"))
        seconds = page_seconds(request.headers.get(SCRAPE_TIMEOUT_HEADER))
        if "vm_id" in query:
            return await self._one(request, query, chosen, form, seconds)
        if query:
            raise HTTPException(400, "labels: only with vm_id")
        await self._parts.guest_answers.bring_up_to_date(self._parts.guest_answers.guests(), seconds)
        looked = await self._parts.process.within(min(seconds, OWN_LOOK_SECONDS))
        blocks = await self._parts.page.of_all(form, self._parts.own.lines(looked), chosen)
        return await answer_blocks(request, blocks, form.value)

    async def _one(
        self, request: Request, query: dict[str, str], chosen: frozenset[str], form: Format, seconds: float
    ) -> Response:
        guest_id = query["vm_id"]
        if not valid_guest_id(guest_id):
            raise HTTPException(400, f"vm_id: must be {GUEST_ID_RULE}")
        await self._parts.guest_answers.bring_up_to_date([self._running(guest_id)], seconds)
        # It may have become another VM meanwhile, of which nothing is known yet.
        guest = self._running(guest_id)
        page = self._parts.page.of_one(guest, form, chosen, labels_from_target="labels" in query)
        return await answer(request, page, form.value)

    def _running(self, guest_id: str) -> LastKnown:
        guest = self._parts.guest_answers.get(guest_id)
        if guest is None:
            raise HTTPException(404, "not found: no running guest has this id")
        return guest


def _query(request: Request) -> dict[str, str]:
    """The query's parameters; 400 for one that is not known or stands twice."""
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name == groups.PARAMETER:
            continue
        if name not in ("vm_id", "labels"):
            raise HTTPException(400, "allowed parameters: group, vm_id, and with vm_id labels=target")
        if name in query:
            raise HTTPException(400, f"{name}: may stand once")
        query[name] = value
    if query.get("labels", "target") != "target":
        raise HTTPException(400, "labels: only target is allowed")
    return query


def _groups(request: Request) -> frozenset[str]:
    try:
        return groups.chosen(request.query_params.getlist(groups.PARAMETER), groups.OF_A_FLEET)
    except ValueError as error:
        raise HTTPException(400, str(error)) from error

"""`/sd`: every running guest as a Prometheus target of its own, through this proxy.

A target's labels are those that the fleet's page has on each line, so that queries read alike in both forms, and `up` has them too; all of
the directory's labels are there as `__meta_vmm_proxy_label_…` for relabelling. Format: Prometheus, "http_sd_config".
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from guest_transport.http.answers import answer
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.directory.labels import label_name
from vmm_proxy.metrics.guest_answers import GuestAnswers
from vmm_proxy.metrics.labels import own_labels
from vmm_proxy.pages.settings import HOST_PORT

# A Unix socket's clients send what they like; Prometheus cannot scrape there anyway.
NO_HOST = "localhost"


class Discovery:
    """Answers `/sd`; `target` is where Prometheus finds the proxy, None: where it asked."""

    def __init__(self, guest_answers: GuestAnswers, chosen: Mapping[str, str], target: str | None) -> None:
        self._answers = guest_answers
        self._chosen = chosen
        self._target = target

    async def answer(self, request: Request) -> Response:
        """The list of targets; asks no guest."""
        asked_at = request.headers.get("host", "")
        target = self._target or (asked_at if HOST_PORT.fullmatch(asked_at) else NO_HOST)
        groups = [{"targets": [target], "labels": self._labels(guest.entry)} for guest in self._answers.guests()]
        return await answer(request, json.dumps(groups).encode(), "application/json")

    def _labels(self, entry: GuestEntry) -> dict[str, str]:
        meta = {f"__meta_vmm_proxy_label_{label_name(key)}": value for key, value in sorted(entry.labels.items())}
        scrape = {"__metrics_path__": "/metrics", "__param_vm_id": entry.id, "__param_labels": "target"}
        return meta | own_labels(entry, self._chosen) | scrape

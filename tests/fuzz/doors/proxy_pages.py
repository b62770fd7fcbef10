"""Every page of the proxy, with the input as text in every string of a real guest's answers, and beside it a guest that says nothing odd."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import NamedTuple

from guest_api.guest_api_pb2 import ListContainersResponse
from guest_metrics.exposition import Format
from guest_transport.addresses import TcpAddress
from tests.fleet_http.fleet import Answers, running_fleet
from tests.fuzz.door import Door
from tests.fuzz.doors.agent_pages import TEXTS, WORDS, cards, failure, filled, same_series, text_of
from tests.fuzz.doors.markup import same_markup
from tests.http.guests import containers, h200s, system_info
from tests.http.web import BOUND_SECONDS, connect, get, read_chunk, read_head, request
from tests.http.web import close as close_connection
from tests.metrics.readers import read
from vmm_proxy.fleet_metrics.board import LOOK_AGAIN_SECONDS

# Four bytes each: just below the 64 KiB at which the proxy refuses a guest's string, which is the door `reply`.
TEXT_LIMIT = 16_000
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}


class Pages(NamedTuple):
    """What was served."""

    dashboard: str
    rows: str
    metrics: bytes
    of_one: bytes
    discovery: bytes


def check(data: bytes) -> None:
    """The same tags, events, series and targets as with a quiet text; the other guest's lines are its own."""
    _check(text_of(data)[:TEXT_LIMIT])


def _check(text: str) -> None:
    expected = _quiet(text if text in {"", "running"} else "x")
    for found, usual in zip(asyncio.run(_served(text)), expected, strict=True):
        same_markup(found.dashboard, usual.dashboard)
        same_markup(found.rows, usual.rows)
        _same_fleet(found.metrics, usual.metrics)
        same_series(found.of_one, usual.of_one, Format.OPENMETRICS, text)
        assert json.loads(found.discovery) == json.loads(usual.discovery)


@functools.cache
def _quiet(text: str) -> list[Pages]:
    """The pages with a text that does no harm, made once."""
    return asyncio.run(_served(text))


def _same_fleet(page: bytes, quiet: bytes) -> None:
    """What is said of the calm guest and of the proxy is the same; no sample is of a guest that is not there."""
    found, expected = read(page, Format.OPENMETRICS), read(quiet, Format.OPENMETRICS)
    assert len(found) == len(expected), f"{len(found)} samples, not {len(expected)}"
    assert {dict(labels).get("vm_id") for _, labels in found} == {None, "vm-calm", "vm-loud"}
    calm = [key for key in expected if ("vm_id", "vm-calm") in key[1]]
    assert calm, "the calm guest is not there"
    for key in calm:
        assert key in found, f"{key} is lost"


async def _served(text: str) -> list[Pages]:
    """The pages with cards, and then with a failure in their place."""
    loud = Answers(cards(), system_info(), ListContainersResponse(containers=containers(2)))
    served = []
    async with running_fleet() as fleet:
        await fleet.add("vm-loud", loud, gpus=("0000:3b:00.0", "0000:5e:00.0"))
        await fleet.add("vm-calm", Answers(h200s(1)), labels={"rack": "r7"})
        clock = fleet.pages.board.clock
        for look, gpus in enumerate((cards(), failure())):
            loud.gpus = gpus
            for message in (loud.gpus, loud.system, loud.containers):
                filled(message, text)
            # Answers are asked for again only after a while.
            fleet.pages.board.clock = lambda look=look: clock() + look * 2 * LOOK_AGAIN_SECONDS  # type: ignore[misc]  # a default binds it
            metrics = await get(fleet.address, "/metrics", headers=OPENMETRICS)
            of_one = await get(fleet.address, "/metrics?vm_id=vm-loud", headers=OPENMETRICS)
            dashboard, discovery = await get(fleet.address, "/"), await get(fleet.address, "/sd")
            rows = await _first_rows(fleet.address)
            served.append(Pages(dashboard.text, rows, metrics.body, of_one.body, discovery.body))
    return served


async def _first_rows(address: TcpAddress) -> str:
    """The rows that a viewer is sent first, of both guests; each event as the standard cuts it, none of which a guest can begin."""
    stream = b""
    async with asyncio.timeout(BOUND_SECONDS):
        reader, writer = await connect(address)
        try:
            writer.write(request("/events"))
            status, _ = await read_head(reader)
            assert status == 200, status
            rows: dict[str, str] = {}
            while len(rows) < 2:
                stream += await read_chunk(reader)
                *events, stream = stream.split(b"\n\n")
                for event in events:
                    rows |= _rows(event.decode())
        finally:
            await close_connection(writer)
    return "\n".join(rows[guest] for guest in sorted(rows))


def _rows(event: str) -> dict[str, str]:
    fields = [line.partition(": ") for line in event.splitlines()]
    assert [name for name, _, _ in fields] in (["retry"], ["event", "data"]), event
    found = {name: value for name, _, value in fields}
    assert found.get("event", "guests") in {"guests", "rows", "summary", "gone", "pulse"}, event
    if found.get("event") != "rows":
        return {}
    return {"loud" if 'data-guest="vm-loud"' in html else "calm": html for html in json.loads(found["data"])}


# gRPC's own threads and channels are made anew for each input, which is most of the cost.
PROXY_PAGES = Door("proxy-pages", check, TEXTS.map(str.encode), words=WORDS, examples=3)

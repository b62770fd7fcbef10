"""The fleet's live events and the page that they keep fresh, without a browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from guest_transport.addresses import UnixAddress
from guest_transport.http.connections import ClientLimits
from tests.eventually import eventually
from tests.fleet_http.fleet import Answers, Fleet, running_fleet
from tests.http.guests import h200s
from tests.http.web import BOUND_SECONDS, close, connect, get, read_chunk, read_head, request
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.pages.live import STREAMS_AT_ONCE, Viewer


class Events:
    """One viewer. Any: data is JSON whose shape depends on the event."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._text = ""

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(BOUND_SECONDS):
            while True:
                head, end, rest = self._text.partition("\n\n")
                if not end:
                    chunk = await read_chunk(self._reader)
                    if not chunk:
                        return "end", None
                    self._text += chunk.decode()
                    continue
                self._text = rest
                fields = dict(line.split(": ", 1) for line in head.split("\n"))
                if "event" in fields:
                    return fields["event"], json.loads(fields["data"])

    async def until(self, name: str, words: str = "") -> Any:
        while True:
            event, data = await self.next()
            assert event != "end", f"the stream ended before {name}"
            if event == name and words in json.dumps(data):
                return data


@asynccontextmanager
async def watching(fleet: Fleet) -> AsyncGenerator[Events, None]:
    reader, writer = await connect(fleet.address)
    writer.write(request("/events"))
    status, headers = await read_head(reader)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    try:
        yield Events(reader)
    finally:
        await close(writer)


async def test_a_viewer_is_told_who_is_there_and_then_what_each_says() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(1)))
        fleet.add_dead("vm-dead")
        async with watching(fleet) as events:
            assert await events.next() == ("guests", ["vm-a", "vm-dead"])
            assert "79.7 W" in "".join(await events.until("rows", "vm-a"))
            assert "up" in await events.until("summary")


async def test_a_guest_that_comes_stops_or_goes_is_told_at_once() -> None:
    async with running_fleet() as fleet, watching(fleet) as events:
        assert await events.next() == ("guests", [])
        fleet.directory.add(GuestEntry("vm-s", UnixAddress("/nowhere"), running=False))
        assert "Stopped" in (await events.until("rows", "vm-s"))[0]
        fleet.directory.remove("vm-s")
        assert await events.until("gone") == ["vm-s"]


async def test_viewers_share_one_look_and_the_looks_end_with_the_last_of_them() -> None:
    async with running_fleet() as fleet:
        answers = await fleet.add("vm-a")
        async with watching(fleet) as one, watching(fleet) as other:
            await one.until("rows", "vm-a")
            await other.until("rows", "vm-a")
            assert answers.asked["GpuInfo"] == 1
            assert fleet.pages.live.places.taken == 2
        await eventually(lambda: not fleet.pages.live.places.taken)


async def test_what_a_viewer_did_not_read_yet_is_each_guest_once() -> None:
    viewer = Viewer()
    for turn in range(600):
        viewer.note("vm-a", f"vm-{turn % 2}")
    assert await viewer.something_new(BOUND_SECONDS)
    assert viewer.take(600) == ["vm-a", "vm-0", "vm-1"]
    assert not await viewer.something_new(0)


async def test_a_viewer_who_does_not_read_keeps_nobody_waiting() -> None:
    async with running_fleet(limits=ClientLimits(stall_seconds=0.5)) as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(8)))
        _, slow = await connect(fleet.address)
        assert isinstance(slow.transport, asyncio.Transport)
        slow.transport.pause_reading()
        slow.write(request("/events"))
        async with watching(fleet) as events:
            await events.until("rows", "vm-a")
            entry = fleet.directory.known("vm-a")
            # Enough changes to fill every buffer on the way to the slow one; to the other one they come as before.
            for turn in range(600):
                fleet.directory.replace(replace(entry, labels={"turn": str(turn)}))
                if turn % 20 == 0:
                    await events.until("rows", "vm-a")
        await close(slow)


async def test_more_viewers_than_allowed_are_told_so_and_scrapers_still_served() -> None:
    async with running_fleet() as fleet:
        held = [await connect(fleet.address) for _ in range(STREAMS_AT_ONCE)]
        for reader, writer in held:
            writer.write(request("/events"))
            assert (await read_head(reader))[0] == 200
        refused = await get(fleet.address, "/events")
        assert (refused.status, refused.headers["retry-after"]) == (503, "10")
        assert (await get(fleet.address, "/metrics")).status == 200
        for _, writer in held:
            await close(writer)


async def test_stopping_ends_every_stream() -> None:
    async with running_fleet() as fleet, watching(fleet) as events:
        await events.next()
        await fleet.server.stop(grace_seconds=2)
        while (await events.next())[0] != "end":
            pass


async def test_text_that_looks_like_an_event_stays_inside_its_own() -> None:
    forged = 'x\n\nevent: gone\ndata: ["vm-b"]\n\n\r\n\r\u2028'
    async with running_fleet() as fleet:
        reply = h200s(1)
        reply.gpus[0].uuid = forged
        await fleet.add("vm-evil", Answers(gpus=reply))
        await fleet.add("vm-b")
        async with watching(fleet) as events:
            rows = "".join(await events.until("rows", "vm-evil"))
            assert "event: gone" in rows
            assert await events.until("summary")


async def test_the_page_is_whole_and_names_only_assets_that_are_there() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(2)))
        page = await get(fleet.address, "/")
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert page.text.count("<tr>") == 3
        assert page.text.endswith("</html>")
        for asset in ("fleet.css", "fleet.js", "look.css", "icon.svg"):
            assert f'"assets/{asset}?v=' in page.text
            answer = await get(fleet.address, f"/assets/{asset}")
            assert answer.status == 200
            assert "max-age" in answer.headers["cache-control"]
        assert (await get(fleet.address, "/assets/guest.html")).status == 404


async def test_only_reading_is_answered_and_health_says_when_the_proxy_is_ready() -> None:
    async with running_fleet() as fleet:
        assert (await get(fleet.address, "/healthz")).body == b"ok\n"
        assert (await get(fleet.address, "/readyz")).status == 200
        fleet.parts.server.addresses = []
        assert (await get(fleet.address, "/readyz")).status == 503
        for method in ("POST", "PUT", "DELETE"):
            assert (await get(fleet.address, "/metrics", method=method)).status == 405
        head = await get(fleet.address, "/events", method="HEAD")
        assert head.status == 200
        assert (await get(fleet.address, "/nothing")).status == 404

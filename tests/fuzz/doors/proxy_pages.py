"""Every page of the proxy, with the input as text in every string of a guest's answers, and beside it a guest that says nothing odd."""

from __future__ import annotations

import asyncio
import functools
import json
from dataclasses import dataclass
from typing import NamedTuple, cast

from google.protobuf.message import Message

from guest_api.guest_api_pb2 import GpuInfoResponse, ListContainersResponse, SystemInfo
from guest_contract.methods import Method
from guest_metrics.exposition import Format
from guest_transport.addresses import TcpAddress, UnixAddress
from guest_transport.http.server import PageServer
from tests.fuzz.door import Door
from tests.fuzz.doors.agent_pages import TEXTS, WORDS, cards, failure, filled, quiet_like, same_series, text_of
from tests.fuzz.doors.markup import same_markup
from tests.http.guests import containers, h200s, system_info
from tests.http.web import BOUND_SECONDS, connect, get, read_chunk, read_head, request
from tests.http.web import close as close_connection
from tests.metrics.readers import read
from vmm_proxy.call_stats import CallCounts
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.metrics.guest_answers import KEPT_ANSWER_BYTES
from vmm_proxy.pages.app import create_http_app
from vmm_proxy.pages.dashboard.render import Pages as DashboardPages
from vmm_proxy.pages.parts import PageParts
from vmm_proxy.pages.settings import PageSetup
from vmm_proxy.upstream.call import _checked
from vmm_proxy.upstream.pool import Pool
from vmm_proxy.upstream.reachability import Reachability
from vmm_proxy.upstream.shared_call import Answer

# In each of a reply's dozen strings, with four bytes a character, it stays an answer that the fleet's page keeps (KEPT_ANSWER_BYTES).
TEXT_LIMIT = KEPT_ANSWER_BYTES // 64
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
    _dashboard()
    _check(text_of(data)[:TEXT_LIMIT])


def _check(text: str) -> None:
    expected = _quiet(quiet_like(text))
    for found, usual in zip(asyncio.run(_served(text)), expected, strict=True):
        same_markup(found.dashboard, usual.dashboard)
        same_markup(found.rows, usual.rows)
        _same_fleet(found.metrics, usual.metrics)
        same_series(found.of_one, usual.of_one, Format.OPENMETRICS, text)
        assert json.loads(found.discovery) == json.loads(usual.discovery)


@functools.cache
def _dashboard() -> DashboardPages:
    """Reads templates, so it is made before a loop runs."""
    return DashboardPages("1.2.3")


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


class _Guests:
    """Stands where the proxy's calls to guests go out: the answers come as wire bytes and are judged as those of a socket are.

    Not real gRPC guests, as other tests have: the channels of some hundred event loops in one process end in gRPC's own locks.
    """

    redials = 0
    identity_mismatches = 0

    def __init__(self, answers: dict[str, dict[str, Message]]) -> None:
        self._answers = answers

    def reachability(self, _guest_id: str) -> Reachability:
        return Reachability()

    def upstream(self, guest_id: str) -> _Guest:
        return _Guest(guest_id, self._answers[guest_id])


@dataclass(frozen=True)
class _Guest:
    id: str
    answers: dict[str, Message]

    async def call(self, method: Method, _metadata: object, _deadline: float, *, for_fleet: bool) -> Answer:
        assert for_fleet
        return _checked(self.answers[method.name].SerializeToString(), self.id, method, ())


async def _served(text: str) -> list[Pages]:
    """The pages with cards, and then with a failure in their place."""
    return [await _served_once(gpus, text) for gpus in (cards(), failure())]


def pages_with(gpus: GpuInfoResponse, text: str) -> Pages:
    """The pages with a guest that has these cards, and this text in each string, beside the calm one."""
    _dashboard()
    return asyncio.run(_served_once(gpus, text))


async def _served_once(gpus: GpuInfoResponse, text: str) -> Pages:
    loud = {"GpuInfo": gpus, "SysInfo": system_info(), "ListContainers": ListContainersResponse(containers=containers(2))}
    calm = {"GpuInfo": h200s(1), "SysInfo": SystemInfo(os_name="Debian"), "ListContainers": ListContainersResponse()}
    for message in loud.values():
        filled(message, text)
    directory = Directory()
    server = PageServer()
    parts = PageParts.join(
        PageSetup(TcpAddress("127.0.0.1", 0), {}, containers=True, target=None),
        directory=directory,
        pool=cast(Pool, _Guests({"vm-loud": loud, "vm-calm": calm})),
        calls=CallCounts(),
        dashboard=_dashboard(),
        sources=dict,
        ready=lambda: True,
        stopping=server.stopping,
    )
    directory.add(GuestEntry("vm-loud", UnixAddress("/loud"), gpus=("0000:3b:00.0", "0000:5e:00.0")))
    directory.add(GuestEntry("vm-calm", UnixAddress("/calm"), labels={"rack": "r7"}))
    await server.start(create_http_app(parts), TcpAddress("127.0.0.1", 0))
    try:
        [address] = server.addresses
        assert isinstance(address, TcpAddress)
        # First, because a viewer is sent what a look brought, and guests that were just looked at are left in peace for seconds.
        rows = await _first_rows(address)
        metrics = await get(address, "/metrics", headers=OPENMETRICS)
        of_one = await get(address, "/metrics?vm_id=vm-loud", headers=OPENMETRICS)
        dashboard, discovery = await get(address, "/"), await get(address, "/sd")
    finally:
        await server.stop(grace_seconds=1.0)
        await parts.close()
    return Pages(dashboard.text, rows, metrics.body, of_one.body, discovery.body)


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


PROXY_PAGES = Door("proxy-pages", check, TEXTS.map(str.encode), words=WORDS, examples=3)

"""Pages behind tokens: who gets in, who is told what, and what happens to a page that streams when its token is taken away."""

from __future__ import annotations

import asyncio
import base64
import logging

import pytest

from guest_transport.addresses import UnixAddress
from tests.eventually import eventually
from tests.fleet_http.fleet import running_fleet
from tests.fleet_http.test_live import Events
from tests.http.web import close, connect, get, read_head, request
from tests.policy.callers import rules, secret, token
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.pages.live import PULSE_SECONDS
from vmm_proxy.policy.roles import Role

RULES = rules(tokens=(token("scraper", Role.VIEWER), token("blue", Role.VIEWER, {"tenant": "blue"})))
PAGES = ("/", "/metrics", "/sd", "/events", "/assets/fleet.css", "/nowhere")


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret(name)}"}


def basic(password: str, user: str = "anybody") -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_without_a_token_no_page_shows_anything_and_a_browser_is_asked_for_one(path: str, method: str) -> None:
    async with running_fleet(access=RULES, need_token=True) as fleet:
        await fleet.add("vm-a")
        answer = await get(fleet.address, path, method=method)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Basic realm=")
        assert "vm-a" not in answer.body.decode()


@pytest.mark.parametrize(
    "headers", [bearer("scraper"), basic(secret("scraper")), {"authorization": f"bearer {secret('scraper')}"}]
)
async def test_a_token_opens_the_pages_as_bearer_and_as_password(headers: dict[str, str]) -> None:
    async with running_fleet(access=RULES, need_token=True) as fleet:
        await fleet.add("vm-a")
        answer = await get(fleet.address, "/metrics", headers=headers)
        assert answer.status == 200
        assert 'vm_id="vm-a"' in answer.body.decode()


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        (bearer("nobody"), 401, "the token is not known"),
        (basic(secret("nobody")), 401, "the token is not known"),
        (basic("", user=secret("scraper")), 401, "show one token"),
        ({"Authorization": "Basic !!!"}, 401, "show one token"),
        ({"Authorization": "Basic \xe9"}, 401, "show one token"),
        ({"Authorization": f"Bearer {secret('scraper')}\xe9"}, 401, "show one token"),
        ({"Authorization": f"Digest {secret('scraper')}"}, 401, "show one token"),
        ({"Authorization": f"Bearer {secret('scraper')}", "authorization": f"Bearer {secret('scraper')}"}, 401, "show one token"),
        (bearer("blue"), 403, "token blue is for some guests only"),
    ],
)
async def test_what_is_no_good_token_is_refused_and_logged_without_it(
    headers: dict[str, str], status: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running_fleet(access=RULES, need_token=True) as fleet:
        answer = await get(fleet.address, "/metrics", headers=headers)
    assert (answer.status, words in answer.body.decode()) == (status, True)
    said = [record.getMessage() for record in caplog.records if record.name.endswith("token_auth")]
    assert len(said) == 1
    assert words in said[0]
    assert secret("scraper") not in caplog.text
    assert secret("nobody") not in caplog.text


async def test_health_is_open_to_everybody() -> None:
    async with running_fleet(access=RULES, need_token=True) as fleet:
        assert [(await get(fleet.address, path)).status for path in ("/healthz", "/readyz")] == [200, 200]


async def test_a_stream_ends_when_its_token_is_taken_away_and_gives_its_place_back() -> None:
    async with running_fleet(access=RULES, need_token=True) as fleet:
        reader, writer = await connect(fleet.address)
        writer.write(request("/events", headers=bearer("scraper")))
        assert (await read_head(reader))[0] == 200
        events = Events(reader)
        await events.until("guests")
        fleet.parts.access.replace(rules(tokens=(token("scraper", Role.VIEWER), token("new", Role.VIEWER))))
        fleet.directory.add(GuestEntry("vm-b", UnixAddress("/nowhere"), running=False))
        await events.until("rows", "vm-b")
        fleet.parts.access.replace(rules())
        fleet.directory.add(GuestEntry("vm-c", UnixAddress("/nowhere/c"), running=False))
        seen: list[object] = []
        while (event := await events.next())[0] != "end":
            seen.append(event)
        assert "vm-c" not in str(seen)
        await eventually(lambda: not fleet.pages.live.places.taken)
        await close(writer)
        assert (await get(fleet.address, "/metrics", headers=bearer("scraper"))).status == 401


async def test_a_page_that_waited_for_its_guests_is_not_shown_when_its_token_was_taken_away_meanwhile() -> None:
    async with running_fleet(access=RULES, need_token=True) as fleet:
        silent = await fleet.add("vm-a")
        silent.silent.add("GpuInfo")
        asking = asyncio.create_task(get(fleet.address, "/metrics", headers=bearer("scraper")))
        await eventually(lambda: "GpuInfo" in silent.asked)
        fleet.parts.access.replace(rules())
        answer = await asking
        assert (answer.status, "vm-a" in answer.body.decode()) == (401, False)
        assert answer.headers["www-authenticate"].startswith("Basic realm=")


async def test_without_the_setting_pages_are_open_to_whoever_reaches_them() -> None:
    async with running_fleet(access=RULES) as fleet:
        assert (await get(fleet.address, "/metrics")).status == 200


async def test_a_dashboard_that_has_nothing_to_say_ends_when_its_token_is_taken_away() -> None:
    async with running_fleet(access=RULES, need_token=True) as fleet:
        reader, writer = await connect(fleet.address)
        writer.write(request("/events", headers=bearer("scraper")))
        assert (await read_head(reader))[0] == 200
        events = Events(reader)
        await events.until("guests")
        fleet.parts.access.replace(rules())
        # By what changed: a pulse, which is the first thing that would be sent, comes after this wait.
        assert await asyncio.wait_for(events.next(), PULSE_SECONDS / 3) == ("end", None)
        assert fleet.pages.live.places.taken == 0
        await close(writer)

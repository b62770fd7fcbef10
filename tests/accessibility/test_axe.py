"""axe-core looks at every page in Chromium, at both widths and in both colour schemes: nothing serious is found.

`npm ci --prefix tests/accessibility` brings axe-core; without it these tests are skipped. It is put into the page by the browser's
debugging interface, which the page's policy does not hold.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from guest_api.guest_api_pb2 import Container, ListContainersResponse
from tests.fleet_http.fleet import Answers, Fleet, running_fleet
from tests.fleet_http.test_chromium import SCENES
from tests.guest_contract import test_health as health_examples
from tests.http.chromium import CHROMIUM, Browser, Chromium
from tests.http.guests import Bus, Engine, Gpus, Guest, containers, h200s, served

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="missing: chromium (Debian package chromium)"),
    pytest.mark.skipif(not AXE.exists(), reason="missing: axe-core (npm ci --prefix tests/accessibility)"),
    # A cold start of the browser on two busy cores takes most of it.
    pytest.mark.timeout(180),
]
# What keeps somebody out; the rest is advice.
SERIOUS = {"serious", "critical"}
LOOKS = ((1400, False), (1400, True), (390, False), (390, True))


@pytest_asyncio.fixture
async def chrome(chromium: Chromium) -> AsyncIterator[Browser]:
    async with chromium.page() as page:
        yield page


async def found_on(chrome: Browser, url: str) -> list[str]:
    """The serious findings at each look, as `rule: where`."""
    await chrome.visit(url)
    return await looked_at(chrome)


async def looked_at(chrome: Browser) -> list[str]:
    """The same of the page that is shown."""
    found = set()
    await chrome.evaluate(AXE.read_text(encoding="utf-8") + ";undefined")
    for width, dark in LOOKS:
        await chrome.look(width=width, dark=dark)
        said = await chrome.evaluate(
            "document.querySelectorAll('details').forEach((each) => each.open = true);"
            "axe.run(document, {resultTypes: ['violations']}).then((all) => JSON.stringify(all.violations))"
        )
        for violation in json.loads(said):
            if violation["impact"] in SERIOUS:
                nodes = [" ".join(map(str, node["target"])) for node in violation["nodes"]]
                found.add(f"{violation['id']} ({violation['help']}) at {width} px{', dark' if dark else ''}: {nodes[:3]}")
    return sorted(found)


async def sick(fleet: Fleet) -> None:
    lost, fine = health_examples.healthy(0), health_examples.healthy(1)
    lost.row_remap_failed = True
    lost.errors.append("temperature: GPU is lost")
    running = ListContainersResponse(containers=[Container(names=["/trainer"], image="train:1", state="running", id="ab" * 32)])
    await fleet.add("vm-sick", Answers(gpus=health_examples.answer(lost, fine), containers=running), labels={"rack": "r7"})


async def test_a_picture_without_words_and_grey_on_grey_are_found(chrome: Browser) -> None:
    async with running_fleet() as fleet:
        await chrome.visit(f"http://{fleet.address}/")
        await chrome.evaluate(
            "document.querySelector('main').append(Object.assign(new Image(), {src: '/assets/icon.svg'}));"
            "Object.assign(document.querySelector('h2').style, {color: '#ccc', background: '#ddd'})"
        )
        found = await looked_at(chrome)
        assert {each.partition(" ")[0] for each in found} == {"image-alt", "color-contrast"}


FLEETS: dict[str, Callable[[Fleet], Awaitable[None]]] = {**SCENES, "sick": sick}


@pytest.mark.parametrize("scene", FLEETS)
async def test_nothing_serious_is_found_on_the_fleets_page(chrome: Browser, scene: str) -> None:
    async with running_fleet() as fleet:
        await FLEETS[scene](fleet)
        assert await found_on(chrome, f"http://{fleet.address}/") == []


@pytest.mark.parametrize(
    ("scene", "guest_id"), [("sick", "vm-sick"), ("mixed", "vm-dead"), ("hostile", "vm-evil"), ("mixed", "vm-stopped")]
)
async def test_nothing_serious_is_found_on_a_guests_page_in_the_fleet(chrome: Browser, scene: str, guest_id: str) -> None:
    async with running_fleet() as fleet:
        await FLEETS[scene](fleet)
        assert await found_on(chrome, f"http://{fleet.address}/guests/{guest_id}") == []


async def test_nothing_serious_is_found_on_a_guests_own_page(chrome: Browser) -> None:
    guest = Guest(gpus=Gpus(reply=h200s(2), inventory=Bus(2)), engine=Engine(containers=containers(2)))
    async with served(guest) as address:
        assert await found_on(chrome, f"http://{address}/") == []


async def test_every_guest_and_card_is_reached_by_keyboard_and_what_has_the_focus_is_seen(chrome: Browser) -> None:
    async with running_fleet() as fleet:
        await sick(fleet)
        await chrome.look(width=1400)
        await chrome.visit(f"http://{fleet.address}/")
        reached = []
        for _ in range(12):
            await chrome.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
            await chrome.call("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
            where = await chrome.evaluate(
                "(() => { const at = document.activeElement, look = getComputedStyle(at);"
                "const seen = look.outlineStyle !== 'none' || look.textDecorationLine === 'underline';"
                "return [at.id || at.getAttribute('href') || at.tagName, seen]; })()"
            )
            reached.append(tuple(where))
        assert {"filter", "sort", "guests/vm-sick", "guests/vm-sick#gpu0", "guests/vm-sick#gpu1"} <= {name for name, _ in reached}
        assert [name for name, seen in reached if not seen and name != "BODY"] == []

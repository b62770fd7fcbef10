"""The fleet's dashboard in a real browser, with guests that are hostile, dead and new.

Screenshots are written to $SCREENSHOTS when it is set, for somebody to look at.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from guest_api.guest_api_pb2 import GpuInfoResponse
from guest_transport.addresses import UnixAddress
from tests.fleet_http.fleet import ALL_SILENT, Answers, Fleet, running_fleet
from tests.http.chromium import CHROMIUM, Browser, Chromium
from tests.http.guests import h200s
from tests.http.test_chromium import LOW_CONTRAST
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.pages import live

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="missing: chromium (Debian package chromium)"),
    # A cold start of the browser on two busy cores takes most of it.
    pytest.mark.timeout(180),
]

SCRIPT = "<script>document.title='owned'</script>"
IMAGE = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(autouse=True)
def looks_follow_each_other_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that a viewer waits for is seen at the next look, which is 5 s later otherwise."""
    monkeypatch.setattr(live, "LIVE_SECONDS", 0.2)


@pytest_asyncio.fixture
async def chrome(chromium: Chromium) -> AsyncIterator[Browser]:
    async with chromium.page() as page:
        yield page
        assert [complaint for complaint in page.complaints if not of_a_stream_that_ended(complaint)] == []


def of_a_stream_that_ended(complaint: str) -> bool:
    """Whether the browser notes that the live stream broke off, or found nobody: proxies of tests end before their pages do."""
    return "/events" in complaint and "ERR_" in complaint


def hostile() -> GpuInfoResponse:
    reply = h200s(2)
    reply.ClearField("cc_ready")
    reply.gpus[0].uuid = f"</tbody></table>{SCRIPT}"
    reply.gpus[0].pci_bus_id = '"><svg onload=alert(1)>'
    lost = reply.gpus[1]
    lost.uuid = f'{IMAGE}A"B\\C\nD'
    for field in ("temperature_c", "power_usage_mw", "utilization_gpu", "memory_used_bytes"):
        lost.ClearField(field)
    lost.errors.extend(["temperature: GPU is lost", f"power: {SCRIPT}\x1b[2J\u202egnp.exe\n\ndata: owned"])
    return reply


async def mixed(fleet: Fleet) -> None:
    await fleet.add("vm-train-01", Answers(gpus=h200s(8)), labels={"rack": "r7", "tenant": "blue"})
    await fleet.add("vm-web", labels={"rack": "r7"})
    await fleet.add("vm-no-driver", Answers(gpus=GpuInfoResponse(error="NVIDIA driver is not loaded")))
    fleet.add_dead("vm-dead")
    fleet.directory.add(GuestEntry("vm-stopped", UnixAddress("/nowhere"), running=False))
    degraded = h200s(2)
    degraded.cc_ready = False
    degraded.gpus[1].ClearField("power_usage_mw")
    degraded.gpus[1].ClearField("temperature_c")
    degraded.gpus[1].errors.extend(["temperature: GPU is lost", "power: GPU is lost"])
    await fleet.add("vm-degraded", Answers(gpus=degraded))


async def hostile_fleet(fleet: Fleet) -> None:
    await fleet.add("vm-evil", Answers(gpus=hostile()), labels={"owner": "x" * 200})
    await fleet.add("vm-loud", Answers(gpus=GpuInfoResponse(error=f"{SCRIPT}" + "long " * 2000)))
    await fleet.add("n" * 128, Answers(gpus=h200s(1)))


async def nobody(fleet: Fleet) -> None:
    """No guests."""


SCENES: dict[str, Callable[[Fleet], Awaitable[None]]] = {"mixed": mixed, "hostile": hostile_fleet, "nobody": nobody}


async def test_hostile_text_is_text_also_when_it_comes_by_an_event(chrome: Browser) -> None:
    async with running_fleet() as fleet:
        await hostile_fleet(fleet)
        await chrome.visit(f"http://{fleet.address}/")
        fleet.guests["vm-evil"].gpus.gpus[0].temperature_c = 77
        await chrome.until("document.body.innerText.includes('77 °C')")
        text = await chrome.evaluate("document.body.innerText")
        assert f"</tbody></table>{SCRIPT}" in text
        assert f'{IMAGE}A"B\\C\\nD' in text
        assert "\\x1b[2J\\u202egnp.exe\\n\\ndata: owned" in text
        assert await chrome.evaluate("document.title") == "Guestscope · fleet"
        assert await chrome.evaluate("document.scripts.length") == 1
        assert await chrome.evaluate("document.images.length") == 1
        assert await chrome.evaluate("document.querySelectorAll('#fleet > tbody').length") == 3
        assert {url.split("/")[2] for url in chrome.requested} == {str(fleet.address)}


async def test_guests_come_go_and_die_without_a_reload(chrome: Browser) -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(1)))
        await chrome.visit(f"http://{fleet.address}/")
        await chrome.evaluate("window.same = true")
        await fleet.add("vm-b", Answers(gpus=h200s(2)))
        await chrome.until("document.querySelector('[data-guest=vm-b] .badge.up')")
        fleet.directory.remove("vm-a")
        await chrome.until("!document.querySelector('[data-guest=vm-a]')")
        await fleet.stop("vm-b")
        await chrome.until("document.querySelector('[data-guest=vm-b] .badge.down')")
        # What it last said is still there, and how long ago.
        assert await chrome.evaluate("document.querySelectorAll('[data-guest=vm-b] tr').length") == 2
        assert await chrome.evaluate("window.same")
        assert "1" in await chrome.evaluate("document.querySelector('#summary').innerText")
        assert (await chrome.evaluate("document.querySelector('#pulse').textContent")).startswith("live")


async def test_the_table_is_filtered_and_sorted_and_stays_so_when_events_come(chrome: Browser) -> None:
    shown = "[...document.querySelectorAll('#fleet tbody:not([hidden])')].map((body) => body.dataset.guest).join()"
    async with running_fleet() as fleet:
        for name, cards, rack in (("vm-a", 2, "r1"), ("vm-b", 5, "r1"), ("vm-c", 0, "r1"), ("vm-d", 4, "r2")):
            await fleet.add(name, Answers(gpus=h200s(cards)), labels={"rack": rack})
        await chrome.visit(f"http://{fleet.address}/")
        assert await chrome.evaluate(shown) == "vm-a,vm-b,vm-c,vm-d"
        await chrome.evaluate("sort.value = 'utilization'; sort.dispatchEvent(new Event('change'))")
        assert await chrome.evaluate(shown) == "vm-b,vm-d,vm-a,vm-c"
        await chrome.evaluate("filter.value = 'UP rack=r1'; filter.dispatchEvent(new Event('input'))")
        assert await chrome.evaluate(shown) == "vm-b,vm-a,vm-c"
        fleet.guests["vm-a"].gpus.gpus[0].utilization_gpu = 100
        await chrome.until(f"{shown} === 'vm-a,vm-b,vm-c'")
        assert await chrome.evaluate("found.textContent") == "3 of 4"


async def test_a_proxy_that_goes_away_is_said_on_the_page(chrome: Browser) -> None:
    async with running_fleet() as fleet:
        await chrome.visit(f"http://{fleet.address}/")
    await chrome.until("document.querySelector('#pulse').classList.contains('lost')")
    assert "no answer since" in await chrome.evaluate("document.querySelector('#pulse').textContent")


async def test_without_javascript_the_table_is_whole(chrome: Browser) -> None:
    async with running_fleet() as fleet:
        await mixed(fleet)
        await chrome.visit(f"http://{fleet.address}/", javascript=False)
        node = (await chrome.call("DOM.getDocument", depth=-1))["root"]["nodeId"]
        rows = await chrome.call("DOM.querySelectorAll", nodeId=node, selector="#fleet tbody tr")
        tools = await chrome.call("DOM.querySelectorAll", nodeId=node, selector="#tools:not([hidden])")
    assert len(rows["nodeIds"]) == 8 + 2 + 4
    assert tools["nodeIds"] == []


async def test_an_inline_script_is_stopped_by_the_policy(chrome: Browser) -> None:
    async with running_fleet() as fleet:
        await chrome.visit(f"http://{fleet.address}/")
        ran = await chrome.evaluate(
            "new Promise((done) => {"
            "document.addEventListener('securitypolicyviolation', (stopped) => done(stopped.effectiveDirective));"
            "const script = document.createElement('script'); script.textContent = 'window.ran = true';"
            "document.body.append(script); if (window.ran) done('ran'); })"
        )
    assert ran.startswith("script-src")
    chrome.complaints.clear()


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("dark", [False, True])
async def test_every_state_of_a_fleet_fits_its_screen_and_can_be_read(
    chrome: Browser, width: int, dark: bool, tmp_path: Path
) -> None:
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    await chrome.look(width=width, dark=dark)
    for name, fill in SCENES.items():
        async with running_fleet() as fleet:
            await fill(fleet)
            await remembered(fleet)
            await chrome.visit(f"http://{fleet.address}/")
            await chrome.until("document.querySelector('#pulse').textContent.startsWith('live')")
            await chrome.screenshot(folder / f"fleet-{name}-{width}-{'dark' if dark else 'light'}.png")
            assert await chrome.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than its screen"
            assert json.loads(await chrome.evaluate(LOW_CONTRAST)) == [], f"{name}: text that is hard to read"


async def remembered(fleet: Fleet) -> None:
    """Half an hour of history for every card, as if somebody had watched."""
    history = fleet.pages.view.history
    clock = history.clock
    for guest_id, answers in fleet.guests.items():
        cards = GpuInfoResponse()
        cards.CopyFrom(answers.gpus)
        for slot, moment in enumerate([clock() - 1800 + 30 * slot for slot in range(60)]):
            for number, card in enumerate(cards.gpus):
                card.utilization_gpu = min(100, 12 * number + (slot * 7 * (number + 1)) % 40)
                if 20 <= slot < 24:
                    card.ClearField("utilization_gpu")
            history.clock = partial(float, moment)
            history.note(guest_id, cards.gpus)
    history.clock = clock


async def test_a_guest_that_never_answered_is_shown_while_it_is_waited_for(chrome: Browser) -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-silent", Answers(silent=set(ALL_SILENT)))
        await fleet.add("vm-a", Answers(gpus=h200s(1)))
        await chrome.visit(f"http://{fleet.address}/")
        await chrome.until("document.querySelector('[data-guest=vm-silent] .badge.down')")
        assert await chrome.evaluate("!!document.querySelector('[data-guest=vm-a] .badge.up')")


# The longest, widest and strangest that a guest may send where a card's name stands, and of an error.
STRANGE = {
    "one word": "W" * 300,
    "wide letters": "\u7af6" * 300,
    "marks on one letter": "e" + "\u0301\u0336\u20dd" * 100,
    "from right to left": "\u202e\u05d0" * 150,
    "many words": "word " * 60,
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE.keys())
async def test_no_text_of_a_guest_moves_another_guests_figures(chrome: Browser, text: str) -> None:
    figures = "document.querySelector('[data-guest=vm-good] td:last-child').getBoundingClientRect().right"
    height = "document.querySelector('[data-guest=vm-evil]').getBoundingClientRect().height"
    async with running_fleet() as fleet:
        evil = await fleet.add("vm-evil", Answers(gpus=h200s(1)))
        await fleet.add("vm-good", Answers(gpus=h200s(1)))
        await chrome.look(width=1440)
        await chrome.visit(f"http://{fleet.address}/")
        right = await chrome.evaluate(figures)
        assert right <= 1440
        card = evil.gpus.gpus[0]
        card.pci_bus_id, card.uuid = text, text
        card.errors.extend([(text * 20)[:5000], *[text] * 6])
        card.temperature_c = 77
        await chrome.until("document.body.innerText.includes('77 °C')")
        assert await chrome.evaluate(figures) <= max(right, 1440)
        assert await chrome.evaluate(
            "document.querySelector('.panel.flush').scrollWidth <= document.querySelector('.panel.flush').clientWidth"
        )
        assert await chrome.evaluate(height) < 600
        title = await chrome.evaluate("document.querySelector('[data-guest=vm-evil] .uuid').title")
        assert title == "".join(c if c.isprintable() else "\\u202e" for c in text)

"""The dashboard in a real browser: what a person sees, and what hostile names do not do.

Screenshots are written to $SCREENSHOTS when it is set, for somebody to look at.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from guest_api.guest_api_pb2 import GpuInfoResponse
from tests.http.chromium import CHROMIUM, Browser, Chromium
from tests.http.guests import Bus, Engine, Gpus, Guest, Shown, containers, h200s, served

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="missing: chromium (Debian package chromium)"),
    # A cold start of the browser on two busy cores takes most of it.
    pytest.mark.timeout(180),
]

SCRIPT = "<script>document.title='owned'</script>"
IMAGE = "<img src=x onerror=\"document.title='owned'\">"


@pytest_asyncio.fixture
async def chrome(chromium: Chromium) -> AsyncIterator[Browser]:
    async with chromium.page() as page:
        yield page
        assert page.complaints == []


def hostile_guest() -> Guest:
    reply = h200s(2)
    reply.cc_enabled = False
    reply.ClearField("cc_ready")
    reply.cc_devtools = True
    lost = reply.gpus[1]
    lost.uuid = f'{IMAGE}A"B\\C\nD'
    for field in ("temperature_c", "power_usage_mw", "utilization_gpu", "utilization_memory"):
        lost.ClearField(field)
    lost.errors.extend(["temperature: GPU is lost", f"power: {SCRIPT}\x1b[2J\u202egnp.exe"])
    listed = containers(2)
    listed[0].names[:] = [f"/{SCRIPT}"]
    listed[1].names[:] = ["/" + "a-long-name-" * 30]
    listed[1].image = "registry.example/" + "x" * 300
    return Guest(gpus=Gpus(reply=reply, inventory=Bus(3)), engine=Engine(containers=listed))


async def test_hostile_names_are_text_and_nothing_of_them_runs(chrome: Browser) -> None:
    async with served(hostile_guest()) as address:
        await chrome.look(width=1280)
        await chrome.visit(f"http://{address}/")
        text = await chrome.evaluate("document.body.innerText")
        assert SCRIPT in text
        assert f'{IMAGE}A"B\\C\\nD' in text
        assert "\\x1b[2J\\u202egnp.exe" in text
        assert "CC DevTools\non" in text
        assert await chrome.evaluate("document.title") == "Guestscope · guest"
        assert await chrome.evaluate("document.scripts.length") == 1
        assert await chrome.evaluate("document.images.length") == 1
        assert {url.split("/")[2] for url in chrome.requested} == {str(address)}


async def test_the_page_refreshes_itself_without_a_reload(chrome: Browser) -> None:
    guest = Guest(gpus=Gpus(reply=h200s(1), inventory=Bus(1)))
    async with served(guest) as address:
        await chrome.visit(f"http://{address}/")
        await chrome.evaluate("window.same = true; document.querySelector('#system').dataset.mark = 'kept'")
        guest.gpus.reply.gpus[0].power_usage_mw = 512_340
        await chrome.until("document.body.innerText.includes('512.3 W')")
        assert await chrome.evaluate("window.same")
        assert await chrome.evaluate("document.querySelector('#system').dataset.mark") == "kept"
        assert (await chrome.evaluate("document.querySelector('#pulse').textContent")).startswith("live")


async def test_an_agent_that_goes_away_is_said_on_the_page(chrome: Browser) -> None:
    async with served(Guest()) as address:
        await chrome.visit(f"http://{address}/")
    # What a browser says when somebody comes back to the tab; the page looks at once then.
    await chrome.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await chrome.until("document.querySelector('#pulse').classList.contains('lost')")
    assert "no answer since" in await chrome.evaluate("document.querySelector('#pulse').textContent")
    # The browser itself notes each fetch that found nobody.
    assert all("ERR_CONNECTION_REFUSED" in complaint for complaint in chrome.complaints)
    chrome.complaints.clear()


async def test_without_javascript_the_page_is_whole(chrome: Browser) -> None:
    guest = Guest(gpus=Gpus(reply=h200s(8), inventory=Bus(8)), engine=Engine(containers=containers(3)))
    async with served(guest) as address:
        await chrome.visit(f"http://{address}/", javascript=False)
        node = (await chrome.call("DOM.getDocument", depth=-1))["root"]["nodeId"]
        cards = await chrome.call("DOM.querySelectorAll", nodeId=node, selector="article.card")
        rows = await chrome.call("DOM.querySelectorAll", nodeId=node, selector="#containers tbody tr")
    assert len(cards["nodeIds"]) == 8
    assert len(rows["nodeIds"]) == 3


async def test_an_inline_script_is_stopped_by_the_policy(chrome: Browser) -> None:
    async with served(Guest()) as address:
        await chrome.visit(f"http://{address}/")
        ran = await chrome.evaluate(
            "new Promise((done) => {"
            "document.addEventListener('securitypolicyviolation', (stopped) => done(stopped.effectiveDirective));"
            "const script = document.createElement('script'); script.textContent = 'window.ran = true';"
            "document.body.append(script); if (window.ran) done('ran'); })"
        )
    assert ran.startswith("script-src")
    assert all("Content Security Policy" in complaint for complaint in chrome.complaints)
    chrome.complaints.clear()


async def test_a_log_is_shown_as_text(chrome: Browser) -> None:
    guest = Guest(engine=Engine(containers=containers(2), output=[f"{SCRIPT}{IMAGE}\n".encode()]))
    async with served(guest) as address:
        await chrome.visit(f"http://{address}/logs/service-1")
        assert SCRIPT in await chrome.evaluate("document.body.innerText")
        assert await chrome.evaluate("document.title") != "owned"
        assert await chrome.evaluate("document.contentType") == "text/plain"


async def test_every_state_of_a_guest_fits_its_screen_and_can_be_read(chrome: Browser, tmp_path: Path) -> None:
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    scenes = {
        "eight": Guest(gpus=Gpus(reply=h200s(8), inventory=Bus(8)), engine=Engine(containers=containers(5))),
        "hostile": hostile_guest(),
        "none": Guest(),
        "no-driver": Guest(gpus=Gpus(reply=GpuInfoResponse(error="NVIDIA driver is not loaded"), inventory=Bus(1))),
        "hidden": Guest(shown=Shown(public_sysinfo=False, public_logs=False, public_containers=False)),
    }
    for name, guest in scenes.items():
        async with served(guest) as address:
            for width, dark in itertools.product((400, 1280), (False, True)):
                await chrome.look(width=width, dark=dark)
                await chrome.visit(f"http://{address}/")
                await chrome.screenshot(folder / f"{name}-{width}-{'dark' if dark else 'light'}.png")
                assert await chrome.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than its screen"
                assert json.loads(await chrome.evaluate(LOW_CONTRAST)) == [], f"{name}: text that is hard to read"


# WCAG 2.1, 1.4.3: contrast of text to the nearest background that is not transparent, at least 4.5.
LOW_CONTRAST = """
(() => {
  const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const colour = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const back = colour(getComputedStyle(element).backgroundColor);
      if (back.length < 4 || back[3] > 0) return back;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own) continue;
    const [high, low] = [light(colour(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    if ((high + 0.05) / (low + 0.05) < 4.5) poor.push(element.tagName + ": " + element.textContent.trim().slice(0, 40));
  }
  return JSON.stringify(poor);
})()
"""

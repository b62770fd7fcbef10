"""Makes the pictures of the pages in docs/pictures anew, light and dark, in Chromium: `make pictures`.

The guests are those of the tests, with a half hour behind them that is made up, so that a picture shows what a page is for and is the same
each time. Rejected: the demo's guests, whose graphs are empty for the first half hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
from pathlib import Path

from guest_api import guest_api_pb2
from guest_api.guest_api_pb2 import GpuInfoResponse, NetworkInformation
from tests.fleet_http.fleet import Answers, Fleet, running_fleet
from tests.guest_contract import test_health as health_examples
from tests.http.chromium import Chromium
from tests.http.guests import h200s, system_info
from vmm_proxy.pages.dashboard.history import SLOT_SECONDS, SLOTS

PICTURES = Path(__file__).parent.parent / "docs/pictures"
# What of a page is shown: its width and height.
PAGES = {"fleet-page": ("", 1400, 760), "guest-page": ("guests/vm-train-02", 1200, 900)}


def cards(first: int, end: int) -> GpuInfoResponse:
    """Healthy cards of one guest, of those that the tests have."""
    reply = health_examples.answer(*(health_examples.healthy(number) for number in range(end - first)))
    for card, shown in zip(reply.gpus, h200s(end).gpus[first:], strict=True):
        index = card.index
        card.MergeFrom(shown)
        card.index, card.power_limit_mw = index, 700_000
    reply.sample_age_ms, reply.cc_ready = 1800, True
    return reply


async def fill(fleet: Fleet) -> None:
    """Two guests, one with a card that is in trouble, and their last half hour."""
    busy, sick = cards(0, 4), cards(4, 6)
    sick.gpus[1].row_remap_pending = True
    address = guest_api_pb2.IpAddress(address="10.1.2.3", prefix=24)
    network = NetworkInformation(interfaces=[guest_api_pb2.Interface(name="eth0", addresses=[address])], dns_servers=["10.1.2.1"])
    for guest_id, reply, tenant in (("vm-train-01", busy, "blue"), ("vm-train-02", sick, "green")):
        answers = Answers(gpus=reply, system=system_info(), network=network)
        await fleet.add(guest_id, answers, labels={"rack": "r7", "tenant": tenant})
    history = fleet.pages.view.history
    real, now = history.clock, [history.clock()]
    history.clock = lambda: now[0]
    for slot in range(SLOTS):
        now[0] = real() - (SLOTS - slot) * SLOT_SECONDS
        for guest_id, reply in (("vm-train-01", busy), ("vm-train-02", sick)):
            past = type(reply)()
            past.CopyFrom(reply)
            for number, card in enumerate(past.gpus):
                load = 0.5 + 0.5 * math.sin(slot / 7 + number)
                card.utilization_gpu = round(100 * load)
                card.temperature_c = round(38 + 30 * load)
                card.power_usage_mw = round(90_000 + 500_000 * load)
            history.note(guest_id, past.gpus)
    history.clock = real


async def main() -> None:
    """Write them."""
    with tempfile.TemporaryDirectory() as profile, contextlib.closing(Ending(Path(profile))) as chromium:
        await shoot(chromium)


class Ending(Chromium):
    """A browser that contextlib can close."""

    close = Chromium.end


async def shoot(chromium: Chromium) -> None:
    """Each page, light and dark."""
    async with chromium.page() as page, running_fleet() as fleet:
        await fill(fleet)
        for name, (path, width, height) in PAGES.items():
            for dark in (False, True):
                await page.look(width=width, dark=dark)
                await page.call(
                    "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
                )
                await page.visit(f"http://{fleet.address}/{path}")
                await page.screenshot(PICTURES / f"{name}{'-dark' if dark else ''}.png")
                print(PICTURES / f"{name}{'-dark' if dark else ''}.png")


if __name__ == "__main__":
    asyncio.run(main())

"""One guest's page in the fleet, without a browser: what stands there, of whom, and what a hostile guest does to it."""

from __future__ import annotations

import asyncio
import html
import re
import threading
from typing import Any

import pytest

from guest_api import guest_api_pb2
from guest_api.guest_api_pb2 import Container, GpuInfoResponse, ListContainersResponse, NetworkInformation, SystemInfo
from guest_contract import words
from guest_contract.card_fields import ROWS, page_title
from guest_contract.card_row import GUEST_PAGE, TEXT_VALUE, WITHIN
from guest_transport.addresses import UnixAddress
from tests.eventually import eventually
from tests.fleet_http.fleet import Answers, Fleet, running_fleet
from tests.guest_contract import test_health as health_examples
from tests.http.guests import h200s
from tests.http.web import get
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.pages.dashboard import render
from vmm_proxy.pages.dashboard.history import CARDS_LIMIT, SLOT_SECONDS


async def page(fleet: Fleet, guest_id: str, status: int = 200, part: str = "") -> str:
    answer = await get(fleet.address, f"/guests/{guest_id}{part}")
    assert answer.status == status
    return answer.body.decode()


def words_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", page))


async def test_a_card_is_there_in_detail_with_every_value_that_a_page_has_a_place_for() -> None:
    async with running_fleet() as fleet:
        rows = [row for row in ROWS if row.shown != WITHIN and GUEST_PAGE not in row.not_on]
        # A card of its own for each value, so that none can be impossible beside another.
        values: list[Any] = ["x" if row.unit == TEXT_VALUE else row.most for row in rows]
        devices = [guest_api_pb2.GpuDevice(**{row.name: value}) for row, value in zip(rows, values, strict=True)]
        answers = await fleet.add("vm-a", labels={"rack": "r7"})
        seen = 0
        for begin in range(0, len(rows), CARDS_LIMIT):
            answers.gpus = GpuInfoResponse(gpus=devices[begin : begin + CARDS_LIMIT])
            known = fleet.pages.guest_answers.get("vm-a")
            assert known is not None
            known.asked_at = float("-inf")
            shown = await page(fleet, "vm-a")
            cards = shown.split('<article class="card"')[1:]
            for row, value, card in zip(rows[begin:], values[begin:], cards, strict=False):
                assert page_title(row) in words_of(card), row.name
                assert words.say(row, value) in words_of(card), row.name
                seen += 1
        assert seen == len(rows)
        assert "rack" in shown
        assert 'data-source="vm-a/live"' in shown
        for asset in re.findall(r'(?:href|src)="\.\./(assets/[^"]*)"', shown):
            assert (await get(fleet.address, f"/{html.unescape(asset)}")).status == 200
        live = await page(fleet, "vm-a", part="/live")
        assert re.findall(r'<section id="(\w+)"', live) == re.findall(r'<section id="(\w+)"', shown)


async def test_a_sick_card_says_why_and_what_to_do_before_anything_else_of_it() -> None:
    async with running_fleet() as fleet:
        sick = h200s(1)
        sick.gpus[0].row_remap_failed = True
        await fleet.add("vm-a", Answers(gpus=sick))
        shown = await page(fleet, "vm-a")
        assert shown.index("a memory row could not be remapped. Take the card") < shown.index("30 minutes")


async def test_the_last_half_hour_of_each_value_is_drawn() -> None:
    async with running_fleet() as fleet:
        answers = await fleet.add("vm-a", Answers(gpus=h200s(1)))
        card = answers.gpus.gpus[0]
        history, now = fleet.pages.view.history, [1000.0 * SLOT_SECONDS]
        history.clock = lambda: now[0]
        for utilization, celsius in ((10, 40), (90, 70)):
            card.utilization_gpu, card.temperature_c, card.power_usage_mw, card.power_limit_mw = (
                utilization,
                celsius,
                350_000,
                700_000,
            )
            card.memory_used_bytes, card.memory_free_bytes = card.memory_total_bytes // 4, 0
            history.note("vm-a", answers.gpus.gpus)
            now[0] += SLOT_SECONDS
        answers.silent.add("GpuInfo")
        known = fleet.pages.guest_answers.get("vm-a")
        assert known is not None
        known.gpus.answer, known.gpus.received_at = answers.gpus, fleet.pages.guest_answers.clock()
        shown = await page(fleet, "vm-a", part="/live")
        for title, span, scale in (
            ("Utilization", "10 to 90 %", "0 to 100 %"), ("Memory used", "25 %", "0 to 100 %"),
            ("Temperature", "40 to 70 °C", "0 to 100 °C"), ("Power", "350 W", "0 to 700 W"),
        ):  # fmt: skip
            assert f'aria-label="{title} of the last 30 minutes: {span}, on a scale of {scale}"' in shown
        assert '<path d="M57 90L58 10"/>' in shown


async def test_system_network_and_containers_are_there_and_containers_only_where_the_operator_lets_them() -> None:
    async with running_fleet() as fleet, running_fleet(containers=False) as discreet:
        for each in (fleet, discreet):
            answers = Answers(
                gpus=h200s(1),
                containers=ListContainersResponse(containers=[Container(names=["/trainer"], state="running")]),
                network=NetworkInformation(
                    interfaces=[
                        guest_api_pb2.Interface(name="eth0", addresses=[guest_api_pb2.IpAddress(address="10.1.2.3", prefix=24)])
                    ],
                    dns_servers=["10.1.2.1"],
                ),
            )
            await each.add("vm-a", answers)
        shown = words_of(await page(fleet, "vm-a"))
        for said in ("Debian", "10.1.2.3/24", "10.1.2.1"):
            assert said in shown
        known = fleet.pages.guest_answers.get("vm-a")
        await eventually(lambda: known is not None and known.containers.answer)
        assert "trainer" in await page(fleet, "vm-a")
        assert fleet.guests["vm-a"].asked["NetworkInfo"] == 1, "addresses are not asked at each look"
        assert "trainer" not in await page(discreet, "vm-a")
        assert "ListContainers" not in discreet.guests["vm-a"].asked


async def test_a_guest_that_is_down_is_shown_as_it_last_was_and_says_why_it_is_silent() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(2)))
        assert 'class="badge up"' in await page(fleet, "vm-a")
        await fleet.stop("vm-a")
        known = fleet.pages.guest_answers.get("vm-a")
        assert known is not None
        known.asked_at = float("-inf")
        await page(fleet, "vm-a")
        await eventually(lambda: known.up is False)
        shown = await page(fleet, "vm-a")
        assert 'class="badge down"' in shown
        assert "unreachable" in shown
        assert shown.count('<article class="card"') == 2


async def test_a_stopped_guest_and_a_guest_without_cards_have_pages_and_an_unknown_one_has_none() -> None:
    async with running_fleet() as fleet:
        fleet.directory.add(GuestEntry("vm-stopped", UnixAddress("/nowhere"), running=False))
        await fleet.add("vm-web")
        fleet.add_dead("vm-dead")
        assert "Stopped" in words_of(await page(fleet, "vm-stopped"))
        assert "No NVIDIA GPUs" in words_of(await page(fleet, "vm-web"))
        assert "socket does not exist" in words_of(await page(fleet, "vm-dead"))
        for unknown in ("vm-x", "..%2f", "%00", "a%2fb", "x" * 300):
            assert "no guest of this id" in await page(fleet, unknown, 404) or unknown in ("..%2f", "a%2fb")
        assert (await get(fleet.address, "/guests/")).status == 404
        assert (await get(fleet.address, "/guests/vm-web", method="POST")).status == 405


async def test_what_was_made_of_a_guest_that_became_another_vm_meanwhile_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_fleet() as fleet:
        mine = await fleet.add("vm-a", Answers(gpus=h200s(1)))
        mine.gpus.gpus[0].uuid = "GPU-of-the-first-tenant"
        rendering, go_on, made = asyncio.Event(), threading.Event(), []
        loop, real = asyncio.get_running_loop(), render.Pages.guest_page

        def slow(pages: render.Pages, *arguments: object, **more: object) -> bytes:
            made.append(real(pages, *arguments, **more))  # type: ignore[arg-type] # passed on
            loop.call_soon_threadsafe(rendering.set)
            assert go_on.wait(20)
            return made[-1]

        monkeypatch.setattr(render.Pages, "guest_page", slow)
        asking = asyncio.create_task(page(fleet, "vm-a"))
        await rendering.wait()
        fleet.directory.replace(GuestEntry("vm-a", UnixAddress("/another/vm")))
        go_on.set()
        shown = await asking
        assert b"GPU-of-the-first-tenant" in made[0]
        assert "GPU-of-the-first-tenant" not in shown


async def test_a_hostile_guest_fills_no_page_and_runs_nothing() -> None:
    script = "<script>document.title='owned'</script>"
    async with running_fleet() as fleet:
        gpus = h200s(200)
        for gpu in gpus.gpus:
            gpu.name = gpu.uuid = script
        many = [guest_api_pb2.DiskInfo(name=script, mount_point=f"/{n}") for n in range(900)]
        traffic = [guest_api_pb2.InterfaceTraffic(interface=f"{script}{n}") for n in range(900)]
        await fleet.add(
            "vm-evil",
            Answers(
                gpus=gpus,
                system=SystemInfo(os_name=script, disks=many, network=traffic),
                network=NetworkInformation(dns_servers=["x" * 30] * 2000, wg_info=f"{script}\n" * 500),
            ),
        )
        shown = await page(fleet, "vm-evil")
        assert script not in shown
        assert shown.count('<article class="card"') == CARDS_LIMIT
        assert f"{200 - CARDS_LIMIT} more cards are not shown" in shown
        assert len(shown) < 1_500_000


async def test_the_fleets_rows_lead_to_the_guest_and_to_each_card() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=health_examples.answer(*h200s(2).gpus)))
        rows = (await get(fleet.address, "/")).body.decode()
        assert 'href="guests/vm-a"' in rows
        shown = await page(fleet, "vm-a")
        for index in (0, 1):
            assert f'href="guests/vm-a#gpu{index}"' in rows
            assert f'id="gpu{index}"' in shown

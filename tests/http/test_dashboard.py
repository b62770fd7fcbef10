"""The dashboard without a browser: words, bars, and what is on the page for whom."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_api.guest_api_pb2 import Container, GpuDevice, GpuInfoResponse, SystemInfo
from guest_contract import words
from guest_contract.card_fields import ROWS, page_title
from guest_contract.card_row import GUEST_PAGE, TEXT_VALUE, WITHIN, Field
from guest_pages.view import CardView, card_view, container_views, gpu_view, system_view
from guest_service.dashboard.render import Dashboard, Pages
from guest_transport.http import formats
from tests.guest_contract import test_health as health_examples
from tests.http.guests import Bus, Engine, Gpus, Guest, Shown, containers, h200s, served
from tests.http.web import get

U64 = 2**64 - 1


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0.00 B"), (1023, "1023.00 B"), (1024, "1.00 KB"), (1536, "1.50 KB"), (1024**2 - 1, "1.00 MB"), (1024**2, "1.00 MB"),
        (150754820096, "140.40 GB"), (1024**4, "1.00 TB"), (1024**5, "1.00 PB"), (U64, "16.00 EB"),
    ],
)  # fmt: skip
def test_a_size_is_1024_based_with_two_decimals(count: int, said: str) -> None:
    assert words.size(count) == said


@given(st.integers(0, U64))
def test_no_size_shows_1024_of_a_unit_that_has_a_next_one(count: int) -> None:
    number, unit = words.size(count).split()
    assert float(number) < 1024
    assert unit in ("B", "KB", "MB", "GB", "TB", "PB", "EB")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (59, "59s"), (60, "1m 0s"), (3661, "1h 1m 1s"), (86400, "1d 0h 0m 0s"), (90061, "1d 1h 1m 1s")],
)
def test_an_uptime_stands_in_days_hours_minutes_and_seconds(seconds: int, said: str) -> None:
    assert words.duration(seconds) == said


def test_load_power_and_age_have_their_decimals() -> None:
    assert words.load(40, 100, 1234) == "1min: 0.40, 5min: 1.00, 15min: 12.34"
    assert words.watts(70123) == "70.1 W"
    assert words.watts(0) == "0.0 W"
    assert words.age(60000) == "60.0 s"
    assert words.age(1234) == "1.2 s"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("00000000:01:00.0", "01:00.0"), ("0000:3b:00.0", "3b:00.0"), ("00010000:02:00.0", "00010000:02:00.0"),
        ("0000000F:01:00.0", "0000000F:01:00.0"), ("3B:00.0", "3B:00.0"), ("", ""), ("\x1b[2J", "\\x1b[2J"),
    ],
)  # fmt: skip
def test_only_a_domain_that_is_zero_is_dropped(address: str, words: str) -> None:
    assert formats.pci(address) == words


def shown(view: CardView) -> dict[str, str]:
    """What stands beside each title."""
    in_groups = {title: said for _, known in view.groups for title, said in known}
    return {bar.label: bar.words for bar in view.bars} | dict(view.texts) | in_groups


def test_a_value_that_is_unknown_is_a_dash_and_has_no_bar() -> None:
    view = card_view(GpuDevice(index=3, errors=["device: GPU is lost"]))
    assert {"Utilization", "Memory bandwidth", "Memory", "Temperature", "Power"} <= shown(view).keys()
    assert {*shown(view).values(), view.uuid, view.pci} == {words.UNKNOWN}
    assert {bar.fill for bar in view.bars} == {None}
    assert view.errors == ("device: GPU is lost",)


def test_a_measured_zero_is_a_zero_with_an_empty_bar() -> None:
    view = card_view(
        GpuDevice(utilization_gpu=0, memory_used_bytes=0, memory_total_bytes=1024, temperature_c=0, power_usage_mw=0)
    )
    fills = {bar.label: bar.fill for bar in view.bars}
    assert (fills["Utilization"], fills["Memory"], fills["Memory bandwidth"]) == (0, 0, None)
    said = shown(view)
    assert [said[title] for title in ("Utilization", "Memory", "Temperature", "Power")] == [
        "0 %",
        "0.00 B / 1.00 KB",
        "0 °C",
        "0.0 W",
    ]


def test_an_impossible_value_is_a_dash_with_its_reason_and_hides_no_other() -> None:
    view = card_view(GpuDevice(utilization_gpu=4_000_000_000, utilization_memory=7, power_usage_mw=2**32 - 1, temperature_c=30))
    said = shown(view)
    assert (said["Utilization"], said["Memory bandwidth"], said["Power"], said["Temperature"]) == (
        words.UNKNOWN,
        "7 %",
        words.UNKNOWN,
        "30 °C",
    )
    assert {bar.label: bar.fill for bar in view.bars}["Utilization"] is None
    assert view.errors == ("utilization: gpu 4000000000 % is over 100", "power: 4294967295 mW is over 5000000")


def test_xids_instances_and_processes_stand_in_their_groups_as_far_as_anybody_reads() -> None:
    device = GpuDevice(mig_enabled=True)
    for number in range(5_000):
        device.xids.add(xid=number, count=2)
        device.mig_instances.add(gpu_instance=number, profile="1g.18gb", memory_total_bytes=2**64 - 1)
        device.process_list.add(pid=number, used_memory_bytes=2**64 - 1, name="\x1b[2J\u202e" * 1000)
    groups = dict(card_view(device).groups)
    assert groups["health"][0] == ("XID 0", "2 times")
    assert groups["mig"][1] == ("Instance 0 1g.18gb", words.UNKNOWN)
    assert groups["health"][-1] == groups["mig"][-1] == groups["processes"][-1] == ("Further ones", "4984")
    title, used = groups["processes"][0]
    assert (title[:12], used) == ("Process 0 \\x", words.UNKNOWN)
    assert title.isprintable()
    assert len(title) < 3000


def test_of_thousands_of_errors_a_page_has_the_first_ones_and_says_how_many_more() -> None:
    view = card_view(GpuDevice(errors=[f"question {number}: failed" for number in range(5000)]))
    assert view.errors == (
        *(f"question {number}: failed" for number in range(words.ERRORS_SHOWN)),
        f"and {5000 - words.ERRORS_SHOWN} more",
    )


def test_memory_that_is_impossible_is_a_dash_without_a_bar_and_alarms_nobody() -> None:
    view = system_view(SystemInfo(total_memory=1024, used_memory=U64, available_memory=512, total_swap=U64, used_swap=1))
    assert [(bar.words, bar.fill, bar.alarming) for bar in view.bars] == [
        (f"{words.UNKNOWN} / 1.00 KB · 512.00 B available", None, False),
        (words.UNKNOWN, None, False),
    ]


@pytest.mark.parametrize("row", [row for row in ROWS if GUEST_PAGE not in row.not_on], ids=lambda row: row.name)
def test_a_row_of_the_table_is_on_the_guest_s_page(row: Field) -> None:
    value: Any = "x" if row.unit == TEXT_VALUE else row.most  # Any: as the row says
    view = card_view(GpuDevice(**{row.name: value}))
    [whole] = [each for each in ROWS if each.of == row.name] if row.shown == WITHIN else [row]
    assert words.say(row, value) in shown(view)[page_title(whole)]


@pytest.mark.parametrize(("ready", "word"), [(None, "unknown"), (True, "true"), (False, "false")])
def test_the_cc_state_has_three_answers(ready: bool | None, word: str) -> None:
    assert gpu_view(GpuInfoResponse(cc_ready=ready), ready=True, pci_devices=0).cc_ready == word


def test_devtools_is_shown_where_it_is_on_and_only_there() -> None:
    shown = [gpu_view(GpuInfoResponse(cc_devtools=on), ready=True, pci_devices=0).devtools for on in (None, False, True)]
    assert shown == [False, False, True]


@pytest.mark.parametrize(
    ("seen", "on_bus", "error", "missing"),
    [
        (8, 8, "", ""),
        (7, 8, "", "8 on the PCI bus, 7 seen by the driver"),
        (8, None, "", ""),
        (0, 8, "driver", ""),
        (9, 8, "", ""),
    ],
)
def test_a_card_that_the_driver_does_not_show_is_missed(seen: int, on_bus: int | None, error: str, missing: str) -> None:
    reply = GpuInfoResponse(error=error) if error else h200s(seen)
    assert gpu_view(reply, ready=True, pci_devices=on_bus).missing == missing


async def test_a_sick_card_has_a_badge_with_its_word_why_and_what_to_do() -> None:
    lost, fine = health_examples.healthy(0), health_examples.healthy(1)
    health_examples.TROUBLE["xid_reboot"](lost)
    gpus = Gpus(reply=health_examples.answer(lost, fine), inventory=Bus(2))
    async with served(Guest(gpus=gpus)) as address:
        page = (await get(address, "/")).text
    why = "XID 79: needs a new start. Stop and start the VM."
    assert f'<span class="health failed" title="{why}' in page
    assert f"<li>{why}" in page
    assert '<span class="health ok" title="">ok</span>' in page


def test_running_containers_stand_before_the_others() -> None:
    views = container_views(containers(6))
    assert [view.running for view in views] == [True] * 4 + [False] * 2


@given(
    text=st.text(),
    numbers=st.lists(st.integers(0, U64), min_size=2, max_size=2),
    small=st.integers(0, 2**32 - 1),
)
def test_no_text_of_a_driver_engine_or_system_becomes_markup(text: str, numbers: list[int], small: int) -> None:
    plain = text.encode("utf-8", "replace").decode()
    total, used = numbers
    device = GpuDevice(
        uuid=plain, pci_bus_id=plain, errors=[plain], utilization_gpu=small, memory_total_bytes=total, memory_used_bytes=used
    )
    info = SystemInfo(os_name=plain, cpu_model=plain, total_memory=total, used_memory=used, uptime=used, loadavg_one=small)
    info.disks.add(name=plain, mount_point=plain, total_size=total, free_size=used)
    container = Container(id=plain, names=[plain], image=plain, state=plain, status=plain)

    def page(card: GpuDevice, system: SystemInfo, listed: Container) -> str:
        return PAGES.page(
            Dashboard(
                version="1", sysinfo=True, system=system_view(system),
                gpus=gpu_view(GpuInfoResponse(gpus=[card]), ready=True, pci_devices=1),
                containers_public=True, containers=container_views([listed]), containers_note="", logs=True,
            )
        ).decode()  # fmt: skip

    def tags(html: str) -> list[str]:
        return re.findall(r"</?([a-z0-9]+)", html)

    quiet = GpuDevice(uuid="x", errors=["x"], utilization_gpu=small, memory_total_bytes=total, memory_used_bytes=used)
    calm = SystemInfo(total_memory=total, used_memory=used)
    calm.disks.add(total_size=total, free_size=used)
    assert tags(page(device, info, container)) == tags(page(quiet, calm, Container(status="x" if plain else "")))


PAGES = Pages()


async def test_the_page_shows_system_cards_and_containers_with_log_links() -> None:
    guest = Guest(gpus=Gpus(reply=h200s(2), inventory=Bus(2)), engine=Engine(containers=containers(2)))
    guest.gpus.reply.sample_age_ms = 60_000
    guest.gpus.reply.gpus[0].power_usage_mw = 70_123
    guest.gpus.reply.gpus[1].pci_bus_id = "00010000:02:00.0"
    async with served(guest) as address:
        text = (await get(address, "/")).text
        live = (await get(address, "/live")).text
    for said in (
        "60.0 s", "70.1 W", "01:00.0", "00010000:02:00.0", "1d 1h 1m 1s", "1min: 0.40, 5min: 1.00, 15min: 12.34",
        "140.40 GB", "CC enabled", "true", "service-1", f'href="logs/{1:064x}"', "3.80 TB / 4.00 TB",
    ):  # fmt: skip
        assert said in text, said
    assert "00000000:01:00.0" not in text
    assert live.strip() in text
    assert "<html" not in live


async def test_none_unknown_and_not_yet_are_told_apart() -> None:
    guest = Guest()
    async with served(guest) as address:
        assert "No NVIDIA GPUs" in (await get(address, "/")).text
        guest.gpus.reply = GpuInfoResponse(error="NVIDIA driver is not loaded")
        text = (await get(address, "/")).text
        assert "NVIDIA driver is not loaded" in text
        assert "No NVIDIA GPUs" not in text
        guest.gpus.ready = False
        text = (await get(address, "/")).text
        assert "first sample is being taken" in text
        assert "No NVIDIA GPUs" not in text


async def test_with_public_sysinfo_off_nothing_is_read_sampled_or_shown() -> None:
    guest = Guest(gpus=Gpus(reply=h200s(2), inventory=Bus(2)), engine=Engine(containers=containers(2)))
    guest.shown = Shown(public_sysinfo=False)
    async with served(guest) as address:
        text = (await get(address, "/")).text + (await get(address, "/live")).text
    assert guest.gpus.callers == []
    assert guest.system.reads == 0
    for secret in ("GPU-0", "Debian", "Xeon", "6.1.0", "CC enabled", "Uptime"):
        assert secret not in text
    assert "service-1" in text


async def test_with_public_containers_off_none_is_asked_for_or_shown() -> None:
    guest = Guest(engine=Engine(containers=containers(2)), shown=Shown(public_containers=False))
    async with served(guest) as address:
        assert "service-1" not in (await get(address, "/")).text
    assert guest.engine.lists == 0


async def test_with_public_logs_off_no_log_is_linked() -> None:
    guest = Guest(engine=Engine(containers=containers(2)), shown=Shown(public_logs=False))
    async with served(guest) as address:
        text = (await get(address, "/")).text
    assert "service-1" in text
    assert "logs/" not in text


async def test_an_engine_that_fails_is_said_and_is_not_shown_as_no_containers() -> None:
    guest = Guest(engine=Engine(error=OSError("/run/docker.sock: secret")))
    async with served(guest) as address:
        text = (await get(address, "/")).text
    assert "does not answer" in text
    assert "No containers" not in text
    assert "secret" not in text


async def test_system_facts_that_fail_are_said_and_are_not_zeros() -> None:
    guest = Guest()
    guest.system.error = OSError("disk")
    async with served(guest) as address:
        text = (await get(address, "/")).text
    assert "cannot be read now" in text
    assert "0.00 B" not in text


async def test_eight_renders_at_once_are_the_same() -> None:
    guest = Guest(gpus=Gpus(reply=h200s(8), inventory=Bus(8)), engine=Engine(containers=containers(20)))
    async with served(guest) as address:
        pages = await asyncio.gather(*(get(address, "/") for _ in range(8)))
    assert len({page.body for page in pages}) == 1
    assert pages[0].text.count("<article") == 8


async def test_every_asset_that_the_page_names_is_there_and_may_be_kept() -> None:
    async with served(Guest()) as address:
        text = (await get(address, "/")).text
        named = set(re.findall(r'(?:href|src)="(assets/[^"]+)"', text))
        assert len(named) == 3
        for path in named:
            answer = await get(address, f"/{path}")
            assert answer.status == 200
            assert "max-age=86400" in answer.headers["cache-control"]
        assert (await get(address, "/assets/page.html")).status == 404
    assert not re.findall(r'(?:href|src)="(?:https?:)?//', text)
    assert "style=" not in text

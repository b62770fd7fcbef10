"""Groups of families that a scraper chooses or leaves out: on the page of the fleet and on one guest's."""

from __future__ import annotations

import pytest

from guest_api.guest_api_pb2 import GpuInfoResponse
from guest_metrics import groups, table
from tests.fleet_http.fleet import Answers, running_fleet
from tests.fleet_http.scraping import Samples, later, page
from tests.http.guests import h200s
from tests.http.web import get
from vmm_proxy.metrics.guest_series import KeptLines
from vmm_proxy.metrics.page import GROUP_KEPT_SECONDS


def sick() -> GpuInfoResponse:
    reply = h200s(2)
    reply.groups.append("health")
    reply.gpus[0].row_remap_pending = True
    return reply


def names(samples: Samples) -> set[str]:
    return {name for name, _ in samples}


@pytest.mark.parametrize("of", ["/metrics?", "/metrics?vm_id=vm-a&"])
async def test_the_groups_that_are_chosen_are_on_the_page_and_no_others(of: str) -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=sick()))
        usual = names(await page(fleet, of))
        health = names(await page(fleet, f"{of}group=health"))
        both = names(await page(fleet, f"{of}group=health&group=base"))
    assert {"dstack_gpu_health", "dstack_gpu_row_remap_pending"} <= health
    of_health = {family.name for family in table.of_groups({"health"})}
    assert health == usual & of_health
    assert {"dstack_gpu_temperature_celsius", "dstack_guest_cpus", "vmm_proxy_guest_up"} <= both - of_health
    assert both & of_health == health


async def test_a_fleet_is_shown_without_the_groups_that_few_look_at() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=sick()))
        shown = names(await page(fleet))
    assert shown <= {family.name for family in table.of_groups({"base", "identity", "health"})} | {
        family.name for family in table.PROXY_FAMILIES
    } | {"vmm_proxy_call_duration_seconds_bucket", "vmm_proxy_call_duration_seconds_sum", "vmm_proxy_call_duration_seconds_count"}


@pytest.mark.parametrize("of", ["/metrics?", "/metrics?vm_id=vm-a&"])
async def test_an_unknown_group_is_refused_before_a_guest_is_asked(of: str) -> None:
    async with running_fleet() as fleet:
        answers = await fleet.add("vm-a", Answers(gpus=sick()))
        answer = await get(fleet.address, f"{of}group=health&group=power")
        assert (answer.status, answer.text) == (400, f"group: known are {', '.join(groups.KNOWN)}\n")
        assert answers.asked == {}


async def test_pages_of_several_choices_share_their_lines_and_a_choice_of_long_ago_is_kept_no_more() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=sick()))
        await page(fleet, "/metrics?group=base")
        [known] = fleet.pages.guest_answers.guests()
        first = known.lines
        assert isinstance(first, KeptLines)
        assert first.groups == {"base"}
        await page(fleet, "/metrics?group=health")
        await page(fleet, "/metrics?group=base")
        both = known.lines
        assert isinstance(both, KeptLines)
        assert both.groups == {"base", "health"}
        # Within the life of an answer, twice: health was chosen too long ago after the second.
        for _ in range(2):
            later(fleet, GROUP_KEPT_SECONDS * 0.6)
            await page(fleet, "/metrics?group=base")
        last = known.lines
        assert isinstance(last, KeptLines)
        assert last.groups == {"base"}
        assert "dstack_gpu_health" not in last.gpus.form.heads

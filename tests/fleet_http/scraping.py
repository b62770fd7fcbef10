"""The proxy's /metrics as Prometheus asks for it, for the tests of what stands there."""

from __future__ import annotations

from guest_metrics.exposition import Format
from tests.eventually import eventually
from tests.fleet_http.fleet import Fleet
from tests.http.web import get
from tests.metrics.readers import Labels, read
from vmm_proxy.metrics.guest_answers import LOOK_AGAIN_SECONDS

BOUND_SECONDS = 20
Samples = dict[tuple[str, Labels], float]


async def page(fleet: Fleet, path: str = "/metrics", *, timeout: float = 3) -> Samples:
    """The page's samples, in the way Prometheus asks for them."""
    headers = {"X-Prometheus-Scrape-Timeout-Seconds": str(timeout), "Accept": "application/openmetrics-text;version=1.0.0"}
    answer = await get(fleet.address, path, headers=headers)
    assert answer.status == 200, answer.text
    return read(answer.body, Format.OPENMETRICS)


def later(fleet: Fleet, seconds: float) -> None:
    """Let the clock of GuestAnswers go on."""
    clock = fleet.pages.guest_answers.clock
    fleet.pages.guest_answers.clock = lambda: clock() + seconds


async def next_page(fleet: Fleet) -> Samples:
    """A page after the moment in which two scrapes share a look."""
    later(fleet, LOOK_AGAIN_SECONDS)
    return await page(fleet)


def of_guest(samples: Samples, guest_id: str) -> set[str]:
    return {name for name, labels in samples if ("vm_id", guest_id) in labels}


async def settled(fleet: Fleet) -> None:
    """Return once no guest is being looked at."""
    guest_answers = fleet.pages.guest_answers
    await eventually(lambda: not guest_answers.looking)


async def containers_known(fleet: Fleet) -> None:
    await eventually(lambda: all(guest.containers.tried for guest in fleet.pages.guest_answers.guests()))

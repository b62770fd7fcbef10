"""The benchmark of many hosts, small: real proxies and a real Prometheus for some seconds."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.fleet_sim import measure, show

pytestmark = [
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="missing: prometheus (Debian package prometheus)"),
    pytest.mark.timeout(240),
]


async def test_a_small_run_counts_every_guest_and_takes_the_empty_host_off(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await measure(short_path, hosts=2, guests=3, seconds=15, interval=3)
    # Every figure says something, but the count of scrapes that failed: on a machine with other work one may.
    assert [name for name, value in asdict(run).items() if name != "down" and not value] == []
    # Eight cards of a guest have some hundred series, a proxy by itself some twenty; both pages and the empty one are in the head.
    assert 0 < run.samples_of_an_empty_host < 100 < run.samples_of_a_scrape
    assert run.head_series >= 2 * run.samples_of_a_scrape + run.samples_of_an_empty_host
    show(run)
    assert capsys.readouterr().out.startswith("2 hosts x 3 guests x 8 cards, every 3 s, 15 s")

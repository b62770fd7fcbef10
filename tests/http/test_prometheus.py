"""Debian's Prometheus scrapes a guest's page several times and answers queries about it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from guest_transport.addresses import TcpAddress
from tests.eventually import eventually
from tests.http.guests import Bus, Engine, Gpus, Guest, containers, h200s, served

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.skipif(PROMETHEUS is None, reason="missing: prometheus (Debian package prometheus)"),
    pytest.mark.timeout(120),
]
CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 150ms}}
scrape_configs:
  - job_name: guest
    static_configs: [{{targets: ["{target}"]}}]
"""
BOUND_SECONDS = 60


class Prometheus:
    """A running server, asked through its HTTP API. Any: JSON as Prometheus documents it."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def get(self, path: str) -> Any:
        def ask() -> Any:
            with urllib.request.urlopen(f"http://{self._address}{path}", timeout=10) as answer:
                return json.load(answer)["data"]

        return await asyncio.to_thread(ask)

    async def query(self, expression: str) -> dict[frozenset[tuple[str, str]], float]:
        data = await self.get(f"/api/v1/query?query={urllib.parse.quote(expression)}")
        return {frozenset(one["metric"].items()): float(one["value"][1]) for one in data["result"]}

    async def value(self, expression: str) -> float | None:
        values = list((await self.query(expression)).values())
        assert len(values) <= 1
        return values[0] if values else None

    async def scraped(self, times: int) -> None:
        """Return after `times` good scrapes from now on."""
        expression = "sum_over_time(up[1h])"
        before = await self.value(expression) or 0

        async def scraped() -> bool:
            return (await self.value(expression) or 0) >= before + times

        await eventually(scraped, BOUND_SECONDS)

    async def shows(self, expression: str, value: float) -> None:
        """Return when `expression` has this value: discovery and scrapes are Prometheus's own, and no clock of ours drives them."""

        async def shown() -> bool:
            return await self.value(expression) == value

        await eventually(shown, BOUND_SECONDS)

    async def targets(self) -> list[dict[str, Any]]:
        return list((await self.get("/api/v1/targets"))["activeTargets"])

    async def target(self) -> dict[str, Any]:
        [target] = await self.targets()
        return target


@asynccontextmanager
async def prometheus(target: TcpAddress, folder: Path, configuration: str = CONFIG) -> AsyncGenerator[Prometheus, None]:
    assert PROMETHEUS is not None
    config = folder / "prometheus.yml"
    config.write_text(configuration.format(target=target))
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", "--web.listen-address=127.0.0.1:0",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    reading: asyncio.Future[bytes] | None = None
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            address, ready = "", False
            while not (address and ready):
                line = (await process.stderr.readline()).decode()
                assert line, "Prometheus ended"
                if found := re.search(r'msg="Listening on" address=(\S+)', line):
                    address = found[1]
                ready = ready or "ready to receive web requests" in line
        reading = asyncio.ensure_future(process.stderr.read())
        yield Prometheus(address)
    finally:
        process.terminate()
        await process.wait()
        if reading is not None:
            await reading


async def test_prometheus_scrapes_a_gpu_guest_and_answers_queries(tmp_path: Path) -> None:
    hostile = 'A"B\\C\nD \x00 \u202e é'
    guest = Guest(gpus=Gpus(reply=h200s(8), inventory=Bus(8)), engine=Engine(containers=containers(4)))
    guest.gpus.reply.gpus[3].uuid = hostile
    guest.gpus.reply.gpus[5].ClearField("power_usage_mw")
    guest.gpus.reply.gpus[5].errors.append("power: not supported")
    guest.system.info.total_memory = 2**56 - 1  # the largest that is believed
    async with served(guest) as address, prometheus(address, tmp_path) as server:
        await server.scraped(3)
        assert (await server.target())["lastError"] == ""
        assert await server.value("dstack_gpu_nvml_up") == 1
        assert await server.value("count(dstack_gpu_query_errors)") == 8
        assert await server.value("sum(dstack_gpu_query_errors)") == 1
        assert await server.value("count(dstack_gpu_power_usage_milliwatts)") == 7
        assert await server.value('dstack_gpu_memory_total_bytes{index="0"}') == 150754820096
        assert await server.value("dstack_guest_memory_total_bytes") == float(2**56 - 1)
        assert await server.value("count(dstack_guest_container_info)") == 4
        assert await server.value("dstack_gpu_pci_devices - dstack_gpu_nvml_devices") == 0
        # Seven values, the count of its errors, and why its health is unknown: nobody asked for it here.
        assert await server.value("count({__name__=~'dstack_.+', index='3'})") == 9
        [labels] = await server.query('dstack_gpu_temperature_celsius{index="3"}')
        assert dict(labels)["uuid"] == 'A"B\\C\nD \\x00 \\u202e é', "what drives a terminal stands as in logs"


async def test_prometheus_sees_a_failure_begin_and_the_other_series_go_on(tmp_path: Path) -> None:
    guest = Guest(gpus=Gpus(reply=h200s(1), inventory=Bus(1)))
    async with served(guest) as address, prometheus(address, tmp_path) as server:
        await server.scraped(2)
        assert await server.value("dstack_gpu_temperature_celsius") == 31
        guest.gpus.reply.Clear()
        guest.gpus.reply.error = "the collector was killed after 10 s"
        guest.gpus.reply.sample_age_ms = 31_000
        guest.system.hangs = True
        await server.scraped(3)
        assert await server.value("dstack_gpu_nvml_up") == 0
        assert await server.value("dstack_gpu_sample_age_seconds") == 31
        assert await server.value("dstack_gpu_temperature_celsius") is None
        assert await server.value('guest_service_part_up{part="system"}') == 0
        assert await server.value("dstack_guest_cpus") is None
        assert await server.value("process_resident_memory_bytes") is not None

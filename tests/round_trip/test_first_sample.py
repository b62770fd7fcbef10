"""The time before an agent's first sample has ended, on the guest's own page and on the fleet's: no alarm on either."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import pytest

from tests.agent.agent import Agent, running_agent
from tests.eventually import eventually
from tests.proxy.processes import serving

# One card whose first query never returns.
HANGING = '[[card]]\nuuid = "GPU-00000000-0000-0000-0000-000000000001"\n[card.fail]\ndevice = "hang"\n'


def page(address: str) -> str:
    request = urllib.request.Request(f"http://{address}/metrics", headers={"X-Prometheus-Scrape-Timeout-Seconds": "3"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


@pytest.fixture
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


async def test_while_the_first_sample_is_taken_neither_page_says_that_the_gpus_are_down(sockets: Path) -> None:
    rack = sockets / "hanging.toml"
    rack.write_text(HANGING)
    (sockets / "agent.toml").write_text("[gpu]\nsample_timeout_seconds = 300.0\n[http]\npublic_sysinfo = true\n")
    flags = ("--config", f"{sockets}/agent.toml", "--simulate", str(rack), "--grpc", f"unix:{sockets}/g")

    def agent_page(agent: Agent) -> str:
        return page(agent.http())

    with running_agent(*flags, "--http", "127.0.0.1:0", ready="listening for HTTP on") as agent:
        own = await asyncio.to_thread(agent_page, agent)
        assert "dstack_guest_cpus" in own
        assert "dstack_gpu_nvml_up " not in own
        proxy_flags = ("--guest", f"vm1=unix:{sockets}/g", "--grpc", f"unix:{sockets}/p", "--http", "127.0.0.1:0")
        async with serving(*proxy_flags) as proxy:
            address = (await proxy.log_line("listening for HTTP on")).rpartition(" ")[2].strip()

            async def with_its_cpus() -> str:
                fleet = await asyncio.to_thread(page, address)
                return fleet if 'dstack_guest_cpus{vm_id="vm1"}' in fleet else ""

            fleet = await eventually(with_its_cpus)
            assert 'vmm_proxy_guest_up{vm_id="vm1"} 1' in fleet
            assert "dstack_gpu_nvml_up{" not in fleet

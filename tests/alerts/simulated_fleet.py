"""A fleet of real processes that a real Prometheus scrapes with the shipped rules: agents with simulated cards, a proxy, one agent twice.

Each guest has one fault, or none, so that a rule or a panel can be asked whom it finds. The healthy guest with eight cards is scraped
through the proxy and at its own page, as the two ways that rules and dashboards promise to work in.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from guest_client import AsyncProxyClient, ClientError
from guest_transport.addresses import TcpAddress
from tests.alerts.deployed import RULES
from tests.eventually import eventually
from tests.http.test_agent_process import ALL_ON, agent
from tests.http.test_prometheus import Prometheus, prometheus
from tests.proxy.processes import ProxyProcess, start

# Six cold starts and a dozen scrapes on a machine that is busy with other tests.
BOUND_SECONDS = 120
LOOK_AGAIN_SECONDS = 0.2
FAULTY = """
cc_enabled = true
cc_devtools = true
cc_ready = false
[[card]]
temperature_c = 95
memory_total_bytes = 100000
memory_used_bytes = 99900
[[card]]
[card.fail]
device = 15
[[card]]
listed = false
"""
# Nothing is unknown of these, so that their verdicts are those of what is told.
SICK = """
cc_enabled = true
cc_ready = true
[every_card]
temperature_c = 40
persistence_mode = true
pcie_width = 16
[[card]]
pci_bus_id = "00000000:01:00.0"
rows_remapped_correctable = 0
rows_remapped_uncorrectable = 512
row_remap_pending = false
row_remap_failed = true
recovery_action = 1
[[card]]
rows_remapped_correctable = 0
rows_remapped_uncorrectable = 1
row_remap_pending = true
row_remap_failed = false
ecc_uncorrected_volatile = 1
clocks_event_reasons = 128
pcie_width = 8
persistence_mode = false
"""
# What the driver writes to the kernel's log of the guest called sick.
XID = b"3,1,1000000,-;NVRM: Xid (PCI:0000:01:00): 95, pid=1, Uncontained ECC error\n"
RACKS: Mapping[str, str] = {"eight": "h200x8", "none": "none", "no-driver": "no-driver"}
WRITTEN_RACKS: Mapping[str, str] = {"faulty": FAULTY, "sick": SICK, "failing": "fail_init = 18\n[[card]]\n"}
PROXY = """
[http]
listen = "127.0.0.1:0"
[metrics]
labels = ["rack"]
[directory]
dir = "{folder}/guests.d"
"""
SCRAPES = """
global: {{{{scrape_interval: 1s, scrape_timeout: 900ms, evaluation_interval: 1s}}}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: vmm-proxy
    params: {{{{group: [base, identity, limits, activity, health]}}}}
    static_configs: [{{{{targets: ["{{target}}"], labels: {{{{host: host1}}}}}}}}]
  - job_name: guest-service
    static_configs: [{{{{targets: ["{guest}"]}}}}]
"""
# As many scrapes as a rate needs, and one more.
SCRAPED_TIMES = 4


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """Where everybody is."""

    server: Prometheus
    proxy: str
    # The healthy guest's own page.
    guest: str


@asynccontextmanager
async def simulated_fleet() -> AsyncIterator[SimulatedFleet]:
    """The whole fleet, once Prometheus has scraped every part of it often enough for a rate."""
    folder = Path(tempfile.mkdtemp(prefix="gs"))
    try:
        async with AsyncExitStack() as stack:
            pages = await _agents(stack, folder)
            proxy, grpc_address, page = await _proxy(folder)
            stack.push_async_callback(_stop, proxy)
            config = SCRAPES.format(rules=RULES, guest=pages["eight"])
            server = await stack.enter_async_context(prometheus(page, folder, config))
            calls = asyncio.create_task(_call_again_and_again(grpc_address))
            stack.push_async_callback(_end, calls)
            await _scraped(server, calls)
            yield SimulatedFleet(server, str(page), str(pages["eight"]))
    finally:
        shutil.rmtree(folder)


async def _agents(stack: AsyncExitStack, folder: Path) -> dict[str, TcpAddress]:
    """Every guest's agent, its page and its file in the directory."""
    (folder / "guests.d").mkdir()
    for name, rack in WRITTEN_RACKS.items():
        (folder / f"{name}.toml").write_text(rack, encoding="utf-8")
    racks = {**RACKS, **{name: str(folder / f"{name}.toml") for name in WRITTEN_RACKS}}
    pages: dict[str, TcpAddress] = {}
    for name, rack in racks.items():
        (folder / name).mkdir()
        config = ALL_ON
        if name == "sick":
            os.mkfifo(folder / "kmsg")
            # Held open, so that the agent finds a writer and no end.
            log = os.open(folder / "kmsg", os.O_RDWR | os.O_NONBLOCK)
            stack.callback(os.close, log)
            os.write(log, XID)
            config += f'[host]\nkernel_log = "{folder}/kmsg"\n'
        pages[name], _ = await stack.enter_async_context(agent(folder / name, simulate=rack, config=config))
    for name in (*racks, "dead", "stopped"):
        gpus = [f"0000:{card + 0x3B:02x}:00.0" for card in range(8)] if name == "eight" else []
        state = "stopped" if name == "stopped" else "running"
        entry = (
            f'id = "{name}"\naddress = "unix:{folder}/{name}/g"\nlabels = {{ rack = "r7" }}\ngpus = {gpus}\nstate = "{state}"\n'
        )
        (folder / "guests.d" / f"{name}.toml").write_text(entry, encoding="utf-8")
    (folder / "guests.d/broken.toml").write_text('id = "broken"\n', encoding="utf-8")
    return pages


async def _proxy(folder: Path) -> tuple[ProxyProcess, str, TcpAddress]:
    """The proxy, its gRPC address and its page."""
    config = folder / "proxy.toml"
    config.write_text(PROXY.format(folder=folder), encoding="utf-8")
    proxy = await start("serve", "--config", str(config), "--grpc", f"unix:{folder}/p")
    assert proxy.process.stderr is not None
    async with asyncio.timeout(BOUND_SECONDS):
        while line := (await proxy.process.stderr.readline()).decode():
            proxy.lines.append(line)
            if "listening for HTTP on " in line:
                host, _, port = line.split("listening for HTTP on ")[1].strip().rpartition(":")
                return proxy, f"unix:{folder}/p", TcpAddress(host, int(port))
    raise AssertionError(f"the proxy ended: {proxy.lines}")


async def _stop(proxy: ProxyProcess) -> None:
    status, _, said = await proxy.stop()
    assert status == 0, said


async def _call_again_and_again(address: str) -> None:
    """Calls of every outcome, so that the proxy has something to count."""
    async with AsyncProxyClient(address) as client:
        while True:
            for guest in ("eight", "none", "dead", "nobody"):
                with contextlib.suppress(ClientError):
                    await client.gpu_info(guest)
            # Calls now and then are what this is; nothing waits for them.
            await asyncio.sleep(LOOK_AGAIN_SECONDS)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _scraped(server: Prometheus, calls: asyncio.Task[None]) -> None:
    """Return when every guest was looked at, the failing one failed, and everything that grows was scraped several times."""
    there = (
        "count(dstack_gpu_nvml_up{job='vmm-proxy'}) == 6",
        "count(dstack_gpu_sample_age_seconds{job='vmm-proxy'}) == 4",
        "vmm_proxy_guest_up{vm_id='dead'} == 0",
        f"min(count_over_time(vmm_proxy_calls_total[1m])) >= {SCRAPED_TIMES}",
        f"min(count_over_time(dstack_gpu_samples_total[1m])) >= {SCRAPED_TIMES}",
        "count(instance:scrape_interval_seconds:avg10m) == 2",
    )

    async def all_there() -> bool:
        assert not calls.done(), calls
        return all([await server.query(expression) for expression in there])

    # Scrapes are Prometheus's own, no clock of ours drives them.
    await eventually(all_there, BOUND_SECONDS)

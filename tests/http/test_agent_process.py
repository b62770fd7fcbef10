"""The pages of a real agent process: simulated cards, a collector that hangs, a port that is taken, systemd-like signals."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from guest_metrics.exposition import Format
from guest_transport.addresses import TcpAddress
from tests.eventually import eventually
from tests.http.guests import Guest, served
from tests.http.web import get
from tests.metrics.readers import at, read

PROGRAM = Path(sys.executable).with_name("guest-service")
# A cold start on a busy machine.
START_SECONDS = 40
ALL_ON = "[http]\npublic_sysinfo = true\npublic_containers = true\npublic_logs = true\n"
HANGING_RACK = """
[[card]]
uuid = "GPU-0"
pci_bus_id = "00000000:01:00.0"
temperature_c = 31
[card.fail]
temperature = "hang"
"""


async def start(folder: Path, *, simulate: str, http: str, config: str) -> asyncio.subprocess.Process:
    file = folder / "config.toml"
    file.write_text(config + '[containers]\nsocket = "off"\n')
    return await asyncio.create_subprocess_exec(
        PROGRAM, "serve", "--config", file, "--grpc", f"unix:{folder}/g", "--http", http, "--simulate", simulate,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@asynccontextmanager
async def agent(
    folder: Path, *, simulate: str, config: str = ALL_ON
) -> AsyncGenerator[tuple[TcpAddress, asyncio.subprocess.Process], None]:
    """A `guest-service serve` whose pages are up; ended by SIGTERM, with exit 0."""
    process = await start(folder, simulate=simulate, http="127.0.0.1:0", config=config)
    assert process.stderr is not None
    said, port = b"", 0
    try:
        async with asyncio.timeout(START_SECONDS):
            while not port:
                line = await process.stderr.readline()
                assert line, said.decode()
                said += line
                if found := re.search(rb"listening for HTTP on 127\.0\.0\.1:([0-9]+)", line):
                    port = int(found[1])
        yield TcpAddress("127.0.0.1", port), process
    finally:
        if process.returncode is None:
            process.terminate()
        said += await process.stderr.read()
        assert await process.wait() == 0, said.decode()
    assert b"Traceback" not in said, said.decode()


async def ready(address: TcpAddress) -> None:
    await eventually(lambda: _answers(address, "/readyz", {200}), START_SECONDS)


async def _answers(address: TcpAddress, path: str, statuses: set[int]) -> bool:
    return (await get(address, path)).status in statuses


async def test_a_simulated_card_is_on_the_metrics_page_and_on_the_dashboard(tmp_path: Path) -> None:
    async with agent(tmp_path, simulate="h200") as (address, _):
        await ready(address)
        samples = read((await get(address, "/metrics")).body, Format.TEXT)
        text = (await get(address, "/")).text
    card = {"index": "0", "uuid": "GPU-5a1d0c2e-7f64-4b8a-9d31-0e6c2b9f4a10", "pci_bus_id": "00000000:01:00.0"}
    assert samples[at("dstack_gpu_memory_total_bytes", **card)] == 150754820096
    assert samples[at("dstack_gpu_power_usage_milliwatts", **card)] == 79700
    assert samples[at("dstack_gpu_cc_ready")] == 1
    assert samples[at("dstack_gpu_pci_devices")] == samples[at("dstack_gpu_nvml_devices")] == 1
    assert samples[at("dstack_guest_memory_total_bytes")] > 2**28
    assert "79.7 W" in text
    assert card["uuid"] in text


async def test_while_the_collector_hangs_the_page_still_has_cpu_memory_and_disk_in_a_moment(tmp_path: Path) -> None:
    rack = tmp_path / "rack.toml"
    rack.write_text(HANGING_RACK)
    async with agent(tmp_path, simulate=str(rack)) as (address, _):
        assert (await get(address, "/readyz")).status == 503
        took = []
        for _ in range(5):
            began = time.monotonic()
            samples = read((await get(address, "/metrics")).body, Format.TEXT)
            took.append(time.monotonic() - began)
            assert samples[at("dstack_guest_cpus")] >= 1
            assert samples[at("dstack_guest_memory_total_bytes")] > 0
            assert any(name == "dstack_guest_disk_total_bytes" for name, _ in samples)
            assert at("dstack_gpu_nvml_up") not in samples
        assert min(took) < 0.1


BUSY_RACK = """
[[card]]
uuid = "GPU-0"
pci_bus_id = "00000000:01:00.0"
[[card.process_list]]
pid = 4242
used_memory_bytes = 1073741824
name = "<b>train</b>"
"""


async def test_processes_are_on_the_page_by_id_and_by_name_only_where_the_operator_asks_for_names(tmp_path: Path) -> None:
    (tmp_path / "busy.toml").write_text(BUSY_RACK)
    pages = []
    for names in ("", "process_names = true\n"):
        config = f'{ALL_ON}[gpu]\ngroups = ["processes"]\n{names}'
        async with agent(tmp_path, simulate=str(tmp_path / "busy.toml"), config=config) as (address, _):
            await eventually(partial(_shows, address, "Process 4242"), START_SECONDS)
            pages.append((await get(address, "/")).text)
    assert ["Process 4242" in page for page in pages] == [True, True]
    assert ["train" in page for page in pages] == [False, True]
    assert "Process 4242 &lt;b&gt;train&lt;/b&gt;" in pages[1]
    assert "<b>train" not in pages[1]


async def _shows(address: TcpAddress, words: str) -> bool:
    return words in (await get(address, "/")).text


async def test_a_guest_without_a_card_is_ready_at_once(tmp_path: Path) -> None:
    async with agent(tmp_path, simulate="none") as (address, _):
        await ready(address)
        samples = read((await get(address, "/metrics")).body, Format.TEXT)
        assert "No NVIDIA GPUs" in (await get(address, "/")).text
    assert samples[at("dstack_gpu_nvml_up")] == 1
    assert samples[at("dstack_gpu_pci_devices")] == 0


async def test_by_default_nothing_is_public_and_a_reload_opens_it_without_a_restart(tmp_path: Path) -> None:
    async with agent(tmp_path, simulate="none", config="[http]\n") as (address, process):
        assert (await get(address, "/metrics")).status == 404
        assert (await get(address, "/logs/x")).status == 404
        (tmp_path / "config.toml").write_text("[http]\npublic_sysinfo = true\n")
        process.send_signal(signal.SIGHUP)
        await eventually(lambda: _answers(address, "/metrics", {200, 503}), START_SECONDS)


async def test_a_taken_http_port_ends_the_agent_with_1_and_one_line(tmp_path: Path) -> None:
    async with served(Guest()) as address:
        process = await start(tmp_path, simulate="none", http=str(address), config="")
        _, said = await process.communicate()
    assert process.returncode == 1
    last = said.decode().splitlines()[-1]
    assert str(address) in last
    assert "already in use" in last
    assert b"Traceback" not in said

"""Telemetry with real collectors: the product's own on simulated racks, and thousands of small children."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guest_api import guest_api_pb2
from guest_service.simulator import load_rack
from guest_service.telemetry import GpuTelemetry, build_telemetry
from guest_service.telemetry.build import SAMPLE_TTL_SECONDS
from guest_service.telemetry.gate import DRIVER_NOT_LOADED
from guest_service.telemetry.gpu_telemetry import NO_SAMPLE_YET
from tests.descriptors import descriptors
from tests.eventually import turns
from tests.sampler.children import children_of, state_of

ROOT = Path(__file__).resolve().parents[2]
HANGING = '[[card]]\n[card.fail]\ntemperature = "hang"\n'


def simulated(rack: str, *, sample_timeout_seconds: float = 30.0, spacing_seconds: float = SAMPLE_TTL_SECONDS) -> GpuTelemetry:
    """Telemetry of a rack, as app.py builds it: before it serves, so files may be read."""
    return build_telemetry(
        sysfs=Path("/nowhere"),
        simulate=load_rack(rack),
        sample_timeout_seconds=sample_timeout_seconds,
        sample_ttl_seconds=spacing_seconds,
    )


@pytest.mark.parametrize(("rack", "cards"), [("h200", 1), ("h200x8", 8)])
async def test_the_cards_of_a_rack_come_through_the_collector_and_the_cell(rack: str, cards: int) -> None:
    telemetry = await asyncio.to_thread(simulated, rack)
    await telemetry.start()
    reply = await telemetry.gpu_info("caller")
    assert reply.error == ""
    assert [gpu.index for gpu in reply.gpus] == list(range(cards))
    assert {gpu.memory_total_bytes for gpu in reply.gpus} == {150754820096}
    assert (reply.cc_enabled, reply.cc_ready) == (True, True)
    assert reply.HasField("sample_age_ms")
    assert telemetry.inventory is not None
    assert all(telemetry.inventory.find(gpu.pci_bus_id) is not None for gpu in reply.gpus)
    await telemetry.close()


@pytest.mark.parametrize(
    ("rack", "reply"),
    [("none", guest_api_pb2.GpuInfoResponse()), ("no-driver", guest_api_pb2.GpuInfoResponse(error=DRIVER_NOT_LOADED))],
)
async def test_a_rack_without_a_card_or_driver_is_answered_without_a_process(
    rack: str, reply: guest_api_pb2.GpuInfoResponse
) -> None:
    telemetry = await asyncio.to_thread(simulated, rack)
    await telemetry.start()
    assert await telemetry.gpu_info("caller", max_age_seconds=0) == reply
    assert sum(telemetry.stats.samples.values()) == 0
    await telemetry.close()


async def test_a_slow_first_sample_is_waited_for_by_calls_and_by_no_page(tmp_path: Path) -> None:
    rack = tmp_path / "slow.toml"
    rack.write_text("init_seconds = 0.5\n[[card]]\n")
    telemetry = await asyncio.to_thread(simulated, str(rack))
    await telemetry.start()
    began = time.monotonic()
    assert telemetry.last("page").error == NO_SAMPLE_YET
    assert time.monotonic() - began < 0.1
    reply = await telemetry.gpu_info("caller")
    assert (reply.error, len(reply.gpus)) == ("", 1)
    assert time.monotonic() - began >= 0.5
    await telemetry.close()


async def test_the_first_sample_obeys_the_configured_timeout_too(tmp_path: Path) -> None:
    rack = tmp_path / "slow.toml"
    rack.write_text("init_seconds = 60\n[[card]]\n")
    telemetry = await asyncio.to_thread(simulated, str(rack), sample_timeout_seconds=0.5)
    await telemetry.start()
    began = time.monotonic()
    reply = await telemetry.gpu_info("caller")
    assert reply.error == (
        "the GPU driver did not answer within 0.5 s (nvmlInit_v2); the collector was told to end; if the driver needs that long to start, "
        "turn on persistence mode (nvidia-persistenced) or raise gpu.sample_timeout_seconds; the first sample has "
        "gpu.first_sample_timeout_seconds"
    )
    assert 0.4 <= time.monotonic() - began < 5
    await telemetry.close()


async def test_a_collector_that_hangs_in_the_driver_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    rack = tmp_path / "hang.toml"
    rack.write_text(HANGING)
    before = set(children_of())
    telemetry = await asyncio.to_thread(simulated, str(rack), sample_timeout_seconds=0.5)
    await telemetry.start()
    (card,) = (await telemetry.gpu_info("caller")).gpus
    assert "temperature: a simulated call did not answer within 0.5 s" in card.errors
    await telemetry.close()
    assert set(children_of()) <= before
    assert telemetry.stats.samples["partial"] == 1


AGENT = """
import asyncio, signal, sys
from pathlib import Path
from guest_service.simulator import load_rack
from guest_service.telemetry import build_telemetry

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    telemetry = build_telemetry(simulate=load_rack(sys.argv[1]))
    await telemetry.start()
    waiting = asyncio.create_task(telemetry.gpu_info("client that holds on"))
    await asyncio.sleep(0)
    print("started", flush=True)
    await stop.wait()
    await telemetry.close()
    print((await waiting).error, flush=True)

asyncio.run(main())
"""


def test_an_agent_told_to_end_while_its_collector_hangs_ends_within_its_stop_timeout_and_leaves_no_child(
    tmp_path: Path,
) -> None:
    rack = tmp_path / "hang.toml"
    rack.write_text(HANGING)
    with subprocess.Popen([sys.executable, "-c", AGENT, str(rack)], stdout=subprocess.PIPE, text=True, cwd=ROOT) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "started\n"
        collectors: list[int] = []
        while not collectors:
            collectors = children_of(agent.pid)
        began = time.monotonic()
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(timeout=20) == 0
        assert time.monotonic() - began < 5
        assert agent.stdout.read() == NO_SAMPLE_YET + "\n"
    assert [state_of(pid) for pid in collectors] == [None]


@pytest.mark.cost
@pytest.mark.timeout(150)
def test_2000_samples_of_mixed_outcome_leave_neither_memory_nor_descriptors_nor_threads_nor_zombies(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.telemetry.soak", str(tmp_path), "2000"],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=140,
        check=True,
    )
    found = json.loads(done.stdout)
    grew = found["grew"]
    assert grew.pop("resident_bytes") < 2 * 1024 * 1024
    assert grew == {"descriptors": 0, "threads": 0, "children": 0}
    mixed = {kind for kind, count in found["samples"].items() if count >= 4}
    assert mixed >= {"sample", "driver_error", "crash", "unreadable", "timeout"}
    assert sum(found["samples"].values()) >= 2200


async def test_samples_of_the_real_collector_leave_no_process_and_no_descriptor_between_them(tmp_path: Path) -> None:
    telemetry = await asyncio.to_thread(simulated, "h200", spacing_seconds=0.0)
    children = set(children_of())
    await telemetry.start()
    await telemetry.gpu_info("caller")
    before = descriptors()
    for _ in range(10):
        reply = await telemetry.gpu_info("caller", max_age_seconds=0)
        assert reply.error == ""
        # The process was reaped before its outcome was served.
        assert set(children_of()) <= children
        assert descriptors() <= before
        await turns()
    await telemetry.close()

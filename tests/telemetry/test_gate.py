"""The answers that need no sample, among them checks 4 and 6 of a GPU machine."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from guest_api import guest_api_pb2
from guest_service.simulator import Rack, RackCard
from guest_service.telemetry import build_telemetry
from guest_service.telemetry.gate import DRIVER_NOT_LOADED, HELD_FOR_OTHERS, LOOK_AGAIN_SECONDS, Gate, facts_of
from tests.inventory.sys_tree import SysTree
from tests.sampler.children import SAMPLE, children_of, parts_of, prints
from tests.telemetry.gate_trace import CALLS, QUESTIONS_PER_CALL, system_calls_in_gate
from tests.telemetry.rack import TTL, Machine, Rig, temperature
from tests.telemetry.virtual_time import in_virtual_time, passes

NONE = guest_api_pb2.GpuInfoResponse()


class HandClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def tree(tmp_path: Path) -> SysTree:
    return SysTree(tmp_path / "sys")


@in_virtual_time
async def test_a_guest_without_a_card_answers_zero_bytes_and_never_samples() -> None:
    async with Rig(machine=Machine(cards=0)) as rig:
        assert rig.telemetry.ready
        for _ in range(100):
            assert (await rig.telemetry.gpu_info("a", max_age_seconds=0)).SerializeToString() == b""
            assert rig.telemetry.last("b") == NONE
            assert rig.telemetry.peek() == NONE
            await passes(60)
        assert rig.samples == 0
        assert rig.machine.stats == 0


@in_virtual_time
async def test_a_card_without_its_driver_is_told_in_exactly_these_words_at_one_look_per_call() -> None:
    machine = Machine()
    machine.driver_loaded = False
    async with Rig(machine=machine) as rig:
        looks = machine.stats
        assert await rig.telemetry.gpu_info("a") == guest_api_pb2.GpuInfoResponse(error="NVIDIA driver is not loaded")
        assert rig.telemetry.last("b").error == DRIVER_NOT_LOADED
        assert rig.telemetry.peek().error == DRIVER_NOT_LOADED
        assert machine.stats - looks == 3
        assert rig.samples == 0
        assert rig.telemetry.ready


@in_virtual_time
async def test_a_driver_that_is_loaded_later_is_picked_up_by_the_next_call() -> None:
    machine = Machine()
    machine.driver_loaded = False
    async with Rig(machine=machine) as rig:
        await passes(3600)
        machine.driver_loaded = True
        assert temperature(await rig.telemetry.gpu_info("a")) == 1


@in_virtual_time
async def test_after_a_reload_of_the_driver_nothing_from_before_it_is_served_and_no_back_off_is_held() -> None:
    async with Rig() as rig:
        rig.sampler.reason = "driver/library version mismatch"
        await passes(1)
        rig.machine.driver_loaded = False
        assert rig.telemetry.last("a").error == DRIVER_NOT_LOADED
        rig.machine.driver_loaded, rig.sampler.reason = True, ""
        reply = await rig.telemetry.gpu_info("a")
        assert temperature(reply) == 2
        assert rig.sampler.started[1] - rig.sampler.ended[0][0] == pytest.approx(TTL, abs=0.01)


@in_virtual_time
async def test_a_sample_that_was_under_way_when_the_driver_went_is_not_served_after_its_return() -> None:
    async with Rig(duration=4.0) as rig:
        rig.sampler.reason = "driver is going"
        await passes(1)
        rig.machine.driver_loaded = False
        rig.telemetry.last("a")
        await passes(10)
        rig.machine.driver_loaded, rig.sampler.reason = True, ""
        assert temperature(await rig.telemetry.gpu_info("a")) == 2


async def test_cards_bound_to_vfio_are_sampled_only_once_one_comes_back(tree: SysTree) -> None:
    for address in ("0000:01:00.0", "0000:02:00.0"):
        tree.add(address, driver="vfio-pci")
    tree.load_module()
    gate = Gate(facts_of(tree.root), HandClock())
    await gate.look()
    assert gate.answer() == guest_api_pb2.GpuInfoResponse(error=HELD_FOR_OTHERS)
    tree.bind("0000:02:00.0", "nvidia")
    assert gate.answer() is None


async def test_cards_bound_to_vfio_are_told_as_such_also_without_the_drivers_module(tree: SysTree) -> None:
    for address in ("0000:01:00.0", "0000:02:00.0"):
        tree.add(address, driver="vfio-pci")
    gate = Gate(facts_of(tree.root), HandClock())
    await gate.look()
    assert gate.answer() == guest_api_pb2.GpuInfoResponse(error=HELD_FOR_OTHERS)
    tree.bind("0000:02:00.0", "nouveau")
    assert gate.answer() == guest_api_pb2.GpuInfoResponse(error=DRIVER_NOT_LOADED)


async def test_one_card_of_two_that_is_not_given_away_is_enough(tree: SysTree) -> None:
    tree.add("0000:01:00.0", driver="vfio-pci")
    tree.add("0000:02:00.0")
    tree.load_module()
    gate = Gate(facts_of(tree.root), HandClock())
    await gate.look()
    assert gate.answer() is None


async def test_a_virtual_function_alone_is_no_card_to_sample(tree: SysTree) -> None:
    tree.add("0000:01:00.4", physfn="0000:01:00.0")
    tree.load_module()
    gate = Gate(facts_of(tree.root), HandClock())
    await gate.look()
    assert gate.answer() == NONE


async def test_an_unreadable_bus_is_unknown_is_warned_of_once_and_looked_at_again_every_30_seconds_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, looks = HandClock(), 0
    facts = facts_of(tmp_path / "sys")

    def counted() -> object:
        nonlocal looks
        looks += 1
        return facts.inventory()

    gate = Gate(type(facts)(counted, facts.driver_loaded, facts.bound_driver), clock)  # type: ignore[arg-type] # passes it on
    await gate.look()
    for _ in range(90):
        answer = gate.answer()
        assert answer is not None
        assert "bus/pci/devices: PCI bus cannot be read" in answer.error
        await gate.close()
        clock.now += 1
    assert looks == 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "bus/pci/devices: PCI bus cannot be read" in caplog.text

    tree = SysTree(tmp_path / "sys")
    tree.add("0000:01:00.0")
    tree.load_module()
    clock.now += LOOK_AGAIN_SECONDS
    assert gate.answer() is not None
    await gate.close()
    assert gate.answer() is None
    assert gate.inventory is not None


async def test_a_bus_that_was_seen_and_cannot_be_read_later_keeps_its_cards(tree: SysTree) -> None:
    tree.add("0000:01:00.0")
    tree.load_module()
    gate = Gate(facts_of(tree.root), HandClock())
    await gate.look()
    shutil.rmtree(tree.devices)
    await gate.look()
    assert gate.answer() is None
    assert gate.inventory is not None
    assert gate.inventory.nvidia == 1


async def test_peeking_never_looks_at_the_bus_again(tmp_path: Path) -> None:
    clock = HandClock()
    gate = Gate(facts_of(tmp_path), clock)
    await gate.look()
    SysTree(tmp_path)
    clock.now += 1e6
    peeked = gate.peek()
    assert peeked is not None
    assert peeked.error
    await gate.close()
    assert gate.inventory is None


CARD_OF_RACK = RackCard(uuid="GPU-0", pci_bus_id="00000000:01:00.0")


@pytest.mark.parametrize(
    ("rack", "reply"),
    [
        (Rack("none"), NONE),
        (Rack("no-driver", (CARD_OF_RACK,), fail_init=9), guest_api_pb2.GpuInfoResponse(error=DRIVER_NOT_LOADED)),
    ],
)
async def test_a_simulated_rack_tells_the_facts_instead_of_the_machine(
    tmp_path: Path, rack: Rack, reply: guest_api_pb2.GpuInfoResponse
) -> None:
    telemetry = build_telemetry(collector=["/nowhere"], sysfs=tmp_path, simulate=rack)
    await telemetry.start()
    assert await telemetry.gpu_info("a") == reply
    await telemetry.close()


async def test_a_simulated_card_is_sampled_by_a_real_process(tmp_path: Path) -> None:
    rack = Rack("one", (CARD_OF_RACK,))
    telemetry = build_telemetry(collector=prints(parts_of(SAMPLE)), sysfs=tmp_path, simulate=rack)
    await telemetry.start()
    reply = await telemetry.gpu_info("a")
    assert reply.gpus == SAMPLE.gpus
    assert telemetry.inventory is not None
    assert [card.pci_bus_id for card in telemetry.inventory.cards] == ["0000:01:00.0"]
    await telemetry.close()


@pytest.mark.cost
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is missing")
@pytest.mark.parametrize(("cards", "per_call"), [(0, 0), (1, 1)])
def test_a_call_without_a_sample_costs_no_system_call_without_a_card_and_one_stat_without_a_driver(
    tree: SysTree, tmp_path: Path, cards: int, per_call: int
) -> None:
    for number in range(cards):
        tree.add(f"0000:0{number + 1}:00.0")
    inside = system_calls_in_gate(tree.root, tmp_path)
    assert len(inside) == CALLS * QUESTIONS_PER_CALL * per_call, inside[:5]
    assert all("module/nvidia" in line and "stat" in line for line in inside), inside[:5]


async def test_no_child_is_ever_started_without_a_card(tree: SysTree) -> None:
    before = set(children_of())
    telemetry = build_telemetry(collector=prints(parts_of(SAMPLE)), sysfs=tree.root)
    await telemetry.start()
    for _ in range(1000):
        await telemetry.gpu_info("a")
        assert telemetry.last("b") == NONE
    assert set(children_of()) == before
    assert sum(telemetry.stats.samples.values()) == 0
    await telemetry.close()

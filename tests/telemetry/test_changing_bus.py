"""A bus with a sick entry, and a bus that changes while the agent runs; the events are the kernel's own."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from guest_api import guest_api_pb2
from guest_service.inventory import Inventory, InventoryError, read_inventory, survey_bus
from guest_service.telemetry.bus_events import BusEvents
from guest_service.telemetry.gate import LOOK_UNTOLD_SECONDS, CardFacts, Gate, facts_of
from tests.inventory.sys_tree import SysTree
from tests.telemetry.rack import Machine, Rig
from tests.telemetry.test_gate import NONE, HandClock
from tests.telemetry.virtual_time import in_virtual_time

WAIT_SECONDS = 20


def _empty(file: Path) -> None:
    file.write_text("")


def _unreadable(file: Path) -> None:
    """Reading it is an error of the file system's, also for root."""
    file.unlink()
    file.mkdir()


SICKNESSES: list[Callable[[Path], None]] = [_empty, _unreadable, Path.unlink]


@pytest.fixture
def tree(tmp_path: Path) -> SysTree:
    return SysTree(tmp_path / "sys")


async def looked_at(tree: SysTree) -> Gate:
    gate = Gate(facts_of(tree.root), HandClock())
    await gate.look()
    return gate


@pytest.mark.parametrize("sicken", SICKNESSES)
@pytest.mark.parametrize("attribute", ["class", "vendor"])
async def test_a_sick_entry_hides_no_healthy_card_is_named_once_and_leaves_the_count_unknown(
    tree: SysTree, attribute: str, sicken: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    tree.add("0000:01:00.0")
    sicken(tree.add("0000:02:00.0") / attribute)
    tree.add("0000:03:00.0")
    tree.load_module()
    gate = await looked_at(tree)
    await gate.look()
    assert gate.answer() is None, "there are cards to sample"
    assert gate.inventory is not None
    assert [card.pci_bus_id for card in gate.inventory.nvidia_cards] == ["0000:01:00.0", "0000:03:00.0"]
    assert len(gate.inventory.hidden) == 1
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"0000:02:00.0/{attribute}" in warnings[0]
    with pytest.raises(InventoryError, match=f"0000:02:00.0/{attribute}"):
        await asyncio.to_thread(read_inventory, tree.root)


async def test_where_the_only_card_is_the_sick_entry_the_answer_is_unknown_and_not_none(tree: SysTree) -> None:
    (tree.add("0000:02:00.0") / "class").write_text("")
    answer = (await looked_at(tree)).answer()
    assert answer is not None
    assert answer.error.startswith("whether there is an NVIDIA GPU is unknown: ")
    assert "0000:02:00.0/class" in answer.error


async def test_a_sick_entry_of_another_maker_leaves_a_guest_without_a_card_as_it_is(tree: SysTree) -> None:
    (tree.add("0000:02:00.0", vendor=0x1AF4) / "class").write_text("")
    assert (await looked_at(tree)).answer() == NONE


def test_a_kernel_without_pci_has_no_card_and_a_sysfs_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/virtio").mkdir(parents=True)
    assert survey_bus(tmp_path / "sys").cards == ()
    with pytest.raises(InventoryError):
        survey_bus(tmp_path / "nowhere")


def real_device() -> Path:
    """The uevent file of one PCI device of this machine; writing "change" makes the kernel tell of it (sysfs-uevent)."""
    for file in sorted(Path("/sys/bus/pci/devices").glob("*/uevent")):
        try:
            file.write_text("change")
        except OSError:
            break
        return file
    pytest.skip("missing: a PCI device whose uevent file may be written")


class WatchedGate(Gate):
    """A gate that tells of the end of each look."""

    def __init__(self, facts: CardFacts, clock: HandClock) -> None:
        super().__init__(facts, clock)
        self.looks = asyncio.Queue[None]()

    async def look(self) -> None:
        await super().look()
        self.looks.put_nowait(None)


async def test_a_card_that_is_plugged_in_later_is_seen_by_the_kernels_event_and_one_that_goes_is_gone(tree: SysTree) -> None:
    device, gate = real_device(), WatchedGate(facts_of(tree.root), HandClock())

    async def answer_becomes(wanted: guest_api_pb2.GpuInfoResponse | None) -> None:
        device.write_text("change")
        async with asyncio.timeout(WAIT_SECONDS):
            while gate.peek() != wanted:
                await gate.looks.get()

    await gate.start()
    try:
        assert gate.answer() == NONE
        tree.load_module()
        tree.add("0000:01:00.0")
        await answer_becomes(None)
        (tree.devices / "0000:01:00.0").unlink()
        shutil.rmtree(tree.root / "devices/pci/0000:01:00.0")
        await answer_becomes(NONE)
    finally:
        await gate.close()


async def test_events_of_other_devices_are_not_told() -> None:
    device, told = real_device(), asyncio.Event()
    count = 0

    def changed() -> None:
        nonlocal count
        count += 1
        told.set()

    events = BusEvents(changed)
    assert events.start()
    try:
        Path("/sys/class/net/lo/uevent").write_text("change")
        Path("/sys/class/mem/null/uevent").write_text("change")
        device.write_text("change")
        device.write_text("change")
        await asyncio.wait_for(told.wait(), WAIT_SECONDS)
        assert count == 1
    finally:
        events.close()


async def test_where_nobody_tells_of_changes_the_bus_is_looked_at_once_a_minute_and_only_while_somebody_asks(
    tree: SysTree,
) -> None:
    clock, facts, looks = HandClock(), facts_of(tree.root), 0

    def look() -> Inventory:
        nonlocal looks
        looks += 1
        return facts.inventory()

    gate = Gate(CardFacts(look, facts.driver_loaded, facts.bound_driver), clock)
    await gate.look()
    clock.now += 10 * LOOK_UNTOLD_SECONDS
    assert looks == 1
    for _ in range(150):
        assert gate.answer() == NONE
        clock.now += 1
        await gate.close()
    assert looks == 4


@in_virtual_time
async def test_samples_of_cards_that_were_all_unplugged_do_not_come_back_with_the_next_card() -> None:
    machine = Machine(cards=1)
    async with Rig(machine=machine) as rig:
        assert len((await rig.telemetry.gpu_info("a")).gpus) == 1
        before, machine.bus = machine.bus, Inventory(())
        await rig.look()
        assert await rig.telemetry.gpu_info("a") == NONE
        machine.bus = before
        await rig.look()
        assert rig.telemetry.last("a").error, "no outcome yet"
        assert len((await rig.telemetry.gpu_info("a")).gpus) == 1

"""A card that fell off the bus keeps its address and UUID, where it is certain which card it is; else it stays without a name."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from guest_api import guest_api_pb2
from guest_service.inventory import Inventory, simulated_inventory
from guest_service.sampler import Outcome, OutcomeKind
from guest_service.simulator import load_rack
from guest_service.telemetry import GpuTelemetry, build_telemetry
from guest_service.telemetry.lost_cards import KnownCards
from tests.telemetry.rack import Machine, PacedSampler, Rig
from tests.telemetry.virtual_time import in_virtual_time, passes

A, B, C = "0000000F:01:00.0", "0000000F:02:00.0", "0000000F:03:00.0"
UUIDS = {A: "GPU-a", B: "GPU-b", C: "GPU-c"}


def bus(*addresses: str) -> Inventory:
    return simulated_inventory(address.lower() for address in addresses)


def sample(*cards: str | None) -> guest_api_pb2.GpuInfoResponse:
    """Cards by their addresses, None for a lost one."""
    reply = guest_api_pb2.GpuInfoResponse()
    for index, address in enumerate(cards):
        if address is None:
            reply.gpus.add(index=index, errors=["device: GPU is lost (15)"])
        else:
            reply.gpus.add(index=index, uuid=UUIDS[address], pci_bus_id=address, temperature_c=40)
    return reply


def named(known: KnownCards, inventory: Inventory | None, *cards: str | None) -> list[tuple[str, str]]:
    reply = sample(*cards)
    known.name(reply, inventory)
    assert [len(device.errors) for device in reply.gpus] == [int(card is None) for card in cards]
    return [(device.pci_bus_id, device.uuid) for device in reply.gpus]


def test_a_card_lost_in_the_first_sample_has_its_address_from_the_bus_and_no_uuid() -> None:
    assert named(KnownCards(), bus(A, B, C), A, None, C)[1] == (B, "")


def test_a_card_that_was_seen_keeps_its_uuid_as_long_as_it_is_lost() -> None:
    known = KnownCards()
    named(known, bus(A, B, C), A, B, C)
    for _ in range(3):
        assert named(known, bus(A, B, C), A, None, C) == [(A, "GPU-a"), (B, "GPU-b"), (C, "GPU-c")]


def test_all_cards_lost_keep_their_names_once_they_were_seen_and_have_none_before() -> None:
    known = KnownCards()
    assert named(known, bus(A, B, C), None, None, None) == [("", "")] * 3
    named(known, bus(A, B, C), A, B, C)
    assert named(known, bus(A, B, C), None, None, None) == [(A, "GPU-a"), (B, "GPU-b"), (C, "GPU-c")]


def test_cards_that_changed_places_lend_no_name_by_their_index() -> None:
    known = KnownCards()
    named(known, bus(A, B, C), A, B, C)
    assert named(known, bus(A, B, C), C, None, None) == [(C, "GPU-c"), ("", ""), ("", "")]
    # One is left, and it can be only that one.
    assert named(known, bus(A, B, C), C, B, None) == [(C, "GPU-c"), (B, "GPU-b"), (A, "GPU-a")]


def test_a_healthy_card_is_never_given_twice() -> None:
    known = KnownCards()
    named(known, bus(A, B), A, B)
    named(known, bus(A, B), A)
    assert named(known, bus(A, B), A, None) == [(A, "GPU-a"), (B, "GPU-b")]
    named(known, None, B)
    assert named(known, None, B, None) == [(B, "GPU-b"), ("", "")]


@pytest.mark.parametrize("inventory", [None, bus(A, B), bus(A, B, C)])
def test_nothing_is_guessed_where_bus_and_driver_count_differently(inventory: Inventory | None) -> None:
    cards = (A, None, None, C) if inventory is not None and inventory.nvidia == 3 else (A, None, C)
    assert ("", "") in named(KnownCards(), inventory, *cards)


def test_a_card_whose_names_could_not_be_read_but_that_answers_is_left_alone() -> None:
    reply = guest_api_pb2.GpuInfoResponse()
    reply.gpus.add(index=0, pci_bus_id=A, errors=["uuid: Unknown Error (999)"], temperature_c=40)
    before = reply.SerializeToString(deterministic=True)
    known = KnownCards()
    named(known, bus(A), A)
    known.name(reply, bus(A))
    assert reply.SerializeToString(deterministic=True) == before


class ListedSampler(PacedSampler):
    """Its outcomes are a list."""

    outcomes: ClassVar[list[guest_api_pb2.GpuInfoResponse]] = []

    async def sample(self) -> Outcome:
        reply = self.outcomes.pop(0)
        return Outcome(OutcomeKind.DRIVER_ERROR if reply.error else OutcomeKind.SAMPLE, reply, 0.1)


@in_virtual_time
async def test_a_failed_sample_in_between_forgets_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [sample(A, B), guest_api_pb2.GpuInfoResponse(error="busy"), sample(None, B)]
    monkeypatch.setattr(ListedSampler, "outcomes", outcomes)
    async with Rig(machine=Machine(2), sampler=ListedSampler, ttl=0.0, backoff=0.0, ahead=False) as rig:
        while outcomes:
            await passes(1)
            reply = await rig.telemetry.gpu_info("test", max_age_seconds=0)
    assert [device.uuid for device in reply.gpus] == ["GPU-a", "GPU-b"]


@pytest.fixture
def telemetry(tmp_path: Path) -> GpuTelemetry:
    """Of a rack with a lost card."""
    file = tmp_path / "rack.toml"
    file.write_text('[[card]]\nuuid = "GPU-a"\n[[card]]\nuuid = "GPU-b"\n[card.fail]\ndevice = 15\n')
    return build_telemetry(simulate=load_rack(str(file)))


async def test_the_agents_reply_names_a_lost_card_of_a_simulated_rack(telemetry: GpuTelemetry) -> None:
    await telemetry.start()
    try:
        reply = await telemetry.gpu_info("test", timeout_seconds=30.0)
    finally:
        await telemetry.close()
    assert [device.pci_bus_id for device in reply.gpus] == ["00000000:01:00.0", "00000000:02:00.0"]
    assert list(reply.gpus[1].errors) == ["device: GPU is lost (15)"]


@in_virtual_time
async def test_a_reply_says_how_many_cards_are_on_the_bus_with_its_cards_and_never_without() -> None:
    async with Rig(machine=Machine(cards=2)) as rig:
        reply = await rig.telemetry.gpu_info("client")
        assert (len(reply.gpus), reply.pci_devices) == (1, 2)
        rig.sampler.reason = "driver hangs"
        await passes(60)
        assert not (await rig.telemetry.gpu_info("client", max_age_seconds=1)).HasField("pci_devices")
    async with Rig(machine=Machine(cards=0)) as rig:
        assert (await rig.telemetry.gpu_info("client")).ByteSize() == 0

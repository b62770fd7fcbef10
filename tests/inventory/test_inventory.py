"""What is on the bus, from a /sys tree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_contract.pci_address import PciAddress
from guest_service.inventory import (
    UNKNOWN,
    Inventory,
    InventoryError,
    bound_driver,
    parse_number,
    read_inventory,
    simulated_inventory,
)
from tests.inventory.sys_tree import SysTree


@pytest.fixture
def tree(tmp_path: Path) -> SysTree:
    return SysTree(tmp_path / "sys")


def addresses(inventory: Inventory) -> list[str]:
    return [card.pci_bus_id for card in inventory.cards]


def test_vga_3d_and_other_display_devices_of_nvidia_are_three_gpus(tree: SysTree) -> None:
    for number, class_code in enumerate((0x030000, 0x030200, 0x038000)):
        tree.add(f"0000:0{number}:00.0", class_code=class_code)
    inventory = read_inventory(tree.root)
    assert (inventory.total, inventory.nvidia) == (3, 3)


@pytest.mark.parametrize("class_code", [0x068000, 0x060400, 0x040300, 0x0C0330, 0x030100, 0x120000])
def test_a_switch_bridge_audio_or_usb_function_of_nvidia_is_no_gpu(tree: SysTree, class_code: int) -> None:
    tree.add("0000:01:00.1", class_code=class_code)
    assert read_inventory(tree.root) == Inventory(())


def test_a_display_device_of_another_maker_counts_in_total_only(tree: SysTree) -> None:
    tree.add("0000:00:02.0", class_code=0x030000, vendor=0x1234, device=0x1111, driver="bochs-drm")
    inventory = read_inventory(tree.root)
    assert (inventory.total, inventory.nvidia) == (1, 0)


def test_a_gpu_bound_to_vfio_is_listed_with_its_driver(tree: SysTree) -> None:
    tree.add("0000:01:00.0", driver="vfio-pci")
    (card,) = read_inventory(tree.root).cards
    assert card.driver == "vfio-pci"
    assert card.held_for_others


@pytest.mark.parametrize(
    ("driver", "held"),
    [
        ("vfio-pci", True),
        ("nvgrace-gpu-vfio-pci", True),
        ("nvgrace_gpu_vfio_pci", True),
        ("pci-stub", True),
        ("pciback", True),
        ("xen-pciback", True),
        ("nvidia", False),
        ("nouveau", False),
        ("novfio", False),
        (None, False),
    ],
)
def test_only_a_driver_that_gives_its_card_away_holds_it_for_others(tree: SysTree, driver: str | None, held: bool) -> None:
    tree.add("0000:01:00.0", driver=driver)
    assert read_inventory(tree.root).cards[0].held_for_others is held


def test_a_physical_function_with_two_virtual_ones_is_one_card_and_two_are_flagged(tree: SysTree) -> None:
    tree.add("0000:3b:00.0", driver="nvidia")
    tree.add("0000:3b:00.4", physfn="0000:3b:00.0")
    tree.add("0000:3b:00.5", physfn="0000:3b:00.0", driver="nvidia")
    inventory = read_inventory(tree.root)
    assert (inventory.total, inventory.nvidia) == (1, 1)
    assert [card.virtual_function for card in inventory.cards] == [False, True, True]


def test_cards_that_differ_in_the_domain_only_are_two_and_the_domain_is_kept_whole(tree: SysTree) -> None:
    tree.add("0000:3b:00.0")
    tree.add("10001:3b:00.0")
    inventory = read_inventory(tree.root)
    assert addresses(inventory) == ["0000:3b:00.0", "10001:3b:00.0"]
    assert inventory.nvidia == 2


def test_cards_come_in_order_of_their_addresses_as_numbers(tree: SysTree) -> None:
    for address in ("10000:01:00.0", "0000:c1:00.0", "ffff:01:00.0", "0000:21:00.0", "0000:21:00.1"):
        tree.add(address)
    assert addresses(read_inventory(tree.root)) == [
        "0000:21:00.0",
        "0000:21:00.1",
        "0000:c1:00.0",
        "ffff:01:00.0",
        "10000:01:00.0",
    ]


def test_a_missing_bus_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"bus/pci/devices: PCI bus cannot be read: No such file"):
        read_inventory(tmp_path)


def test_a_bus_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bus/pci").mkdir(parents=True)
    (tmp_path / "bus/pci/devices").write_text("")
    with pytest.raises(InventoryError, match="Not a directory"):
        read_inventory(tmp_path)


@pytest.mark.parametrize("missing", ["class", "vendor"])
def test_a_device_that_is_there_but_cannot_be_read_is_an_error_that_names_the_file(tree: SysTree, missing: str) -> None:
    (tree.add("0000:01:00.0") / missing).unlink()
    with pytest.raises(InventoryError, match=rf"0000:01:00\.0/{missing}: cannot be read"):
        read_inventory(tree.root)


def test_a_device_that_was_unplugged_meanwhile_is_left_out(tree: SysTree) -> None:
    tree.add("0000:01:00.0")
    (tree.devices / "0000:02:00.0").symlink_to("../../../devices/pci/gone")
    assert addresses(read_inventory(tree.root)) == ["0000:01:00.0"]


@pytest.mark.parametrize("content", ["", "10de\n", "0x10de extra\n", "0x\n", "-0x1\n", "0x10de\n\n", "ä\n", "0x" + "1" * 70])
def test_an_attribute_that_is_no_number_is_an_error_that_quotes_it(tree: SysTree, content: str) -> None:
    (tree.add("0000:01:00.0") / "vendor").write_text(content)
    with pytest.raises(InventoryError, match="vendor: not a hexadecimal number"):
        read_inventory(tree.root)


def test_a_device_number_that_sysfs_does_not_tell_is_unset_and_not_zero(tree: SysTree) -> None:
    tree.add("0000:01:00.0", device=None)
    assert read_inventory(tree.root).cards[0].device is None


@given(st.integers(0, 2**32 - 1))
def test_any_number_of_an_attribute_is_read_back(number: int) -> None:
    assert parse_number(f"0x{number:04x}\n".encode()) == number


def test_the_json_has_exactly_the_keys_of_the_door(tree: SysTree) -> None:
    tree.add("0000:01:00.0", driver="nvidia")
    tree.add("0000:01:00.4", physfn="0000:01:00.0")
    card = {"vendor": 0x10DE, "device": 0x2335, "class": 0x030200}
    assert json.loads(read_inventory(tree.root).to_json()) == {
        "total": 1,
        "nvidia": 1,
        "cards": [
            {"pci_bus_id": "0000:01:00.0", **card, "driver": "nvidia", "virtual_function": False},
            {"pci_bus_id": "0000:01:00.4", **card, "driver": None, "virtual_function": True},
        ],
    }


def test_the_table_has_a_dash_for_what_is_unknown(tree: SysTree) -> None:
    tree.add("0000:01:00.0", device=None)
    assert read_inventory(tree.root).to_rows()[1] == ("0000:01:00.0", "10de", UNKNOWN, "030200", UNKNOWN, "card")


@pytest.mark.parametrize("written", ["00000000:3B:00.0", "0000:3b:00.0", "3B:00.0", " 0:3b:0.0\n"])
def test_an_address_matches_its_device_whatever_way_it_is_written(tree: SysTree, written: str) -> None:
    tree.add("0000:3b:00.0")
    tree.add("0001:00:00.0")
    found = read_inventory(tree.root).find(written)
    assert found is not None
    assert found.pci_bus_id == "0000:3b:00.0"


def test_an_address_of_another_domain_does_not_match(tree: SysTree) -> None:
    tree.add("0001:00:00.0")
    inventory = read_inventory(tree.root)
    assert inventory.find("00010000:00:00.0") is None
    assert inventory.find("0001:00:00.0") is inventory.cards[0]


@pytest.mark.parametrize("text", ["", "3b", "3b:00", "3b:00.8", "3b:20.0", "123456789:00:00.0", "3b:00.0x", "g0:00.0"])
def test_what_is_no_address_is_none_of_a_card(text: str) -> None:
    assert PciAddress.parse(text) is None
    assert simulated_inventory(["3b:00.0"]).find(text) is None


@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_any_address_survives_being_written(domain: int, bus: int, device: int, function: int) -> None:
    address = PciAddress(domain, bus, device, function)
    assert PciAddress.parse(str(address)) == address
    assert PciAddress.parse(f"{domain:08X}:{bus:02X}:{device:02X}.{function}") == address


def test_a_simulated_bus_refuses_what_is_no_address() -> None:
    with pytest.raises(InventoryError, match="'nowhere' is not a PCI address"):
        simulated_inventory(["nowhere"])


def test_the_bound_driver_is_what_holds_the_card_now(tree: SysTree) -> None:
    tree.add("0000:01:00.0", driver="vfio-pci")
    assert bound_driver(tree.root, "0000:01:00.0") == "vfio-pci"
    tree.bind("0000:01:00.0", "nvidia")
    assert bound_driver(tree.root, "0000:01:00.0") == "nvidia"
    assert bound_driver(tree.root, "0000:02:00.0") is None


def test_this_machine_s_own_bus_can_be_read() -> None:
    if not Path("/sys/bus/pci/devices").is_dir():
        pytest.skip("no /sys/bus/pci/devices on this machine")
    inventory = read_inventory(Path("/sys"))
    assert all(Path("/sys/bus/pci/devices", card.pci_bus_id).is_dir() for card in inventory.cards)

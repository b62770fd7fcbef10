"""`guest-service doctor` as a process, about cards: real libraries, the real loader, the real collector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doctor.places import OTHER, GuestPlace
from tests.doctor.reports import guest_doctor
from tests.nvml_library.fixture import ScriptedNvml

# Each test starts several processes, and a machine with other work may be slow.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def place(sockets: Path) -> GuestPlace:
    return GuestPlace(sockets)


def test_a_configuration_that_is_refused_is_one_wrong_line_and_cards_are_still_looked_at(place: GuestPlace) -> None:
    place.tables["gpu"] = 'refresh = "sometimes"'
    report = guest_doctor(place.write())
    assert "gpu.refresh" in report.wrong("config")["seen"]
    (left_out,) = [finding for finding in report.of("config") if finding["verdict"] == "note"]
    assert "grpc" in left_out["seen"]
    assert report.of("pci")
    assert "grpc" not in {finding["check"] for finding in report.findings}


def test_a_guest_without_a_card_is_told_so_and_that_is_not_wrong(place: GuestPlace) -> None:
    report = guest_doctor(place.write())
    for check in ("pci", "driver", "library", "devices", "sample"):
        assert report.only(check)["verdict"] == "note"
        assert "no NVIDIA card" in report.only(check)["seen"]


def test_a_card_without_driver_and_a_module_that_is_not_loaded_are_wrong(place: GuestPlace) -> None:
    place.card(driver=None)
    place.card(driver="nouveau", address=OTHER)
    place.card(driver="vfio-pci", address="0000:af:00.0")
    report = guest_doctor(place.write())
    assert report.verdicts("pci") == ["wrong", "wrong", "note"]
    assert "modprobe nvidia" in report.of("pci")[0]["do"]
    assert "nouveau" in report.of("pci")[1]["seen"]
    assert "not loaded" in report.wrong("driver")["seen"]
    assert report.only("sample")["verdict"] == "note"


def test_a_card_with_its_driver_is_right_and_the_module_says_its_version(place: GuestPlace) -> None:
    place.card()
    place.sys.load_module()
    (place.sys.root / "module/nvidia/version").write_text("570.124.06\n")
    report = guest_doctor(place.write())
    assert report.only("pci")["verdict"] == report.only("driver")["verdict"] == "ok"
    assert "570.124.06" in report.only("driver")["seen"]


def test_a_bus_that_cannot_be_read_is_wrong_once(place: GuestPlace) -> None:
    place.tables["host"] = f'sysfs_root = "{place.folder}/absent"'
    report = guest_doctor(place.write())
    assert "absent" in report.wrong("pci")["seen"]
    assert report.only("sample")["verdict"] == "note"


def _with_library(place: GuestPlace, library: Path) -> Path:
    place.card()
    place.sys.load_module()
    place.tables["gpu"] = f'nvml_library = "{library}"\nsample_timeout_seconds = 2.0'
    return place.write()


def test_a_library_that_loads_is_named_and_its_sample_is_taken(
    place: GuestPlace, scripted_nvml: Callable[..., ScriptedNvml]
) -> None:
    library = scripted_nvml("cards 1\n")
    report = guest_doctor(_with_library(place, library.path))
    assert report.only("library")["verdict"] == "ok"
    assert str(library.path) in report.only("library")["seen"]
    assert report.only("sample")["verdict"] == "ok"
    assert library.calls("nvmlInit_v2") == 1, "one sample, and the library check starts no NVML"


def test_a_library_that_is_no_library_is_told_with_the_loaders_own_words(place: GuestPlace) -> None:
    library = place.folder / "libnvidia-ml.so.1"
    library.write_text("not found: ask your administrator\n" * 20)
    report = guest_doctor(_with_library(place, library))
    assert "invalid ELF header" in report.wrong("library")["seen"]
    assert "gpu.nvml_library" in report.wrong("library")["do"]
    assert "invalid ELF header" in report.wrong("sample")["seen"]


def test_a_library_that_is_nowhere_is_told_with_the_places_where_the_loader_looked(place: GuestPlace) -> None:
    place.card()
    place.sys.load_module()
    (place.folder / "libs").mkdir()
    report = guest_doctor(place.write(), LD_LIBRARY_PATH=f"{place.folder}/libs")
    if report.only("library")["verdict"] == "ok":
        pytest.skip("this machine has a libnvidia-ml of its own")
    seen = report.wrong("library")["seen"]
    assert "cannot open shared object file" in seen
    for looked_in in (f"LD_LIBRARY_PATH={place.folder}/libs", "/etc/ld.so.cache", f"{place.folder}/libs,", "/usr/lib"):
        assert looked_in in seen


def test_a_library_that_only_this_shell_finds_is_worth_a_note(
    place: GuestPlace, scripted_nvml: Callable[..., ScriptedNvml]
) -> None:
    place.card()
    place.sys.load_module()
    library = scripted_nvml("cards 1\n")
    report = guest_doctor(place.write(), LD_LIBRARY_PATH=str(library.path.parent))
    assert report.verdicts("library") == ["ok", "note"]
    assert "gpu.nvml_library" in report.of("library")[1]["do"]


def test_a_card_that_nvml_does_not_see_is_named(place: GuestPlace, scripted_nvml: Callable[..., ScriptedNvml]) -> None:
    place.card(address=OTHER)
    report = guest_doctor(_with_library(place, scripted_nvml("cards 1\n").path))
    wrong = report.wrong("sample")
    assert "1 of 2 cards" in wrong["seen"]
    assert "dmesg" in wrong["do"]


def test_a_driver_that_hangs_is_a_line_in_the_time_that_a_sample_has(
    place: GuestPlace, scripted_nvml: Callable[..., ScriptedNvml]
) -> None:
    report = guest_doctor(_with_library(place, scripted_nvml("cards 1\nnvmlInit_v2 - * hang\n").path))
    assert "did not answer within 2 s" in report.wrong("sample")["seen"]
    assert "dmesg" in report.wrong("sample")["do"]


def test_an_entry_that_cannot_be_read_is_wrong_and_the_card_beside_it_is_right(place: GuestPlace) -> None:
    place.card()
    place.sys.load_module()
    place.card(address=OTHER)
    (place.sys.devices / OTHER / "class").write_text("")
    report = guest_doctor(place.write())
    assert report.verdicts("pci") == ["wrong", "ok"]
    assert f"{OTHER}/class" in report.of("pci")[0]["seen"]


def test_cards_held_for_other_vms_are_a_note_that_does_not_send_to_modprobe(place: GuestPlace) -> None:
    place.card(driver="vfio-pci")
    report = guest_doctor(place.write())
    assert report.only("pci")["verdict"] == report.only("driver")["verdict"] == "note"
    assert "another VM" in report.only("pci")["seen"]
    assert "modprobe" not in str(report.findings)

"""What `guest-service doctor` makes of what was read, where a machine of the tests cannot be put into that state."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guest_api import guest_api_pb2
from guest_service.config import GuestConfig
from guest_service.doctor import cards, library, sample
from guest_service.doctor.machine import Guest
from guest_service.inventory import Card
from guest_service.sampler import Outcome, OutcomeKind
from guest_service.sampler.outcome import failure
from guest_transport.doctor.findings import Verdict
from guest_transport.doctor.pages import judge_page
from tests.doctor.reports import words

CARDS = [Card(f"0000:{bus}:00.0", 0x10DE, 0x2335, 0x030200, "nvidia", virtual_function=False) for bus in ("3b", "5e")]


def _device(index: int, *errors: str) -> guest_api_pb2.GpuDevice:
    return guest_api_pb2.GpuDevice(index=index, pci_bus_id=f"00000000:{'3b' if index == 0 else '5E'}:00.0", errors=errors)


def _sample(*devices: guest_api_pb2.GpuDevice, **cc: bool) -> Outcome:
    return Outcome(
        OutcomeKind.SAMPLE,
        guest_api_pb2.GpuInfoResponse(gpus=devices, cc_enabled=cc.get("cc_enabled"), cc_ready=cc.get("cc_ready")),
        0.1,
    )


def test_a_whole_sample_says_its_cards_and_confidential_computing() -> None:
    (found,) = sample.judge_sample(_sample(_device(0), _device(1), cc_enabled=True, cc_ready=True), CARDS)
    assert (found.verdict, found.seen) == (Verdict.OK, "2 cards in 0.10 s; confidential computing on, ready")
    (found,) = sample.judge_sample(_sample(_device(0), _device(1)), CARDS)
    assert found.seen.endswith("confidential computing unknown")
    (found,) = sample.judge_sample(_sample(_device(0), _device(1), cc_enabled=False), CARDS)
    assert found.seen.endswith("confidential computing off")


def test_a_lost_card_is_wrong_and_a_field_that_could_not_be_read_a_note() -> None:
    found = sample.judge_sample(_sample(_device(0, "power: Not Supported (3)"), _device(1, "device: GPU is lost (15)")), CARDS)
    assert [(each.verdict, "lost" in each.seen) for each in found] == [(Verdict.NOTE, False), (Verdict.WRONG, True)]


def test_devtools_mode_is_a_note() -> None:
    reply = guest_api_pb2.GpuInfoResponse(gpus=[_device(0)], cc_enabled=True, cc_ready=True, cc_devtools=True)
    seen = words(sample.judge_sample(Outcome(OutcomeKind.SAMPLE, reply, 0.1), CARDS[:1]), Verdict.NOTE)
    assert "DevTools mode is on" in seen


def test_gpus_that_take_no_work_in_confidential_mode_are_wrong() -> None:
    (found,) = sample.judge_sample(_sample(_device(0), _device(1), cc_enabled=True, cc_ready=False), CARDS)
    assert found.verdict is Verdict.WRONG
    assert "--set-ready" in found.advice
    (found,) = sample.judge_sample(_sample(_device(0), _device(1), cc_enabled=False, cc_ready=False), CARDS)
    assert found.verdict is Verdict.OK


def test_more_cards_than_on_the_bus_is_a_note_and_one_less_names_the_card() -> None:
    assert "2 cards" in words(sample.judge_sample(_sample(_device(0), _device(1)), CARDS[:1]), Verdict.NOTE)
    assert words(sample.judge_sample(_sample(_device(0)), CARDS), Verdict.WRONG).endswith("not 0000:5e:00.0")


@pytest.mark.parametrize("kind", [kind for kind in OutcomeKind if kind not in (OutcomeKind.SAMPLE, OutcomeKind.PARTIAL)])
def test_each_kind_of_failed_sample_is_wrong_with_its_reason_and_what_to_do(kind: OutcomeKind) -> None:
    (found,) = sample.judge_sample(failure(kind, "the reason"), CARDS)
    assert (found.verdict, found.seen) == (Verdict.WRONG, "the reason")
    assert found.advice


def test_a_card_that_did_not_answer_is_wrong_beside_cards_that_did() -> None:
    hung = _device(1)
    hung.errors.append("memory: nvmlDeviceGetMemoryInfo_v2 did not answer within 10 s")
    seen = words(sample.judge_sample(_sample(_device(0), hung), CARDS), Verdict.WRONG)
    assert "card 1" in seen
    assert "nvmlDeviceGetMemoryInfo_v2 did not answer" in seen


def _dev(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).touch()
        (folder / name).chmod(0o660)
    return folder


def test_device_files_that_are_there_and_open_are_right(tmp_path: Path) -> None:
    files = cards.read_devices(_dev(tmp_path, "nvidiactl", "nvidia0", "nvidia1", "nvidia10", "nvidia-uvm"))
    assert [file.name for file in files] == ["nvidiactl", "nvidia0", "nvidia1", "nvidia10"]
    assert "/dev/nvidia10" in words(cards.judge_devices(files, 3, "me"), Verdict.OK)


def test_device_files_that_are_missing_are_named_and_counted(tmp_path: Path) -> None:
    seen = words(cards.judge_devices(cards.read_devices(_dev(tmp_path, "nvidia0")), 2, "me"), Verdict.WRONG)
    assert "/dev/nvidiactl" in seen
    assert "1 of 2" in seen


def test_a_device_file_that_is_closed_to_the_user_names_its_owners_and_the_group(tmp_path: Path) -> None:
    (open_one, closed) = cards.read_devices(_dev(tmp_path, "nvidiactl", "nvidia0"))
    shut = cards.DeviceFile(closed.name, closed.facts, usable=False)
    (found,) = cards.judge_devices([open_one, shut], 1, "agent")
    assert found.verdict is Verdict.WRONG
    assert "agent may not read and write it" in found.seen
    assert "0660" in found.seen
    assert "group" in found.advice


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_permission_is_judged_for_the_effective_user(sockets: Path) -> None:
    tmp_path = sockets
    tmp_path.chmod(0o755)
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidiactl").chmod(0o600)
    assert cards.read_devices(tmp_path)[0].usable
    os.seteuid(65534)
    try:
        assert not cards.read_devices(tmp_path)[0].usable
    finally:
        os.seteuid(0)


async def test_device_files_are_looked_at_where_a_card_and_its_module_are(tmp_path: Path) -> None:
    guest = Guest(GuestConfig(), dev=tmp_path)
    (found,) = await cards.examine_devices(guest)
    assert found.verdict in {Verdict.NOTE, Verdict.WRONG}


ACCOUNT = """
      7:	find library=libnvidia-ml.so.1 [0]; searching
      7:	 search path=/opt/a/glibc-hwcaps/x86-64-v3:/opt/a		(LD_LIBRARY_PATH)
      7:	  trying file=/opt/a/glibc-hwcaps/x86-64-v3/libnvidia-ml.so.1
      7:	  trying file=/opt/a/tls/x86_64/libnvidia-ml.so.1
      7:	  trying file=/opt/a/libnvidia-ml.so.1
      7:	 search cache=/etc/ld.so.cache
      7:	  trying file=/lib/x86_64-linux-gnu/libnvidia-ml.so.1
      7:	find library=libz.so.1 [0]; searching
      7:	  trying file=/elsewhere/libz.so.1
"""


def test_the_loaders_account_gives_the_places_without_their_variants() -> None:
    assert library.places_of("libnvidia-ml.so.1", ACCOUNT) == ("/opt/a", "/etc/ld.so.cache", "/lib/x86_64-linux-gnu")
    assert library.places_of("libnvidia-ml.so.1", "no such loader") == ()


def test_a_crash_and_a_hang_of_the_loading_process_are_told() -> None:
    reading = library.LibraryReading("libnvidia-ml.so.1", "", "the process that loaded it ended with status -11", (), "")
    assert "status -11" in words(library.judge_library(reading), Verdict.WRONG)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nready\n", Verdict.OK),
        (b"HTTP/1.1 503 Unavailable\r\n\r\nnot ready: no GPU sample has ended yet\n", Verdict.NOTE),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", Verdict.WRONG),
        (b"HTTP/1.0 404 Not Found\r\n\r\n", Verdict.WRONG),
        (b"", Verdict.WRONG),
        (b"SSH-2.0-OpenSSH\r\n", Verdict.WRONG),
        (b"\xff\x00 200\r\n\r\nready\n", Verdict.WRONG),
    ],
)
def test_only_our_own_page_is_taken_for_it(answer: bytes, verdict: Verdict) -> None:
    assert judge_page("127.0.0.1:1", answer, "x (pid 1)").verdict is verdict


def test_persistence_mode_that_is_off_under_confidential_computing_is_wrong_and_names_the_daemon() -> None:
    card = _device(0)
    card.persistence_mode = False
    (found,) = sample.judge_sample(_sample(card, cc_enabled=True, cc_ready=True), CARDS[:1])
    assert (found.verdict, "persistence mode is off" in found.seen) == (Verdict.WRONG, True)
    assert "nvidia-persistenced" in found.advice
    assert sample.judge_sample(_sample(card, cc_enabled=False), CARDS[:1])[0].verdict is Verdict.OK


def test_a_card_lost_under_confidential_computing_sends_to_persistence_mode() -> None:
    lost = _device(0, "device: GPU is lost (15)")
    (found,) = sample.judge_sample(_sample(lost, cc_enabled=True, cc_ready=True), CARDS[:1])
    assert "nvidia-persistenced" in found.advice
    (found,) = sample.judge_sample(_sample(lost, cc_enabled=False), CARDS[:1])
    assert "nvidia-persistenced" not in found.advice


def test_a_sample_that_took_half_of_its_time_is_wrong_before_it_is_a_timeout() -> None:
    slow = Outcome(OutcomeKind.SAMPLE, _sample(_device(0)).reply, 6.0)
    (found,) = sample.judge_sample(slow, CARDS[:1], 10.0)
    assert (found.verdict, "6.0 s of the 10 s" in found.seen) == (Verdict.WRONG, True)
    assert sample.judge_sample(slow, CARDS[:1], 20.0)[0].verdict is Verdict.OK
    (timeout,) = sample.judge_sample(failure(OutcomeKind.TIMEOUT, "late"), CARDS[:1])
    assert "gpu.sample_timeout_seconds" in timeout.advice
    assert "persistence mode" in timeout.advice


def test_a_binding_that_was_replaced_is_wrong_and_the_advice_puts_it_right() -> None:
    assert library.judge_binding(["nvidia-ml-py"]) == []
    (found,) = library.judge_binding(["nvidia-ml-py", "nvidia-ml-py3"])
    assert found.seen == "nvidia-ml-py is replaced by nvidia-ml-py3"
    assert found.advice == "pip uninstall nvidia-ml-py3; pip install --force-reinstall nvidia-ml-py"
    assert library.binding_owners() == ["nvidia-ml-py"]

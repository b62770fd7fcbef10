"""Who the guest says it is."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from pathlib import Path

import pytest

from guest_service.host_facts import identity
from guest_service.host_facts.identity import Identity
from guest_transport.errors import SettingsError

TOML = 'app_id = "0a0b"\ninstance_id = "0x0102"\ndevice_id = "FF"\napp_cert = "-----BEGIN"\ntcb_info = "{}"\n'
JSON = '{"app_id": "0a0b", "instance_id": "0102", "device_id": "ff", "app_cert": "-----BEGIN", "tcb_info": "{}"}'


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(("name", "text"), [("id.toml", TOML), ("id.json", JSON)])
def test_hex_in_the_file_is_bytes_on_the_wire(tmp_path: Path, name: str, text: str) -> None:
    info = Identity(version="1.2", file=write(tmp_path / name, text)).info(show_tcb=True)
    assert (info.version, info.app_id, info.instance_id, info.device_id) == ("1.2", b"\x0a\x0b", b"\x01\x02", b"\xff")
    assert (info.app_cert, info.tcb_info) == ("-----BEGIN", "{}")


def test_the_measured_boot_is_shown_only_where_the_operator_shows_it(tmp_path: Path) -> None:
    who = Identity(version="1", file=write(tmp_path / "id.toml", TOML))
    assert who.info(show_tcb=False).tcb_info == ""
    assert who.info(show_tcb=True).tcb_info == "{}"


def test_a_caller_that_changes_its_answer_changes_nobody_elses(tmp_path: Path) -> None:
    who = Identity(version="1", file=write(tmp_path / "id.toml", TOML))
    who.info(show_tcb=True).app_cert = "forged"
    assert who.info(show_tcb=True).app_cert == "-----BEGIN"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("id.toml", 'app_id = "xyz"', ["id.toml", "app_id", "hexadecimal"]),
        ("id.toml", 'app_id = "abc"', ["app_id", "hexadecimal"]),
        ("id.toml", f'device_id = "{"00" * 65}"', ["device_id", "64 bytes"]),
        ("id.toml", "app_id = 5", ["id.toml", "app_id", "str"]),
        ("id.toml", 'app = "00"', ["id.toml", "app", "allowed"]),
        ("id.toml", "app_id", ["id.toml", "not TOML"]),
        ("id.json", "[]", ["id.json", "allowed"]),
        ("id.json", '{"app_id"', ["id.json", "not JSON"]),
        ("id.json", "[" * 100_000, ["id.json", "not JSON"]),
        ("id.toml", "#" * 300_000, ["larger than"]),
        ("id.toml", "a" * 200_000 + " = 1", ["id.toml"]),
    ],
)
def test_a_wrong_identity_file_is_refused_at_start_in_one_line(tmp_path: Path, name: str, text: str, words: list[str]) -> None:
    with pytest.raises(SettingsError) as refused:
        Identity(version="1", file=write(tmp_path / name, text))
    message = str(refused.value)
    assert all(word in message for word in words)
    assert "\n" not in message
    assert len(message) <= 1000


def test_an_identity_file_that_is_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "id.toml")
    with pytest.raises(SettingsError, match=r"id\.toml: is no regular file"):
        Identity(version="1", file=tmp_path / "id.toml")


def test_a_configured_identity_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent: cannot be read: No such file"):
        Identity(version="1", file=tmp_path / "absent")


def test_without_a_file_the_instance_is_named_after_the_machine_but_never_by_its_id(tmp_path: Path) -> None:
    machine = write(tmp_path / "machine-id", "3d1219c7c4c5404aaa1f6d2a48adfda4\n")
    info = Identity(version="1", machine_id=machine).info(show_tcb=True)
    again = Identity(version="1", machine_id=machine).info(show_tcb=True)
    other = Identity(version="1", machine_id=write(tmp_path / "other", "3d1219c7c4c5404aaa1f6d2a48adfda5\n"))
    assert len(info.instance_id) == 16
    assert info.instance_id == again.instance_id != other.info(show_tcb=True).instance_id
    assert info.instance_id.hex() != "3d1219c7c4c5404aaa1f6d2a48adfda4"
    assert (info.app_id, info.device_id, info.app_cert, info.tcb_info) == (b"", b"", "", "")


@pytest.mark.parametrize("text", ["", "uninitialized\n", "00\n", "\N{LATIN SMALL LETTER E WITH ACUTE}"])
def test_a_machine_without_an_id_has_no_name(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert Identity(version="1", machine_id=write(tmp_path / "m", text)).info(show_tcb=True).instance_id == b""
    assert "no machine id" in caplog.text


def test_the_name_is_the_one_that_systemd_derives() -> None:
    library = ctypes.util.find_library("systemd")
    machine = Path("/etc/machine-id")
    if library is None or not machine.exists():
        pytest.skip("needs libsystemd (Debian: libsystemd0) and /etc/machine-id")
    derived = (ctypes.c_uint8 * 16)()
    application = (ctypes.c_uint8 * 16)(*identity.APPLICATION_ID.bytes)

    class Id128(ctypes.Structure):
        _fields_ = (("bytes", ctypes.c_uint8 * 16),)

    ask = ctypes.CDLL(library).sd_id128_get_machine_app_specific
    ask.argtypes = [Id128, ctypes.POINTER(ctypes.c_uint8 * 16)]
    if (status := ask(Id128(application), ctypes.byref(derived))) != 0:
        pytest.skip(f"needs a machine id that systemd takes: status {status}")
    assert bytes(derived) == identity.machine_name(machine.read_text())

"""What `guestctl` shows, and which exit status a script gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from guest_api import guest_api_pb2
from guest_client.guestctl.cli import run
from guest_client.guestctl.output.json_view import unknown_numbers, view
from guest_fleet.v1 import fleet_pb2
from tests.client.fake_proxy import Fleet, Guest
from tests.client.in_process import refusal_of

GpuDevice = guest_api_pb2.GpuDevice
GpuInfo = guest_api_pb2.GpuInfoResponse


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GUESTCTL_")]:
        monkeypatch.delenv(name)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["-o", "json", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def _table(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(list(arguments)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_card_is_one_line_with_dashes_for_what_is_unset(capsys: pytest.CaptureFixture[str], fleet: Fleet, address: str) -> None:
    full = GpuDevice(
        index=0, uuid="GPU-a", pci_bus_id="00000000:3B:00.0", utilization_gpu=0, utilization_memory=7, temperature_c=34,
        memory_total_bytes=150754820096, memory_used_bytes=1024, memory_free_bytes=1, power_usage_mw=79_700,
    )  # fmt: skip
    empty = GpuDevice(index=1, errors=["device: GPU is lost"])
    fleet.guests["vm1"] = Guest(GpuInfo(gpus=[full, empty], cc_enabled=True, sample_age_ms=60_000))
    lines = _table(capsys, "--proxy", address, "gpu", "vm1").splitlines()
    assert lines[0] == "vm1: 2 GPUs, CC enabled true, CC ready unknown, sampled 60.0 s ago"
    assert " ".join(lines[2].split()) == "vm1 0 GPU-a 00000000:3B:00.0 – 0 % 7 % 1.00 KB 140.40 GB 34 °C 79.7 W"  # noqa: RUF001 - a dash
    unknown = ["–"]  # noqa: RUF001 - what the table shows
    assert lines[3].split() == ["vm1", "1", *2 * unknown, "failed", *6 * unknown]
    assert lines[4] == "vm1 GPU 1: failed: the driver gives no value of the card"
    assert lines[5] == "vm1 GPU 1: device: GPU is lost"


def test_no_gpu_and_unknown_are_told_apart(capsys: pytest.CaptureFixture[str], fleet: Fleet, address: str) -> None:
    fleet.guests["vm1"] = Guest(GpuInfo())
    fleet.guests["vm2"] = Guest(GpuInfo(error="NVIDIA driver is not loaded", sample_age_ms=1500))
    assert _table(capsys, "--proxy", address, "gpu", "vm1") == "vm1: no NVIDIA GPU\n"
    assert _table(capsys, "--proxy", address, "gpu", "vm2") == (
        "vm2: GPUs unknown: NVIDIA driver is not loaded, sampled 1.5 s ago\n"
    )


def test_json_has_every_name_of_the_contract_and_null_for_unset(
    capsys: pytest.CaptureFixture[str], fleet: Fleet, address: str
) -> None:
    fleet.guests["vm1"] = Guest(GpuInfo(gpus=[GpuDevice(index=0, memory_used_bytes=2**64 - 1)], cc_ready=False))
    shown = _json(capsys, "--proxy", address, "gpu", "vm1")
    assert list(shown) == [field.name for field in GpuInfo.DESCRIPTOR.fields]
    assert list(shown["gpus"][0]) == [field.name for field in GpuDevice.DESCRIPTOR.fields]
    assert shown["cc_ready"] is False
    assert shown["cc_enabled"] is None
    assert shown["sample_age_ms"] is None
    assert shown["gpus"][0]["memory_used_bytes"] == 18446744073709551615
    assert shown["gpus"][0]["utilization_gpu"] is None
    assert shown["gpus"][0]["uuid"] == ""
    assert _json(capsys, "--proxy", address, "info", "vm1")["app_id"] == "00ff"
    assert _json(capsys, "--proxy", address, "shutdown", "vm1", "--yes") == {}


def test_the_list_of_guests_has_states_and_labels(capsys: pytest.CaptureFixture[str], fleet: Fleet, address: str) -> None:
    fleet.guests["vm2"].refuses_with = (grpc.StatusCode.UNAVAILABLE, "")
    shown = _json(capsys, "list", "--proxy", address)
    assert [(g["id"], g["state"], g["labels"], g["last_contact"]) for g in shown["guests"]] == [
        ("vm1", "serving", {"rack": "a"}, None),
        ("vm2", "unreachable", {"rack": "b"}, None),
    ]
    lines = _table(capsys, "list", "--proxy", address).splitlines()
    assert lines[1].split()[:2] == ["vm1", "serving"]
    assert lines[2].split()[:2] == ["vm2", "unreachable"]


def test_a_list_of_more_guests_than_a_page_is_whole(capsys: pytest.CaptureFixture[str], fleet: Fleet, address: str) -> None:
    fleet.guests = {f"vm{number:04}": Guest() for number in range(250)}
    assert [g["id"] for g in _json(capsys, "list", "--proxy", address)["guests"]] == sorted(fleet.guests)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("info", ["Agent version", "agent of vm1", "00ff"]),
        ("sys", ["Debian", "free of –", "12.34", "1d 1h 1m 1s"]),  # noqa: RUF001 - what the table shows
        ("net", ["192.0.2.53", "listening port: 1"]),
        ("containers", ["ffffffffffff ", "web", "nginx", "s after 1970"]),
        ("shutdown", ["powers off"]),
    ],
)
def test_the_other_answers_are_tables_too(
    capsys: pytest.CaptureFixture[str], address: str, command: str, expected: list[str]
) -> None:
    more = ["--yes"] if command == "shutdown" else []
    shown = _table(capsys, command, "vm1", "--proxy", address, *more)
    for text in expected:
        assert text in shown
    assert _table(capsys, command, "--guest", address, *more) == shown


HOSTILE = "\x1b[2J\r\nset-cookie: [red]a[/red]\u202e\u2028\x9b5n"


def test_text_of_a_hostile_guest_drives_no_terminal(capsys: pytest.CaptureFixture[str], fleet: Fleet, address: str) -> None:
    """D22: the error of a guest, and every other text of it, holds escape sequences, line ends and markup."""
    card = GpuDevice(index=0, uuid=HOSTILE, pci_bus_id=HOSTILE, errors=[HOSTILE])
    fleet.guests = {
        "vm1": Guest(GpuInfo(gpus=[card]), labels={HOSTILE: HOSTILE}),
        "vm2": Guest(GpuInfo(error=HOSTILE)),
        "vm3": Guest(refuses_with=(grpc.StatusCode.INTERNAL, HOSTILE)),
    }
    shown = "".join(
        [
            _table(capsys, "gpu", "vm1", "--proxy", address),
            _table(capsys, "gpu", "vm2", "--proxy", address),
            _table(capsys, "list", "--proxy", address),
            refusal_of(capsys, 1, "gpu", "vm3", "--proxy", address),
        ]
    )
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "\\x1b[2J" in shown
    assert "[red]a[/red]" in shown, "markup is text"
    assert run(["gpu", "vm1", "--proxy", address, "-o", "json"]) == 0
    raw = capsys.readouterr().out
    assert raw.isascii()
    assert json.loads(raw)["gpus"][0]["uuid"] == HOSTILE


def test_fields_of_a_newer_guest_are_named_and_not_silently_dropped(
    capsys: pytest.CaptureFixture[str], fleet: Fleet, address: str
) -> None:
    card = GpuDevice.FromString(b"\xc0\x3e\x01")  # field 1000, varint 1
    newer = GpuInfo.FromString(b"\xca\x3e\x01a")  # field 1001, bytes
    newer.gpus.append(card)
    fleet.guests["vm1"] = Guest(newer)
    assert run(["gpu", "vm1", "--proxy", address]) == 0
    assert "GpuDevice.1000, GpuInfoResponse.1001" in capsys.readouterr().err
    assert unknown_numbers(newer) == {"GpuDevice.1000", "GpuInfoResponse.1001"}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.NOT_FOUND, 3),
        (grpc.StatusCode.UNAVAILABLE, 4),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 5),
        (grpc.StatusCode.FAILED_PRECONDITION, 1),
        (grpc.StatusCode.PERMISSION_DENIED, 1),
        (grpc.StatusCode.INTERNAL, 1),
        (grpc.StatusCode.ABORTED, 1),
    ],
)
def test_the_exit_status_tells_the_kind_of_failure(
    capsys: pytest.CaptureFixture[str], fleet: Fleet, address: str, code: grpc.StatusCode, status: int
) -> None:
    fleet.guests["vm1"].refuses_with = (code, "because")
    refusal = refusal_of(capsys, status, "gpu", "vm1", "--proxy", address)
    assert "'vm1'" in refusal
    assert "because" in refusal
    assert address in refusal


def test_options_stand_before_or_after_the_subcommand_and_the_later_one_wins(
    capsys: pytest.CaptureFixture[str], fleet: Fleet, address: str
) -> None:
    before = _table(capsys, "--proxy", address, "--timeout", "7", "-o", "table", "info", "vm1")
    after = _table(capsys, "info", "vm1", "--proxy", address, "--timeout", "7", "-o", "table")
    both = _table(capsys, "--proxy", "unix:/nowhere", "--timeout", "9", "-o", "json", "info", "--proxy", address, "--timeout",
                  "7", "-o", "table", "vm1")  # fmt: skip
    assert before == after == both
    assert len(fleet.called_with_deadline) == 3
    assert all(left is not None and 5 < left < 8 for left in fleet.called_with_deadline)


def test_the_proxy_of_the_environment_is_asked_unless_a_flag_says_otherwise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("GUESTCTL_PROXY", address)
    assert "agent of vm2" in _table(capsys, "info", "vm2")
    monkeypatch.setenv("GUESTCTL_PROXY", "unix:/nowhere")
    assert "agent of vm2" in _table(capsys, "info", "vm2", "--proxy", address)
    assert "agent of vm1" in _table(capsys, "info", "--guest", address)
    assert "unix:/nowhere" in refusal_of(capsys, 4, "info", "vm1")


def test_a_host_name_that_nobody_knows_is_told_without_the_resolvers_words(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = refusal_of(capsys, 4, "--proxy", "nowhere.invalid:1", "--timeout", "9", "list")
    assert "nowhere.invalid:1: unavailable: cannot connect: the host name is not known (is the address right" in refusal
    assert "[" not in refusal


def test_a_younger_sample_can_be_demanded(capsys: pytest.CaptureFixture[str], fleet: Fleet, address: str) -> None:
    assert _json(capsys, "gpu", "vm1", "--proxy", address)["sample_age_ms"] == 9000
    assert _json(capsys, "gpu", "vm1", "--proxy", address, "--max-age", "0")["sample_age_ms"] == 0
    assert fleet.guests["vm1"].samples == 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["gpu"], "which guest"),
        (["gpu", ""], "which guest"),
        (["--guest", "unix:/x", "gpu", "vm1"], "leave the ID out"),
        (["--guest", "unix:/x", "list"], "list asks a proxy; give --proxy"),
        (["--guest", "unix:/x", "--proxy", "unix:/y", "gpu"], "exclude each other"),
        (["--guest", "unix:/x", "gpu", "--proxy", "unix:/y", "vm1"], "exclude each other"),
        (["--proxy", "/run/x", "gpu", "vm1"], "'/run/x' is no address"),
        (["--proxy", "\x1b[2J", "gpu", "vm1"], "x1b[2J"),
        (["--proxy", "localhost:0", "gpu", "vm1"], "port 0"),
        (["--timeout", "0", "list"], "over 0"),
        (["--timeout", "soon", "list"], "'soon'"),
        (["--timeout", "inf", "list"], "over 0"),
        (["gpu", "--max-age", "-1", "vm1"], "from 0"),
        (["-o", "xml", "list"], "'table', 'json'"),
        (["gpus"], "gpus"),
        (["gpu", "vm1", ""], "an ID is empty"),
        (["info", "vm1", "vm2"], "vm2"),
        (["gpu", "--all", "vm1"], "exclude each other"),
        (["gpu", "vm1,vm2"], "give several ids apart"),
        (["list", "vm1,vm2"], "give several ids apart"),
        (["top", "../../etc/x"], "no guest id"),
        (["info", ".."], "neither . nor .."),
        (["gpu", "vm1", "."], "neither . nor .."),
        (["list", "-l", "vm1,vm2"], "'vm1' is no KEY=VALUE"),
        (["watch", "-l", "rack=a,b"], "'b' is no KEY=VALUE"),
        (["top", "-l", "rack!=a"], "only KEY=VALUE"),
        (["gpu", "-l", "=a"], "no KEY=VALUE"),
        (["gpu", "-l", "rack=a", "-l", "rack=b"], "no guest has two values of rack"),
        (["--guest", "unix:/x", "gpu", "--all"], "gpu of several guests asks a proxy; give --proxy"),
        (["--guest", "unix:/x", "top"], "--proxy"),
        (["--guest", "unix:/x", "--token-file", "/t", "info"], "a guest takes no token"),
        (["info", "vm1", "-o", "csv"], "use -o json"),
        (["shutdown", "vm1", "--yes", "-o", "csv"], "use -o json"),
        (["top", "--interval", "0.5"], "from 1 on"),
        (["watch", "--count", "0"], "0 is not in the range"),
        (["top", "--sort", "size"], "'temperature'"),
        (["completion", "csh"], "'csh'"),
        (["--colour", "list"], "--colour"),
        (["shutdown", "vm1"], "--yes"),
    ],
)
def test_misuse_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], word: str) -> None:
    assert word in refusal_of(capsys, 2, *arguments)


def test_an_absurd_timestamp_is_shown_and_no_traceback() -> None:
    guest = fleet_pb2.Guest(id="a")
    guest.last_contact.seconds = 2**62
    shown = view(guest)
    assert isinstance(shown, dict)
    assert shown["last_contact"] == f"{2**62} s after 1970"


def test_help_needs_neither_grpc_nor_rich() -> None:
    code = (
        "import sys; from guest_client.guestctl.cli import run; status = run(['--help']); "
        "sys.exit(status or sorted({'grpc', 'rich', 'asyncio', 'google.protobuf'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Exit status" in done.stdout


def test_every_name_of_the_package_can_be_imported_late() -> None:
    code = (
        "import sys, guest_client; assert 'grpc' not in sys.modules; "
        "[getattr(guest_client, name) for name in guest_client.__all__]; assert not hasattr(guest_client, 'Nonsense')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])

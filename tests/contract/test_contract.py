"""The contract is kept: generated code is fresh, nothing released changes, and both services offer the same methods."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from guest_api import guest_api_pb2
from tools import contract

ROOT = Path(__file__).resolve().parents[2]


def test_every_guest_method_has_a_proxied_twin_with_the_same_reply() -> None:
    services = guest_api_pb2.DESCRIPTOR.services_by_name
    guest = {m.name: (m.output_type.full_name, m.input_type.full_name) for m in services["GuestApi"].methods}
    proxied = {m.name: (m.output_type.full_name, m.input_type.full_name) for m in services["ProxiedGuestApi"].methods}
    assert {name: reply for name, (reply, _) in guest.items()} == {name: reply for name, (reply, _) in proxied.items()}
    assert {request for _, request in guest.values()} == {"google.protobuf.Empty"}
    assert {request for _, request in proxied.values()} == {"guest_api.Id"}


def test_generated_code_lock_and_buf_agree_with_the_proto_files() -> None:
    assert contract.check() == []


def test_a_reply_without_gpus_and_error_is_zero_bytes_on_the_wire() -> None:
    assert guest_api_pb2.GpuInfoResponse().SerializeToString() == b""


def test_a_field_that_goes_or_changes_is_a_complaint_of_the_lock() -> None:
    kept = ["field a.B 0001 single string c", "field a.B 0002 single string d"]
    complaints = contract.lock_complaints(kept, ["field a.B 0001 single bytes c", "field a.B 0002 single string d"])
    assert len(complaints) == 2
    assert "may not change" in complaints[0]
    assert "not in contract.lock yet" in complaints[1]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("string id = 1;", "string id = 2;", "buf breaking"),
        ("uint32 index = 1;", "uint64 index = 1;", "buf breaking"),
        ("optional bool cc_ready", "bool cc_ready", "buf breaking"),
        ("rpc Info(Id)", "rpc Information(Id)", "buf breaking"),
        ("string error = 2;", "string Error = 2;", "buf lint"),
        ("  // Why nothing is known; empty otherwise.\n", "", "buf lint"),
    ],
)
def test_a_breaking_or_careless_edit_of_the_proto_is_refused(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    for name in ("proto", "generated", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    edited = tmp_path / "proto/guest_api/guest_api.proto"
    text = edited.read_text()
    assert text.count(old) >= 1
    edited.write_text(text.replace(old, new, 1))
    done = subprocess.run(
        [sys.executable, "tools/contract.py", "check"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert complaint in done.stderr
    assert "is not fresh" in done.stderr or "lint" in complaint

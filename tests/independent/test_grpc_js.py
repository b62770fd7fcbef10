"""grpc-js and protobuf.js share no code with grpcio and protobuf: what they see is on the wire."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from guest_api import guest_api_pb2
from tests.round_trip.conftest import METHODS, VM_ID, ScriptedGuest
from tests.round_trip.messages import filled

PROTO = Path(__file__).resolve().parents[2] / "proto"
_64_BIT = {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_INT64}
# Enough threads of the guest's server for all questions and the proxy's own looks.
grpc_max_workers = 8


def as_seen(message: Message) -> dict[str, Any]:
    """`message` in the words of client.js."""
    seen: dict[str, Any] = {}
    for field, value in message.ListFields():
        values = list(value) if field.is_repeated else [value]
        if field.message_type is not None:
            values = [as_seen(part) for part in values]
        elif field.type in _64_BIT:
            values = [str(number) for number in values]
        elif field.type == FieldDescriptor.TYPE_BYTES:
            values = [base64.b64encode(data).decode() for data in values]
        seen[field.name] = values if field.is_repeated else values[0]
    return seen


def proto_folders() -> list[str]:
    """The contract's, and that of google/rpc/status.proto."""
    google = importlib.util.find_spec("google.rpc")
    assert google is not None
    assert google.submodule_search_locations is not None
    return [str(PROTO), str(Path(google.submodule_search_locations[0]).parents[1])]


async def ask(grpc_js: Path, target: str, *questions: tuple[str, str, Mapping[str, object]]) -> list[dict[str, Any]]:
    """The answers that client.js gets to (service, method, request)."""
    lines = [json.dumps({"service": service, "method": method, "request": request}) for service, method, request in questions]
    pipe = asyncio.subprocess.PIPE
    command = ["node", "client.js", target, *proto_folders()]
    process = await asyncio.create_subprocess_exec(*command, cwd=grpc_js, stdin=pipe, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(40):
        out, err = await process.communicate("\n".join(lines).encode())
    assert (process.returncode, err) == (0, b""), err.decode()
    return [json.loads(line) for line in out.decode().splitlines()]


async def test_every_field_of_every_message_is_what_the_guest_sent(
    grpc_js: Path, grpc_servicer: ScriptedGuest, proxy: str
) -> None:
    kinds: dict[str, Any] = {
        method: Empty if method == "Shutdown" else getattr(guest_api_pb2, reply.rpartition(".")[2])
        for method, reply in METHODS.items()
    }
    sent = {method: filled(kind) for method, kind in kinds.items()}
    for method, message in sent.items():
        grpc_servicer.replies[method] = message.SerializeToString()
    questions = [("guest_api.ProxiedGuestApi", method, {"id": VM_ID}) for method in METHODS]
    answers = await ask(grpc_js, proxy, *questions)
    assert dict(zip(METHODS, answers, strict=True)) == {method: {"replies": [as_seen(sent[method])]} for method in METHODS}


async def test_unset_zero_and_the_largest_value_are_three_answers(
    grpc_js: Path, grpc_servicer: ScriptedGuest, proxy: str
) -> None:
    sent = guest_api_pb2.GpuInfoResponse(
        gpus=[
            guest_api_pb2.GpuDevice(),
            guest_api_pb2.GpuDevice(utilization_gpu=0, memory_used_bytes=0, power_usage_mw=0),
            guest_api_pb2.GpuDevice(utilization_gpu=2**32 - 1, memory_used_bytes=2**64 - 1),
        ],
        cc_ready=False,
        sample_age_ms=0,
    )
    grpc_servicer.replies["GpuInfo"] = sent.SerializeToString()
    (answer,) = await ask(grpc_js, proxy, ("guest_api.ProxiedGuestApi", "GpuInfo", {"id": VM_ID}))
    assert answer == {
        "replies": [
            {
                "gpus": [
                    {},
                    {"utilization_gpu": 0, "memory_used_bytes": "0", "power_usage_mw": 0},
                    {"utilization_gpu": 2**32 - 1, "memory_used_bytes": str(2**64 - 1)},
                ],
                "cc_ready": False,
                "sample_age_ms": "0",
            }
        ]
    }


async def test_a_collection_and_the_statuses_of_the_contract_look_the_same_from_there(
    grpc_js: Path, grpc_servicer: ScriptedGuest, proxy: str
) -> None:
    grpc_servicer.replies["GpuInfo"] = filled(guest_api_pb2.GpuInfoResponse).SerializeToString()
    unknown, malformed, collected = await ask(
        grpc_js,
        proxy,
        ("guest_api.ProxiedGuestApi", "GpuInfo", {"id": "nobody"}),
        ("guest_api.ProxiedGuestApi", "GpuInfo", {"id": "a/b"}),
        ("guest_fleet.v1.FleetService", "CollectGpuInfo", {"selector": {"ids": [VM_ID, "nobody"]}}),
    )
    assert unknown["code"] == grpc.StatusCode.NOT_FOUND.value[0]
    assert "nobody" in unknown["details"]
    assert malformed["code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    entries = {entry["guest_id"]: entry for reply in collected["replies"] for entry in reply["guests"]}
    assert entries[VM_ID]["gpu_info"] == as_seen(filled(guest_api_pb2.GpuInfoResponse))
    assert entries["nobody"]["status"]["code"] == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.parametrize("name", ["package.json", "package-lock.json"])
def test_the_lock_names_no_registry(name: str) -> None:
    text = (Path(__file__).parent / "grpc_js" / name).read_text()
    assert "://" not in "".join(line for line in text.splitlines() if '"resolved"' in line)

"""Old and new: guest, proxy and client each built with the present or with a later contract, in every pairing.

A later guest must reach a later client whole through a proxy that has never seen the new fields; and nobody who is older may fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guest_api import guest_api_pb2
from tests.round_trip.conftest import METHODS, VM_ID, ScriptedGuest
from tests.round_trip.messages import filled, offered, seen
from tests.round_trip.newer import ROOT, Newer

grpc_max_workers = 8
REPLIES = {method: reply for method, reply in METHODS.items() if method != "Shutdown"}


@pytest.fixture(scope="module", params=["present guest", "later guest"])
def guest_is_later(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "later guest")


@pytest.fixture(scope="module")
def grpc_addr(folder: Path, guest_is_later: bool) -> str:
    """An address of its own for each version: pytest-grpc makes a new server for a new address, and a stopped one cannot serve again."""
    return f"unix:{folder}/{'later' if guest_is_later else 'present'}"


@pytest.fixture(scope="module")
def reply_kind(guest_is_later: bool, newer: Newer) -> Callable[[str], Any]:
    if guest_is_later:
        return newer.kind
    return lambda name: getattr(guest_api_pb2, name.rpartition(".")[2], guest_api_pb2.Id)


@pytest.fixture(scope="module", params=["present proxy", "later proxy"])
def proxy_contract(request: pytest.FixtureRequest, newer: Newer) -> Path | None:
    return newer.folder if request.param == "later proxy" else None


def _told_by_client(proxy: str, contract: Path | None) -> dict[str, Any]:
    environment = dict(os.environ)
    path = [str(contract) if contract else "", str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    done = subprocess.run(
        [sys.executable, "-m", "tests.round_trip.client_process", proxy, VM_ID],
        env=environment, capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert Path(told["contract"]).is_relative_to(contract or ROOT), "the client is built with the contract that it should have"
    return told["replies"]  # type: ignore[no-any-return]  # JSON of our own process


@pytest.mark.parametrize("client", ["present client", "later client"])
def test_every_pairing_passes_on_what_the_guest_knows(
    grpc_servicer: ScriptedGuest,
    proxy: str,
    newer: Newer,
    guest_is_later: bool,
    reply_kind: Callable[[str], Any],
    client: str,
) -> None:
    sent = {method: filled(reply_kind(reply)) for method, reply in REPLIES.items()}
    grpc_servicer.replies = {method: message.SerializeToString() for method, message in sent.items()}
    client_is_later = client == "later client"
    told = _told_by_client(proxy, newer.folder if client_is_later else None)
    # What the fleet service passes on inside its own messages is the same answer.
    within = {"collected": "GpuInfo", "watched": "GpuInfo"}
    assert set(told) == {*REPLIES, *within}
    for shown in told:
        method = within.get(shown, shown)
        reply = REPLIES[method]
        got = bytes.fromhex(told[shown]["bytes"])
        assert newer.kind(reply).FromString(got) == newer.kind(reply).FromString(grpc_servicer.replies[method])
        kind: Any = newer.kind(reply) if client_is_later else getattr(guest_api_pb2, reply.rpartition(".")[2])
        known_to_client = offered(kind)
        assert set(told[shown]["seen"]) == seen(sent[method]) & known_to_client


def test_the_later_contract_has_new_fields_at_every_depth(newer: Newer) -> None:
    new = offered(newer.kind("guest_api.GpuInfoResponse")) - offered(guest_api_pb2.GpuInfoResponse)
    for name in ("later_number", "later_bytes", "later_parts", "later_text"):
        assert {f"GpuInfoResponse.{name}", f"GpuDevice.{name}"} <= new
    sent = filled(newer.kind("guest_api.GpuInfoResponse"))
    assert seen(sent) >= new, "and a later guest sets all of them"
    as_seen_now = guest_api_pb2.GpuInfoResponse.FromString(sent.SerializeToString())
    assert not seen(as_seen_now) & new, "which the present contract does not know"


def test_the_order_and_number_of_cards_survive_with_their_new_fields(
    grpc_servicer: ScriptedGuest, proxy: str, newer: Newer, guest_is_later: bool
) -> None:
    kind: Any = newer.kind("guest_api.GpuInfoResponse")
    sent = kind(sample_age_ms=0, later_number=0)
    for index in range(64):
        sent.gpus.add(index=index, uuid=f"GPU-{index}", later_number=index)
    grpc_servicer.replies["GpuInfo"] = sent.SerializeToString()
    got = kind.FromString(bytes.fromhex(_told_by_client(proxy, newer.folder)["GpuInfo"]["bytes"]))
    assert got == sent
    assert [(card.index, card.later_number) for card in got.gpus] == [(index, index) for index in range(64)]
    assert got.HasField("later_number"), "a new field that is set to zero is not unset"

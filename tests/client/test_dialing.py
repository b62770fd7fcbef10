"""What a client dials when there is no place for a relay, and a status that this version of gRPC does not know."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import pytest
from google.rpc import status_pb2

from guest_client.dialing import BlockingDialTarget, dial
from guest_client.errors import InvalidAddressError
from guest_client.guestctl.output.statuses import in_words
from guest_transport.addresses import HvsockAddress


async def test_without_a_place_for_a_relay_the_address_is_named_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(InvalidAddressError, match=r"hvsock:/run/v.sock:1 cannot be dialled: .*nowhere.*: cannot make"):
        dial(HvsockAddress("/run/v.sock", 1))


def test_a_blocking_client_that_cannot_dial_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(InvalidAddressError, match="cannot be dialled"):
        BlockingDialTarget(HvsockAddress("/run/v.sock", 1))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("relay to")]


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        (14, "guest vm1: not reachable", "unavailable: not reachable"),
        (4, "", "deadline exceeded"),
        (99, "guest vm2: odd", "status 99: guest vm2: odd"),
    ],
)
def test_a_status_is_said_in_words_also_one_of_a_later_grpc(code: int, message: str, words: str) -> None:
    assert in_words(status_pb2.Status(code=code, message=message), "vm1") == words

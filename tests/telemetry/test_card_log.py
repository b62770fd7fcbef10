"""A card that becomes lost is one line of the log, and what may have caused it stands in the line."""

from __future__ import annotations

import logging

import pytest

from guest_api import guest_api_pb2
from guest_service.telemetry.card_log import CardLog

LOST = "device: GPU is lost (15)"


def sample(*errors: str, cc: bool | None = None, persistence: bool | None = None) -> guest_api_pb2.GpuInfoResponse:
    """Two cards; card 1 with these entries."""
    card = guest_api_pb2.GpuDevice(index=1, pci_bus_id="00000000:02:00.0", errors=errors)
    first = guest_api_pb2.GpuDevice(index=0, pci_bus_id="00000000:01:00.0", persistence_mode=persistence)
    return guest_api_pb2.GpuInfoResponse(gpus=[first, card], cc_enabled=cc)


def test_a_card_that_becomes_lost_and_comes_back_is_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    cards = CardLog()
    with caplog.at_level(logging.INFO):
        for errors in ((), (LOST,), (LOST,), (LOST, "power: GPU is lost (15)"), (), ()):
            cards.look(sample(*errors))
    assert caplog.messages == [
        f"GPU 1 (00000000:02:00.0) is lost: {LOST}",
        "GPU 1 (00000000:02:00.0) is there again",
    ]


@pytest.mark.parametrize(
    ("cc", "persistence", "named"), [(True, None, True), (True, False, True), (True, True, False), (False, None, False)]
)
def test_persistence_mode_is_named_where_confidential_computing_is_on_and_it_may_be_off(
    caplog: pytest.LogCaptureFixture, cc: bool, persistence: bool | None, named: bool
) -> None:
    CardLog().look(sample("memory: GPU is lost (15)", cc=cc, persistence=persistence))
    assert ("nvidia-persistenced" in caplog.text) is named


def test_a_value_that_is_not_supported_or_a_call_that_hung_is_no_lost_card(caplog: pytest.LogCaptureFixture) -> None:
    CardLog().look(sample("power: Not Supported (3)", "memory: nvmlDeviceGetMemoryInfo_v2 did not answer within 10 s"))
    assert caplog.messages == []

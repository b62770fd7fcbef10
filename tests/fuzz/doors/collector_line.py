"""What the agent reads from the collector: one line of JSON, or whatever a driver's library made of that process."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.json_format import MessageToDict
from hypothesis import strategies as st

from guest_api import guest_api_pb2
from guest_service.sampler.collector_line import CollectorLineError, parse_line
from guest_service.sampler.outcome import OutcomeKind, failure
from tests.fuzz.door import Door, one_line

_NUMBERS = (
    "utilization_gpu", "utilization_memory", "memory_total_bytes", "memory_used_bytes", "memory_free_bytes",
    "temperature_c", "power_usage_mw",
)  # fmt: skip


def check(data: bytes) -> None:
    """Every value of the line and no other, as Python's own JSON reads it; or CollectorLineError, whose outcome is one bounded line."""
    try:
        message = parse_line(data)
    except CollectorLineError as error:
        outcome = failure(OutcomeKind.UNREADABLE, f"the GPU collector's output is not a sample: {error}", 0.1)
        one_line(outcome.reply.error, 2000)
        return
    assert data.count(b"\n") == 1, "more than one line was taken"
    assert data.endswith(b"\n"), "half a line was taken"
    tree = json.loads(data, parse_constant=_refuse)
    assert message == _message(tree), (message, tree)
    # What was not there is not there: a zero in place of a null would be a lie.
    for device, given in zip(message.gpus, tree["gpus"], strict=True):
        found = {field.name for field, _ in device.ListFields()} & set(_NUMBERS)
        assert found == {name for name in _NUMBERS if given[name] is not None}, (device, given)
    if message.error:
        assert MessageToDict(message).keys() == {"error"}, message


def _message(tree: dict[str, Any]) -> guest_api_pb2.GpuInfoResponse:  # Any: a JSON tree
    return guest_api_pb2.GpuInfoResponse(
        gpus=[guest_api_pb2.GpuDevice(**device) for device in tree["gpus"]],
        error=tree["error"],
        cc_ready=tree["cc_ready"],
        cc_enabled=tree["cc_enabled"],
    )


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


_WORDS = st.one_of(st.text(max_size=10), st.just("GPU-\ud800"), st.just("x" * 70_000))
_VALUES = st.one_of(
    st.none(), st.integers(-1, 2**65), st.sampled_from([2**32, 2**64 - 1, 2**64, 1.0, 1e400, True, "5", []]), st.integers(0, 100)
)
_DEVICES = st.fixed_dictionaries(
    {"index": st.integers(-1, 2**33), "uuid": _WORDS, "pci_bus_id": _WORDS}
    | dict.fromkeys(_NUMBERS, _VALUES)
    | {"errors": st.lists(_WORDS, max_size=2)},
    optional={"serial": _WORDS},
)
_SAMPLES = st.fixed_dictionaries(
    {
        "gpus": st.lists(_DEVICES, max_size=3),
        "error": st.one_of(st.just(""), _WORDS),
        "cc_ready": st.sampled_from([None, True, False, 0]),
        "cc_enabled": st.sampled_from([None, True, False, 1]),
        "sample_age_ms": st.sampled_from([None, None, 5]),
    }
)

COLLECTOR_LINE = Door(
    "collector-line",
    check,
    _SAMPLES.map(lambda sample: json.dumps(sample).encode() + b"\n"),
    words=(
        b"null",
        b"\n",
        b"NaN",
        b"1e999",
        b'"gpus"',
        b"[[[[",
        b"{",
        b"\xff",
        b"\\ud800",
        b"18446744073709551616",
        b'"error":"x"',
    ),
    examples=80,
)

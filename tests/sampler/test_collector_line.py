"""The collector's line becomes the contract's message without loss, or is refused with what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_api import guest_api_pb2
from guest_service.sampler.collector_line import CollectorLineError, parse_line
from tests.sampler.children import CARD, SAMPLE, line_of

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
# Any text that UTF-8 can carry.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def optional(values: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    # Zero is the value that is most easily lost.
    return st.none() | st.just(0) | values


DEVICES = st.builds(
    guest_api_pb2.GpuDevice,
    index=U32,
    uuid=TEXT,
    pci_bus_id=TEXT,
    utilization_gpu=optional(U32),
    utilization_memory=optional(U32),
    memory_total_bytes=optional(U64),
    memory_used_bytes=optional(U64),
    memory_free_bytes=optional(U64),
    temperature_c=optional(U32),
    power_usage_mw=optional(U32),
    errors=st.lists(TEXT, max_size=3),
)
REPLIES = st.builds(
    guest_api_pb2.GpuInfoResponse,
    gpus=st.lists(DEVICES, max_size=4),
    cc_ready=st.none() | st.booleans(),
    cc_enabled=st.none() | st.booleans(),
    cc_devtools=st.none() | st.booleans(),
) | st.builds(guest_api_pb2.GpuInfoResponse, error=TEXT)


def parsed(line: str) -> guest_api_pb2.GpuInfoResponse:
    return parse_line(line.encode())


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(line_of(SAMPLE))
    return loaded


@given(REPLIES)
def test_any_reply_survives_the_line_and_back(reply: guest_api_pb2.GpuInfoResponse) -> None:
    again = parsed(line_of(reply))
    assert again == reply
    # Equality ignores presence in some runtimes; bytes do not.
    assert again.SerializeToString(deterministic=True) == reply.SerializeToString(deterministic=True)


@given(REPLIES)
def test_any_line_survives_the_message_and_back(reply: guest_api_pb2.GpuInfoResponse) -> None:
    line = line_of(reply)
    assert json.loads(line_of(parsed(line))) == json.loads(line)


def test_text_that_json_escapes_arrives_as_itself() -> None:
    reply = guest_api_pb2.GpuInfoResponse(error='a"\\\n\x00\u2028\U0001f600')
    assert parsed(line_of(reply)).error == reply.error


@pytest.mark.parametrize("key", [field.name for field in SAMPLE.DESCRIPTOR.fields if field.number <= 1000])
def test_a_missing_key_is_refused(key: str) -> None:
    broken = document()
    del broken[key]
    with pytest.raises(CollectorLineError, match=key):
        parsed(json.dumps(broken) + "\n")


@pytest.mark.parametrize("key", [field.name for field in CARD.DESCRIPTOR.fields if field.number < 1000])
def test_a_missing_key_of_a_card_is_refused(key: str) -> None:
    broken = document()
    del broken["gpus"][0][key]
    with pytest.raises(CollectorLineError, match=key):
        parsed(json.dumps(broken) + "\n")


def test_an_unknown_key_is_refused_at_both_levels() -> None:
    for at_top in (True, False):
        broken = document()
        (broken if at_top else broken["gpus"][0])["fan_speed"] = 1
        with pytest.raises(CollectorLineError, match="fan_speed"):
            parsed(json.dumps(broken) + "\n")


@pytest.mark.parametrize("value", [-1, 2**32, 2**64, 10**40, 1.0, 0.5, True, "1", [], {}])
def test_a_number_of_another_type_or_out_of_range_is_refused(value: object) -> None:
    broken = document()
    broken["gpus"][0]["temperature_c"] = value
    with pytest.raises(CollectorLineError):
        parsed(json.dumps(broken) + "\n")


def test_not_a_number_and_infinity_are_refused() -> None:
    for word in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(CollectorLineError):
            parsed(line_of(SAMPLE).replace("79700", word))


def test_an_error_next_to_devices_or_cc_facts_is_refused() -> None:
    for reply in (
        guest_api_pb2.GpuInfoResponse(error="x", gpus=[CARD]),
        guest_api_pb2.GpuInfoResponse(error="x", cc_ready=False),
        guest_api_pb2.GpuInfoResponse(error="x", cc_enabled=False),
        guest_api_pb2.GpuInfoResponse(error="x", cc_devtools=False),
    ):
        with pytest.raises(CollectorLineError, match="an error next to"):
            parsed(line_of(reply))


def test_an_age_is_refused_since_only_the_cell_knows_it() -> None:
    with pytest.raises(CollectorLineError, match="sample_age_ms"):
        parsed(line_of(guest_api_pb2.GpuInfoResponse(sample_age_ms=0)))


@pytest.mark.parametrize(
    ("printed", "wrong"),
    [
        (b"", "nothing was printed"),
        (b"\n", "malformed|truncated"),
        (b"null\n", "Expected `object`"),
        (b"[]\n", "Expected `object`"),
        (line_of(SAMPLE).encode().rstrip(), "cut off"),
        (line_of(SAMPLE).encode()[:40] + b"\n", "malformed"),
        (line_of(SAMPLE).encode() * 2, "2 lines"),
        (b"hello\n" + line_of(SAMPLE).encode(), "2 lines"),
        (line_of(SAMPLE).encode().replace(b"GPU-", b"\xff\xfe"), "UTF-8"),
        (line_of(SAMPLE).replace("GPU-", "\\ud800").encode(), "truncated|surrogate|UTF-8|malformed"),
        (b"\x00" * 64 + b"\n", "malformed"),
    ],
)
def test_what_is_not_one_whole_line_of_json_is_refused(printed: bytes, wrong: str) -> None:
    with pytest.raises(CollectorLineError, match=wrong):
        parse_line(printed)


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_raises_nothing_else(garbage: bytes) -> None:
    with pytest.raises(CollectorLineError):
        parse_line(garbage + b"\n")

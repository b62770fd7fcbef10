"""What the agent reads from the collector: parts, a line of JSON each, or whatever a driver's library made of that process."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.json_format import MessageToDict
from hypothesis import strategies as st

from guest_api import guest_api_pb2
from guest_service.sampler.outcome import OutcomeKind, failure
from guest_service.sampler.parts import PartsError, read_parts
from tests.fuzz.door import Door, one_line

_NUMBERS = (
    "utilization_gpu", "utilization_memory", "memory_total_bytes", "memory_used_bytes", "memory_free_bytes",
    "temperature_c", "power_usage_mw",
)  # fmt: skip


def check(data: bytes) -> None:
    """Every value of the parts and no other, as Python's own JSON reads them; or PartsError, whose outcome is one bounded line."""
    _check_cut(data[: len(data) // 2])
    try:
        message = read_parts(data).reply()
    except PartsError as error:
        outcome = failure(OutcomeKind.UNREADABLE, f"the GPU collector's output is not a sample: {error}", 0.1)
        one_line(outcome.reply.error, 2000)
        return
    assert data.endswith(b"\n"), "half a line was taken"
    tree: dict[str, Any] = {}
    cards: list[dict[str, Any]] = []
    for line in data.splitlines():
        part = {} if line.startswith(b"?") else json.loads(line, parse_constant=_refuse)
        cards = [{"errors": []} for _ in range(part["cards"])] if part.get("cards") is not None else cards
        if part.get("card") is not None:
            cards[part["card"]].update(_told(part.get("values")))
            cards[part["card"]]["errors"] += part.get("errors", [])
        tree.update(_told(part.get("machine")))
        tree["error"] = part.get("error") or tree.get("error", "")
    assert message == _message(tree, cards), (message, tree)
    # What was not there is not there: a zero in place of a null would be a lie.
    for device, given in zip(message.gpus, cards, strict=True):
        found = {field.name for field, _ in device.ListFields()} & set(_NUMBERS)
        assert found == {name for name in _NUMBERS if given.get(name) is not None}, (device, given)
    if message.error:
        assert MessageToDict(message).keys() == {"error"}, message


def _told(values: dict[str, Any] | None) -> dict[str, Any]:
    """What a part says: an unset value says nothing, and takes nothing back that an earlier part said."""
    return {name: value for name, value in (values or {}).items() if value is not None}


def _check_cut(data: bytes) -> None:
    """However far it came, an explanation has a place for each card, or the parts are refused."""
    try:
        told = read_parts(data, cut_short=True)
        told.explain("the call did not answer")
        told.reply()
    except PartsError:
        return
    assert all(values or errors for values, errors in zip(told.cards, told.errors, strict=True)), told


def _message(tree: dict[str, Any], cards: list[dict[str, Any]]) -> guest_api_pb2.GpuInfoResponse:  # Any: a JSON tree
    return guest_api_pb2.GpuInfoResponse(
        gpus=[guest_api_pb2.GpuDevice(index=index, **card) for index, card in enumerate(cards)], **tree
    )


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


_WORDS = st.one_of(st.text(max_size=10), st.just("GPU-\ud800"), st.just("x" * 70_000))
_VALUES = st.one_of(
    st.none(), st.integers(-1, 2**65), st.sampled_from([2**32, 2**64 - 1, 2**64, 1.0, 1e400, True, "5", []]), st.integers(0, 100)
)
_PARTS = st.one_of(
    st.fixed_dictionaries({"cards": st.integers(-1, 3)}),
    st.fixed_dictionaries({"machine": st.dictionaries(st.sampled_from(["cc_ready", "cc_devtools"]), st.none() | st.booleans())}),
    st.fixed_dictionaries(
        {
            "card": st.integers(-1, 3),
            "values": st.dictionaries(st.sampled_from(_NUMBERS), _VALUES) | st.dictionaries(st.sampled_from(("uuid", "serial")), _WORDS),
            "errors": st.lists(_WORDS, max_size=2),
        }
    ),
    st.fixed_dictionaries({"error": _WORDS}),
    st.just({"opened": True}),
)  # fmt: skip


def _written(parts: list[dict[str, Any]], whole: bool) -> bytes:
    lines = ["?0 memory nvmlDeviceGetMemoryInfo_v2", *map(json.dumps, parts), '{"end":true}']
    return "".join(f"{line}\n" for line in (lines if whole else lines[:-1])).encode()


COLLECTOR_PARTS = Door(
    "collector-parts",
    check,
    st.builds(_written, st.lists(_PARTS, max_size=8), st.booleans()),
    words=(
        b"null",
        b"\n",
        b"NaN",
        b"1e999",
        b'{"cards":1}',
        b'"card":0',
        b"?0 memory f",
        b"[[[[",
        b"{",
        b"\xff",
        b"\\ud800",
        b"18446744073709551616",
        b'"error":"x"',
    ),
    examples=80,
)

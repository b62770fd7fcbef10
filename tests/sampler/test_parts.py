"""The collector's parts become the contract's message without loss, however many came; what they are not is refused with what is wrong."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_api import guest_api_pb2
from guest_contract.health import Level, judge_card
from guest_service.sampler.parts import Asking, PartsError, read_parts
from tests.sampler.children import CARD, CARD_KEYS, SAMPLE, parts_of

# Where the card stands in the parts of SAMPLE, after the count, the machine and the mark that all are open.
THE_CARD = 3

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
# Any text that UTF-8 can carry.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def numbered(cards: list[guest_api_pb2.GpuDevice]) -> list[guest_api_pb2.GpuDevice]:
    for index, card in enumerate(cards):
        card.index = index
    return cards


def optional(values: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    # Zero is the value that is most easily lost.
    return st.none() | st.just(0) | values


DEVICES = st.builds(
    guest_api_pb2.GpuDevice,
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
    gpus=st.lists(DEVICES, max_size=4).map(numbered),
    cc_ready=st.none() | st.booleans(),
    cc_enabled=st.none() | st.booleans(),
    cc_devtools=st.none() | st.booleans(),
    cc_environment=optional(U32),
    cc_multi_gpu_mode=optional(U32),
    driver_version=st.none() | TEXT,
    cuda_driver_version=st.none() | TEXT,
    nvml_version=st.none() | TEXT,
) | st.builds(guest_api_pb2.GpuInfoResponse, error=TEXT)


def whole(lines: str | bytes) -> guest_api_pb2.GpuInfoResponse:
    return read_parts(lines.encode() if isinstance(lines, str) else lines).reply()


def changed(part: int, **values: object) -> str:
    """The parts of SAMPLE, one of them with other members."""
    lines = parts_of(SAMPLE).splitlines()
    lines[part] = json.dumps({**json.loads(lines[part]), **values})
    return "".join(f"{line}\n" for line in lines)


def with_values(**values: object) -> str:
    """The parts of SAMPLE, its card with other values."""
    card = json.loads(parts_of(SAMPLE).splitlines()[THE_CARD])
    return changed(THE_CARD, values={**card["values"], **values})


@given(REPLIES)
def test_any_reply_survives_the_parts_and_back(reply: guest_api_pb2.GpuInfoResponse) -> None:
    again = whole(parts_of(reply))
    assert again == reply
    # Equality ignores presence in some runtimes; bytes do not.
    assert again.SerializeToString(deterministic=True) == reply.SerializeToString(deterministic=True)


def test_text_that_json_escapes_arrives_as_itself() -> None:
    reply = guest_api_pb2.GpuInfoResponse(error='a"\\\n\x00\u2028\U0001f600')
    assert whole(parts_of(reply)).error == reply.error


def test_an_unknown_key_is_refused_at_each_level() -> None:
    for lines in (changed(THE_CARD, fan_speed=1), with_values(fan_speed=1), changed(1, machine={"fan_speed": 1})):
        with pytest.raises(PartsError, match="fan_speed"):
            whole(lines)


@pytest.mark.parametrize("value", [-1, 2**32, 2**64, 10**40, 1.0, 0.5, True, "1", [], {}])
def test_a_number_of_another_type_or_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(PartsError):
        whole(with_values(temperature_c=value))


def test_not_a_number_and_infinity_are_refused() -> None:
    for word in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(PartsError):
            whole(parts_of(SAMPLE).replace("79700", word))


def test_what_only_the_agent_knows_is_refused() -> None:
    for lines in (with_values(index=1), with_values(errors=[]), changed(1, machine={"sample_age_ms": 1})):
        with pytest.raises(PartsError):
            whole(lines)


ERROR = '{"error":"x"}\n{"end":true}\n'
END = '{"end":true}\n'


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ("", "nothing was told"),
        ("\n", "malformed|truncated"),
        ("null\n", "Expected `object`"),
        ("[]\n", "Expected `object`"),
        ("{}\n", "empty part"),
        (parts_of(SAMPLE).rstrip(), "the end is missing"),
        (parts_of(SAMPLE) + "x", "the last line is cut off"),
        (parts_of(SAMPLE) * 2, "more came after the end"),
        ("hello\n" + parts_of(SAMPLE), "malformed"),
        (parts_of(SAMPLE).encode().replace(b"GPU-", b"\xff\xfe"), "UTF-8"),
        (parts_of(SAMPLE).replace("GPU-", "\\ud800"), "truncated|surrogate|UTF-8|malformed"),
        ("\x00" * 64 + "\n", "malformed"),
        ('{"card":0}\n' + END, "a part of card 0 of 0"),
        ('{"cards":1}\n{"card":1}\n' + END, "a part of card 1 of 1"),
        ('{"cards":1}\n{"cards":1}\n' + END, "1 cards"),
        ('{"cards":1025}\n' + END, "1025 cards"),
        ('{"cards":1}\n' + ERROR, "an error next to cards"),
        ('{"machine":{"cc_ready":true}}\n' + ERROR, "an error next to cards"),
        ('{"error":"why"}\n{"cards":1}\n' + END, "more came after the error"),
        ('{"error":"why"}\n{"machine":{"cc_ready":true}}\n' + END, "more came after the error"),
    ],
)
def test_what_is_not_the_parts_of_one_sample_is_refused(told: str | bytes, wrong: str) -> None:
    with pytest.raises(PartsError, match=wrong):
        whole(told)


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_raises_nothing_else(garbage: bytes) -> None:
    for cut_short in (False, True):
        with contextlib.suppress(PartsError):
            assert cut_short, read_parts(garbage + b"\n{", cut_short=cut_short)
            read_parts(garbage, cut_short=cut_short).reply()


@given(REPLIES, st.data())
def test_parts_that_are_cut_anywhere_give_what_was_whole_of_them_and_nothing_else(
    reply: guest_api_pb2.GpuInfoResponse, data: st.DataObject
) -> None:
    told = parts_of(reply).encode()
    cut = told[: data.draw(st.integers(0, len(told)))]
    got = read_parts(cut, cut_short=True).reply()
    assert got == read_parts(cut[: cut.rfind(b"\n") + 1], cut_short=True).reply()
    for before, after in zip(reply.gpus, got.gpus, strict=False):
        assert after in (before, guest_api_pb2.GpuDevice(index=before.index))


def test_the_call_without_an_answer_is_the_last_one_that_was_marked() -> None:
    lines = '{"cards":2}\n?1 memory nvmlDeviceGetMemoryInfo_v2\n'
    assert read_parts(lines.encode(), cut_short=True).asking == Asking(1, "memory", "nvmlDeviceGetMemoryInfo_v2")
    answered = lines + '{"card":1,"values":{"memory_total_bytes":5},"errors":[]}\n'
    assert read_parts(answered.encode(), cut_short=True).asking is None
    again = answered + "?- cc_ready nvmlSystemGetConfComputeGpusReadyState\n?0 x"
    asking = read_parts(again.encode(), cut_short=True).asking
    assert asking is not None
    assert (asking.card, asking.place, str(asking)) == (None, "-", "nvmlSystemGetConfComputeGpusReadyState")


def test_each_base_value_without_an_answer_has_one_entry_that_says_why() -> None:
    told = read_parts(
        b"""{"cards":3}
{"card":0,"values":{},"errors":["device: GPU is lost (15)"]}
{"card":1,"values":{"utilization_gpu":1,"utilization_memory":null},"errors":[]}
?1 memory nvmlDeviceGetMemoryInfo_v2
""",
        cut_short=True,
    )
    told.explain("nvmlDeviceGetMemoryInfo_v2 did not answer within 10 s")
    lost, asked, left = told.reply().gpus
    assert list(lost.errors) == ["device: GPU is lost (15)"]
    not_asked = "not asked, because nvmlDeviceGetMemoryInfo_v2 of card 1 did not answer"
    assert list(asked.errors) == [
        "memory: nvmlDeviceGetMemoryInfo_v2 did not answer within 10 s",
        f"temperature: {not_asked}",
        f"power: {not_asked}",
    ]
    assert list(left.errors) == [f"{question}: {not_asked}" for question in ("utilization", "memory", "temperature", "power")]
    assert asked.utilization_gpu == 1


def test_a_group_that_was_not_asked_to_its_end_has_one_entry_so_that_no_card_seems_well() -> None:
    base = {name: getattr(CARD, name) for name in CARD_KEYS}
    parts = [
        {"cards": 2},
        {"machine": {"groups": ["health"]}},
        {"card": 0, "values": {**base, "ecc_enabled": None}, "errors": []},
        {"card": 1, "values": base, "errors": []},
    ]
    lines = [*map(json.dumps, parts), "?0 ecc_corrected_volatile nvmlDeviceGetTotalEccErrors", ""]
    told = read_parts("\n".join(lines).encode(), cut_short=True)
    told.explain("it hangs")
    reply = told.reply()
    not_asked = "health: not asked, because nvmlDeviceGetTotalEccErrors of card 0 did not answer"
    assert [list(card.errors) for card in reply.gpus] == [[not_asked, "ecc_corrected_volatile: it hangs"], [not_asked]]
    assert [judge_card(card, reply).level for card in reply.gpus] == [Level.UNKNOWN] * 2

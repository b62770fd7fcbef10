"""A guest's reply: any bytes in place of a protobuf message, for each method. The first byte chooses the method."""

from __future__ import annotations

import sys
from types import FrameType

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st

from guest_contract.methods import proxied_methods
from tests.fuzz.door import Door, one_line
from tests.round_trip.messages import any_message
from vmm_proxy.errors import CallError
from vmm_proxy.upstream.call import _checked
from vmm_proxy.upstream.reply_limits import GPUS_LIMIT, HARMLESS_BYTES, STRING_LIMIT_BYTES, TOTAL_LIMIT
from vmm_proxy.upstream.shared_call import Answer

METHODS = proxied_methods()
_CODES = {grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED}
# Python functions entered while one reply is judged: two for each field on the wire, and two for each entry of the decoded message.
CALLS_LIMIT = 6 * TOTAL_LIMIT


def check(data: bytes) -> None:
    """Within the limits and whole, or refused as the guest's fault; at a cost that the limits bound, whatever the bytes are."""
    method, wire = METHODS[data[0] % len(METHODS) if data else 0], data[1:]
    try:
        answer = _counted(wire, lambda: _checked(wire, "vm-1", method, ()))
    except CallError as error:
        assert error.code in _CODES, error.code
        assert error.answered, "the guest did say something"
        assert error.text.startswith("guest vm-1: its reply "), error.text
        one_line(error.text, 300)
        assert error.code is not grpc.StatusCode.RESOURCE_EXHAUSTED or len(wire) > HARMLESS_BYTES, error.text
        if error.code is grpc.StatusCode.INTERNAL:
            assert not _decodes(wire, method.reply) or _has_field_zero(wire), "what decodes was refused as if it did not"
        return
    assert _entries(answer.message) <= TOTAL_LIMIT
    again = method.reply.FromString(answer.wire)
    assert again == answer.message, "re-encoding lost something"
    assert again.SerializeToString(deterministic=True) == answer.wire, "re-encoding does not come to rest"


def _counted(wire: bytes, judge: object) -> Answer:
    """What `judge` returns, if it enters no more functions than CALLS_LIMIT."""
    calls = 0

    def entered(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    assert callable(judge)
    before = sys.getprofile()
    sys.setprofile(entered)
    try:
        answer = judge()
    finally:
        sys.setprofile(before)
        assert calls <= CALLS_LIMIT, f"{calls} calls for {len(wire)} bytes"
    assert isinstance(answer, Answer)
    return answer


def _entries(message: Message) -> int:
    count = 0
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if field.is_repeated:
            assert len(value) <= (GPUS_LIMIT if field.name == "gpus" else 4096), (field.name, len(value))
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            count += sum(1 + _entries(part) for part in values)
        elif field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
            for text in values:
                size = len(text.encode() if isinstance(text, str) else text)
                assert size <= STRING_LIMIT_BYTES, (field.name, size)
    return count


def _decodes(wire: bytes, reply: type[Message]) -> bool:
    try:
        reply.FromString(wire)
    except DecodeError:
        return False
    return True


def _has_field_zero(wire: bytes) -> bool:
    """Whether a field number 0 can stand anywhere: protobuf's upb decodes it for types without fields, the product does not."""
    return any(byte < 8 for byte in wire)


_KINDS = [any_message(method.reply) for method in METHODS]


@st.composite
def _replies(draw: st.DrawFn) -> bytes:
    number = draw(st.integers(0, len(METHODS) - 1))
    message = draw(_KINDS[number])
    wire = message.SerializeToString()
    # The same again and again: lists grow past their limits, and single fields are merged.
    wire *= draw(st.sampled_from([1, 1, 1, 2, 1500, 20_000])) if len(wire) < 60 else 1
    # A field that a list limit is about, empty: two bytes an entry, and two more where it holds another such list.
    wire += draw(st.sampled_from([b"", b"\x0a\x00", b"\x1a\x00", b"\x8a\x01\x00", b"\x1a\x02\x12\x00", b"\x0b", b"\x0c"])) * draw(
        st.sampled_from([1, 5, 1024, 1025, 4097, 9000, 17_000])
    )
    # Lists in lists, none of them long: 1000 addresses in each of some interfaces.
    wire += (b"\x1a\xd0\x0f" + b"\x12\x00" * 1000) * draw(st.sampled_from([0, 0, 0, 1, 15, 40]))
    return bytes([number]) + wire[: 1024 * 1024]


REPLY = Door(
    "reply",
    check,
    _replies(),
    words=(
        b"\x0a\x00",
        b"\x00",
        b"\x0b",
        b"\x0c",
        b"\xff" * 10,
        b"\x80" * 9 + b"\x01",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\xf8\x3e\x01",
    ),
    examples=40,
)

"""Messages full of values that are not defaults, and any message at all, both made from the descriptors: a new field is in at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeVar

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

M = TypeVar("M", bound=Message)

# Any: what a field holds depends on its type.
_FILLERS: dict[int, Callable[[str, int], Any]] = {
    FieldDescriptor.TYPE_STRING: lambda name, n: f"{name} {n} é\u202e\x1b\n\0",
    FieldDescriptor.TYPE_BYTES: lambda name, n: b"\x00\xff" + f"{name} {n}".encode(),
    FieldDescriptor.TYPE_BOOL: lambda name, n: True,
    FieldDescriptor.TYPE_UINT32: lambda name, n: 2**32 - n,
    FieldDescriptor.TYPE_UINT64: lambda name, n: 2**64 - n,
    FieldDescriptor.TYPE_INT64: lambda name, n: -(2**63) + n,
    FieldDescriptor.TYPE_SINT32: lambda name, n: -(2**31) + n,
    FieldDescriptor.TYPE_DOUBLE: lambda name, n: n + 0.5,
}
_ANY: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.text(),
    FieldDescriptor.TYPE_BYTES: st.binary(),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_UINT32: st.sampled_from([0, 1, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.sampled_from([0, 2**53 + 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_SINT32: st.sampled_from([0, -1, -(2**31), 2**31 - 1]) | st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_INT64: st.sampled_from([0, -1, -(2**63), 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1),
}


def filled(kind: type[M]) -> M:
    """A message in which every field, at every depth, is set to a value that is not its default and stands nowhere else."""
    message = kind()
    _fill(message, count(1))
    return message


def _fill(message: Message, numbers: Iterator[int]) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            parts = (
                [getattr(message, field.name).add() for _ in range(2)] if field.is_repeated else [getattr(message, field.name)]
            )
            for part in parts:
                _fill(part, numbers)
        elif field.is_repeated:
            getattr(message, field.name).extend(_FILLERS[field.type](field.name, next(numbers)) for _ in range(2))
        else:
            setattr(message, field.name, _FILLERS[field.type](field.name, next(numbers)))


def seen(message: Message) -> set[str]:
    """`Message.field` of every field that is set, at every depth."""
    found = set()
    for field, value in message.ListFields():
        found.add(f"{message.DESCRIPTOR.name}.{field.name}")
        if field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                found |= seen(part)
    return found


def offered(kind: type[Message]) -> set[str]:
    """`Message.field` of every field that a message of this kind can have, at every depth."""
    found: set[str] = set()
    todo: list[Any] = [kind.DESCRIPTOR]
    while todo:
        each = todo.pop()
        names = {f"{each.name}.{field.name}" for field in each.fields}
        if not names <= found:
            found |= names
            todo += [field.message_type for field in each.fields if field.message_type is not None]
    return found


def any_message(kind: type[M]) -> st.SearchStrategy[M]:
    """Any message of this kind, with fields of a newer contract in it and in its parts now and then."""
    values = st.fixed_dictionaries({}, optional={field.name: _any_value(field) for field in kind.DESCRIPTOR.fields})
    return st.builds(lambda values, unknown: _built(kind, values, unknown), values, _UNKNOWN)


def _built(kind: type[M], values: dict[str, Any], unknown: bytes) -> M:
    message = kind(**values)
    message.MergeFromString(unknown)
    return message


def _any_value(field: Any) -> st.SearchStrategy[Any]:
    nested = field.message_type is not None
    one = any_message(message_factory.GetMessageClass(field.message_type)) if nested else _ANY[field.type]
    return st.lists(one, max_size=3) if field.is_repeated else one


def _unknown_field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


_UNKNOWN = st.lists(
    st.builds(
        _unknown_field,
        # 1000 and the next few are ours already.
        st.integers(1100, 2**29 - 1).filter(lambda n: not 19000 <= n < 20000),
        st.integers(0, 2**64 - 1) | st.binary(),
    ),
    max_size=3,
).map(b"".join)

"""Messages of the contract as JSON for scripts: names as in the proto file, 64-bit integers exact, unset as null, bytes as hex.

A view for people and their scripts; no product path goes through it. Rejected: protobuf's own JSON mapping (64-bit integers become strings,
bytes become base64, and unset values vanish instead of being null).
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias, cast

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.unknown_fields import UnknownFieldSet

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


def to_text(value: Json) -> str:
    """`value` as indented JSON, ASCII only, so that no terminal is driven by a guest's text."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def to_line(value: Json) -> str:
    """`value` as one line of JSON, ASCII only, for streams."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")) + "\n"


def with_host(host: str, value: Json) -> Json:
    """The same object with `host` in front, where there are several."""
    return {"host": host, **value} if host and isinstance(value, dict) else value


def view(message: Message) -> Json:
    """`message` with every field of the contract; a Timestamp is RFC 3339 text, a Duration seconds."""
    if isinstance(message, Timestamp):
        return _moment(message)
    if isinstance(message, Duration):
        return message.ToNanoseconds() / 1e9
    return {field.name: _field(message, cast(FieldDescriptor, field)) for field in message.DESCRIPTOR.fields}


def _field(message: Message, field: FieldDescriptor) -> Json:
    value: Any = getattr(message, field.name)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return {str(key): _value(value[key], kind.fields_by_name["value"]) for key in sorted(value)}
    if field.is_repeated:
        return [_value(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: Any, field: FieldDescriptor) -> Json:
    if isinstance(value, Message):
        return view(value)
    if isinstance(value, bytes):
        return value.hex()
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name.removeprefix(_enum_prefix(field.enum_type)).lower() if known else value
    plain: str | int | float | bool = value
    return plain


def _enum_prefix(enum: EnumDescriptor) -> str:
    """`GUEST_STATE_` for an enum whose zero value is GUEST_STATE_UNSPECIFIED, as buf's rules name them."""
    return enum.values_by_number[0].name.removesuffix("UNSPECIFIED")


def _moment(stamp: Timestamp) -> str:
    try:
        return stamp.ToJsonString()
    except ValueError:
        return f"{stamp.seconds} s after 1970"  # outside the years 1 to 9999, which RFC 3339 ends with


def unknown_numbers(message: Message) -> set[str]:
    """`message.number` of each field that a newer server sent and this version does not know."""
    unknown = UnknownFieldSet(message)
    found = {f"{message.DESCRIPTOR.name}.{unknown[at].field_number}" for at in range(len(unknown))}
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for item in value if field.is_repeated else [value]:
            found |= unknown_numbers(item)
    return found

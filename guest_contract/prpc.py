"""dstack's own form of the contract (pRPC): a method's name in a URL, and its messages in JSON or in protobuf.

The request chooses the form, and the reply has the same: JSON where the content type says so, where `?json` is asked for, and for GET;
else protobuf. JSON has every member always, in the order of the contract: what is unset and optional is null, bytes are lower-case hex,
integers of 64 bits are plain numbers. Members of a request that the contract does not have are ignored, as its Rust side does.

dstack's parser was made for dstack's own fields, so ours, which have numbers from 1000 up, are left out of JSON unless `?fields=all` is
asked for. Rejected: protobuf's own JSON (it leaves out what is unset, writes 64 bits as strings and bytes in base64).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from guest_api import guest_api_pb2

# Numbers from here on are fields of ours.
OWN_FIELDS_FROM = 1000
# A text says what was wrong; it never repeats what the caller sent at length.
ERROR_BYTES = 2 * 1024
ALL_FIELDS = "all"

M = TypeVar("M", bound=Message)
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Form(Enum):
    """How messages are written; the value is the content type."""

    JSON = "application/json"
    PROTOBUF = "application/octet-stream"


class RequestError(ValueError):
    """A request that is none of the method's; its text is for the caller."""


def form_of(method: str, content_type: str, query: Mapping[str, str]) -> Form:
    """The form of a request and of its reply."""
    media_type = content_type.partition(";")[0].strip().lower()
    is_json = method == "GET" or "json" in query or media_type == Form.JSON.value or media_type.endswith("+json")
    return Form.JSON if is_json else Form.PROTOBUF


def read_request(kind: type[M], form: Form, body: bytes) -> M:
    """The request in `body`, whatever else is in it; raises RequestError. A message without fields has nothing to read."""
    if not kind.DESCRIPTOR.fields:
        return kind()
    if form is Form.PROTOBUF:
        try:
            return kind.FromString(body)
        except DecodeError:
            raise RequestError("the body is no protobuf message of this method") from None
    try:
        given = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        raise RequestError("the body is not JSON") from None
    if not isinstance(given, dict):
        raise RequestError("the body must be a JSON object")
    return request_of(kind, given)


def request_of(kind: type[M], given: Mapping[str, object]) -> M:
    """The request with the members of `given`, which are texts; raises RequestError."""
    request = kind()
    for field in kind.DESCRIPTOR.fields:
        value = given.get(field.name)
        if value is None:
            continue
        if field.type != FieldDescriptor.TYPE_STRING or field.is_repeated:
            raise NotImplementedError(f"{field.full_name}: no request of the contract has such a field")
        if not isinstance(value, str):
            raise RequestError(f"{field.name}: must be a string")
        try:
            setattr(request, field.name, value)
        except UnicodeEncodeError:
            raise RequestError(f"{field.name}: must be Unicode text") from None
    return request


def write_reply(reply: Message, form: Form, *, own_fields: bool = False) -> bytes:
    """`reply` in `form`; protobuf has every field, JSON ours where `own_fields` says so. A reply without fields is null in JSON."""
    if form is Form.PROTOBUF:
        return reply.SerializeToString(deterministic=True)
    if not reply.DESCRIPTOR.fields:
        return b"null"
    return json.dumps(_members(reply, own_fields=own_fields), ensure_ascii=False, separators=(",", ":")).encode()


def write_error(text: str, form: Form, **more: str) -> bytes:
    """What went wrong: `{"error": text}` with `more` members, or a message with the text in field 1."""
    cut = text.encode()[:ERROR_BYTES].decode(errors="ignore")
    if form is Form.JSON:
        return json.dumps({"error": cut, **more}, ensure_ascii=False).encode()
    # Any message whose field 1 is a string.
    return guest_api_pb2.Id(id=cut).SerializeToString()


def _members(message: Message, *, own_fields: bool) -> dict[str, Json]:
    return {
        field.name: _member(message, field, own_fields=own_fields)
        for field in message.DESCRIPTOR.fields
        if own_fields or field.number < OWN_FIELDS_FROM
    }


def _member(message: Message, field: Any, *, own_fields: bool) -> Json:
    if field.is_repeated:
        return [_value(each, own_fields=own_fields) for each in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(getattr(message, field.name), own_fields=own_fields)


def _value(value: Message | bytes | str | float, *, own_fields: bool) -> Json:
    if isinstance(value, Message):
        return _members(value, own_fields=own_fields)
    if isinstance(value, bytes):
        return value.hex()
    # JSON has no word for what a guest may send in a double: it is unknown.
    return None if isinstance(value, float) and not math.isfinite(value) else value

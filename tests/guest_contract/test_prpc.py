"""dstack's form of the messages, against protobuf's own JSON and the documented answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf import empty_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from guest_api import guest_api_pb2
from guest_contract.methods import proxied_methods
from guest_contract.prpc import (
    ERROR_BYTES,
    OWN_FIELDS_FROM,
    Form,
    RequestError,
    form_of,
    read_request,
    request_of,
    write_error,
    write_reply,
)
from tests.round_trip.messages import any_message


def expected(message: Message) -> dict[str, Any]:
    """What protobuf's own JSON says of `message`, in dstack's terms."""
    said = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return {field.name: _expected(message, field, said.get(field.name)) for field in message.DESCRIPTOR.fields}


def _expected(message: Message, field: Any, said: Any) -> Any:
    if field.message_type:
        return [expected(each) for each in getattr(message, field.name)]
    if said is None:
        return None
    if field.type in {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_INT64}:
        return int(said)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64decode(said).hex()
    # Infinity is no number of JSON.
    return None if field.type == FieldDescriptor.TYPE_DOUBLE and isinstance(said, str) else said


@pytest.mark.parametrize(
    "kind", {method.reply for method in proxied_methods()} - {empty_pb2.Empty}, ids=lambda kind: kind.__name__
)
@given(data=st.data())
def test_json_has_every_member_with_the_value_of_protobufs_own(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(any_message(kind))
    assert json.loads(write_reply(message, Form.JSON, own_fields=True)) == expected(message)


@given(message=any_message(guest_api_pb2.GpuInfoResponse))
def test_what_dstack_does_not_know_is_left_out_of_json_and_nothing_else_is(message: Message) -> None:
    def own(given: Any, kind: Any) -> Any:
        known = {field.name: field for field in kind.fields if field.number < OWN_FIELDS_FROM}
        return {
            name: [own(each, known[name].message_type) for each in value] if known[name].message_type else value
            for name, value in given.items()
            if name in known
        }

    assert json.loads(write_reply(message, Form.JSON)) == own(expected(message), message.DESCRIPTOR)
    assert write_reply(message, Form.PROTOBUF) == message.SerializeToString(deterministic=True)


def test_a_guest_without_a_card_says_what_dstacks_own_agent_says() -> None:
    reply = guest_api_pb2.GpuInfoResponse()
    assert write_reply(reply, Form.PROTOBUF) == b""
    documented = '{"gpus": [], "error": "", "cc_ready": null, "cc_enabled": null, "sample_age_ms": null}'
    assert json.loads(write_reply(reply, Form.JSON)) == json.loads(documented)
    assert list(json.loads(write_reply(reply, Form.JSON))) == list(json.loads(documented)), "in this order"


def test_integers_of_64_bits_are_exact_and_a_double_that_is_no_number_is_null() -> None:
    reply = guest_api_pb2.SystemInfo(total_memory=2**64 - 1, cpu_times=[guest_api_pb2.CpuTime(mode="user", seconds=float("nan"))])
    text = write_reply(reply, Form.JSON, own_fields=True).decode()
    assert '"total_memory":18446744073709551615' in text
    assert '"cpu_times":[{"mode":"user","seconds":null}]' in text


def test_an_empty_reply_is_null_or_nothing() -> None:
    assert write_reply(empty_pb2.Empty(), Form.JSON) == b"null"
    assert write_reply(empty_pb2.Empty(), Form.PROTOBUF) == b""


@pytest.mark.parametrize(
    ("method", "content_type", "query", "form"),
    [
        ("POST", "", {}, Form.PROTOBUF),
        ("POST", "application/octet-stream", {}, Form.PROTOBUF),
        ("POST", "application/json", {}, Form.JSON),
        ("POST", "Application/JSON; charset=utf-8", {}, Form.JSON),
        ("POST", "application/vnd.dstack+json", {}, Form.JSON),
        ("POST", "application/octet-stream", {"json": ""}, Form.JSON),
        ("POST", "text/json-like", {}, Form.PROTOBUF),
        ("GET", "", {}, Form.JSON),
        ("GET", "application/octet-stream", {}, Form.JSON),
    ],
)
def test_the_request_chooses_the_form(method: str, content_type: str, query: dict[str, str], form: Form) -> None:
    assert form_of(method, content_type, query) is form


def test_members_that_the_contract_does_not_have_are_ignored() -> None:
    request = read_request(guest_api_pb2.Id, Form.JSON, b'{"verbose": [1, {"a": null}], "id": "vm1"}')
    assert request.id == "vm1"
    assert read_request(guest_api_pb2.Id, Form.JSON, b"").id == ""
    assert read_request(guest_api_pb2.Id, Form.PROTOBUF, b"\x0a\x03vm1\x98\x01\x07").id == "vm1"
    assert request_of(guest_api_pb2.Id, {"id": "vm1", "json": ""}).id == "vm1"


@pytest.mark.parametrize("form", Form)
def test_a_method_without_a_request_ignores_the_body(form: Form) -> None:
    assert read_request(empty_pb2.Empty, form, b"\xff{[not anything") == empty_pb2.Empty()


@pytest.mark.parametrize(
    ("form", "body", "reason"),
    [
        (Form.JSON, b"{", "the body is not JSON"),
        (Form.JSON, b"\xff\xfe", "the body is not JSON"),
        (Form.JSON, b"[" * 100_000, "the body is not JSON"),
        (Form.JSON, b'{"id": ' + b"1" * 10_000 + b"}", "the body is not JSON"),
        (Form.JSON, b'["vm1"]', "the body must be a JSON object"),
        (Form.JSON, b'{"id": 1}', "id: must be a string"),
        (Form.JSON, b'{"id": ["vm1"]}', "id: must be a string"),
        (Form.JSON, b'{"id": "\\ud800"}', "id: must be Unicode text"),
        (Form.PROTOBUF, b"\x0a\xff", "the body is no protobuf message of this method"),
    ],
)
def test_a_request_that_is_none_is_refused_in_words_without_its_own(form: Form, body: bytes, reason: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_request(guest_api_pb2.Id, form, body)
    assert str(refused.value) == reason


@given(text=st.text(max_size=3 * ERROR_BYTES))
def test_an_error_is_cut_at_2_kib_and_stays_text(text: str) -> None:
    said = json.loads(write_error(text, Form.JSON, status="UNAVAILABLE"))
    assert said["status"] == "UNAVAILABLE"
    assert len(said["error"].encode()) <= ERROR_BYTES
    assert text.startswith(said["error"])
    assert guest_api_pb2.Id.FromString(write_error(text, Form.PROTOBUF)).id == said["error"]

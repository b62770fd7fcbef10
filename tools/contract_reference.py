"""Writes docs/contract.md from proto/ and its comments, so that the page cannot promise another wire than the one that is spoken.

It reads the descriptor set that the checks of the contract read (tools.contract.image), comments included. What no comment of
one message can say, because it is about all of them, stands here: the three answers, metadata, statuses. Rejected:
protoc-gen-doc (a Go program, and its page says nothing about what an absent value means).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto

from tools import contract
from tools.markdown_text import cell, code, note, table, text

FILE = contract.ROOT / "docs/contract.md"

# Where a descriptor's source paths point to (descriptor.proto): the numbers of its fields.
_SYNTAX, _MESSAGES, _ENUMS, _SERVICES, _FIELDS, _METHODS, _VALUES, _ONEOFS = 12, 4, 5, 6, 2, 2, 2, 8

Comments = Mapping[tuple[int, ...], str]

_INTRODUCTION = (
    "# The contract\n\n"
    + note("reference", "the comments in proto/")
    + """\
What guests, proxy and clients say to each other, in two packages: [`guest_api`](../proto/guest_api/guest_api.proto), which a
guest answers and the proxy passes on, and [`guest_fleet.v1`](../proto/guest_fleet/v1/fleet.proto), which is about all guests of
a host. Both servers also speak `grpc.health.v1` and gRPC reflection, so that `grpcurl` needs no proto file. How it is kept:
[the contract's checks](decisions/contract-kept.md).

## Three answers

Never two: **none** (looked, and nothing is there), **unknown** (and why), **value** (with its age). Absent is never zero: a
measured zero is present, and what could not be read is unset. So ask for presence (`HasField`, `has_…`, a pointer that is not
null) before you read an `optional` field.

The column *left out* says what a reader sees where the writer set nothing. *unset* can be told from zero; for the rest nothing
and the empty value are the same bytes.

Messages may gain fields. A proxy passes on what it does not know, at every depth, so that a newer client reads a newer guest
through an older proxy. In `guest_api` numbers below 1000 belong to dstack, whose guests speak the same interface; numbers from
1000 up are Guestscope's.

## Metadata and deadlines

| request metadata | what it does |
|---|---|
| `cache-control: max-age=N` | on GpuInfo: a sample older than N seconds is not served; the call waits for a new one, within its deadline |
| `traceparent`, `x-request-id` | ties log lines and traces of one request together |
| `authorization: Bearer TOKEN` | who calls, to the proxy only; it never reaches a guest. See [access](access.md) |

The first three are passed on to the guest; all other metadata ends at the proxy. Reading calls of one guest and method that come together
share one call to it, unless their `cache-control` differs: the guest hears of the trace and the id of the first, and each caller gets
its own id back. A caller's deadline, less a small margin, is the
deadline of the call to the guest; without one the proxy's own bound holds: 15 s for GpuInfo, 20 s for the rest. A cancelled call is
cancelled at the guest.

## Statuses

| situation | status |
|---|---|
| the id is empty, `.`, `..`, over 128 bytes, or not of `[A-Za-z0-9._:-]`; a malformed `cache-control` | INVALID_ARGUMENT |
| no such guest, or none that this caller may see | NOT_FOUND |
| a guest that the directory calls stopped; a guest that is not the VM that is pinned | FAILED_PRECONDITION |
| the caller is not known | UNAUTHENTICATED |
| the caller's role lacks the method; Shutdown is switched off in the guest | PERMISSION_DENIED |
| the guest cannot be reached, or its connection was refused or lost; a call that only reads was asked twice then | UNAVAILABLE |
| the guest was too slow | DEADLINE_EXCEEDED |
| a limit of calls is reached (with `google.rpc.RetryInfo`), or a guest's answer is too large | RESOURCE_EXHAUSTED |
| the guest's answer does not decode | INTERNAL, naming the guest |
| the guest answered with a status of its own | the same, its text cut to 1 KiB and freed of control characters |

In the streams of `guest_fleet.v1` a guest that fails is an entry with its status, never the end of the stream.

"""
)


def render() -> str:
    """The whole page."""
    found = descriptor_pb2.FileDescriptorSet.FromString(contract.image())
    ours = set(contract.proto_files())
    return (_INTRODUCTION + "".join("".join(_file(file)) for file in found.file if file.name in ours)).rstrip("\n") + "\n"


def _file(file: FileDescriptorProto) -> Iterator[str]:
    comments = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
    yield f"## {file.package}\n\n{_paragraphs(comments[(_SYNTAX,)])}"
    for number, service in enumerate(file.service):
        place = (_SERVICES, number)
        yield f"### {service.name}\n\nService. {text(comments[place])}\n\n"
        yield table(
            ("rpc", "asks with", "answers with", "reads only", "what it does"),
            (
                (
                    code(method.name),
                    _named(method.input_type, file),
                    ("a stream of " if method.server_streaming else "") + _named(method.output_type, file),
                    "yes" if method.options.idempotency_level == method.options.NO_SIDE_EFFECTS else "no",
                    cell(comments[*place, _METHODS, index]),
                )
                for index, method in enumerate(service.method)
            ),
        )
    for number, message in enumerate(file.message_type):
        yield f"### {message.name}\n\n{text(comments[_MESSAGES, number])}\n\n"
        if message.field:
            yield table(
                ("number", "field", "type", "left out", "what it says"), _fields(file, message, comments, (_MESSAGES, number))
            )
    for number, enum in enumerate(file.enum_type):
        yield f"### {enum.name}\n\n{text(comments[_ENUMS, number])}\n\n"
        yield table(
            ("number", "value", "what it says"),
            (
                (str(value.number), code(value.name), cell(comments[_ENUMS, number, _VALUES, index]))
                for index, value in enumerate(enum.value)
            ),
        )


def _fields(
    file: FileDescriptorProto, message: DescriptorProto, comments: Comments, place: tuple[int, ...]
) -> Iterator[list[str]]:
    entries = {
        f".{file.package}.{message.name}.{nested.name}": nested for nested in message.nested_type if nested.options.map_entry
    }
    enums = {f".{file.package}.{enum.name}": enum for enum in file.enum_type}
    for index, field in enumerate(message.field):
        said = cell(comments[*place, _FIELDS, index])
        one_of = field.HasField("oneof_index") and not field.proto3_optional
        if one_of:
            said = f"One of {code(message.oneof_decl[field.oneof_index].name)}. {said}"
        yield [str(field.number), code(field.name), _type(file, field, entries), _left_out(field, enums, one_of=one_of), said]


def _type(file: FileDescriptorProto, field: FieldDescriptorProto, entries: Mapping[str, DescriptorProto]) -> str:
    if field.type_name in entries:
        key, value = (_type(file, inner, {}) for inner in entries[field.type_name].field)
        return f"map of {key} to {value}"
    named = _named(field.type_name, file) if field.type_name else code(_scalar(field))
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"list of {named}"
    return f"optional {named}" if field.proto3_optional else named


def _left_out(field: FieldDescriptorProto, enums: Mapping[str, EnumDescriptorProto], *, one_of: bool) -> str:
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return "empty"
    if field.proto3_optional or one_of or field.type == FieldDescriptorProto.TYPE_MESSAGE:
        return "unset"
    if field.type == FieldDescriptorProto.TYPE_ENUM:
        return code(enums[field.type_name].value[0].name)
    if field.type in {FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES}:
        return "empty"
    return "false" if field.type == FieldDescriptorProto.TYPE_BOOL else "0"


def _scalar(field: FieldDescriptorProto) -> str:
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _named(full_name: str, file: FileDescriptorProto) -> str:
    """A link to what the name means on this page; a type of somebody else's as it is called."""
    package, _, name = full_name.removeprefix(".").rpartition(".")
    if package in {"guest_api", "guest_fleet.v1"}:
        shown = name if package == file.package else f"{package}.{name}"
        return f"[{shown}](#{name.lower()})"
    return code(f"{package}.{name}")


def _paragraphs(comment: str) -> str:
    return "".join(f"{text(paragraph)}\n\n" for paragraph in comment.split("\n\n") if paragraph.strip())


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")

"""How much a guest's reply may hold, checked on the wire before it is decoded and again after.

A megabyte of two-byte empty sub-messages is half a million entries, and decoding it costs the proxy fifty times the bytes. So a
reply that could hold too many is walked first: entries of sub-message fields are counted without being built. Lists of strings
and long strings are cheap to decode and are checked afterwards. What is malformed is left to the decoder, which refuses it.
Rejected: walking every reply (a usual one, 8 cards in 1.6 KB, cannot break a limit), and a lower limit on the bytes (1024 cards
take 200 KB).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

# More cards than any machine holds, so that a bigger answer is a lie.
GPUS_LIMIT = 1024
# Disks, containers, interfaces, addresses: twice the containers that one engine is known to list in reasonable time.
ENTRIES_LIMIT = 4096
# A certificate chain or a TCB log takes some 10 KB.
STRING_LIMIT_BYTES = 64 * 1024
# Entries of all lists together, and wire fields looked at: lists in lists multiply. It takes about 10 ms to count so many.
TOTAL_LIMIT = 16 * 1024
# Every list entry takes two bytes on the wire, so a reply up to this size cannot break any limit above.
HARMLESS_BYTES = 2 * GPUS_LIMIT


class OverLimitError(Exception):
    """A reply holds more than is allowed; the message says of what, in words for the caller."""


@dataclass(frozen=True, slots=True)
class _Lists:
    """The sub-message fields of one message type by number; a child is None where nothing below it can be a list of messages."""

    limits: Mapping[int, tuple[str, int, _Lists | None]]


def check_wire(wire: bytes, reply: type[Message]) -> None:
    """Raise OverLimitError when `wire`, decoded as `reply`, would hold too many sub-messages; DecodeError for a field with number 0."""
    # A message type without fields is decoded by nobody: protobuf (upb, 7.36) keeps field 0 as unknown, and other clients choke on it.
    if len(wire) > HARMLESS_BYTES or (wire and not reply.DESCRIPTOR.fields):
        _Count().walk(wire, 0, len(wire), _lists(reply.DESCRIPTOR))


def check_decoded(message: Message, wire_bytes: int) -> None:
    """Raise OverLimitError when a list or a string of `message` is over its limit."""
    if wire_bytes > HARMLESS_BYTES:
        _check_fields(message)


def _check_fields(message: Message) -> None:
    for field, value in message.ListFields():
        entries = value if field.is_repeated else (value,)
        if len(entries) > (limit := _limit(field)):
            raise OverLimitError(f"{len(entries)} entries in {field.name}, at most {limit} are allowed")
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for entry in entries:
                _check_fields(entry)
        elif field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
            for entry in entries:
                # UTF-8 takes at most four bytes a character; only a long one is measured.
                if len(entry) > STRING_LIMIT_BYTES // 4 and _size(entry) > STRING_LIMIT_BYTES:
                    raise OverLimitError(f"{_size(entry)} bytes in {field.name}, at most {STRING_LIMIT_BYTES} are allowed")


def _size(text: str | bytes) -> int:
    return len(text.encode() if isinstance(text, str) else text)


def _limit(field: FieldDescriptor) -> int:
    return GPUS_LIMIT if field.name == "gpus" else ENTRIES_LIMIT


@functools.cache
def _lists(descriptor: Descriptor) -> _Lists:
    # Recursive message types would never end here; the contract has none, and a test holds that.
    children = {field: field.message_type for field in descriptor.fields if field.message_type is not None}
    return _Lists(
        {
            field.number: (field.name, _limit(field), _lists(child) if _holds_messages(child) else None)
            for field, child in children.items()
        }
    )


def _holds_messages(descriptor: Descriptor) -> bool:
    return any(field.message_type is not None for field in descriptor.fields)


class _Count:
    """Walks wire bytes and counts; ends silently at the first malformed byte, but for field number 0."""

    def __init__(self) -> None:
        self._seen = 0

    def walk(self, wire: bytes, at: int, end: int, lists: _Lists) -> None:
        counts: dict[int, int] = {}
        groups = 0
        while at < end:
            self._seen += 1
            if self._seen > TOTAL_LIMIT:
                raise OverLimitError(f"more than {TOTAL_LIMIT} entries and fields")
            key, at = _varint(wire, at, end)
            if key >> 3 == 0:
                raise DecodeError("a field with number 0")
            match key & 7:
                case 0:
                    _, at = _varint(wire, at, end)
                case 1:
                    at += 8
                case 2:
                    length, at = _varint(wire, at, end)
                    if not groups and (known := lists.limits.get(key >> 3)):
                        self._entry(counts, key >> 3, known)
                        if known[2]:
                            self.walk(wire, at, min(at + length, end), known[2])
                    at += length
                case 3:
                    groups += 1
                case 4:
                    groups -= 1
                case 5:
                    at += 4
                case _:
                    return

    def _entry(self, counts: dict[int, int], number: int, known: tuple[str, int, _Lists | None]) -> None:
        counts[number] = counts.get(number, 0) + 1
        if counts[number] > known[1]:
            raise OverLimitError(f"more than {known[1]} entries in {known[0]}")


def _varint(wire: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at `at` and where it ends; past `end` where it is cut off or too long, so that the walk ends."""
    value = shift = 0
    while at < end and shift < 70:
        byte = wire[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return value, end

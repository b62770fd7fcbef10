"""The status of a guest that gave no answer, in words: a fleet's reply carries it as data."""

from __future__ import annotations

from google.rpc import code_pb2, status_pb2


def code_name(code: int) -> str:
    """`deadline_exceeded`; a number that no version of gRPC knows is shown as such."""
    try:
        name: str = code_pb2.Code.Name(code)
    except ValueError:
        return f"status_{code}"
    return name.lower()


def in_words(status: status_pb2.Status, guest_id: str) -> str:
    """`unavailable: not reachable`, not escaped; the guest's name, which the proxy puts in front, stands beside it already."""
    reason = status.message.removeprefix(f"guest {guest_id.rpartition('/')[2]}: ")
    code = code_name(status.code).replace("_", " ")
    return f"{code}: {reason}" if reason else code

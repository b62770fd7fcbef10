"""Turns the collector's line of JSON into the contract's message, without loss.

It refuses whatever the collector does not promise: a key more or less, another type, a number out of range, an error next to
devices, a second line. A half-understood sample is worse than a failure with a reason. Rejected: google.protobuf.json_format (camelCase
keys, 64-bit integers as text, absent keys allowed).
"""

from __future__ import annotations

import msgspec

from guest_api import guest_api_pb2
from guest_contract.card_fields import FLAG, ROWS, TEXT_VALUE


class CollectorLineError(ValueError):
    """What was printed is not one line of the promised shape; the message says what is wrong."""


_TYPES = {TEXT_VALUE: str, FLAG: bool}
_Device = msgspec.defstruct(
    "_Device",
    [
        ("index", int),
        ("uuid", str),
        ("pci_bus_id", str),
        *((row.name, _TYPES.get(row.unit, int) | None) for row in ROWS),
        ("errors", list[str]),
    ],
    forbid_unknown_fields=True,
    frozen=True,
)


class _Sample(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    gpus: list[_Device]  # type: ignore[valid-type] # made of the rows above
    error: str
    cc_ready: bool | None
    cc_enabled: bool | None
    cc_devtools: bool | None
    sample_age_ms: int | None


_DECODER = msgspec.json.Decoder(_Sample)


def parse_line(data: bytes) -> guest_api_pb2.GpuInfoResponse:
    """The message that `data`, all that the collector printed, stands for; raises CollectorLineError."""
    if not data:
        raise CollectorLineError("nothing was printed")
    if not data.endswith(b"\n"):
        raise CollectorLineError("the line is cut off")
    if (lines := data.count(b"\n")) != 1:
        raise CollectorLineError(f"{lines} lines were printed, not one")
    try:
        sample = _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise CollectorLineError(str(error)) from error
    except UnicodeDecodeError as error:
        # msgspec before 0.23 lets it through.
        raise CollectorLineError(f"not UTF-8: {error.reason} at byte {error.start}") from error
    return _to_message(sample)


def _to_message(sample: _Sample) -> guest_api_pb2.GpuInfoResponse:
    confidential = (sample.cc_ready, sample.cc_enabled, sample.cc_devtools)
    if sample.error and (sample.gpus or any(fact is not None for fact in confidential)):
        raise CollectorLineError("an error next to devices or confidential-computing facts")
    if sample.sample_age_ms is not None:
        raise CollectorLineError("sample_age_ms is set; only the one who serves a sample knows its age")
    try:
        return guest_api_pb2.GpuInfoResponse(
            gpus=[guest_api_pb2.GpuDevice(**msgspec.structs.asdict(device)) for device in sample.gpus],
            error=sample.error,
            cc_ready=sample.cc_ready,
            cc_enabled=sample.cc_enabled,
            cc_devtools=sample.cc_devtools,
        )
    except (ValueError, OverflowError) as error:
        raise CollectorLineError(str(error)) from error

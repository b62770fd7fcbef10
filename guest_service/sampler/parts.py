"""Puts the parts of a sample together as the contract's message, however far the collector came (collector/parts.py has their form).

It refuses whatever the collector does not promise: another key, another type, a number out of range, a card that was not announced. A
half-understood sample is worse than a failure with a reason; a sample that is cut short is neither, as long as each part is whole.
Rejected: google.protobuf.json_format (camelCase keys, 64-bit integers as text).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from guest_api import guest_api_pb2
from guest_contract.card_fields import BASE, QUESTIONS, QUESTIONS_OF, ROWS
from guest_contract.card_row import FLAG, TEXT_VALUE
from guest_service.collector.parts import MACHINE
from guest_service.collector.sample import CARDS_LIMIT

END = b'{"end":true}\n'
OPENED = b'{"opened":true}\n'
MARK = b"?"


class PartsError(ValueError):
    """What came is not the parts of a sample; the message says what is wrong."""


class _Machine(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    cc_ready: bool | None = None
    cc_enabled: bool | None = None
    cc_devtools: bool | None = None
    cc_environment: int | None = None
    cc_multi_gpu_mode: int | None = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    nvml_version: str | None = None
    groups: list[str] | None = None


class _MigInstance(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    gpu_instance: int
    compute_instance: int | None = None
    uuid: str = ""
    profile: str = ""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None


class _Process(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    pid: int
    used_memory_bytes: int | None = None
    name: str | None = None


_TYPES = {TEXT_VALUE: str, FLAG: bool}
_Values = msgspec.defstruct(
    "_Values",
    [
        ("uuid", str | msgspec.UnsetType, msgspec.UNSET),
        ("pci_bus_id", str | msgspec.UnsetType, msgspec.UNSET),
        ("mig_instances", list[_MigInstance] | msgspec.UnsetType, msgspec.UNSET),
        ("process_list", list[_Process] | msgspec.UnsetType, msgspec.UNSET),
        *((row.name, _TYPES.get(row.unit, int) | None | msgspec.UnsetType, msgspec.UNSET) for row in ROWS),
    ],
    forbid_unknown_fields=True,
    frozen=True,
)


class _Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    cards: int | None = None
    machine: _Machine | None = None
    card: int | None = None
    values: _Values = _Values()  # type: ignore[valid-type] # a structure that is made from the rows
    errors: list[str] = []
    opened: bool = False
    error: str = ""
    end: bool = False


_DECODER = msgspec.json.Decoder(_Part)


@dataclass(frozen=True, slots=True)
class Asking:
    """A call that had no answer: of which card (None: the machine), which question, which function of the driver."""

    card: int | None
    question: str
    function: str

    @property
    def place(self) -> str:
        """What is to be asked last next time: the card, or MACHINE; empty for a question without which nothing can be asked."""
        if self.card is not None:
            return str(self.card)
        return MACHINE if self.question in _Machine.__struct_fields__ else ""

    def __str__(self) -> str:
        return self.function if self.card is None else f"{self.function} of card {self.card}"


@dataclass(slots=True)
class Told:
    """What the collector has written: of each card the values and errors so far, and the call that was not answered, if one was begun."""

    cards: list[dict[str, Any]] = field(default_factory=list)  # Any: a value of the contract
    errors: list[list[str]] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)  # Any: as above
    error: str = ""
    ended: bool = False
    asking: Asking | None = None

    @property
    def anything(self) -> bool:
        """Whether something is known of a card."""
        return any(self.cards) or any(self.errors)

    def reply(self) -> guest_api_pb2.GpuInfoResponse:
        """The contract's message; raises PartsError for a number that it cannot hold."""
        try:
            return guest_api_pb2.GpuInfoResponse(
                gpus=[
                    guest_api_pb2.GpuDevice(index=index, errors=self.errors[index], **values)
                    for index, values in enumerate(self.cards)
                ],
                error=self.error,
                **self.machine,
            )
        except (ValueError, OverflowError) as error:
            raise PartsError(str(error)) from error

    def explain(self, why: str) -> None:
        """Give each base value without an answer an entry, and each group one: `why` for the call, else that it was not asked."""
        asking = self.asking
        for index, values in enumerate(self.cards):
            if any(error.startswith("device:") for error in self.errors[index]):
                continue
            for question in _unanswered(values, BASE):
                if asking is not None and (asking.card, asking.question) == (index, question):
                    self.errors[index].append(f"{question}: {why}")
                else:
                    self.errors[index].append(f"{question}: not asked, because {asking or 'the collector'} did not answer")
            for group in self.machine.get("groups") or ():
                if _unanswered(values, group):
                    self.errors[index].append(f"{group}: not asked, because {asking or 'the collector'} did not answer")
        if asking is not None and asking.card is not None and asking.card < len(self.cards):
            words = f"{asking.question}: {why}"
            if words not in self.errors[asking.card]:
                self.errors[asking.card].append(words)


def _unanswered(values: dict[str, Any], group: str) -> list[str]:
    """The group's questions that have no answer about a card."""
    return [question for question in QUESTIONS_OF.get(group, ()) if QUESTIONS[question][0] not in values]


def read_parts(data: bytes, *, cut_short: bool = False) -> Told:
    """What `data`, all that came, says; raises PartsError. With `cut_short` it may end anywhere; else with the end mark alone."""
    told = Told()
    *lines, rest = data.split(b"\n")
    mark = b""
    for line in lines:
        if line.startswith(MARK):
            mark = line
        elif told.ended:
            raise PartsError("more came after the end")
        else:
            mark = b""
            _take(told, line)
    if mark:
        told.asking = _asking(mark)
    if not told.ended and not cut_short:
        raise PartsError("nothing was told" if not data else "the end is missing")
    if rest and not cut_short:
        raise PartsError("the last line is cut off")
    return told


def _take(told: Told, line: bytes) -> None:
    try:
        part = _DECODER.decode(line)
    except msgspec.MsgspecError as error:
        raise PartsError(str(error)) from error
    except UnicodeDecodeError as error:
        # msgspec before 0.23 lets it through.
        raise PartsError(f"not UTF-8: {error.reason} at byte {error.start}") from error
    _expect(not told.error or part.end, "more came after the error")
    if part.cards is not None:
        _expect(told.cards == [] and 0 <= part.cards <= CARDS_LIMIT, f"{part.cards} cards")
        told.cards = [{} for _ in range(part.cards)]
        told.errors = [[] for _ in range(part.cards)]
    elif part.card is not None:
        _expect(0 <= part.card < len(told.cards), f"a part of card {part.card} of {len(told.cards)}")
        told.cards[part.card].update(msgspec.to_builtins(part.values))
        told.errors[part.card].extend(part.errors)
    elif part.machine is not None:
        told.machine.update(msgspec.to_builtins(part.machine))
    elif part.error:
        _expect(not told.cards and not told.machine, "an error next to cards")
        told.error = part.error
    elif part.end:
        told.ended = True
    else:
        _expect(part.opened, "an empty part")


def _expect(holds: bool, wrong: str) -> None:
    if not holds:
        raise PartsError(wrong)


def _asking(mark: bytes) -> Asking:
    place, question, function, *_ = *mark[1:].decode("ascii", "replace").split(" ", 2), "", ""
    return Asking(int(place) if place.isdecimal() else None, question, function)

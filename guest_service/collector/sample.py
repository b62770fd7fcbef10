"""Takes one sample: asks a driver (NVML or a simulated one) for every value of the contract, card by card.

Per value: any failure leaves it None with one entry in the card's errors; a group's value that a card or driver does not have is None
without one, because that is normal. Per card: no handle, no further question. Only what makes everything unknown (no library, no init, no
count) becomes `error`. Base values are asked first, for all cards, then the groups card by card. It reads and composes; which questions
there are, which fields answer them and which numbers are possible is written in guest_contract.card_fields. Each answer goes out as it
comes (parts.py), and what did not answer last time is asked last, so that a card that hangs takes nothing from the others.
"""

from __future__ import annotations

from guest_contract.card_fields import BASE, FIELDS, LISTS, POWER_LIMIT_MW, QUESTIONS, QUESTIONS_OF
from guest_contract.card_judging import judge
from guest_service.collector.failure import (
    ERROR_LIMIT_CHARACTERS,
    FUNCTION_NOT_FOUND,
    NOT_APPLICABLE,
    NOT_SUPPORTED,
    UNWRITTEN,
    NvmlFailure,
    SampleFailure,
    bounded,
    flag,
)
from guest_service.collector.parts import MACHINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol, TypeVar

    T = TypeVar("T")
    Value = dict[str, Any]  # Any: a tree for JSON; the shape is that of a part

    class Driver(Protocol):
        """What a sample asks; start raises SampleFailure, everything else NvmlFailure. A handle is opaque."""

        def start(self) -> None: ...  # noqa: D102 (nvml.Nvml documents each of these)
        def device_count(self) -> int: ...  # noqa: D102
        def device(self, index: int) -> Any: ...  # noqa: D102
        def uuid(self, device: Any) -> str: ...  # noqa: D102
        def pci_bus_id(self, device: Any) -> str: ...  # noqa: D102
        def ask(self, question: str, device: Any) -> tuple[Any, ...]: ...  # noqa: D102
        def ask_list(self, question: str, device: Any) -> tuple[list[Value], str]: ...  # noqa: D102
        def power_limit(self, device: Any) -> int: ...  # noqa: D102
        def cc_settings(self) -> tuple[int, int, int, int | None]: ...  # noqa: D102
        def driver_version(self) -> str: ...  # noqa: D102
        def cuda_driver_version(self) -> str: ...  # noqa: D102
        def nvml_version(self) -> str: ...  # noqa: D102
        def cc_ready(self) -> bool: ...  # noqa: D102

    class Sink(Protocol):
        """Where a sample goes; parts.Parts documents each of these."""

        def at(self, card: int | None, question: str) -> None: ...  # noqa: D102
        def add(self, part: Value) -> None: ...  # noqa: D102


# More cards than any machine has; a driver that reports more is not believed.
CARDS_LIMIT = 1024


def take_sample(
    driver: Driver, sink: Sink, complain: Callable[[str], object], last: Sequence[str] = (), groups: Sequence[str] = ()
) -> None:
    """One sample into `sink`; what has no place in it goes to `complain`, a line each.

    `groups` are asked beside the base values. `last` are the indices of cards, or MACHINE for what holds for all, that are
    asked after all else.
    """
    try:
        driver.start()
        count = _count(driver, sink)
    except SampleFailure as failure:
        sink.add({"error": bounded(str(failure), ERROR_LIMIT_CHARACTERS)})
        return
    sink.add({"cards": count})
    if not count:  # without a card the answer is "none", and none is all there is to say
        return
    if groups:
        sink.add({"machine": {"groups": list(groups)}})
    if MACHINE not in last:
        _machine(driver, sink, complain)
    cards = [Card(driver, sink, index) for index in range(count)]
    begin = [card for card in cards if str(card.index) not in last]
    for card in begin:
        card.open()
    sink.add({"opened": True})
    for card in begin:
        card.ask(BASE)
    _ask_groups(begin, groups)
    if MACHINE in last:
        _machine(driver, sink, complain)
    late = [cards[int(index)] for index in last if index != MACHINE and int(index) < count]
    for card in late:
        card.open()
        card.ask(BASE)
    _ask_groups(late, groups)


def _ask_groups(cards: Sequence[Card], groups: Sequence[str]) -> None:
    for card in cards:
        for group in groups:
            card.ask(group)


def _count(driver: Driver, sink: Sink) -> int:
    sink.at(None, "count")
    try:
        count = driver.device_count()
    except NvmlFailure as failure:
        raise SampleFailure(f"NVML cannot count the GPUs: {failure}") from failure
    if count > CARDS_LIMIT:
        raise SampleFailure(f"NVML counts {count} GPUs, more than {CARDS_LIMIT}: not believed")
    return count


def _machine(driver: Driver, sink: Sink, complain: Callable[[str], object]) -> None:
    """What holds for all cards."""
    sink.at(None, "cc_enabled")
    sink.add({"machine": _cc_modes(driver, complain)})
    sink.at(None, "cc_ready")
    sink.add({"machine": {"cc_ready": _system_wide("cc_ready", driver.cc_ready, complain)}})
    versions = {
        "driver_version": driver.driver_version,
        "cuda_driver_version": driver.cuda_driver_version,
        "nvml_version": driver.nvml_version,
    }
    for name, ask in versions.items():
        sink.at(None, name)
        sink.add({"machine": {name: _system_wide(name, ask, complain)}})


def _cc_modes(driver: Driver, complain: Callable[[str], object]) -> Value:
    """What is known of confidential computing: one question, and one complaint when it fails."""
    modes: Value = dict.fromkeys(("cc_enabled", "cc_devtools", "cc_environment", "cc_multi_gpu_mode"))
    settings = _system_wide("cc_enabled", driver.cc_settings, complain)
    if settings is None:
        return modes
    environment, feature, devtools, multi_gpu = settings
    modes["cc_enabled"] = _system_wide("cc_enabled", lambda: flag(feature), complain)
    if modes["cc_enabled"] is not None:
        modes["cc_devtools"] = _system_wide("cc_devtools", lambda: flag(devtools), complain)
        modes["cc_environment"] = None if environment == UNWRITTEN else environment
        modes["cc_multi_gpu_mode"] = None if multi_gpu == UNWRITTEN else multi_gpu
    return modes


def _system_wide(name: str, ask: Callable[[], T], complain: Callable[[str], object]) -> T | None:
    """The answer, or None for unknown; a driver without this query is no news, any other failure is a line."""
    try:
        return ask()
    except NvmlFailure as failure:
        if failure.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
            complain(f"{name}: {failure}")
        return None


class Card:
    """One card while it is asked: open(), then ask() for each group. A card that cannot be opened is asked nothing more."""

    def __init__(self, driver: Driver, sink: Sink, index: int) -> None:
        self.index = index
        self._driver = driver
        self._sink = sink
        self._device: Any = None  # Any: the driver's handle

    def open(self) -> None:
        """Get the card's handle, and what it is known by."""
        self._device, reason = self._asked("device", lambda: self._driver.device(self.index))
        self._tell("device", {}, reason)
        if self._device is not None:
            self._read_text("uuid", self._driver.uuid)
            self._read_text("pci_bus_id", self._driver.pci_bus_id)

    def ask(self, group: str) -> None:
        """The group's questions, in the table's order."""
        if self._device is not None:
            for question in QUESTIONS_OF.get(group, ()):
                self._read(question)
            if group in LISTS:
                self._read_list(LISTS[group])

    def _read(self, question: str) -> None:
        """Ask one question, and tell what stands of its answer."""
        fields = QUESTIONS[question]
        answer, reason = self._asked(question, lambda: self._driver.ask(question, self._device))
        if answer is None:
            self._tell(question, dict.fromkeys(fields), reason)
            return
        given: Value = dict(zip(fields, answer, strict=True))
        if question == "power":
            given["power_limit_mw"] = self._limit()
        stands, reasons = judge(given)
        self._tell(question, {field: stands[field] for field in fields}, reasons.get(question, ""))

    def _read_list(self, question: str) -> None:
        """Ask for the repeated messages of a group; entries that could be read stand beside the reason why others could not."""
        answer, reason = self._asked(question, lambda: self._driver.ask_list(question, self._device))
        entries, failure = answer or ([], "")
        self._tell(question, {question: entries}, failure or reason)

    def _read_text(self, question: str, ask: Callable[[Any], str]) -> None:
        text, reason = self._asked(question, lambda: ask(self._device))
        self._tell(question, {question: text or ""}, "the driver returned an empty text" if text == "" else reason)

    def _asked(self, question: str, ask: Callable[[], T]) -> tuple[T | None, str]:
        """The answer, or None and why."""
        self._sink.at(self.index, question)
        try:
            return ask(), ""
        except NvmlFailure as failure:
            return None, "" if _is_normal(question, failure) else str(failure)

    def _tell(self, question: str, values: Value, reason: str) -> None:
        part: Value = {"card": self.index, "values": values}
        if reason:
            part["errors"] = [bounded(f"{question}: {reason}")]
        self._sink.add(part)

    def _limit(self) -> int | None:
        """The enforced power limit if it is one, or None: it only sharpens the judgement and has no place in the contract."""
        try:
            limit = self._driver.power_limit(self._device)
        except NvmlFailure:
            return None
        return limit if 0 < limit <= POWER_LIMIT_MW else None


def _is_normal(question: str, failure: NvmlFailure) -> bool:
    """Whether a group's question failed because the card or the driver does not have the value."""
    of_group = question in LISTS.values() or (question in QUESTIONS and FIELDS[QUESTIONS[question][0]].group != BASE)
    return of_group and failure.code in NOT_APPLICABLE
